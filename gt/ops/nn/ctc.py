"""The loss of sequences without an alignment: torch's `ctc_loss`.

The classes of a target, with blanks between them and at both ends, are its *states*. ``alpha[t, s]`` is the log
probability of all ways to state s at time t, ``beta[t, s]`` that of all ways on from there. torch has a kernel; numpy
computes with these.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, GradError, ShapeError
from gt.ops.attributes import check_flags, check_int
from gt.ops.elements import wide
from gt.ops.gradient_rules import one
from gt.ops.nn.layer_norm import floating_input
from gt.ops.op import op
from gt.ops.split import Split
from gt.types import TensorType, int64


def _losses(
    x: TensorType,
    targets: TensorType,
    input_lengths: TensorType,
    target_lengths: TensorType,
    *,
    blank: int,
    zero_infinity: bool,
) -> TensorType:
    floating_input(x)
    check_flags(zero_infinity=zero_infinity)
    if x.ndim != 3 or not x.numel:
        raise ShapeError("needs log probabilities of [times, batch, classes], and none of them 0")
    check_int("blank", blank, 0, x.shape[2] - 1)
    if any(t.dtype is not int64 for t in (targets, input_lengths, target_lengths)):
        raise DTypeError("targets and lengths are in int64")
    batch = x.shape[1]
    if input_lengths.shape != (batch,) or target_lengths.shape != (batch,):
        raise ShapeError(f"the lengths are two tensors of {batch} numbers each")
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[0] != batch):
        raise ShapeError(f"the targets are {batch} rows, or all of them in one row")
    return TensorType((batch,), x.dtype)


def _arguments(x: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> tuple[Any, list[int], list[int]]:
    """The classes of all targets in one row, and the lengths. Raises where a kernel would read outside its operands."""
    ins, outs = input_lengths.tolist(), target_lengths.tolist()
    if min(ins) < 0 or max(ins) > x.shape[0]:
        raise IndexError(f"input_lengths are between 0 and {x.shape[0]}, the number of times")
    size = targets.shape[-1]
    if min(outs) < 0 or (sum(outs) != size if targets.ndim == 1 else max(outs) > size):
        raise IndexError(f"target_lengths do not fit targets of shape {list(targets.shape)}")
    if targets.ndim == 2:
        positions = (target_lengths * 0)[:, None] + (targets[:1] * 0 + 1).cumsum(1)
        targets = targets[positions <= target_lengths[:, None]]
    if len(targets) and (targets.min() < 0 or targets.max() >= x.shape[2]):
        raise IndexError(f"a target is outside the {x.shape[2]} classes")
    return targets, ins, outs


def _arguments_torch(x: Any, *rest: Any) -> tuple[Any, ...]:
    """torch has no kernel for half precision, and the one it has reads the targets as if they were contiguous."""
    targets, ins, outs = _arguments(x, *rest)
    return x.float() if x.itemsize == 2 else x, targets.contiguous(), ins, outs


def _loss_torch(torch: Any, x: Any, *rest: Any, blank: int, zero_infinity: bool) -> Any:
    loss = torch.ops.aten._ctc_loss(*_arguments_torch(x, *rest), blank, zero_infinity)[0].to(x.dtype)
    return loss.masked_fill(loss.isinf(), 0) if zero_infinity else loss


# -- with numpy ----------------------------------------------------------------------------


def _alpha(np: Any, x: Any, states: Any) -> Any:
    """x: [times, classes] of one sequence, at least one time."""
    result = np.full((len(x), len(states)), -np.inf, x.dtype)
    result[0, :2] = x[0, states[:2]]
    # a blank between two different classes may be left out
    skips = np.concatenate([[False] * 2, states[2:] != states[:-2]])[: len(states)]
    for t in range(1, len(x)):
        padded = np.concatenate([np.full(2, -np.inf, x.dtype), result[t - 1]])
        two_before = np.where(skips, padded[:-2], -np.inf)
        result[t] = np.logaddexp(np.logaddexp(padded[2:], padded[1:-1]), two_before) + x[t, states]
    return result


def _sequences(np: Any, x: Any, arguments: Any, blank: int) -> Any:
    """(number, log probabilities, states) of each sequence."""
    targets, ins, outs = arguments
    start = 0
    for n, (times, length) in enumerate(zip(ins, outs, strict=True)):
        states = np.full(2 * length + 1, blank)
        states[1::2] = targets[start : start + length]
        start += length
        yield n, x[:times, n], states


def _loss(np: Any, alpha: Any) -> Any:
    return -np.logaddexp.reduce(alpha[-1, -2:])


def _loss_numpy(np: Any, x: Any, *rest: Any, blank: int, zero_infinity: bool) -> Any:
    (x,) = wide(np, x)
    result = np.zeros(x.shape[1], x.dtype)
    for n, logs, states in _sequences(np, x, _arguments(x, *rest), blank):
        if len(logs):
            result[n] = _loss(np, _alpha(np, logs, states))
        else:
            result[n] = np.inf if len(states) > 1 else 0
    return np.where(np.isinf(result), 0, result) if zero_infinity else result


def _splitting(x: TensorType, targets: TensorType, *lengths: TensorType, **how: Any) -> Split:
    """By the batch, unless the targets are all in one row."""
    return Split(".N.,N.,N,N->N" if targets.ndim == 2 else "...,.,.,.->.", filled="N")


def _vjp(needs: Any, g: Any, _y: Any, x: Any, targets: Any, ins: Any, outs: Any, **how: Any) -> list[Any]:
    return [one("ctc_loss_backward", g, x, targets, ins, outs, **how), None, None, None]


op(
    "ctc_loss",
    autocast="float32",
    operands="tttt",
    infer=_losses,
    reads_values="always",
    split=_splitting,
    vjp=_vjp,
    torch=_loss_torch,
    kernel=_loss_numpy,
)


# -- the gradient --------------------------------------------------------------------------


def _gradient(g: TensorType, x: TensorType, *rest: TensorType, **how: Any) -> TensorType:
    if g is not _losses(x, *rest, **how):
        raise ShapeError(f"{g} is not the gradient of this loss")
    return x


def _back_torch(torch: Any, g: Any, x: Any, *rest: Any, blank: int, zero_infinity: bool) -> Any:
    # the forward pass is repeated: the size of alpha depends on the lengths, so it is no result of an op
    arguments = _arguments_torch(x, *rest)
    loss, alpha = torch.ops.aten._ctc_loss(*arguments, blank, zero_infinity)
    back = torch.ops.aten._ctc_loss_backward
    return back(g.to(loss.dtype), *arguments, loss, alpha, blank, zero_infinity).to(x.dtype)


def _back_numpy(np: Any, g: Any, x: Any, *rest: Any, blank: int, zero_infinity: bool) -> Any:
    g, x = wide(np, g, x)
    result = np.zeros_like(x)
    for n, logs, states in _sequences(np, x, _arguments(x, *rest), blank):
        if not len(logs):
            continue
        alpha, beta = _alpha(np, logs, states), _alpha(np, logs[::-1], states[::-1])[::-1, ::-1]
        loss = _loss(np, alpha)
        if zero_infinity and np.isinf(loss):
            continue
        ways = np.full(logs.shape, -np.inf, x.dtype)
        for s, state in enumerate(states):
            ways[:, state] = np.logaddexp(ways[:, state], alpha[:, s] + beta[:, s])
        result[: len(logs), n] = (np.exp(logs) - np.exp(ways + loss - logs)) * g[n]
    return result


def _splitting_back(g: TensorType, x: TensorType, targets: TensorType, *lengths: TensorType, **how: Any) -> Split:
    indices = "N,.N.,N.,N,N->.N." if targets.ndim == 2 else ".,...,.,.,.->..."
    return Split(indices, linear=((0,),), filled="N")


def _no_second_gradient(needs: Any, d: Any, _y: Any, _g: Any, _x: Any, *_rest: Any, **how: Any) -> list[Any]:
    raise GradError("ctc_loss has no second gradient, as in torch")


op(
    "ctc_loss_backward",
    operands="ttttt",
    infer=_gradient,
    reads_values="always",
    split=_splitting_back,
    vjp=_no_second_gradient,
    torch=_back_torch,
    kernel=_back_numpy,
)
