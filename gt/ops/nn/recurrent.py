"""Recurrent layers: LSTM, GRU, and RNN with tanh or relu. One op is one layer, in one direction or both.

The operands are the input, the states before the first step (h, and c of an LSTM), and for each direction the weights
in torch's order. An input of three dims is (steps, batch, features). One of two dims is packed: the rows of sequences
of different lengths; the last operand then says how many sequences have each step (`gt.nn.utils.rnn`).

A cell is one step of a layer, and an op of its own. Its states are (batch, features). Where it has gates, these are a
result too, because its backward op needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import check_mask
from gt.ops.gradient_rules import chosen, differentiated
from gt.ops.infer import require_bools, shown
from gt.ops.nn import recurrent_kernels as kernels
from gt.ops.nn import recurrent_steps as steps
from gt.ops.nn.recurrent_kernels import MODES, Call, Mask, Mode, backward_operands
from gt.ops.nn.recurrent_steps import Direction, Weights
from gt.ops.op import Types, op
from gt.ops.split import Split
from gt.types import Shape, TensorType, int64

# -- types ---------------------------------------------------------------------------------


def _check_dtypes(x: TensorType, *others: TensorType) -> None:
    if x.dtype.kind != "f":
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")
    for t in others:
        if t.dtype is not x.dtype:
            raise DTypeError(f"dtypes differ: {x.dtype.name} and {t.dtype.name}")


def _check_weights(mode: Mode, weights: Weights, width: int, out: int, hidden: int) -> None:
    rows = mode.gates * hidden
    expected: Sequence[Shape] = ((rows, width), (rows, out), (rows,), (rows,), (out, hidden))
    names = ("the input's weight", "the state's weight", "a bias", "a bias", "the projection")
    for name, weight, shape in zip(names, weights, expected, strict=True):
        if weight is not None and weight.shape != shape:
            raise ShapeError(f"{name} is {shown(shape)}, not {shown(weight.shape)}")
    if weights.hr is None and out != hidden:
        raise ShapeError(f"states of {out} and {hidden} features need a projection")
    if not width or not out or not hidden:
        raise ShapeError("inputs and states have at least one feature")


def _layer_call(mode: Mode, x: TensorType, operands: Sequence[TensorType]) -> Call:
    """The operands of a layer, checked."""
    states = operands[: mode.states]
    if x.ndim not in (2, 3) or any(s.ndim != 3 or s.shape[:2] != states[0].shape[:2] for s in states):
        raise ShapeError("needs an input of 2 or 3 dims, and states of (directions, batch, features)")
    directions, batch, out = states[0].shape
    weights = len(operands) - mode.states - (x.ndim == 2)
    if directions not in (1, 2) or weights % directions or weights // directions not in _weight_counts(mode):
        raise ShapeError(f"{weights} weights do not fit {directions} direction(s)")
    call = Call.of(mode, x, operands)
    _check_dtypes(x, *states, *call.flat_weights)
    for weights_of_one in call.weights:
        _check_weights(mode, weights_of_one, x.shape[-1], out, states[-1].shape[-1])
    if call.batch_sizes is None:
        if not x.shape[0]:
            raise ShapeError("Expected sequence length to be larger than 0 in RNN")
        if x.shape[1] != batch:
            raise ShapeError(f"the batch has {x.shape[1]} sequences, and the state {batch}")
    elif call.batch_sizes.dtype is not int64 or call.batch_sizes.ndim != 1 or not call.batch_sizes.numel:
        raise ShapeError("the sizes of a packed batch are one int64 for each step")
    return call


def _weight_counts(mode: Mode) -> tuple[int, ...]:
    return (2, 3, 4, 5) if mode.states == 2 else (2, 4)


def _layer_results(mode: Mode, x: TensorType, *operands: TensorType) -> Types:
    states = _layer_call(mode, x, operands).states
    directions, _, out = states[0].shape
    return TensorType((*x.shape[:-1], directions * out), x.dtype), *states


def _train_results(mode: Mode, *types: TensorType, train: bool) -> Types:
    require_bools(train=train)
    return _layer_results(mode, *types)


def _cell_results(mode: Mode, x: TensorType, *operands: TensorType) -> Types:
    states, weights = operands[: mode.states], operands[mode.states :]
    if len(weights) not in (2, 4) or x.ndim != 2:
        raise ShapeError("needs an input of (batch, features), and two weights and two biases or none")
    _check_dtypes(x, *operands)
    if any(s.ndim != 2 or s.shape[0] != x.shape[0] or s is not states[0] for s in states):
        raise ShapeError(f"states are ({x.shape[0]}, features), not {', '.join(shown(s.shape) for s in states)}")
    hidden = states[0].shape[1]
    _check_weights(mode, Weights(*weights), x.shape[1], hidden, hidden)
    kept = (TensorType((x.shape[0], mode.kept * hidden), x.dtype),) if mode.kept else ()
    return *states, *kept


def _gradients(mode: Mode, results: Callable[..., Types], *operands: TensorType, given: Mask, mask: Mask) -> Types:
    """The types of the requested gradients. The operands: gradients, the input, what the
    forward pass kept, weights and states."""
    grads, forward, kept = backward_operands(operands, given)
    expected = results(mode, *forward)
    is_layer = results is _layer_results
    expected_kept = expected[0 if is_layer else -1]
    expected = expected if is_layer else expected[: mode.states]
    check_mask(given, len(expected))
    packed = is_layer and forward[0].ndim == 2
    check_mask(mask, len(forward) - packed)
    if kept is not expected_kept or grads != tuple(t for t, there in zip(expected, given, strict=True) if there):
        raise ShapeError(f"the results are {', '.join(map(str, expected))}; their gradients are of the same types")
    return tuple(t for t, wanted in zip(forward, mask, strict=False) if wanted)


# -- splits --------------------------------------------------------------------------------


def _dims(operands: Sequence[TensorType], rows: str, count: int) -> list[str]:
    """Batches; the first ``count`` operands have them, and weights stay whole."""
    return [rows if i < count else "." * t.ndim for i, t in enumerate(operands)]


def _splitting(mode: Mode, rows: str, x: TensorType, *operands: TensorType) -> Split | None:
    if x.ndim != len(rows):  # packed: the batches of a step are together
        return None
    left = _dims((x, *operands), rows, 1 + mode.states)
    results = mode.states + (len(rows) == 3 or mode.kept > 0)
    return Split(f"{','.join(left)}->{','.join([rows] * results)}")


def _splitting_back(mode: Mode, rows: str, *operands: TensorType, given: Mask, mask: Mask) -> Split | None:
    grads, forward, _ = backward_operands(operands, given)
    if forward[0].ndim != len(rows):
        return None
    dims = _dims(forward, rows, 1 + mode.states)
    right = [names for names, wanted in zip(dims, mask, strict=True) if wanted]
    left = [rows] * len(grads) + [dims[0], rows, *dims[1:]]
    return Split(f"{','.join(left)}->{','.join(right)}", linear=(tuple(range(len(grads))),))


def _flops(mode: Mode, x: TensorType, *operands: TensorType) -> int:
    weights = [w for w in operands[mode.states :] if w.ndim == 2]
    return 2 * (x.numel // max(x.shape[-1], 1)) * sum(w.numel for w in weights)


def _flops_back(mode: Mode, *operands: TensorType, given: Mask, mask: Mask) -> int:
    return 3 * _flops(mode, *backward_operands(operands, given)[1])


# -- gradients -----------------------------------------------------------------------------


def _vjp(name: str, results: int, kept: int) -> Callable[..., Any]:
    """The gradient of an op. ``results``: how many have gradients; ``kept``: the number of the one that it needs."""
    backward = f"{name}_backward"

    def vjp(needs: Mask, g: Any, y: Any, x: Any, rest: Sequence[Any]) -> list[Any]:
        grads, y = (g[:results], y[kept]) if isinstance(g, tuple) else ((g,), y)
        given = tuple([d is not None for d in grads])
        # the sizes of a packed batch have no gradient
        mask = needs if rest[-1].dtype.is_floating_point else needs[:-1]
        result = chosen(backward, mask, *[d for d in grads if d is not None], x, y, *rest, given=given)
        return result + [None] * (len(needs) - len(mask))

    # the name of the parameter says which result is kept: see `gt.client.tensor.tape`
    return (
        lambda needs, g, y0, x, *rest, train=True: vjp(needs, g, y0, x, rest),
        lambda needs, g, y1, x, *rest: vjp(needs, g, y1, x, rest),
        lambda needs, g, y2, x, *rest: vjp(needs, g, y2, x, rest),
    )[kept]


class _TensorFunctions:
    """What `steps.run` takes from an array library, for tensors of the client."""

    tanh = staticmethod(lambda x: x.tanh())
    sigmoid = staticmethod(lambda x: x.sigmoid())
    maximum = staticmethod(lambda x, least: x.relu())
    concatenate = staticmethod(lambda xs: xs[0]._op("cat", *xs[1:], dim=0))


class _SecondGradient:
    """The gradients of an op in other ops, step by step. Only gradients of gradients need it, so it may be slow."""

    def __init__(self, mode: Mode, is_cell: bool) -> None:
        self.mode, self.is_cell = mode, is_cell

    def __call__(self, *operands: Any, given: Mask, mask: Mask) -> tuple[Any, ...]:
        grads, forward, _ = backward_operands(operands, given)
        needs = mask + (False,) * (len(forward) - len(mask))
        run = self._cell if self.is_cell else self._layer
        result = forward[0]._pulled(run, needs, tuple(kernels.each(grads, given)), forward, {})
        return tuple(d for d, wanted in zip(result, needs, strict=True) if wanted)

    def _cell(self, x: Any, *operands: Any) -> tuple[Any, ...]:
        states = operands[: self.mode.states]
        layer = Direction(x, tuple(states), Weights(*operands[self.mode.states :]), [x.shape[0]], False)
        return tuple(steps.run(_TensorFunctions, self.mode.step, layer)[1:])

    def _layer(self, x: Any, *operands: Any) -> tuple[Any, ...]:
        call = Call.of(self.mode, x, operands)
        layers = kernels.directions_of(call, kernels.sizes_of(call))
        parts = [steps.run(_TensorFunctions, self.mode.step, layer) for layer in layers]
        y, *states = zip(*parts, strict=True)
        rows = y[0] if len(y) == 1 else y[0]._op("cat", *y[1:], dim=1)
        shapes = [s.shape for s in call.states]
        ends = [_TensorFunctions.concatenate(s).reshape(shape) for s, shape in zip(states, shapes, strict=True)]
        return rows.reshape((*x.shape[:-1], rows.shape[1])), *ends


# -- the ops -------------------------------------------------------------------------------


def _reads_values(*operands: TensorType) -> str:
    """The sizes of a packed batch are read. On a CPU the kernel is torch's, with a graph of autograd, which is not kept
    from run to run."""
    return "always" if operands[-1].dtype is int64 else "cpu"


def _declare_layer(mode: Mode) -> None:
    op(
        mode.name,
        autocast="lower",
        operands="t{4,15}",
        reads_values=_reads_values,
        opaque=True,
        infer=lambda *types, train: _train_results(mode, *types, train=train),
        split=lambda *types, train: _splitting(mode, ".N.", *types),
        vjp=_vjp(mode.name, results=1 + mode.states, kept=0),
        flops=lambda *types, train: _flops(mode, *types),
        torch=partial(kernels.layer_torch, mode),
        kernel=lambda np, x, *operands, train: kernels.layer_numpy(mode, np, x, *operands),
    )
    op(
        f"{mode.name}_backward",
        operands="t{6,19}",
        reads_values=_reads_values,
        opaque=True,
        infer=partial(_gradients, mode, _layer_results),
        split=partial(_splitting_back, mode, ".N."),
        vjp=differentiated(_SecondGradient(mode, is_cell=False)),
        flops=partial(_flops_back, mode),
        torch=partial(kernels.layer_back_torch, mode),
        kernel=lambda np, *operands, given, mask: kernels.layer_back_numpy(mode, np, *operands, given=given, mask=mask),
    )


def _declare_cell(mode: Mode) -> None:
    name = f"{mode.name}_cell"
    op(
        name,
        autocast="lower",
        operands="t{4,7}",
        infer=partial(_cell_results, mode),
        split=partial(_splitting, mode, "N."),
        vjp=_vjp(name, results=mode.states, kept=mode.states if mode.kept else 0),
        flops=partial(_flops, mode),
        torch=partial(kernels.cell_torch, mode),
        kernel=lambda np, *operands: kernels.cell_numpy(mode, np, *operands),
    )
    op(
        f"{name}_backward",
        operands="t{6,10}",
        infer=partial(_gradients, mode, _cell_results),
        split=partial(_splitting_back, mode, "N."),
        vjp=differentiated(_SecondGradient(mode, is_cell=True)),
        flops=partial(_flops_back, mode),
        torch=partial(kernels.cell_back_torch, mode),
        kernel=lambda np, *operands, given, mask: kernels.cell_back_numpy(mode, np, *operands, given=given, mask=mask),
    )


for _mode in MODES.values():
    _declare_layer(_mode)
    _declare_cell(_mode)
