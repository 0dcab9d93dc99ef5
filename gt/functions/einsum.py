"""``einsum``: sums of products named by letters, as a few permutes, diagonals and matrix products."""

from __future__ import annotations

from math import prod
from typing import Any

from gt.client.tensor.arguments import refuse, tensor_list
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import pointwise, reduce, views
from gt.functions.matmul import matmul
from gt.types import Shape

__all__ = ["einsum"]

#: A name is the code of its letter. The dims of an ellipsis have names from here on; the last dim has the first name.
_HIDDEN = 1000


class Named:
    """A tensor whose dims have names."""

    def __init__(self, x: Tensor, names: tuple[int, ...]) -> None:
        self.x, self.names = x, names

    @property
    def sizes(self) -> dict[int, int]:
        return dict(zip(self.names, self.x._type.shape, strict=True))


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products in Einstein notation: ``einsum("bij,bjk->bik", a, b)``, or tensors and lists of dims in turn."""
    if not isinstance(equation, str):
        equation, operands = _from_lists((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    xs = tensor_list("einsum", operands)
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(xs):
        raise refuse(ShapeError, f"{len(terms)} terms for {len(xs)} operands", "einsum", equation, *xs)
    named = [Named(x, _names(equation, term, x)) for term, x in zip(terms, xs, strict=True)]
    sizes = _sizes(equation, named)
    result = _result(equation, right, sizes) if arrow else _implied(named, left)
    if missing := [n for n in result if n not in sizes]:
        raise refuse(ShapeError, f"{_shown(missing[0])!r} is on the right but not on the left", "einsum", equation, *xs)
    named = [_without_repeats(n) for n in named]
    return _contracted(named, result, sizes)


def _from_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    pairs = list(zip(arguments[::2], arguments[1::2], strict=False))
    letters = [_spelled(names) for _, names in pairs]
    equation = ",".join(letters)
    if len(arguments) % 2:
        equation += "->" + _spelled(arguments[-1])
    return equation, tuple(x for x, _ in pairs)


def _spelled(names: Any) -> str:
    return "".join("..." if n is Ellipsis else _letter(n) for n in names)


def _letter(n: int) -> str:
    if not 0 <= n < 52:
        raise ShapeError(f"einsum(): a name is a number from 0 to 51, not {n}")
    return chr(ord("A") + n) if n < 26 else chr(ord("a") + n - 26)


def _shown(name: int) -> str:
    return "..." if name >= _HIDDEN else chr(name)


def _names(equation: str, term: str, x: Tensor) -> tuple[int, ...]:
    """The name of each dim of x."""
    before, dots, after = term.partition("...")
    for letter in before + after:
        if not (letter.isascii() and letter.isalpha()):
            raise refuse(ShapeError, f"{letter!r} is not the name of a dim", "einsum", equation, x)
    hidden = x._type.ndim - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        text = f"{term!r} names {len(before) + len(after)} dims of {x._type.ndim}"
        raise refuse(ShapeError, text, "einsum", equation, x)
    return (*map(ord, before), *(_HIDDEN + i for i in reversed(range(hidden))), *map(ord, after))


def _sizes(equation: str, named: list[Named]) -> dict[int, int]:
    """The size of each name; a size of 1 is stretched."""
    sizes: dict[int, int] = {}
    for operand in named:
        for name, n in zip(operand.names, operand.x._type.shape, strict=True):
            size = sizes.setdefault(name, n)
            if n != size and 1 not in (n, size):
                text = f"dim {_shown(name)!r} has sizes {size} and {n}"
                raise refuse(ShapeError, text, "einsum", equation, *(o.x for o in named))
            if size == 1:
                sizes[name] = n
    return sizes


def _hidden(sizes: Any) -> tuple[int, ...]:
    return tuple(sorted((n for n in sizes if n >= _HIDDEN), reverse=True))


def _result(equation: str, right: str, sizes: dict[int, int]) -> tuple[int, ...]:
    before, dots, after = right.partition("...")
    result = (*map(ord, before), *(_hidden(sizes) if dots else ()), *map(ord, after))
    if len(set(result)) < len(result):
        raise refuse(ShapeError, "a name is on the right twice", "einsum", equation)
    return result


def _implied(named: list[Named], left: str) -> tuple[int, ...]:
    """The result's names without an arrow: those of the ellipsis, then those that appear once, in order."""
    once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
    return (*_hidden({n for o in named for n in o.names}), *map(ord, once))


