"""Cells of recurrent networks. torch runs a layer on the device step by step, each step with one of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions import pointwise
from gt.functions.joining import cat
from gt.torch_device.gradients import present


def _total(*gates: Tensor | None) -> Any:
    first, *rest = present(*gates)
    for x in rest:
        first = first + x
    return first


def _lstm_cell(inputs: Tensor, hidden: Tensor, cx: Tensor, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    """(new hidden state, new cell state, what the gradient needs: the gates)"""
    i, f, g, o = _total(inputs, hidden, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = pointwise.sigmoid(i), pointwise.sigmoid(f), pointwise.tanh(g), pointwise.sigmoid(o)
    cy = f * cx + i * g
    return o * pointwise.tanh(cy), cy, cat([i, f, g, o], 1)


def _lstm_cell_backward(
    grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Any, ...]:
    i, f, g, o = workspace.chunk(4, 1)
    squashed = pointwise.tanh(cy)
    grad = None if grad_hy is None else grad_hy * o * (1 - squashed * squashed)
    grad_c = _total(grad, grad_cy)
    grad_o = o * 0 if grad_hy is None else grad_hy * squashed * o * (1 - o)
    grad_i, grad_f = grad_c * g * i * (1 - i), grad_c * cx * f * (1 - f)
    gates = cat([grad_i, grad_f, grad_c * i * (1 - g * g), grad_o], 1)
    return gates, grad_c * f, gates.sum(0) if has_bias else None


def _gru_cell(inputs: Tensor, hidden: Tensor, hx: Tensor, input_bias: Any = None, hidden_bias: Any = None) -> Any:
    """(new hidden state, what the gradient needs)"""
    input_r, input_z, input_n = _total(inputs, input_bias).chunk(3, 1)
    hidden_r, hidden_z, hidden_n = _total(hidden, hidden_bias).chunk(3, 1)
    r, z = pointwise.sigmoid(input_r + hidden_r), pointwise.sigmoid(input_z + hidden_z)
    n = pointwise.tanh(input_n + r * hidden_n)
    return n + z * (hx - n), cat([r, z, n, hx, hidden_n], 1)


def _gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    r, z, n, hx, hidden_n = workspace.chunk(5, 1)
    grad_n, grad_z = grad * (1 - z) * (1 - n * n), grad * (hx - n) * z * (1 - z)
    grad_r = grad_n * hidden_n * r * (1 - r)
    inputs, hidden = cat([grad_r, grad_z, grad_n], 1), cat([grad_r, grad_z, grad_n * r], 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return inputs, hidden, grad * z, *biases


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
