"""``gt.nn.utils.parametrize``: parameters and buffers that are computed from others at each access.

A parametrized module gets a class of its own: a subclass with one property per parametrized tensor. These classes are
shared between modules and never changed, so a copy of a module stays what it is when the original changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.nn.containers import ModuleDict, ModuleList
from gt.nn.module import Module
from gt.nn.parameter import Parameter, assign

__all__ = [
    "ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations",
    "transfer_parametrizations_and_params", "type_before_parametrizations",
]  # fmt: skip

#: while `cached` is active: (id of the ParametrizationList) -> its value
_cache: dict[int, Tensor] = {}
_active_caches = 0


@contextmanager
def cached() -> Iterator[None]:
    """Within this context, compute each parametrized tensor once. See `torch.nn.utils.parametrize.cached`."""
    global _active_caches
    _active_caches += 1
    try:
        yield
    finally:
        _active_caches -= 1
        if not _active_caches:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, and what they start from: ``original``, or ``original0`` and so on.

    See `torch.nn.utils.parametrize.ParametrizationList`.
    """

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        before = original._type
        with no_grad():
            start = self._inverted(original, strict=False)
        if not isinstance(start, Tensor | Sequence):
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                f"Got {type(start).__name__}"
            )
        self.is_tensor = isinstance(start, Tensor)
        self.ntensors = 1 if isinstance(start, Tensor) else len(start)
        if isinstance(start, Tensor):
            self._start_from_one(original, start)
        else:
            self._start_from_several(original, start)
        if not unsafe:
            _check_same(self(), before.dtype, before.shape, "unparametrized", "parametrized")

    def _start_from_one(self, original: Tensor, start: Tensor) -> None:
        if start.dtype != original.dtype:
            raise ValueError(
                "When `right_inverse` outputs one tensor, it may not change the dtype.\n"
                f"original.dtype: {original.dtype}\nright_inverse(original).dtype: {start.dtype}"
            )
        assign(original, start)  # the same object, so that an optimizer need not be told
        _register(self, "original", original)

    def _start_from_several(self, original: Tensor, start: Sequence[Any]) -> None:
        for i, value in enumerate(start):
            if not isinstance(value, Tensor):
                raise ValueError(
                    "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). "
                    f"Got element {i} of the sequence with type {type(value).__name__}."
                )
            trained = isinstance(original, Parameter)
            _register(self, f"original{i}", Parameter(value, original.requires_grad) if trained else value)

    def _inverted(self, value: Any, strict: bool) -> Any:
        """What the parametrizations compute ``value`` from. One without an inverse is the identity, or an error."""
        for module in reversed(list(self)):
            inverse = getattr(module, "right_inverse", None)
            if inverse is None and strict:
                raise RuntimeError(f"parametrization {type(module).__name__} does not implement right_inverse.")
            if inverse is not None:
                try:
                    value = inverse(value)
                except NotImplementedError:
                    if strict:
                        raise
        return value

    @no_grad()
    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the parametrized tensor becomes this value."""
        start = self._inverted(value, strict=True)
        if self.is_tensor:
            if not isinstance(start, Tensor):
                raise ValueError(f"`right_inverse` should return a tensor. Got {type(start).__name__}")
        elif not isinstance(start, Sequence):
            raise ValueError(f"'right_inverse' must return a sequence of tensors. Got {type(start).__name__}.")
        elif len(start) != self.ntensors:
            raise ValueError(
                f"'right_inverse' must return a sequence of tensors of length {self.ntensors}. "
                f"Got a sequence of length {len(start)}."
            )
        for original, new in zip(self._originals(), [start] if self.is_tensor else start, strict=True):
            if new.dtype != original.dtype:
                raise ValueError(
                    f"The tensor returned by `right_inverse` has dtype {new.dtype} while `original` has dtype "
                    f"{original.dtype}"
                )
            assign(original, new)

    def _originals(self) -> list[Tensor]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def forward(self) -> Tensor:
        first, *others = list(self)
        value: Tensor = first(*self._originals())
        for parametrization in others:
            value = parametrization(value)
        return value


def _register(module: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def _check_same(value: Any, dtype: Any, shape: Any, before: str, after: str) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(value).__name__}.")
    for what, old, new in (("dtype", dtype, value.dtype), ("shape", tuple(shape), tuple(value.shape))):
        if old != new:
            raise ValueError(
                f"Registering a parametrization may not change the {what} of the tensor, unless `unsafe` flag is "
                f"enabled.\n{before} {what}: {old}\n{after} {what}: {new}"
            )


# -- the class of a parametrized module ----------------------------------------------------


@cache
def _class_of(base: type, names: tuple[str, ...]) -> type:
    return type(f"Parametrized{base.__name__}", (base,), {name: _property(name) for name in names})


def _property(name: str) -> property:
    def get(self: Module) -> Tensor:
        parametrizations = self.parametrizations[name]
        if not _active_caches:
            return parametrizations()  # type: ignore[no-any-return]
        if id(parametrizations) not in _cache:
            _cache[id(parametrizations)] = parametrizations()
        return _cache[id(parametrizations)]

    def set(self: Module, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(get, set)


def _update_class(module: Module, base: type) -> None:
    names = tuple(module.parametrizations)
    module.__class__ = _class_of(base, names) if names else base
    if not names:
        del module.parametrizations


# -- the functions -------------------------------------------------------------------------


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute a parameter or buffer by a module from now on. See `torch.nn.utils.parametrize.register_parametrization`.

    Example::

        class Symmetric(gt.nn.Module):
            def forward(self, x):
                return x.triu() + x.triu(1).mT

        layer = gt.nn.utils.parametrize.register_parametrization(gt.nn.Linear(3, 3), "weight", Symmetric())
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        listed = module.parametrizations[tensor_name]
        if not unsafe:
            _check_chained(getattr(module, tensor_name), parametrization, tensor_name)
        listed.append(parametrization)
        listed.unsafe |= unsafe
    elif tensor_name in module._buffers or tensor_name in module._parameters:
        listed = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
        base = type_before_parametrizations(module)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            module.parametrizations = ModuleDict()
        module.parametrizations[tensor_name] = listed
        _update_class(module, base)
    else:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    return module


def _check_chained(value: Tensor, parametrization: Module, name: str) -> None:
    """A further parametrization, and its inverse, keep dtype and shape."""
    result = parametrization(value)
    _check_same(result, value.dtype, value.shape, f"module.{name}", f"parametrization(module.{name})")
    inverse = getattr(parametrization, "right_inverse", None)
    if inverse is None:
        return
    try:
        back = inverse(result)
    except NotImplementedError:
        return
    if not isinstance(back, Tensor):
        raise ValueError(f"parametrization.right_inverse must return a tensor. Got: {type(back).__name__}")
    for what in ("dtype", "shape"):
        if getattr(back, what) != getattr(value, what):
            raise ValueError(
                f"The tensor returned by parametrization.right_inverse must have the same {what} as module.{name}, "
                f"unless the `unsafe` flag is enabled.\nmodule.{name}.{what}: {getattr(value, what)}\n"
                f"returned {what}: {getattr(back, what)}"
            )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has a parametrization, of this tensor if a name is given."""
    parametrizations = module._modules.get("parametrizations")
    if not isinstance(parametrizations, ModuleDict):
        return False
    return len(parametrizations) > 0 if tensor_name is None else tensor_name in parametrizations


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a tensor plain again, with its current value or with its original one.

    See `torch.nn.utils.parametrize.remove_parametrizations`.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    listed = module.parametrizations[tensor_name]
    if not listed.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    if not listed.is_tensor:
        value = getattr(module, tensor_name)
        original = Parameter(value.detach()) if value.requires_grad else value
    else:
        original = listed.original
        if leave_parametrized:
            with no_grad():
                assign(original, getattr(module, tensor_name))
    base = type_before_parametrizations(module)
    del module.parametrizations[tensor_name]
    _update_class(module, base)
    _register(module, tensor_name, original)
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class of a module without its parametrizations."""
    return type(module).__bases__[0] if is_parametrized(module) else type(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give a module the parametrizations and originals of another one.

    See `torch.nn.utils.parametrize.transfer_parametrizations_and_params`.
    """
    if not is_parametrized(from_module):
        return to_module
    for name in list(from_module.parametrizations) if tensor_name is None else [tensor_name]:
        source = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            setattr(to_module, name, Parameter(getattr(from_module, name).detach()))
        for parametrization in source:
            register_parametrization(to_module, name, parametrization)
        target = to_module.parametrizations[name]
        for original in ("original", *(f"original{i}" for i in range(source.ntensors))):
            if hasattr(source, original):
                setattr(target, original, getattr(source, original))
    return to_module
