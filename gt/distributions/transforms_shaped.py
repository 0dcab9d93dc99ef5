"""Transforms of vectors and matrices, of shapes, and of the parts of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.distributions import constraints
from gt.distributions.constraints import Constraint
from gt.distributions.parameters import eps_of, tiny_of
from gt.distributions.transforms_base import Transform
from gt.functions.creation import arange, eye, tensor
from gt.functions.joining import cat, stack
from gt.functions.linalg import cholesky
from gt.functions.windows import diag_embed
from gt.nn.functional import logsigmoid, pad, softmax, softplus
from gt.types import Size, int64


class SoftmaxTransform(Transform):
    """y = softmax(x), with log y as its inverse."""

    domain = constraints.real_vector
    codomain = constraints.simplex

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SoftmaxTransform)

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        return softmax(x, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """From a vector to one more probabilities: each is a share of what the ones before have left."""

    bijective = True
    domain = constraints.real_vector
    codomain = constraints.simplex

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StickBreakingTransform)

    __hash__ = object.__hash__

    def _call(self, x: Tensor) -> Tensor:
        z = _shifted(x).sigmoid()
        left = (1 - z).cumprod(-1)
        return pad(z, (0, 1), value=1) * pad(left, (1, 0), value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        cropped = y[..., :-1]
        count = cropped.shape[-1] - arange(cropped.shape[-1], dtype=y.dtype)
        left = (1 - cropped.cumsum(-1)).clamp(min=tiny_of(y))
        return cropped.log() - left.log() + count.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = _shifted(x)
        return (-x + logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Any) -> Size:
        return Size((*shape[:-1], shape[-1] + 1))

    def inverse_shape(self, shape: Any) -> Size:
        return Size((*shape[:-1], shape[-1] - 1))


def _shifted(x: Tensor) -> Tensor:
    """So that zeros give equal probabilities."""
    n = x.shape[-1]
    return x - (n - arange(n, dtype=x.dtype)).log()


class LowerCholeskyTransform(Transform):
    """From a square matrix to a lower triangular one with a positive diagonal."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + diag_embed(x.diagonal(0, -2, -1).exp())

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + diag_embed(y.diagonal(0, -2, -1).log())


