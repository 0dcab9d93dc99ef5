"""How products, normalisations, convolutions, attention and losses may be split."""

from __future__ import annotations

from typing import Any

from gt.ops.infer import broadcast_shapes
from gt.ops.split import Groups, Share, Split, letters, stretched, without
from gt.types import OperandType, Scalar, Shape, TensorType

FIRST: Groups = ((0,),)
EACH: Groups = ((0,), (1,))

# -- products ------------------------------------------------------------------------------


def multiplying(a: TensorType, b: TensorType) -> Split:
    """Rows, columns and batches; the inner dim gives a sum. A 1-d operand is a row on the left, and a column on the
    right."""
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    names = letters(len(batch))
    left = stretched(names, batch, a.shape[:-2]) + ("mk" if a.ndim > 1 else "k").upper()
    right = stretched(names, batch, b.shape[:-2]) + ("kn" if b.ndim > 1 else "k").upper()
    result = names + ("M" if a.ndim > 1 else "") + ("N" if b.ndim > 1 else "")
    return Split(f"{left},{right}->{result}", linear=EACH)


def adding_product(x: TensorType, a: TensorType, b: TensorType, beta: OperandType, alpha: OperandType) -> Split:
    left, result = multiplying(a, b).indices.split("->")
    shape = (*a.shape[:-1], b.shape[-1])
    return Split(f"{stretched(result, shape, x.shape)},{left}->{result}", linear=((0, 1), (0, 2)), added=(0,))


def mapping(x: TensorType, weight: TensorType, *bias: TensorType) -> Split:
    rows, column = letters(x.ndim - 1), "N" if weight.ndim == 2 else ""
    if not bias:
        return Split(f"{rows}K,{column}K->{rows}{column}", linear=EACH)
    bias_dims = stretched(column, weight.shape[:-1], bias[0].shape) if bias[0].ndim <= len(column) else "."
    return Split(f"{rows}K,{column}K,{bias_dims}->{rows}{column}", linear=((0, 2), (1, 2)), added=(2,))


def weighing(g: TensorType, x: TensorType) -> Split:
    rows = letters(g.ndim - 1)
    return Split(f"{rows}N,{rows}K->NK", linear=EACH)


def looking_up(weight: TensorType, index: TensorType, **attrs: Any) -> Split:
    """The rows of the table stay together: only the index says which rows are needed."""
    names = letters(index.ndim)
    return Split(f".D,{names}->{names}D", linear=FIRST)


def spreading(g: TensorType, index: TensorType, *, rows: int, padding_idx: int, by_freq: bool) -> Split:
    names = "." * index.ndim if by_freq else letters(index.ndim)  # the frequency of an index is counted over all rows
    return Split(f"{names}D,{names}->.D", linear=FIRST)


# -- normalisation -------------------------------------------------------------------------


def _joined(*operands: str) -> str:
    return ",".join(operands)


def over_last(x: TensorType, *parameters: TensorType, normalized_shape: Shape, stats: int = 2, **attrs: Any) -> Split:
    n = len(normalized_shape)
    rows = letters(x.ndim - n) + "." * n
    return Split(f"{_joined(rows, *['.' * n] * len(parameters))}->{_joined(rows, *[rows] * stats)}")


def over_last_back(
    g: TensorType, x: TensorType, *rest: TensorType, normalized_shape: Shape, mask: tuple[bool, ...], **attrs: Any
) -> Split:
    """The gradients of weight and bias are sums over the rows."""
    n = len(normalized_shape)
    rows, params = letters(x.ndim - n) + "." * n, "." * n
    stats = 2 if len(mask) == 3 else 1  # without a bias there is no mean either
    left = [*[rows] * (2 + stats), *[params] * (len(rest) - stats)]
    result = [names for names, wanted in zip((rows, params, params), mask, strict=False) if wanted]
    return Split(f"{_joined(*left)}->{_joined(*result)}", linear=FIRST)


