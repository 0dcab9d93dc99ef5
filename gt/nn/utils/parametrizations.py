"""``gt.nn.utils.parametrizations``: weights that are normalised or orthogonal at each access."""

from __future__ import annotations

from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import eye, zeros_like
from gt.functions.derived import matrix_exp
from gt.functions.draw import randn
from gt.functions.factorizations import geqrf
from gt.functions.joining import cat
from gt.functions.linalg import householder_product, solve
from gt.functions.norm import norm_except_dim
from gt.functions.pointwise import where
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization
from gt.nn.utils.weights import as_matrix, check_iterations, normalized_weight, output_dim, random_direction
from gt.types import float64, int32

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

ORTHOGONAL_MAPS = ("matrix_exp", "cayley", "householder")
#: power iterations before the first use
FIRST_ITERATIONS = 15


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return normalized_weight(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train the lengths and directions of a weight separately. See `torch.nn.utils.parametrizations.weight_norm`."""
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def accept_old_names(module: Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """A state of `gt.nn.utils.weight_norm` has other names."""
        old = [f"{prefix}{name}_g", f"{prefix}{name}_v"]
        if all(key in state_dict for key in old):
            for i, key in enumerate(old):
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = state_dict.pop(key)

    module.register_load_state_dict_pre_hook(accept_old_names)
    return module


class _SpectralNorm(Module):
    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        ndim = weight.ndim
        if not -ndim <= dim < ndim:
            raise IndexError(f"Dimension out of range (expected to be in range of [-{ndim}, {ndim - 1}] but got {dim})")
        check_iterations(n_power_iterations)
        self.dim, self.eps, self.n_power_iterations = dim % ndim, eps, n_power_iterations
        if ndim > 1:
            with no_grad():
                matrix = as_matrix(weight.detach(), self.dim)
                for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                    self.register_buffer(name, random_direction(weight, size, eps))
                self._iterate(matrix, FIRST_ITERATIONS)

    @no_grad()
    def _iterate(self, matrix: Tensor, count: int) -> None:
        for _ in range(count):
            self._u.copy_(F.normalize(matrix @ self._v, dim=0, eps=self.eps))
            self._v.copy_(F.normalize(matrix.T @ self._u, dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        # copies, because the next forward writes u and v, and backward needs these values
        u, v = self._u.clone(), self._v.clone()
        return weight / u.dot(matrix @ v)  # type: ignore[no-any-return]

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def _weight_of(module: Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return weight


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value. See `torch.nn.utils.parametrizations.spectral_norm`."""
    weight = _weight_of(module, name)
    parametrization = _SpectralNorm(weight, n_power_iterations, output_dim(module, dim), eps)
    return register_parametrization(module, name, parametrization)


# -- orthogonal matrices -------------------------------------------------------------------


def _orthogonal_factor(a: Tensor) -> Tensor:
    """The factor Q of ``a = Q @ R`` for which the diagonal of R is positive."""
    factors, tau = geqrf(a)
    return householder_product(factors, tau) * factors.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)


def _is_orthogonal(q: Tensor) -> bool:
    """Waits for the workers."""
    tolerance = 10.0 * q.shape[-2] * (2.0**-52 if q.dtype is float64 else 2.0**-23)
    return bool(((q.mT @ q - eye(q.shape[-1], dtype=q.dtype)).abs() <= tolerance).all())


class _Orthogonal(Module):
    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape, self.orthogonal_map, self.use_trivialization = weight.shape, orthogonal_map, use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.shape[-2] < x.shape[-1]
        tall = x.mT if wide else x
        q = _reflections(tall) if self.orthogonal_map == "householder" else _rotation(tall, self.orthogonal_map)
        if self.use_trivialization:
            q = self.base @ q
        return q.mT if wide else q

    @no_grad()
    def right_inverse(self, value: Tensor) -> Tensor:
        if value.shape != self.shape:
            raise ValueError(
                f"Expected a matrix or batch of matrices of shape {self.shape}. Got a tensor of shape {value.shape}."
            )
        wide = value.shape[-2] < value.shape[-1]
        tall = value.mT if wide else value
        if not self.use_trivialization:
            result = self._reflectors(tall)
            return result.mT if wide else result
        *batch, n, k = tall.shape
        if n == k:
            self.base = tall.clone() if _is_orthogonal(tall) else _orthogonal_factor(tall)
        else:
            self.base = _orthogonal_factor(cat([tall, randn(*batch, n, n - k, dtype=tall.dtype)], -1))
        # all maps take this matrix to the identity; Householder's has its signs on the diagonal
        return zeros_like(value) - eye(*value.shape[-2:], dtype=value.dtype)

    def _reflectors(self, q: Tensor) -> Tensor:
        if self.orthogonal_map != "householder":
            raise NotImplementedError(
                "It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                "use_trivialization=False."
            )
        factors, tau = geqrf(q)
        diagonal = factors.diagonal(dim1=-2, dim2=-1)
        signs = diagonal.sign()
        # a factor of exactly 0 is no reflection
        signs = where(tau == 0, -signs, signs)
        return factors + F.pad((signs - diagonal).diag_embed(), (0, 0, 0, q.shape[-2] - q.shape[-1]))


def _rotation(tall: Tensor, orthogonal_map: str) -> Tensor:
    """The first columns of the exponential, or of Cayley's map, of a skew-symmetric matrix."""
    *_, n, k = tall.shape
    square = F.pad(tall.tril(), (0, n - k))
    skew = square - square.mT
    if orthogonal_map == "matrix_exp":
        return matrix_exp(skew)[..., :k]
    unit = eye(n, dtype=skew.dtype)
    return solve(unit - skew * 0.5, unit + skew * 0.5)[..., :k]


def _reflections(tall: Tensor) -> Tensor:
    vectors = tall.tril(-1)
    q = householder_product(vectors, 2.0 / (1.0 + vectors.square().sum(-2)))
    # the diagonal holds signs, which are not trained
    return q * tall.diagonal(dim1=-2, dim2=-1).to(int32).unsqueeze(-2)


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """Keep the columns of a weight, or its rows if it is wide, orthonormal.

    See `torch.nn.utils.parametrizations.orthogonal`.
    """
    weight = _weight_of(module, name)
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in ORTHOGONAL_MAPS:
        raise ValueError(
            f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}'
        )
    return register_parametrization(module, name, _Orthogonal(weight, orthogonal_map, use_trivialization), unsafe=True)
