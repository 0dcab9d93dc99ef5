"""Cells on a GPU: torch's fused kernels do in one kernel what the operations of `recurrent_cells` do in ten or twenty.

They take and give the same values. Of an LSTM torch keeps the gates too; of a GRU also the state, which a program has.
"""

from __future__ import annotations

from typing import Any

from gt.ops.nn.recurrent_steps import Grads, Weights, parts


def lstm(torch: Any, x: Any, states: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
    h, c = states
    products = torch.mm(x, weights.ih.t()), torch.mm(h, weights.hh.t())
    results: tuple[Any, ...] = torch.ops.aten._thnn_fused_lstm_cell(*products, c, weights.bias_ih, weights.bias_hh)
    return results


def lstm_back(torch: Any, gates: Any, states: tuple[Any, ...], weights: Weights, dh: Any, dc: Any) -> Grads:
    h, c = states
    i, f, g, _ = parts(gates, 4)
    after = torch.addcmul(f * c, i, g)
    fused = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
    d, of_c, _ = fused(_dense(dh), _dense(dc), c.contiguous(), after, gates.contiguous(), False)
    return Grads(d, d, (d @ weights.hh, of_c), h)


def gru(torch: Any, x: Any, states: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
    (h,) = states
    products = torch.mm(x, weights.ih.t()), torch.mm(h, weights.hh.t())
    result, kept = torch.ops.aten._thnn_fused_gru_cell(*products, h, weights.bias_ih, weights.bias_hh)
    r, z, n, _, state_n = parts(kept, 5)
    return result, torch.cat((r, z, n, state_n), 1)


def gru_back(torch: Any, kept: Any, states: tuple[Any, ...], weights: Weights, dh: Any) -> Grads:
    (h,) = states
    r, z, n, state_n = parts(kept, 4)
    fused = torch.ops.aten._thnn_fused_gru_cell_backward
    gates_ih, gates_hh, of_h, *_ = fused(_dense(dh), torch.cat((r, z, n, h, state_n), 1), False)
    return Grads(gates_ih, gates_hh, (torch.addmm(of_h, gates_hh, weights.hh),), h)


def _dense(x: Any) -> Any:
    return None if x is None else x.contiguous()
