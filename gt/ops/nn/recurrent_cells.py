"""Cells: one step of a recurrent layer, in operations that numpy and torch have in common.

The forward pass also returns what the backward pass needs: the gates after their activations (of a GRU also the state's
part of the gate n, before r multiplies it). A cell without gates needs its output only.
"""

from __future__ import annotations

from typing import Any

from gt.ops.nn.recurrent_steps import Grads, Weights, parts, product, sigmoid


def lstm(xp: Any, x: Any, states: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
    gates = product(x, weights.ih, weights.bias_ih)
    gates += product(states[0], weights.hh, weights.bias_hh)
    i, f, g, o = parts(gates, 4)
    _sigmoid_in_place(xp, gates[:, : 2 * o.shape[1]])
    xp.tanh(g, out=g)
    _sigmoid_in_place(xp, o)
    c = f * states[1]
    c += i * g
    h = xp.tanh(c)
    h *= o
    return h, c, gates


def lstm_back(xp: Any, gates: Any, states: tuple[Any, ...], weights: Weights, dh: Any, dc: Any) -> Grads:
    h, c = states
    i, f, g, o = parts(gates, 4)
    d = xp.empty_like(gates)
    di, df, dg, do = parts(d, 4)
    if dh is None:
        do[...] = 0
    else:
        tanh = f * c
        tanh += i * g
        xp.tanh(tanh, out=tanh)
        xp.multiply(dh, tanh, out=do)
        tanh *= tanh
        through = dh * o
        through -= through * tanh
        dc = through if dc is None else through + dc
    xp.multiply(dc, g, out=di)
    xp.multiply(dc, c, out=df)
    xp.multiply(dc, i, out=dg)
    squares = gates * gates
    slopes = gates - squares
    parts(slopes, 4)[2][...] = 1 - parts(squares, 4)[2]
    d *= slopes
    return Grads(d, d, (d @ weights.hh, dc * f), h)


def gru(xp: Any, x: Any, states: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
    (h,) = states
    inputs, hidden = product(x, weights.ih, weights.bias_ih), product(h, weights.hh, weights.bias_hh)
    both = 2 * h.shape[1]
    kept = xp.empty((h.shape[0], 2 * both), **_like(h))
    r, z, n, state_n = parts(kept, 4)
    xp.add(inputs[:, :both], hidden[:, :both], out=kept[:, :both])
    _sigmoid_in_place(xp, kept[:, :both])
    state_n[...] = hidden[:, both:]
    xp.multiply(r, state_n, out=n)
    n += inputs[:, both:]
    xp.tanh(n, out=n)
    result = h - n
    result *= z
    result += n
    return result, kept


def gru_back(xp: Any, kept: Any, states: tuple[Any, ...], weights: Weights, dh: Any) -> Grads:
    (h,) = states
    r, z, n, state_n = parts(kept, 4)
    gates_ih = xp.empty((h.shape[0], 3 * h.shape[1]), **_like(h))
    dr, dz, dn = parts(gates_ih, 3)
    keep = dh * z
    xp.multiply(dh - keep, 1 - n * n, out=dn)
    xp.multiply(dn * state_n, r - r * r, out=dr)
    xp.multiply(keep - keep * z, h - n, out=dz)
    gates_hh = gates_ih + 0
    xp.multiply(dn, r, out=parts(gates_hh, 3)[2])
    keep += gates_hh @ weights.hh
    return Grads(gates_ih, gates_hh, (keep,), h)


def tanh(xp: Any, x: Any, states: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
    total = _plain(x, states, weights)
    return (xp.tanh(total, out=total),)


def relu(xp: Any, x: Any, states: tuple[Any, ...], weights: Weights) -> tuple[Any, ...]:
    total = _plain(x, states, weights)
    return (xp.relu(total) if hasattr(xp, "relu") else xp.maximum(total, 0),)


def tanh_back(xp: Any, y: Any, states: tuple[Any, ...], weights: Weights, dh: Any) -> Grads:
    return _plain_back(dh - dh * (y * y), states, weights)


def relu_back(xp: Any, y: Any, states: tuple[Any, ...], weights: Weights, dh: Any) -> Grads:
    return _plain_back(dh * (y > 0), states, weights)


def _plain(x: Any, states: tuple[Any, ...], weights: Weights) -> Any:
    total = product(x, weights.ih, weights.bias_ih)
    total += product(states[0], weights.hh, weights.bias_hh)
    return total


def _plain_back(d: Any, states: tuple[Any, ...], weights: Weights) -> Grads:
    return Grads(d, d, (d @ weights.hh,), states[0])


def _sigmoid_in_place(xp: Any, x: Any) -> None:
    if hasattr(xp, "sigmoid"):
        xp.sigmoid(x, out=x)
    else:
        x[...] = sigmoid(xp, x)


def _like(x: Any) -> dict[str, Any]:
    """The dtype of new memory, and in torch its device."""
    return {"dtype": x.dtype} | ({"device": x.device} if hasattr(x, "is_cuda") else {})