def _without_repeats(operand: Named) -> Named:
    """The operand with a diagonal in place of each name that it has twice."""
    x, names = operand.x, list(operand.names)
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            a = names.index(name)
            b = names.index(name, a + 1)
            if x._type.shape[a] != x._type.shape[b]:
                raise refuse(ShapeError, f"dim {_shown(name)!r} has no diagonal: its two sizes differ", "einsum", x)
            x = views.diagonal(x, 0, a, b)
            names = [n for d, n in enumerate(names) if d not in (a, b)] + [name]
    return Named(x, tuple(names))


def _contracted(named: list[Named], result: tuple[int, ...], sizes: dict[int, int]) -> Tensor:
    # a single operand is only summed, and gets the dtype of a sum
    product = _summed(named[0], {*result, *(n for o in named[1:] for n in o.names)}, keep_dtype=len(named) > 1)
    for k, operand in enumerate(named[1:], 2):
        later = {*result, *(n for o in named[k:] for n in o.names)}
        left, right = _summed(product, later | {*operand.names}), _summed(operand, later | {*product.names})
        product = _multiplied(left, right, later)
    product = _summed(product, set(result))
    return views.permute(product.x, [product.names.index(n) for n in result])


def _summed(operand: Named, needed: set[int], keep_dtype: bool = True) -> Named:
    """The operand summed over the names that are not needed later."""
    gone = [d for d, n in enumerate(operand.names) if n not in needed]
    if not gone:
        return operand
    dtype = operand.x._type.dtype if keep_dtype else None
    return Named(reduce.sum(operand.x, gone, dtype=dtype), tuple(n for n in operand.names if n in needed))


def _multiplied(a: Named, b: Named, later: set[int]) -> Named:
    """One batched matrix product. The batch is the names that both have and that are needed later."""
    sizes_a, sizes_b = a.sizes, b.sizes
    shared = [n for n in a.names if n in sizes_b]
    inner = [n for n in shared if n not in later]
    # a size of 1 next to a larger one: the sum over the larger one is the whole product
    a = _summed_where(a, [n for n in inner if sizes_b[n] == 1 != sizes_a[n]])
    b = _summed_where(b, [n for n in inner if sizes_a[n] == 1 != sizes_b[n]])
    sizes_a, sizes_b = a.sizes, b.sizes
    batch = [n for n in shared if n in later]
    if not inner:
        return _outer(a, b)
    rows, columns = ([n for n in o.names if n not in shared] for o in (a, b))
    depth = prod(sizes_a[n] for n in inner)
    batch_a, batch_b = tuple(sizes_a[n] for n in batch), tuple(sizes_b[n] for n in batch)
    left = _grouped(a, [*batch, *rows, *inner], (*batch_a, prod(sizes_a[n] for n in rows), depth))
    right = _grouped(b, [*batch, *inner, *columns], (*batch_b, depth, prod(sizes_b[n] for n in columns)))
    product = matmul(left, right)
    shape = (*product._type.shape[: len(batch)], *(sizes_a[n] for n in rows), *(sizes_b[n] for n in columns))
    return Named(views.reshape(product, shape), (*batch, *rows, *columns))


def _summed_where(operand: Named, names: list[int]) -> Named:
    dims = [operand.names.index(n) for n in names]
    x = operand.x
    return Named(reduce.sum(x, dims, keepdim=True, dtype=x._type.dtype), operand.names) if dims else operand


def _grouped(operand: Named, order: list[int], shape: Shape) -> Tensor:
    return views.reshape(views.permute(operand.x, [operand.names.index(n) for n in order]), shape)


def _outer(a: Named, b: Named) -> Named:
    names = (*a.names, *(n for n in b.names if n not in a.names))
    return Named(pointwise.mul(_spread(a, names), _spread(b, names)), names)


def _spread(operand: Named, names: tuple[int, ...]) -> Tensor:
    order = [n for n in names if n in operand.names]
    sizes = operand.sizes
    return _grouped(operand, order, tuple(sizes.get(n, 1) for n in names))
