"""The kernels of recurrent layers and cells. On a CPU and a GPU the forward pass is torch's own kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from gt.errors import ShapeError
from gt.ops.elements import wide
from gt.ops.nn import recurrent_cells as cells
from gt.ops.nn import recurrent_fused as fused
from gt.ops.nn import recurrent_steps as steps
from gt.ops.nn.recurrent_steps import Direction, Weights

Mask = tuple[bool, ...]


class Mode(NamedTuple):
    #: torch's name of the function for a layer
    name: str
    gates: int
    #: of the kernel for numpy: one step
    step: Callable[..., Any]
    #: over all steps
    back: Callable[..., steps.Grads]
    #: of a cell
    cell: Callable[..., tuple[Any, ...]]
    cell_back: Callable[..., steps.Grads]
    states: int = 1
    #: how often as wide as the state is what the backward pass of a cell needs; 0: it needs the output
    kept: int = 0
    #: of a cell on a GPU
    fused: Callable[..., tuple[Any, ...]] | None = None
    fused_back: Callable[..., steps.Grads] | None = None


class Call(NamedTuple):
    """The operands of a layer, sorted; or their types."""

    x: Any
    states: tuple[Any, ...]
    #: for each direction
    weights: list[Weights]
    #: None if all sequences have the same length
    batch_sizes: Any

    @classmethod
    def of(cls, mode: Mode, x: Any, operands: Sequence[Any]) -> Call:
        states, rest = operands[: mode.states], operands[mode.states :]
        batch_sizes = None
        if x.ndim == 2:
            *rest, batch_sizes = rest
        count = len(rest) // states[0].shape[0]
        return cls(x, tuple(states), [_weights(rest[i : i + count]) for i in range(0, len(rest), count)], batch_sizes)

    @property
    def flat_weights(self) -> list[Any]:
        return [w for weights in self.weights for w in weights if w is not None]


def _weights(given: Sequence[Any]) -> Weights:
    """An odd number of weights ends with a projection."""
    bias_ih, bias_hh = given[2:4] if len(given) > 3 else (None, None)
    return Weights(given[0], given[1], bias_ih, bias_hh, given[-1] if len(given) % 2 else None)


#: torch's name of the function for a layer -> what it computes
MODES = {
    mode.name: mode
    for mode in (
        Mode(
            "lstm", 4, steps.lstm_step, steps.lstm_back, cells.lstm, cells.lstm_back, 2, 4, fused.lstm, fused.lstm_back
        ),
        Mode("gru", 3, steps.gru_step, steps.gru_back, cells.gru, cells.gru_back, 1, 4, fused.gru, fused.gru_back),
        Mode("rnn_tanh", 1, steps.tanh_step, steps.tanh_back, cells.tanh, cells.tanh_back),
        Mode("rnn_relu", 1, steps.relu_step, steps.relu_back, cells.relu, cells.relu_back),
    )
}


def backward_operands(operands: Sequence[Any], given: Mask) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """(the given gradients, the operands of the forward op, its output)"""
    count = sum(given)
    if len(operands) < count + 2:
        raise ShapeError(f"{len(operands)} operands are too few for {count} gradients")
    x, y, *rest = operands[count:]
    return tuple(operands[:count]), (x, *rest), y


def each(grads: Sequence[Any], given: Mask) -> list[Any]:
    """The gradient of each result, None where it is not given."""
    there = iter(grads)
    return [next(there) if present else None for present in given]


# -- of layers -----------------------------------------------------------------------------


def sizes_of(call: Call) -> list[int]:
    """The number of rows of each step. Those of a packed batch are read."""
    if call.batch_sizes is None:
        return [call.x.shape[1]] * call.x.shape[0]
    sizes: list[int] = call.batch_sizes.tolist()
    batch = call.states[0].shape[1]
    ordered = all(a >= b for a, b in pairwise(sizes))
    if not ordered or sizes[-1] < 1 or sizes[0] != batch or sum(sizes) != call.x.shape[0]:
        raise ValueError(
            f"the sizes of {call.x.shape[0]} packed rows of {batch} sequences, largest first, are not {sizes}"
        )
    return sizes


def directions_of(call: Call, sizes: list[int], y: Any = None) -> list[Direction]:
    out = call.states[0].shape[-1]
    x = call.x.reshape(-1, call.x.shape[-1])
    rows = None if y is None else y.reshape(-1, y.shape[-1])
    return [
        Direction(
            *(x, tuple(s[i] for s in call.states), weights, sizes, i == 1),
            None if rows is None else rows[:, i * out : (i + 1) * out],
        )
        for i, weights in enumerate(call.weights)
    ]


def layer_numpy(mode: Mode, np: Any, x: Any, *operands: Any) -> Any:
    call = Call.of(mode, *_wide_operands(np, x, operands))
    parts = [steps.run(np, mode.step, layer) for layer in directions_of(call, sizes_of(call))]
    y, *states = zip(*parts, strict=True)
    rows = np.concatenate(y, -1)
    return rows.reshape(*x.shape[:-1], rows.shape[-1]), *(np.stack(s) for s in states)


def _wide_operands(np: Any, x: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    wide_x, *rest = wide(np, x, *operands)
    return wide_x, rest


class Graph(NamedTuple):
    """Torch's graph of a layer: its inputs, and the results computed from them."""

    leaves: list[Any]
    results: tuple[Any, ...]