def over_groups(x: TensorType, *parameters: TensorType, **attrs: Any) -> Split:
    """Batches, and channels by whole groups."""
    names = "NC" + "." * (x.ndim - 2)
    return Split(f"{_joined(names, *'C' * len(parameters))}->{names},NC,NC", filled="C")


def over_groups_back(
    g: TensorType, x: TensorType, mean: TensorType, rstd: TensorType, *weight: TensorType, mask: Any, **attrs: Any
) -> Split:
    names = "NC" + "." * (x.ndim - 2)
    result = [dims for dims, wanted in zip((names, "C", "C"), mask, strict=True) if wanted]
    return Split(
        f"{_joined(names, names, 'NC', 'NC', *'C' * len(weight))}->{_joined(*result)}", linear=FIRST, filled="C"
    )


def grouped(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    """As many groups as the block of the statistics has."""
    stats = share.ins[2] if "mask" in attrs else share.outs[1]
    return {**attrs, "groups": stats.shape[1]}


def over_batch(x: TensorType, *rest: OperandType, **attrs: Any) -> Split:
    """Each channel independently."""
    names = ".C" + "." * (x.ndim - 2)
    tensors = sum(not isinstance(t, Scalar) for t in rest)
    running = 2 if len(rest) > tensors else 0  # the momentum, a number, and the running statistics
    return Split(f"{_joined(names, *'C' * tensors)}->{_joined(names, *'C' * (2 + running))}", filled="C")


def over_batch_back(g: TensorType, x: TensorType, *rest: TensorType, mask: Any, **attrs: Any) -> Split:
    # only the gradients of weight and bias are sums over the batch, which may be split for that
    names = ".C" + "." * (x.ndim - 2) if mask[0] else f"NC{letters(x.ndim - 2)}"
    result = [dims for dims, wanted in zip((names, "C", "C"), mask, strict=True) if wanted]
    return Split(f"{_joined(names, names, *'C' * len(rest))}->{_joined(*result)}", linear=FIRST, filled=names)


def by_channel(x: TensorType, *parameters: TensorType, **attrs: Any) -> Split:
    names = letters(x.ndim)
    return Split(f"{_joined(names, *names[1] * len(parameters))}->{names}", filled=names[1])


# -- windows -------------------------------------------------------------------------------


def _weight_names(transposed: bool, rank: int) -> str:
    return ("IO" if transposed else "OI") + "." * rank


def convolving(
    x: TensorType, weight: TensorType, *bias: TensorType, transposed: bool, groups: int, **how: Any
) -> Split:
    """Batches; with one group, channels too: input channels are summed."""
    rank = "." * (x.ndim - 2)
    linear: Groups = ((0, 2), (1, 2)) if bias else EACH
    if groups > 1:
        return Split(f"N.{rank},..{rank}{',.' * len(bias)}->N.{rank}", linear=linear)
    left = _joined(f"NI{rank}", _weight_names(transposed, x.ndim - 2), *"O" * len(bias))
    return Split(f"{left}->NO{rank}", linear=linear, added=(2,), filled="IO")


def convolving_back(
    g: TensorType, x: TensorType, weight: TensorType, *, transposed: bool, groups: int, mask: Any, **how: Any
) -> Split:
    rank = "." * (x.ndim - 2)
    names = [f"NO{rank}", f"NI{rank}", _weight_names(transposed, x.ndim - 2)]
    if groups > 1:
        names = [f"N.{rank}", f"N.{rank}", f"..{rank}"]
    result = [dims for dims, wanted in zip(names[1:], mask, strict=True) if wanted]
    # one gradient alone is linear in the other factor too
    others = {(True, False): (2,), (False, True): (1,)}.get(tuple(mask))
    return Split(f"{_joined(*names)}->{_joined(*result)}", linear=((0,), *((others,) if others else ())), filled="IO")


def images(*xs: TensorType, results: int = 1, rank: int, linear: Groups = ()) -> Split:
    """Batches and channels; a window needs all other dims."""
    names = letters(xs[0].ndim - rank) + "." * rank
    return Split(f"{_joined(*[names] * len(xs))}->{_joined(*[names] * results)}", linear=linear, filled=names[:-rank])


def columns(x: TensorType, **how: Any) -> Split:
    result = "NC." if x.ndim == 4 else "NC.."
    return Split(f"NC{'.' * (x.ndim - 2)}->{result}", linear=FIRST, filled="NC")


# -- attention -----------------------------------------------------------------------------


def _masks(mask: tuple[TensorType, ...], names: str, scores: Shape) -> list[str]:
    return [stretched(names, scores, m.shape) for m in mask]


def attending(q: TensorType, k: TensorType, v: TensorType, *mask: TensorType, is_causal: bool, scale: float) -> Split:
    """Batches and heads; and the positions of the query, unless the mask depends on them."""
    lead, at = letters(q.ndim - 2), "." if is_causal else "Q"
    masks = _masks(mask, f"{lead}{at}.", (*q.shape[:-1], k.shape[-2]))
    return Split(
        f"{_joined(f'{lead}{at}.', f'{lead}..', f'{lead}..', *masks)}->{lead}{at}.,{lead}{at}",
        linear=((2,),),
        still=(1,),
    )


def attending_back(
    g: TensorType,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    out: TensorType,
    lse: TensorType,
    *mask: TensorType,
    is_causal: bool,
    scale: float,
) -> Split:
    lead, at = letters(q.ndim - 2), "." if is_causal else "Q"
    query, key = f"{lead}{at}.", f"{lead}.."
    masks = _masks(mask, query, (*q.shape[:-1], k.shape[-2]))
    left = _joined(query, query, key, key, query, f"{lead}{at}", *masks)
    return Split(f"{left}->{query},{key},{key}", linear=FIRST)


# -- losses --------------------------------------------------------------------------------


def comparing(x: TensorType, *rest: TensorType, reduction: str, **attrs: Any) -> Split:
    names = letters(x.ndim)
    return Split(f"{_joined(*[names] * (1 + len(rest)))}->{names if reduction == 'none' else ''}")


def comparing_back(g: TensorType, x: TensorType, *rest: TensorType, reduction: str, **attrs: Any) -> Split:
    names = letters(x.ndim)
    grad_dims = names if reduction == "none" else ""
    return Split(f"{_joined(grad_dims, *[names] * (1 + len(rest)))}->{names}", linear=FIRST)


def averaged(attrs: dict[str, Any], share: Share) -> dict[str, Any]:
    """A mean is over the elements of all blocks."""
    if attrs["reduction"] != "mean":
        return attrs
    return {**attrs, "whole": max(t.numel for t in share.whole_ins)}


def _classes(x: TensorType) -> tuple[str, str]:
    """The names of the dims of the input, where that of the classes stays whole, and of the target."""
    at = 1 if x.ndim > 1 else 0
    names = without(letters(x.ndim), (at,))
    return names, names[:at] + names[at + 1 :]


def picking(x: TensorType, target: TensorType, *weight: TensorType, reduction: str, ignore_index: int) -> Split:
    names, each = _classes(x)
    left = _joined(names, each, *"." * len(weight))
    if reduction == "none":
        return Split(f"{left}->{each}", linear=FIRST)
    return Split(f"{left}->,", linear=FIRST, still=(1,))


def picking_back(
    g: TensorType, x: TensorType, target: TensorType, *weight: TensorType, reduction: str, **attrs: Any
) -> Split:
    names, each = _classes(x)
    grad_dims = each if reduction == "none" else ""
    return Split(f"{_joined(grad_dims, names, each, *'.' * len(weight))}->{names}", linear=FIRST)


def choosing(x: TensorType, target: TensorType, *, reduction: str, **attrs: Any) -> Split:
    names, each = _classes(x)
    return Split(f"{_joined(names, each)}->{each if reduction == 'none' else ','}")


def choosing_back(g: TensorType, x: TensorType, target: TensorType, *, reduction: str, **attrs: Any) -> Split:
    return picking_back(g, x, target, reduction=reduction)
