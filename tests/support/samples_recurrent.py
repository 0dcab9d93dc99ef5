"""Samples of recurrent layers and cells; the expected results come from torch's functions and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gt.errors import GtError
from gt.ops import OPS
from tests.support.samples import Sample, T, V, type_of

#: torch's function -> (gates, states)
MODES = {"lstm": (4, 2), "gru": (3, 1), "rnn_tanh": (1, 1), "rnn_relu": (1, 1)}
#: dtypes that are computed alike in all engines
DTYPES = ("float64", "float32")
INPUT, HIDDEN = 3, 4


def recurrent() -> list[Sample]:
    return [s for mode in MODES for s in (*_layers(mode), *_cells(mode))]


def _weights(mode: str, out: int, bias: bool, dtype: str) -> list[T]:
    rows = MODES[mode][0] * HIDDEN
    weights = [T((rows, INPUT), dtype), T((rows, out), dtype), *[T((rows,), dtype)] * 2 * bias]
    return [*weights, T((out, HIDDEN), dtype)] if out != HIDDEN else weights


def _layers(mode: str) -> list[Sample]:
    samples = []
    for directions, bias, out, dtype in ((1, True, 4, "float64"), (2, True, 4, "float32"), (1, False, 4, "float32")):
        samples += _layer(mode, directions, bias, out, dtype)
    if mode == "lstm":
        samples += _layer(mode, 2, True, 2, "float64") + _layer(mode, 1, False, 2, "float64")
    return samples


def _layer(mode: str, directions: int, bias: bool, out: int, dtype: str) -> list[Sample]:
    weights = _weights(mode, out, bias, dtype) * directions
    states = [T((directions, 3, n), dtype) for n in (out, HIDDEN)[: MODES[mode][1]]]
    samples = []
    for x, sizes in ((T((2, 3, INPUT), dtype), []), (T((6, INPUT), dtype), [V([3, 2, 1])])):
        y = T((*x.shape[:-1], directions * out), dtype)
        operands = [x, *states, *weights, *sizes]
        train = {"train": directions == 1}
        samples.append(Sample(mode, tuple(operands), train, _like(mode, directions, bias, bool(sizes))))
        every = (True,) * (1 + len(states) + len(weights))
        for given, mask in (
            ((True,) * (1 + len(states)), every),
            ((True,) + (False,) * len(states), (True, *[False] * (len(every) - 1))),
        ):
            samples.append(_backward(mode, samples[-1] if given[-1] else samples[-2], [y, *states], y, given, mask))
    return samples


def _like(mode: str, directions: int, bias: bool, packed: bool) -> Callable[..., Any]:
    count, function = MODES[mode][1], getattr(torch, mode)

    def call(x: Any, *operands: Any, train: bool = False) -> Any:
        states, weights = operands[:count], list(operands[count:])
        hx = states if count == 2 else states[0]
        if packed:
            return function(x, weights.pop(), hx, weights, bias, 1, 0.0, False, directions == 2)
        return function(x, hx, weights, bias, 1, 0.0, False, directions == 2, False)

    return call


def _backward(mode: str, forward: Sample, results: list[T], y: T, given: Any, mask: Any) -> Sample:
    """``results``: the types of the results that have gradients, ``y`` that of the one that is kept."""
    assert forward.like is not None
    grads = [t for t, there in zip(results, given, strict=True) if there]
    x, *rest = forward.operands

    def operands_of(operands: Any) -> list[Any]:
        values = list(operands[len(grads) :])
        del values[1]
        return values

    def back(*operands: Any) -> Any:
        values = operands_of(operands)
        leaves = [v.detach().requires_grad_() if wanted else v for v, wanted in zip(values, mask, strict=False)]
        leaves += values[len(mask) :]
        with torch.enable_grad():
            outputs = forward.like(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        used = [o for o, there in zip(outputs, given, strict=False) if there]  # what is kept has no gradient
        wanted = [v for v, needed in zip(leaves, mask, strict=False) if needed]
        return torch.autograd.grad(used, wanted, operands[: len(grads)])

    def fit(operands: list[Any]) -> list[Any]:
        values = operands_of(operands)
        try:
            OPS[mode].result_types(tuple(map(type_of, values)), tuple(forward.attrs.items()))
        except GtError:  # torch ends the process at some of these
            return operands
        result = forward.like(*values)
        kept = -1 if mode.endswith("_cell") else 0
        operands[len(grads) + 1] = result[kept] if isinstance(result, tuple) else result
        return operands

    attrs = {"given": given, "mask": mask}
    return Sample(f"{mode}_backward", (*grads, x, y, *rest), attrs, back, fit=fit)


def _lstm_gates(x: Any, h: Any, *weights: Any) -> Any:
    i, f, g, o = (_product(x, weights, 0) + _product(h, weights, 1)).chunk(4, 1)
    return torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1)


def _gru_gates(x: Any, h: Any, *weights: Any) -> Any:
    (xr, xz, xn), (hr, hz, hn) = _product(x, weights, 0).chunk(3, 1), _product(h, weights, 1).chunk(3, 1)
    r = (xr + hr).sigmoid()
    return torch.cat([r, (xz + hz).sigmoid(), (xn + r * hn).tanh(), hn], 1)


def _product(x: Any, weights: Any, which: int) -> Any:
    return torch.nn.functional.linear(x, weights[which], weights[2 + which] if len(weights) == 4 else None)


#: what a cell returns for its backward op
KEPT: dict[str, Callable[..., Any]] = {"lstm": _lstm_gates, "gru": _gru_gates}


def _cells(mode: str) -> list[Sample]:
    samples = []
    count, name = MODES[mode][1], f"{mode}_cell"
    function = getattr(torch, name)

    def call(x: Any, *operands: Any, train: bool = False) -> Any:
        states, weights = operands[:count], operands[count:]
        results = function(x, states if count == 2 else states[0], *weights)
        kept = KEPT[mode](x, states[0], *weights).detach() if mode in KEPT else None
        return results if kept is None else (*results, kept) if count == 2 else (results, kept)

    for bias, dtype in ((True, "float64"), (False, "float32"), (True, "float32")):
        states = [T((3, HIDDEN), dtype)] * count
        weights = _weights(mode, HIDDEN, bias, dtype)
        forward = Sample(name, (T((3, INPUT), dtype), *states, *weights), {}, call)
        every = (True,) * (1 + count + len(weights))
        kept = T((3, 4 * HIDDEN), dtype) if mode in KEPT else states[0]
        samples += [forward, _backward(name, forward, states, kept, (True,) * count, every)]
        if count == 2:
            samples.append(_backward(name, forward, states, kept, (False, True), every))
            samples.append(_backward(name, forward, states, kept, (True, False), every))
    return samples