class PositiveDefiniteTransform(Transform):
    """From a square matrix to a positive definite one."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform()._inverse(cholesky(y))


class CorrCholeskyTransform(Transform):
    """From a vector to the Cholesky factor of a correlation matrix: partial correlations, row by row."""

    bijective = True
    domain = constraints.real_vector
    codomain = constraints.corr_cholesky

    def _call(self, x: Tensor) -> Tensor:
        eps = eps_of(x)
        r = _lower_matrix(x.tanh().clamp(-1 + eps, 1 - eps))
        left = (1 - r.square()).cumprod(-1).sqrt()
        r = r + eye(r.shape[-1], dtype=r.dtype)
        return r * pad(left[..., :-1], (1, 0), value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        eps = eps_of(y)
        left = pad((1 - y.square().cumsum(-1)).clamp(min=eps)[..., :-1], (1, 0), value=1)
        t = _lower_vector(y / left.sqrt())
        return (t.log1p() - (-t).log1p()) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        left = (1 - y.square().cumsum(-1)).clamp(min=tiny_of(y))[..., :-1]
        rows = 0.5 * _lower_vector(pad(left, (1, 0), value=1)).log().sum(-1)
        return rows - 2 * (x + softplus(-2 * x) - 0.6931471805599453).sum(-1)

    def forward_shape(self, shape: Any) -> Size:
        n = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != shape[-1]:
            raise ValueError("Input is not a flattend lower-diagonal number")
        return Size((*shape[:-1], n, n))

    def inverse_shape(self, shape: Any) -> Size:
        if len(shape) < 2 or shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        n = shape[-1]
        return Size((*shape[:-2], n * (n - 1) // 2))


def _positions(n: int) -> tuple[list[int], list[int]]:
    """The rows and columns below the diagonal."""
    pairs = [(i, j) for i in range(n) for j in range(i)]
    return [i for i, _ in pairs], [j for _, j in pairs]


def _lower_vector(matrix: Tensor) -> Tensor:
    rows, columns = _positions(matrix.shape[-1])
    n = matrix.shape[-1]
    return matrix.flatten(-2).index_select(-1, _indices([i * n + j for i, j in zip(rows, columns, strict=True)]))


def _lower_matrix(vector: Tensor) -> Tensor:
    """The vector below the diagonal, zeros elsewhere: the element behind the vector is a zero."""
    n = round((0.25 + 2 * vector.shape[-1]) ** 0.5 + 0.5)
    rows, columns = _positions(n)
    where = {i * n + j: k for k, (i, j) in enumerate(zip(rows, columns, strict=True))}
    index = _indices([where.get(k, vector.shape[-1]) for k in range(n * n)])
    return pad(vector, (0, 1)).index_select(-1, index).unflatten(-1, (n, n))


def _indices(values: list[int]) -> Tensor:
    return tensor(values, dtype=int64)


class ReshapeTransform(Transform):
    """Another shape of the event."""

    bijective = True

    def __init__(self, in_shape: Any, out_shape: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = Size(in_shape), Size(out_shape)
        if prod(in_shape) != prod(out_shape):
            raise ValueError("in_shape, out_shape have different numbers of elements")

    @property
    def domain(self) -> Constraint:
        """The values that it takes."""
        return constraints.independent(constraints.real, len(self.in_shape))

    @property
    def codomain(self) -> Constraint:
        """The values that it gives."""
        return constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(x.shape[: x.ndim - len(self.in_shape)])

    def forward_shape(self, shape: Any) -> Size:
        return _replaced(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Any) -> Size:
        return _replaced(shape, self.out_shape, self.in_shape)


def _replaced(shape: Any, old: Size, new: Size) -> Size:
    cut = len(shape) - len(old)
    if cut < 0 or tuple(shape[cut:]) != old:
        raise ValueError(f"Shape mismatch: expected {tuple(shape[max(cut, 0) :])} but got {tuple(old)}")
    return Size((*shape[:cut], *new))


class _Parallel(Transform):
    """A transform for each part of a tensor along a dim."""

    _divide: Callable[..., Any]
    _join: Any

    def __init__(self, tseq: Any, dim: int = 0, lengths: Any = None, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = [t.with_cache(cache_size) for t in tseq], dim
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        """Has each value one argument?"""
        return all(t.bijective for t in self.transforms)

    def _call(self, x: Tensor) -> Tensor:
        return self._joined(zip(self.transforms, self._divide(x), strict=True))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._joined((t.inv, part) for t, part in zip(self.transforms, self._divide(y), strict=True))

    def _joined(self, pairs: Any) -> Tensor:
        return self._join([transform(part) for transform, part in pairs], self.dim)  # type: ignore[no-any-return]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.transforms, self._divide(x), self._divide(y), strict=True)
        return self._join([t.log_abs_det_jacobian(a, b) for t, a, b in parts], self.dim)  # type: ignore[no-any-return]


class StackTransform(_Parallel):
    """Transforms of the slices of a tensor along a dim."""

    _join = staticmethod(stack)

    def __init__(self, tseq: Any, dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, None, cache_size)

    def _divide(self, x: Tensor) -> Any:
        return x.unbind(self.dim)

    @property
    def domain(self) -> Constraint:
        """The values that it takes."""
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @property
    def codomain(self) -> Constraint:
        """The values that it gives."""
        return constraints.stack([t.codomain for t in self.transforms], self.dim)


class CatTransform(_Parallel):
    """Transforms of consecutive pieces of a tensor along a dim."""

    _join = staticmethod(cat)

    def _divide(self, x: Tensor) -> Any:
        return x.split(self.lengths, self.dim)

    @property
    def domain(self) -> Constraint:
        """The values that it takes."""
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @property
    def codomain(self) -> Constraint:
        """The values that it gives."""
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)
