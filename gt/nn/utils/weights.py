"""``gt.nn.utils.weight_norm`` and ``spectral_norm``: weights that a hook computes before each forward.

`gt.nn.utils.parametrizations` has newer functions of the same names; their rules are the ones here.
"""

from __future__ import annotations

from typing import Any, TypeVar

from gt.client.grad.backward import no_grad
from gt.client.grad.handles import RemovableHandle, in_dict
from gt.client.tensor.tensor import Tensor
from gt.functions.draw import randn
from gt.functions.norm import norm_except_dim
from gt.nn import functional as F
from gt.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.module import Module
from gt.nn.parameter import Parameter

M = TypeVar("M", bound=Module)


def normalized_weight(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """The direction of v with the length g; ``dim`` -1 is one length for all."""
    return v * (g / norm_except_dim(v, 2, dim))


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """The weight as a matrix whose rows are the outputs, which are along ``dim``."""
    rest = [d for d in range(weight.ndim) if d != dim]
    return weight.permute(dim, *rest).flatten(1) if dim else weight.flatten(1)


def random_direction(weight: Tensor, size: int, eps: float) -> Tensor:
    """A random vector of length 1 in the weight's dtype."""
    return F.normalize(randn(size, dtype=weight.dtype), dim=0, eps=eps)


def output_dim(module: Module, dim: int | None) -> int:
    """The dim of outputs in a module's weight."""
    if dim is not None:
        return dim
    return int(isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d))


def check_iterations(count: int) -> None:
    if count <= 0:
        raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={count}")


class WeightHook:
    """A forward pre-hook that computes a weight from others. Its handle removes it."""

    #: what the hook is called in errors
    kind = ""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def compute(self, module: Module, update: bool) -> Tensor:
        """The weight; ``update``: in training, what is kept about it changes."""
        raise NotImplementedError

    def parts(self) -> tuple[str, ...]:
        """The names of the tensors that the weight is computed from."""
        raise NotImplementedError

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute(module, module.training))


def _hook_of(module: Module, kind: type[WeightHook], name: str) -> RemovableHandle | None:
    for number, (hook, _) in module._forward_pre_hooks.items():
        if isinstance(hook, kind) and hook.name == name:
            return in_dict(module._forward_pre_hooks, number)
    return None


def _check_free(module: Module, kind: type[WeightHook], name: str) -> None:
    if _hook_of(module, kind, name) is not None:
        raise RuntimeError(f"Cannot register two {kind.kind} hooks on the same parameter {name}")


def _remove(module: M, kind: type[WeightHook], name: str) -> M:
    handle = _hook_of(module, kind, name)
    if handle is None:
        raise ValueError(f"{kind.kind} of '{name}' not found in {module}")
    hook: WeightHook = module._forward_pre_hooks[handle.id][0]
    with no_grad():
        weight = hook.compute(module, False)
    for part in (name, *hook.parts()):
        delattr(module, part)
    module.register_parameter(name, Parameter(weight))
    handle.remove()
    return module


class WeightNorm(WeightHook):
    """Computes a weight from its length ``_g`` and its direction ``_v``."""

    kind = "weight_norm"

    def compute(self, module: Module, update: bool) -> Tensor:
        return normalized_weight(getattr(module, self.name + "_v"), getattr(module, self.name + "_g"), self.dim)

    def parts(self) -> tuple[str, ...]:
        return self.name + "_g", self.name + "_v"


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Train the lengths and directions of a weight separately. See `torch.nn.utils.weight_norm`."""
    _check_free(module, WeightNorm, name)
    hook = WeightNorm(name, -1 if dim is None else dim)
    weight = module._parameters.pop(name)
    module.register_parameter(name + "_g", Parameter(norm_except_dim(weight.detach(), 2, hook.dim)))
    module.register_parameter(name + "_v", Parameter(weight.detach()))
    setattr(module, name, hook.compute(module, False))
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Make a weight plain again, with its current value. See `torch.nn.utils.remove_weight_norm`."""
    return _remove(module, WeightNorm, name)


class SpectralNorm(WeightHook):
    """Divides a weight by its largest singular value, which a power iteration estimates."""

    kind = "spectral_norm"

    def __init__(self, name: str, dim: int, n_power_iterations: int, eps: float) -> None:
        super().__init__(name, dim)
        check_iterations(n_power_iterations)
        self.n_power_iterations, self.eps = n_power_iterations, eps

    def compute(self, module: Module, update: bool) -> Tensor:
        weight, u, v = (getattr(module, part) for part in self.parts())
        matrix = as_matrix(weight, self.dim)
        if update:
            with no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(matrix.T @ u, dim=0, eps=self.eps))
                    u.copy_(F.normalize(matrix @ v, dim=0, eps=self.eps))
        # copies, because the next forward writes u and v, and backward needs these values
        u, v = u.clone(), v.clone()
        return weight / u.dot(matrix @ v)  # type: ignore[no-any-return]

    def parts(self) -> tuple[str, ...]:
        return self.name + "_orig", self.name + "_u", self.name + "_v"


def spectral_norm(
    module: M, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> M:
    """Divide a weight by its largest singular value before each forward. See `torch.nn.utils.spectral_norm`."""
    _check_free(module, SpectralNorm, name)
    hook = SpectralNorm(name, output_dim(module, dim), n_power_iterations, eps)
    weight = module._parameters[name]
    if weight is None:
        raise ValueError(f"`SpectralNorm` cannot be applied as parameter `{name}` is None")
    with no_grad():
        u, v = (random_direction(weight, size, eps) for size in as_matrix(weight, hook.dim).shape)
    delattr(module, name)
    module.register_parameter(name + "_orig", weight)
    module.register_buffer(name + "_u", u)
    module.register_buffer(name + "_v", v)
    setattr(module, name, weight.detach())  # until the first forward, as in torch
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Make a weight plain again, with its current value. See `torch.nn.utils.remove_spectral_norm`."""
    return _remove(module, SpectralNorm, name)
