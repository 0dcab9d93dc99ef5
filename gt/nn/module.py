"""Modules: parameters, buffers and other modules under names, and what can be done to all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from gt.client.grad.backward import requires_grad_
from gt.client.stream import configuration, recorder
from gt.client.tensor import placing
from gt.client.tensor.arguments import dtype_of
from gt.client.tensor.emit import detached
from gt.client.tensor.foreign import find_dtype
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import zeros_like
from gt.nn import hooks, state
from gt.nn.parameter import Parameter, assign
from gt.types import DType, bfloat16, float16, float32, float64

__all__ = ["Module"]


#: where each kind of attribute is kept
KINDS = ("_parameters", "_buffers", "_modules")


class Module:
    """See `torch.nn.Module`."""

    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]

    def __init__(self) -> None:
        # past __setattr__, which needs them
        own = self.__dict__
        own.update(training=True, _parameters={}, _buffers={}, _modules={}, _transient=set())
        own.update(_forward_pre_hooks={}, _forward_hooks={}, _backward_hooks={}, _backward_pre_hooks={})
        own.update(_state_dict_hooks={}, _state_dict_pre_hooks={}, _load_hooks={}, _load_pre_hooks={})

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if configuration.current.rules and not placing.module_call.active:
            return placing.call(self, inputs, kwargs)
        own = self.__dict__
        if recorder.active is not None:
            recorder.active.modules[self] = None
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return hooks.call(self, inputs, kwargs)
        return self.forward(*inputs, **kwargs)

    # -- attributes ------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if isinstance(value, Parameter):
            self._named(name, "parameters")
            _forget(self, name, ("_buffers", "_modules"))
            own["_parameters"][name] = value
        elif isinstance(value, Module):
            self._named(name, "modules")
            _forget(self, name, ("_parameters", "_buffers"))
            own["_modules"][name] = value
        elif "_parameters" in own and name in own["_parameters"]:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as parameter '{name}' (gt.nn.Parameter or None expected)"
                )
            own["_parameters"][name] = None
        elif "_modules" in own and name in own["_modules"]:
            if value is not None:
                raise TypeError(
                    f"cannot assign '{_type_name(value)}' as child module '{name}' (gt.nn.Module or None expected)"
                )
            own["_modules"][name] = None
        elif "_buffers" in own and name in own["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"cannot assign '{_type_name(value)}' as buffer '{name}' (gt.Tensor or None expected)")
            own["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def _named(self, name: str, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for kind in KINDS:
            if kind in own and name in own[kind]:
                return own[kind][name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for kind in KINDS:
            if name in self.__dict__.get(kind, ()):
                del self.__dict__[kind][name]
                self._transient.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        self._check_name(name, "_parameters", "parameter")
        if param is None:
            self._parameters[name] = None
        elif not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{_type_name(param)}' object to parameter '{name}' (gt.nn.Parameter or None required)"
            )
        else:
            self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        self._check_name(name, "_buffers", "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{_type_name(tensor)}' object to buffer '{name}' (gt Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._transient.discard if persistent else self._transient.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        self.add_module(name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{_type_name(module)} is not a Module subclass")
        self._check_name(name, "_modules", "module")
        self._modules[name] = module

    def _check_name(self, name: str, kind: str, what: str) -> None:
        if kind not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {_type_name(name)}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain ".", got: {name}')
        if not name:
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[kind]:
            raise KeyError(f"attribute '{name}' already exists")

    def get_submodule(self, target: str) -> Module:
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        found: Module = module
        return found

    def get_parameter(self, target: str) -> Parameter:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if name not in owner._parameters:
            raise AttributeError(f"{type(owner).__name__} has no parameter `{name}`")
        found: Parameter = owner._parameters[name]
        return found

    def get_buffer(self, target: str) -> Tensor:
        path, _, name = target.rpartition(".")
        owner = self.get_submodule(path)
        if name not in owner._buffers:
            raise AttributeError(f"{type(owner).__name__} has no buffer `{name}`")
        found: Tensor = owner._buffers[name]
        return found

    # -- who is there ----------------------------------------------------------------------

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, _joined(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        return self._members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        return self._members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers(recurse=recurse))

    def _members(self, kind: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]
        for path, module in owners:
            for name, value in module.__dict__[kind].items():
                if value is None or id(value) in seen:
                    continue
                if once:
                    seen.add(id(value))
                yield _joined(path, name), value

    # -- what is done to all ---------------------------------------------------------------

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        for p in self.parameters():
            requires_grad_(p, requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters():
            if p.grad is not None:
                p.grad = None if set_to_none else zeros_like(p.grad)

    def to(self, *args: Any, dtype: Any = None, device: Any = None, **rest: Any) -> Self:
        """Only a dtype has an effect, on what is floating: where tensors live is not for the program to say."""
        for given in args:
            if isinstance(given, Tensor):
                dtype = given._type.dtype
            elif isinstance(given, DType | type) or find_dtype(given) is not None:
                dtype = given
        if dtype is None:
            return self
        dtype = dtype_of(dtype)
        if dtype.kind != "f":
            raise TypeError(f"nn.Module.to only accepts floating point dtypes, but got desired dtype={dtype}")
        return self._cast(dtype)

    def _cast(self, dtype: DType) -> Self:
        for x in (*self.parameters(), *self.buffers()):
            if x._type.dtype.kind == "f" and x._type.dtype is not dtype:
                assign(x, detached(x).to(dtype))
                if x.grad is not None:
                    x.grad = x.grad.to(dtype)
        return self

    def float(self) -> Self:
        return self._cast(float32)

    def double(self) -> Self:
        return self._cast(float64)

    def half(self) -> Self:
        return self._cast(float16)

    def bfloat16(self) -> Self:
        return self._cast(bfloat16)

    def cpu(self) -> Self:
        return self

    def cuda(self, device: Any = None) -> Self:
        return self

    # -- state -----------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        made: dict[str, Any] = OrderedDict() if destination is None else destination
        hooks.each(self._state_dict_pre_hooks, self, prefix, keep_vars)
        for name, x in self._own_state():
            made[prefix + name] = x if keep_vars else detached(x)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=made, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        hooks.each(self._state_dict_hooks, self, made, prefix, {})
        return made

    def _own_state(self) -> Iterator[tuple[str, Tensor]]:
        for name, x in (*self._parameters.items(), *self._buffers.items()):
            if x is not None and name not in self._transient:
                yield name, x

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        return state.load(self, state_dict, strict, assign)

    # -- hooks -----------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> hooks.Handle:
        return hooks.add(self._forward_pre_hooks, hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> hooks.Handle:
        return hooks.add(self._forward_hooks, hook, prepend, with_kwargs)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> hooks.Handle:
        return hooks.add(self._backward_hooks, hook, prepend, False)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> hooks.Handle:
        return hooks.add(self._backward_pre_hooks, hook, prepend, False)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> hooks.Handle:
        return hooks.add(self._state_dict_pre_hooks, hook, False, False)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> hooks.Handle:
        return hooks.add(self._state_dict_hooks, hook, False, False)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> hooks.Handle:
        return hooks.add(self._load_pre_hooks, hook, False, False)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> hooks.Handle:
        return hooks.add(self._load_hooks, hook, False, False)

    # -- repr ------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_indented(repr(module))}" for name, module in self._modules.items()]
        if len(lines) == 1 and not children:
            return f"{self._get_name()}({lines[0]})"
        inner = [*lines, *children]
        return f"{self._get_name()}(\n  " + "\n  ".join(inner) + "\n)" if inner else f"{self._get_name()}()"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


def _type_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def _forget(module: Module, name: str, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        module.__dict__[kind].pop(name, None)
    module.__dict__["_transient"].discard(name)
