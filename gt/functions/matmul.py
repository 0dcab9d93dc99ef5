"""torch's functions that multiply vectors and matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from gt.client.tensor.arguments import cast, normalize_dim, operands, refuse, require_tensor, tensor_list
from gt.client.tensor.emit import binary, call
from gt.client.tensor.foreign import Sparse
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import creation, pointwise, reduce, views
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes
from gt.types import DType, bool_, promote

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "cross", "dot", "ger", "inner", "kron",
    "matmul", "matrix_power", "mm", "mv", "outer", "tensordot", "trace", "vdot",
]  # fmt: skip

MATMUL, ADDMM, BADDBMM, INV, INDEX = OPS["matmul"], OPS["addmm"], OPS["baddbmm"], OPS["inv"], OPS["index"]


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product; the dims before the last two are broadcast."""
    try:
        a, b = require_tensor("matmul", input), require_tensor("matmul", other)
    except DTypeError:
        return _sparse_product("matmul", input, other)
    return binary(MATMUL, a, b)


def _sparse_product(name: str, a: Any, b: Any, ndims: tuple[int, int] | None = None) -> Tensor:
    """The product where an operand is no tensor: it may be a sparse matrix. Called while an error is handled."""
    if not isinstance(a, Sparse) and not isinstance(b, Sparse):
        raise
    if ndims and (a.ndim, b.ndim) != ndims:
        raise refuse(ShapeError, f"needs tensors of {ndims[0]} and {ndims[1]} dims; see matmul", name, a, b)
    result: Tensor = a @ b
    return result


def _product(name: str, a: Any, b: Any, ndims: tuple[int, int]) -> Tensor:
    """`matmul` for operands with exactly these numbers of dims."""
    try:
        a, b = require_tensor(name, a), require_tensor(name, b)
    except DTypeError:
        return _sparse_product(name, a, b, ndims)
    if (a._type.ndim, b._type.ndim) != ndims:
        raise refuse(ShapeError, f"needs tensors of {ndims[0]} and {ndims[1]} dims; see matmul", name, a, b)
    return binary(MATMUL, a, b)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The dot product of two vectors."""
    return _product("dot", input, tensor, (1, 1))


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    return _product("mv", input, vec, (2, 1))


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    return _product("mm", input, mat2, (2, 2))


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The matrix products of two batches."""
    a, b = require_tensor("bmm", input), require_tensor("bmm", mat2)
    if a._type.ndim == b._type.ndim == 3 and a._type.shape[0] != b._type.shape[0]:
        raise refuse(ShapeError, f"batches differ: {a._type.shape[0]} and {b._type.shape[0]}", "bmm", a, b)
    return _product("bmm", a, b, (3, 3))


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of two vectors, of which the first is conjugated."""
    return dot(require_tensor("vdot", input).conj(), other)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product of two vectors."""
    a, b = require_tensor("outer", input), require_tensor("outer", vec2)
    if a._type.ndim != 1 or b._type.ndim != 1:
        raise refuse(ShapeError, "needs tensors of 1 and 1 dims", "outer", a, b)
    return pointwise.mul(views.unsqueeze(a, 1), b)


