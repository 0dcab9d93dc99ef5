"""`Module`: parameters, buffers and child modules under names, and methods that act on all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from gt.client.grad.handles import RemovableHandle
from gt.client.grad.leaves import clear_grads, requires_grad_
from gt.client.stream import configuration, recorder
from gt.client.tensor import placing
from gt.client.tensor.arguments import dtype_of
from gt.client.tensor.emit import detached
from gt.client.tensor.foreign import find_dtype
from gt.client.tensor.tensor import Tensor
from gt.nn import hooks, state
from gt.nn.parameter import Buffer, Parameter, assign, check_type, type_name
from gt.nn.state import join
from gt.types import DType, bfloat16, float16, float32, float64

__all__ = ["Module"]

#: The dicts of a module that hold its attributes of each kind.
KINDS = ("_parameters", "_buffers", "_modules")


class Module:
    """The base of all layers and models. A subclass sets its parts as attributes and defines ``forward``."""

    training: bool
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]

    def __init__(self) -> None:
        # written to __dict__ directly, because __setattr__ needs these; _transient: names of buffers that are not saved
        self.__dict__.update(training=True, _parameters={}, _buffers={}, _modules={}, _transient=set())
        self.__dict__.update(_forward_pre_hooks={}, _forward_hooks={}, _backward_hooks={}, _backward_pre_hooks={})
        self.__dict__.update(_state_dict_hooks={}, _state_dict_pre_hooks={}, _load_hooks={}, _load_pre_hooks={})

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Compute the module's output. Every subclass defines it; call the module itself, so that hooks run."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if configuration.current.rules and placing.module_call.prepared not in (self, placing.ANY):
            return placing.call(self, inputs, kwargs)
        attributes = self.__dict__
        if recorder.active is not None:
            recorder.active.modules[self] = None
        if (
            attributes["_forward_hooks"]
            or attributes["_forward_pre_hooks"]
            or attributes["_backward_hooks"]
            or attributes["_backward_pre_hooks"]
        ):
            return hooks.call(self, inputs, kwargs)
        return self.forward(*inputs, **kwargs)

    # -- attributes ------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        attributes = self.__dict__
        if isinstance(value, Parameter):
            self._remove_plain_attribute(name, "parameters")
            _forget(self, name, ("_buffers", "_modules"))
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._remove_plain_attribute(name, "modules")
            _forget(self, name, ("_parameters", "_buffers"))
            attributes["_modules"][name] = value
        elif "_parameters" in attributes and name in attributes["_parameters"]:
            check_type(value, "parameter", name, "gt.nn.Parameter", value is None)
            attributes["_parameters"][name] = None
        elif "_modules" in attributes and name in attributes["_modules"]:
            check_type(value, "child module", name, "gt.nn.Module", value is None)
            attributes["_modules"][name] = None
        elif isinstance(value, Buffer):
            self.register_buffer(name, value, value.persistent)
        elif "_buffers" in attributes and name in attributes["_buffers"]:
            check_type(value, "buffer", name, "gt.Tensor", value is None or isinstance(value, Tensor))
            attributes["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def _remove_plain_attribute(self, name: str, what: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        attributes = self.__dict__
        for kind in KINDS:
            members = attributes.get(kind)
            if members is not None and name in members:
                if recorder.active is not None:
                    recorder.active.modules[self] = None
                return members[name]
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
        """Add a parameter under a name; None reserves the name."""
        self._check_name(name, "_parameters", "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot assign '{type_name(param)}' object to parameter '{name}' (gt.nn.Parameter or None required)"
            )
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is not trained; it is saved with the state if it is persistent."""
        self._check_name(name, "_buffers", "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(
                f"cannot assign '{type_name(tensor)}' object to buffer '{name}' (gt Tensor or None required)"
            )
        self._buffers[name] = tensor
        (self._transient.discard if persistent else self._transient.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a child module under a name."""
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type_name(module)} is not a Module subclass")
        self._check_name(name, "_modules", "module")
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, kind: str, what: str) -> None:
        if kind not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{what} name should be a string. Got {type_name(name)}")
        if "." in name:
            raise KeyError(f'{what} name can\'t contain ".", got: {name}')
        if not name:
            raise KeyError(f'{what} name can\'t be empty string ""')
        if hasattr(self, name) and name not in self.__dict__[kind]:
            raise KeyError(f"attribute '{name}' already exists")

    def get_submodule(self, target: str) -> Module:
        """The module at a path such as ``encoder.layers.0``."""
        module: Any = self
        for name in target.split(".") if target else ():
            if not hasattr(module, name):
                raise AttributeError(f"{type(module).__name__} has no attribute `{name}`")
            module = getattr(module, name)
            if not isinstance(module, Module):
                raise AttributeError(f"`{name}` is not an nn.Module")
        return module  # type: ignore[no-any-return]

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path such as ``encoder.layers.0.weight``."""
        return state.member(self, target, "_parameters", "parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path such as ``norm.running_mean``."""
        return state.member(self, target, "_buffers", "buffer")  # type: ignore[no-any-return]

    # -- the modules, parameters and buffers -------------------------------------------------

    def named_modules(
        self, memo: set[Any] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all modules inside it, each with its path."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, join(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all modules inside it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside this one, each with its name."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly inside this one."""
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters, each with its path."""
        return self._members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, as an optimizer takes them."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers, each with its path."""
        return self._members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
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
                yield join(path, name), value

    # -- changes of the whole module ---------------------------------------------------------

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call a function with every module, children first."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set all modules to training, which dropout and batch norm depend on."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for module in self.children():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Set all modules to evaluation; the same as ``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters get gradients."""
        for p in self.parameters():
            requires_grad_(p, requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters, or set them to zeros."""
        clear_grads(self.parameters(), set_to_none)

    def to(
        self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> Self:
        """Cast floating parameters and buffers to a dtype. Device arguments are accepted and ignored."""
        for arg in args:
            if isinstance(arg, Tensor):
                dtype = arg._type.dtype
            elif isinstance(arg, DType | type) or find_dtype(arg) is not None:
                dtype = arg
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
        """Cast floating parameters and buffers to float32."""
        return self._cast(float32)

    def double(self) -> Self:
        """Cast floating parameters and buffers to float64."""
        return self._cast(float64)

    def half(self) -> Self:
        """Cast floating parameters and buffers to float16."""
        return self._cast(float16)

    def bfloat16(self) -> Self:
        """Cast floating parameters and buffers to bfloat16."""
        return self._cast(bfloat16)

    def cpu(self) -> Self:
        """The module itself: tensors stay on their workers."""
        return self

    def cuda(self, device: Any = None) -> Self:
        """The module itself: tensors stay on their workers."""
        return self

    # -- state -----------------------------------------------------------------------------

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """All parameters and persistent buffers by their paths, detached; `gt.save` takes it."""
        return state.collect(self, destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> state.IncompatibleKeys:
        """Copy values into the parameters and buffers of the same paths; values may be GT's, torch's or numpy's."""
        return state.load(self, state_dict, strict, assign)

    # -- hooks -----------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, inputs)`` before ``forward``; it may return other inputs."""
        return hooks.add(self._forward_pre_hooks, hook, prepend, with_kwargs)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, inputs, output)`` after ``forward``; it may return another output."""
        return hooks.add(self._forward_hooks, hook, prepend, with_kwargs)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs arrive."""
        return hooks.add(self._backward_hooks, hook, prepend, False)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` before the module's backward; it may return other gradients."""
        return hooks.add(self._backward_pre_hooks, hook, prepend, False)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before `state_dict` collects the module's state."""
        return hooks.add(self._state_dict_pre_hooks, hook, False, False)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` after `state_dict` has collected the state."""
        return hooks.add(self._state_dict_hooks, hook, False, False)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call a hook with the module and the state to load before `load_state_dict` copies values."""
        return hooks.add(self._load_pre_hooks, hook, False, False)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after `load_state_dict` has copied the values."""
        return hooks.add(self._load_hooks, hook, False, False)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the calls of this module, in place. The arguments are those of `gt.compile`."""
        compiled = sys.modules["gt"].compile(self, *args, **kwargs)
        if compiled is not self:
            compiled._replace_original()

    def extra_repr(self) -> str:
        """The module's options, as they are printed between its brackets."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {indent(repr(module))}" for name, module in self._modules.items()]
        if len(lines) == 1 and not children:
            return f"{self._get_name()}({lines[0]})"
        inner = [*lines, *children]
        return f"{self._get_name()}(\n  " + "\n  ".join(inner) + "\n)" if inner else f"{self._get_name()}()"


def indent(text: str) -> str:
    return text.replace("\n", "\n  ")


def _forget(module: Module, name: str, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        module.__dict__[kind].pop(name, None)
    module.__dict__["_transient"].discard(name)