def layer_torch(mode: Mode, torch: Any, x: Any, *operands: Any, train: bool) -> Any:
    """For ``train`` the output keeps torch's graph, which the backward op uses if it gets this output itself."""
    if not train:
        return _forward(mode, torch, x, *operands, train=False)
    graph = _recorded(mode, torch, x, *operands)
    # the graph needs the last states as they are, and a program may write into them
    y, states = graph.results[0].detach(), [s.detach().clone() for s in graph.results[1:]]
    y.recurrent_graph = graph
    return y, *states


def _recorded(mode: Mode, torch: Any, *operands: Any) -> Graph:
    with torch.enable_grad():
        # ``data``, because it has no version: whether an operand was written since then is the client's question
        leaves = [x.data.requires_grad_(x.is_floating_point()) for x in operands]
        return Graph(leaves, _forward(mode, torch, *leaves, train=True))


def _forward(mode: Mode, torch: Any, x: Any, *operands: Any, train: bool) -> tuple[Any, ...]:
    call = Call.of(mode, x, operands)
    if not call.states[0].numel():  # no sequences
        y = x.new_zeros(*x.shape[:-1], len(call.weights) * call.states[0].shape[-1]) + 0 * x.sum()
        return y, *(s.clone() for s in call.states)
    if _computed_wide(x):
        return tuple(r.to(x.dtype) for r in _forward(mode, torch, *_floats(x, *operands), train=train))
    if x.is_cuda:
        _silence_cudnn()
    states, weights = [[a.contiguous() for a in arrays] for arrays in (call.states, call.flat_weights)]
    bias, both = call.weights[0].bias_ih is not None, len(call.weights) == 2
    function, initial = getattr(torch, mode.name), states if mode.states > 1 else states[0]
    if call.batch_sizes is None:
        return tuple(function(x, initial, weights, bias, 1, 0.0, train, both, False))
    sizes = torch.tensor(sizes_of(call))
    return tuple(function(x, sizes, initial, weights, bias, 1, 0.0, train, both))


@cache
def _silence_cudnn() -> None:
    """cudnn copies weights into one block on each call, and warns of it; each weight is a tensor of its own here."""
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _computed_wide(x: Any) -> bool:
    """Half precision on a CPU is computed in float32."""
    return x.element_size() < 4 and not x.is_cuda


def _floats(*xs: Any) -> list[Any]:
    return [x.float() if x.is_floating_point() else x for x in xs]


def _layer_back(mode: Mode, xp: Any, *operands: Any, given: Mask, mask: Mask) -> list[Any]:
    """For each operand of the layer, None where none is requested."""
    grads, (x, *rest), y = backward_operands(operands, given)
    call = Call.of(mode, x, rest)
    gy, *final = each(grads, given)
    if gy is not None:
        gy = gy.reshape(-1, gy.shape[-1])
    out, count = call.states[0].shape[-1], len(call.flat_weights) // len(call.weights)
    of_inputs: list[list[Any]] = []
    of_weights: list[Any] = []
    for i, layer in enumerate(directions_of(call, sizes_of(call), y)):
        start = 1 + mode.states + i * count
        part = None if gy is None else gy[:, i * out : (i + 1) * out]
        result = mode.back(xp, layer, part, *(None if g is None else g[i] for g in final))
        wanted = (*mask[: 1 + mode.states], *mask[start : start + count])
        of_direction = steps.wanted_grads(layer, result, wanted)
        of_inputs.append(of_direction[: 1 + mode.states])
        of_weights += of_direction[1 + mode.states :]
    of_x, *of_states = zip(*of_inputs, strict=True)
    both = [xp.stack(s) if wanted else None for s, wanted in zip(of_states, mask[1:], strict=False)]
    return [sum(of_x[1:], of_x[0]).reshape(x.shape) if mask[0] else None, *both, *of_weights]