ger = outer


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The dot products of the rows of two tensors."""
    a, b = require_tensor("inner", input), require_tensor("inner", other)
    if not a._type.ndim or not b._type.ndim:
        return pointwise.mul(a, b)
    return tensordot(a, b, ([-1], [-1]))


def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if input._type.ndim != 2:
        raise refuse(ShapeError, "needs a matrix", "trace", input)
    return reduce.sum(views.diagonal(input))


# -- with an addend ------------------------------------------------------------------------


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2."""
    if isinstance(beta, complex) or isinstance(alpha, complex):
        return _add_scaled(input, mm(mat1, mat2), beta, alpha)
    return call(ADDMM, operands("addmm", input, mat1, mat2, beta, alpha))


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * batch1 @ batch2, matrix by matrix."""
    if isinstance(beta, complex) or isinstance(alpha, complex):
        return _add_scaled(input, bmm(batch1, batch2), beta, alpha)
    beta, alpha = _factors(input._type.dtype, beta, alpha)
    return call(BADDBMM, operands("baddbmm", input, batch1, batch2, beta, alpha))


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the sum of the matrix products of a batch."""
    products = bmm(batch1, batch2)
    product = reduce.sum(products, 0, dtype=products._type.dtype)
    _check_same_dtype("addbmm", input, product)
    return _add_scaled(input, product, beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * mat @ vec."""
    product = mv(mat, vec)
    _check_same_dtype("addmv", input, product)
    return _add_scaled(input, product, beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * the outer product of two vectors."""
    product = outer(vec1, vec2)
    if promote(input._type.dtype, product._type.dtype) is bool_:
        both = [x if factor else pointwise.ne(x, x) for x, factor in ((input, beta), (product, alpha))]
        return pointwise.logical_or(*both)
    return _add_scaled(input, product, beta, alpha)


def _check_same_dtype(name: str, a: Tensor, b: Tensor) -> None:
    if a._type.dtype is not b._type.dtype:
        raise refuse(DTypeError, f"dtypes differ: {a._type.dtype.name} and {b._type.dtype.name}", name, a, b)


def _factors(dtype: DType, *factors: float) -> tuple[float, ...]:
    """For an integer result, torch truncates the factors."""
    return factors if dtype.kind in "fc" else tuple(map(int, factors))


def _add_scaled(x: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * x + alpha * product."""
    beta, alpha = _factors(promote(x._type.dtype, product._type.dtype), beta, alpha)
    views.expand(x, product._type.shape)  # raises if x does not broadcast to the product
    result = product if alpha == 1 else pointwise.mul(product, alpha)
    # a tensor multiplied by zero is not read, so its NaN has no effect
    if beta == 0:
        return cast(result, promote(x._type.dtype, result._type.dtype))
    return pointwise.add(x if beta == 1 else pointwise.mul(x, beta), result)


# -- over several dims ---------------------------------------------------------------------


def tensordot(a: Tensor, b: Tensor, dims: Any = 2, *, axes: Any = None) -> Tensor:
    """The sum of products over pairs of dims; ``axes`` is the array API's name for them."""
    a, b = require_tensor("tensordot", a), require_tensor("tensordot", b)
    left, right = _paired(a, b, dims if axes is None else axes)
    kept_a = [d for d in range(a._type.ndim) if d not in left]
    kept_b = [d for d in range(b._type.ndim) if d not in right]
    shape_a, shape_b = [a._type.shape[d] for d in kept_a], [b._type.shape[d] for d in kept_b]
    # torch stretches a size of 1 to the other size: then the sum over the other dim is enough
    for d, e in zip(left, right, strict=True):
        n, m = a._type.shape[d], b._type.shape[e]
        if n != m and n == 1:
            b = reduce.sum(b, e, keepdim=True, dtype=b._type.dtype)
        elif n != m and m == 1:
            a = reduce.sum(a, d, keepdim=True, dtype=a._type.dtype)
        elif n != m:
            raise refuse(ShapeError, f"contracted sizes differ: {n} and {m}", "tensordot", a, b, dims=dims)
    inner_size = prod(a._type.shape[d] for d in left)
    rows = views.reshape(views.permute(a, [*kept_a, *left]), (prod(shape_a), inner_size))
    columns = views.reshape(views.permute(b, [*right, *kept_b]), (inner_size, prod(shape_b)))
    return views.reshape(matmul(rows, columns), (*shape_a, *shape_b))


def _paired(a: Tensor, b: Tensor, dims: Any) -> tuple[list[int], list[int]]:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a._type.ndim, b._type.ndim):
            raise refuse(ShapeError, f"there are no {dims} dims to contract", "tensordot", a, b, dims=dims)
        return list(range(a._type.ndim - dims, a._type.ndim)), list(range(dims))
    left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    if len(left) != len(right):
        raise refuse(ShapeError, "both tensors need equally many dims", "tensordot", a, b, dims=dims)
    return [*views.dims_of("tensordot", a, left)], [*views.dims_of("tensordot", b, right)]


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product."""
    a, b = require_tensor("kron", input), require_tensor("kron", other)
    ndim = max(a._type.ndim, b._type.ndim)
    sizes_a, sizes_b = ((1,) * (ndim - x._type.ndim) + x._type.shape for x in (a, b))
    wide = views.reshape(a, [n for size in sizes_a for n in (size, 1)])
    tall = views.reshape(b, [n for size in sizes_b for n in (1, size)])
    return views.reshape(pointwise.mul(wide, tall), [n * m for n, m in zip(sizes_a, sizes_b, strict=True)])


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product of vectors of three elements."""
    a, b = require_tensor("cross", input), require_tensor("cross", other)
    _check_same_dtype("cross", a, b)
    shape = broadcast_shapes(a._type.shape, b._type.shape)
    a, b = views.expand(a, shape), views.expand(b, shape)
    if dim is None:  # torch's old default: the first dim of size 3
        dim = next((d for d, n in enumerate(shape) if n == 3), -1)
    dim = normalize_dim(dim, len(shape))
    if shape[dim] != 3:
        raise refuse(ShapeError, f"dim {dim} must have size 3", "cross", a, b, dim=dim)
    one, two = creation.tensor([1, 2, 0]), creation.tensor([2, 0, 1])
    picks = [call(INDEX, (x, at), (("dims", (dim,)),)) for x in (a, b) for at in (one, two)]
    return picks[0] * picks[3] - picks[1] * picks[2]


# -- several matrices ----------------------------------------------------------------------


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices."""
    return multi_dot(matrices)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices, in the order with the fewest multiplications."""
    xs = list(tensor_list("multi_dot", tensors))
    if len(xs) == 1:
        return xs[0]
    first, last = xs[0]._type.ndim == 1, xs[-1]._type.ndim == 1
    xs[0] = views.unsqueeze(xs[0], 0) if first else xs[0]
    xs[-1] = views.unsqueeze(xs[-1], 1) if last else xs[-1]
    for x in xs:
        if x._type.ndim != 2:
            raise refuse(ShapeError, "needs matrices", "multi_dot", *xs)
    result = _chained(xs, _best_cuts([x._type.shape[0] for x in xs] + [xs[-1]._type.shape[1]]), 0, len(xs) - 1)
    gone = [d for d, squeezed in enumerate((first, last)) if squeezed]
    return views.squeeze(result, gone) if gone else result


def _best_cuts(sizes: list[int]) -> dict[tuple[int, int], int]:
    """(first, last) -> after which matrix to split that product. ``sizes``: the rows of each, and the last columns."""
    n, cuts = len(sizes) - 1, {}
    cost = {(i, i): 0 for i in range(n)}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            costs = {k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)}
            cuts[i, j] = best = min(costs, key=costs.__getitem__)
            cost[i, j] = costs[best]
    return cuts


def _chained(xs: list[Tensor], cuts: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return xs[i]
    k = cuts[i, j]
    return matmul(_chained(xs, cuts, i, k), _chained(xs, cuts, k + 1, j))


def matrix_power(input: Tensor, n: int) -> Tensor:
    """A matrix multiplied n times with itself."""
    x = require_tensor("matrix_power", input)
    if x._type.ndim < 2 or x._type.shape[-1] != x._type.shape[-2]:
        raise refuse(ShapeError, "needs square matrices", "matrix_power", x, n)
    if n == 0:
        ones = creation.eye(x._type.shape[-1], dtype=x._type.dtype)
        # the result keeps the tensor's gradient history, with a gradient of 0
        identity: Tensor = pointwise.where(creation.zeros((), dtype=bool_), x, ones)
        return identity
    if n < 0:
        x, n = call(INV, (x,)), -n
    result, square = None, x
    while n:
        if n & 1:
            result = square if result is None else matmul(result, square)
        n >>= 1
        if n:
            square = matmul(square, square)
    assert result is not None
    return pointwise.clone(result) if result is x else result
