"""torch's functions that pad tensors and write diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.tensor.arguments import normalize_dim, refuse, require_tensor, sizes
from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import creation, pointwise, views
from gt.ops import OPS
from gt.types import bool_, int64

__all__ = [
    "constant_pad_nd", "diag", "diag_embed", "diagflat",
]  # fmt: skip

PAD, INDEX, DIAGONAL, VIEW_BACKWARD = OPS["pad"], OPS["index"], OPS["diagonal"], OPS["view_backward"]

# -- borders -------------------------------------------------------------------------------


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad dims, the last dim first, with a value or a pattern; a negative size removes elements.

    See `torch.nn.functional.pad`.
    """
    x, amounts = require_tensor("pad", input), sizes((pad,), "pad")
    if len(amounts) % 2 or len(amounts) > 2 * x._type.ndim:
        text = f"needs pairs of sizes, for at most {x._type.ndim} dims"
        raise refuse(ShapeError, text, "pad", x, amounts, mode=mode)
    missing = x._type.ndim - len(amounts) // 2
    pads = ((0, 0),) * missing + tuple(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    if isinstance(value, complex):
        return _padded_with(x, pads, value)
    if mode == "constant":
        fill = 0 if value is None else value
        return call(PAD, (x, pointwise.fitting("pad", x, fill)), (("pads", pads),))
    if mode not in _BORDERS:
        raise refuse(ShapeError, "mode is constant, reflect, replicate or circular", "pad", x, amounts, mode=mode)
    if value:
        raise refuse(ShapeError, f"mode {mode} takes no value", "pad", x, amounts, value=value)
    if missing not in (1, 2) or x._type.ndim - missing not in (1, 2, 3):
        text = "pads the last 1 to 3 dims of a tensor with one or two more"
        raise refuse(ShapeError, text, "pad", x, amounts, mode=mode)
    for dim, (before, after) in enumerate(pads):
        if mode == "circular" and min(before, after) < 0:  # cut first: the elements that remain are repeated
            kept = x._type.shape[dim] + min(before, 0) + min(after, 0)
            x = views.narrow(x, dim, max(-before, 0), kept)
            before, after = max(before, 0), max(after, 0)
        if before or after:
            x = _bordered(x, dim, before, after, mode)
    return x


def _padded_with(x: Tensor, pads: tuple[tuple[int, int], ...], value: complex) -> Tensor:
    """Padding with a complex number."""
    attrs = (("pads", pads),)
    border = call(PAD, (creation.zeros_like(x, dtype=bool_), True), attrs)
    return pointwise.masked_fill(call(PAD, (x, 0), attrs), border, value)


#: (position in the padded dim, size) -> the position in the dim whose element goes there
_BORDERS: dict[str, Any] = {
    "reflect": lambda at, n: at if 0 <= at < n else -at if at < 0 else 2 * (n - 1) - at,
    "replicate": lambda at, n: min(max(at, 0), n - 1),
    "circular": lambda at, n: at % n,
}


def _bordered(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    n = x._type.shape[dim]
    most = {"reflect": n - 1, "circular": n, "replicate": max(before, after)}[mode]
    if max(before, after) > most or n + before + after < 1 or not n:
        text = f"a border of {max(before, after)} is too wide for dim {dim} of size {n}"
        raise refuse(ShapeError, text, PAD.name, x, mode=mode)
    at = [_BORDERS[mode](i, n) for i in range(-before, n + after)]
    return call(INDEX, (x, creation.tensor(at, dtype=int64)), (("dims", (dim,)),))


#: `constant_pad_nd` has a parameter named ``pad``
_pad = pad


def constant_pad_nd(input: Tensor, pad: Any, value: float = 0) -> Tensor:
    """Pad dims with one value."""
    return _pad(input, pad, value=value)


# -- diagonals -----------------------------------------------------------------------------


def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last dim along their diagonals."""
    x = require_tensor("diag_embed", input)
    if not x._type.ndim:
        raise refuse(ShapeError, "needs a tensor of at least one dim", "diag_embed", x)
    ndim = x._type.ndim + 1
    a, b = normalize_dim(dim1, ndim), normalize_dim(dim2, ndim)
    if a == b or not (0 <= a < ndim and 0 <= b < ndim):
        raise refuse(ShapeError, f"needs two different dims of {ndim}", "diag_embed", x, dim1=dim1, dim2=dim2)
    side = x._type.shape[-1] + abs(offset)
    rest = iter(x._type.shape[:-1])
    shape = tuple(side if d in (a, b) else next(rest) for d in range(ndim))
    how = (("offset", offset), ("dim1", a), ("dim2", b))
    return call(VIEW_BACKWARD, (x,), (("chain", ((DIAGONAL.name, how),)), ("shape", shape)))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or a matrix with this diagonal."""
    x = require_tensor("diag", input)
    if x._type.ndim not in (1, 2):
        raise refuse(ShapeError, "needs a tensor of one or two dims", "diag", x, diagonal)
    if x._type.ndim == 1:
        return diag_embed(x, diagonal)
    return pointwise.clone(views.diagonal(x, diagonal))


def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with the elements along its diagonal."""
    x = require_tensor("diagflat", input)
    return diag_embed(views.reshape(x, -1 if x._type.numel else 0), offset)