def _requested(results: Sequence[Any], mask: Mask) -> Any:
    kept = tuple(r for r, wanted in zip(results, mask, strict=True) if wanted)
    return kept if len(kept) > 1 else kept[0]


def layer_back_numpy(mode: Mode, np: Any, *operands: Any, given: Mask, mask: Mask) -> Any:
    return _requested(_layer_back(mode, np, *wide(np, *operands), given=given, mask=mask), mask)


def layer_back_torch(mode: Mode, torch: Any, *operands: Any, given: Mask, mask: Mask) -> Any:
    """Torch's own backward kernel. It needs values that torch keeps in its graph, so that without the graph, because
    the output was moved or cut, the forward kernel runs again."""
    grads, forward, y = backward_operands(operands, given)
    graph = getattr(y, "recurrent_graph", None) or _recorded(mode, torch, *forward)
    outputs = [r for r, there in zip(graph.results, given, strict=True) if there]
    wanted = [x for x, needed in zip(graph.leaves, mask, strict=False) if needed]
    found = torch.autograd.grad(outputs, wanted, grads, retain_graph=True, materialize_grads=True)
    if found[0].is_cuda:
        found = tuple(map(_in_own_memory, found))
    return found if len(found) > 1 else found[0]


def _in_own_memory(x: Any) -> Any:
    """A copy where the memory has more in it: cudnn has the gradients of all weights in one block."""
    return x if x.untyped_storage().nbytes() == x.nbytes else x.clone()


# -- of cells ------------------------------------------------------------------------------


def cell(mode: Mode, xp: Any, x: Any, *operands: Any) -> Any:
    function = mode.fused if mode.fused and _on_gpu(x) else mode.cell
    results = function(xp, x, operands[: mode.states], Weights(*operands[mode.states :]))
    return results if len(results) > 1 else results[0]


def _on_gpu(x: Any) -> bool:
    return getattr(x, "is_cuda", False)


def cell_torch(mode: Mode, torch: Any, x: Any, *operands: Any) -> Any:
    if not _computed_wide(x):
        return cell(mode, torch, x, *operands)
    results = cell(mode, torch, *_floats(x, *operands))
    return tuple(r.to(x.dtype) for r in results) if isinstance(results, tuple) else results.to(x.dtype)


def cell_numpy(mode: Mode, np: Any, *operands: Any) -> Any:
    return cell(mode, np, *wide(np, *operands))


def cell_back(mode: Mode, xp: Any, *operands: Any, given: Mask, mask: Mask) -> Any:
    grads, (x, *rest), kept = backward_operands(operands, given)
    states, weights = tuple(rest[: mode.states]), Weights(*rest[mode.states :])
    function = mode.fused_back if mode.fused_back and _on_gpu(x) else mode.cell_back
    found = function(xp, kept, states, weights, *each(grads, given))
    layer = Direction(x, states, weights, [x.shape[0]], False)
    return _requested(steps.wanted_grads(layer, found, mask), mask)


def cell_back_torch(mode: Mode, torch: Any, *operands: Any, given: Mask, mask: Mask) -> Any:
    dtype = operands[0].dtype
    if operands[0].element_size() >= 4 or _on_gpu(operands[0]):
        return cell_back(mode, torch, *operands, given=given, mask=mask)
    results = cell_back(mode, torch, *_floats(*operands), given=given, mask=mask)
    return tuple(r.to(dtype) for r in results) if isinstance(results, tuple) else results.to(dtype)


def cell_back_numpy(mode: Mode, np: Any, *operands: Any, given: Mask, mask: Mask) -> Any:
    return cell_back(mode, np, *wide(np, *operands), given=given, mask=mask)
