"""Containers: modules and parameters in sequences, lists and dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import index
from typing import Any, Self

from gt.client.stream import recorder
from gt.client.tensor.tensor import Tensor
from gt.nn.module import Module, indent
from gt.nn.parameter import Parameter

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _wrap_index(i: Any, count: int) -> str:
    i = index(i)
    if not -count <= i < count:
        raise IndexError(f"index {i} is out of range")
    return str(i % count)


class _Container(Module):
    """A module whose child modules are used without a call of it."""

    @property
    def _modules(self) -> dict[str, Any]:  # type: ignore[override]
        if recorder.active is not None:
            recorder.active.modules[self] = None
        return self.__dict__["_modules"]  # type: ignore[no-any-return]


class Sequential(_Container):
    """Modules that are called one after the other. See `torch.nn.Sequential`."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], Mapping) else enumerate(args)
        for name, module in named:
            self.add_module(str(name), module)

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def _name(self, i: Any) -> str:
        """The name of the module at a position."""
        return list(self._modules)[int(_wrap_index(i, len(self)))]

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return type(self)(dict(list(self._modules.items())[i]))
        return self._modules[self._name(i)]

    def __setitem__(self, i: Any, module: Module) -> None:
        setattr(self, self._name(i), module)

    def __delitem__(self, i: Any) -> None:
        removed = list(self._modules)[i] if isinstance(i, slice) else [self._name(i)]
        kept = [m for name, m in self._modules.items() if name not in removed]
        self.__dict__["_modules"] = {str(k): m for k, m in enumerate(kept)}

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, i: int, module: Module) -> Self:
        """Insert a module before position i."""
        modules = list(self)
        modules.insert(i, module)
        self.__dict__["_modules"] = {str(k): m for k, m in enumerate(modules)}
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def pop(self, i: Any) -> Any:
        """Remove the module at position i and return it."""
        module = self[i]
        del self[i]
        return module


class ModuleList(_Container):
    """A list of modules, whose parameters are part of the model. See `torch.nn.ModuleList`."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return type(self)(list(self._modules.values())[i])
        return self._modules[_wrap_index(i, len(self))]

    def __setitem__(self, i: Any, module: Module) -> None:
        setattr(self, _wrap_index(i, len(self)), module)

    def __delitem__(self, i: Any) -> None:
        modules = list(self)
        del modules[i]
        self._reset(modules)

    def _reset(self, modules: list[Module]) -> None:
        self.__dict__["_modules"] = {str(k): m for k, m in enumerate(modules)}

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        return self.extend(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, i: int, module: Module) -> None:
        """Insert a module before position i."""
        modules = list(self)
        modules.insert(i, module)
        self._reset(modules)

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def pop(self, i: Any) -> Any:
        """Remove the module at position i and return it."""
        module = self[i]
        del self[i]
        return module

    def __repr__(self) -> str:
        """As in torch, equal modules in a row are printed once."""
        runs: list[tuple[int, int, str]] = []
        for i, text in enumerate(map(repr, self)):
            if runs and runs[-1][2] == text:
                runs[-1] = runs[-1][0], i, text
            else:
                runs.append((i, i, text))
        if not runs:
            return f"{self._get_name()}()"
        lines = [
            f"({first}): {indent(text)}" if first == last else f"({first}-{last}): {last - first + 1} x {indent(text)}"
            for first, last, text in runs
        ]
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(_Container):
    """A dict of modules, whose parameters are part of the model. See `torch.nn.ModuleDict`."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove the module of a key and return it."""
        module = self[key]
        del self[key]
        return module

    def keys(self) -> Any:
        """The keys."""
        return self._modules.keys()

    def items(self) -> Any:
        """The keys with their modules."""
        return self._modules.items()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add modules from a dict or from pairs of key and module."""
        for key, module in modules.items() if hasattr(modules, "items") else modules:
            self[key] = module


def _describe(p: Any) -> str:
    kind = "Parameter" if isinstance(p, Parameter) else "Tensor"
    sizes = "x".join(map(str, p.shape))
    return f"{kind} containing: [gt.{p.dtype.name} of size {sizes}]"


class ParameterList(Module):
    """A list of parameters; tensors in it become parameters. See `torch.nn.ParameterList`."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return type(self)(list(self)[i])
        return getattr(self, _wrap_index(i, self._size))

    def __setitem__(self, i: Any, value: Any) -> None:
        setattr(self, _wrap_index(i, self._size), _parameter(value))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(self._size)])

    def append(self, value: Any) -> Self:
        """Add a parameter at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(f"  ({i}): {_describe(p)}" for i, p in enumerate(self))


class ParameterDict(Module):
    """A dict of parameters; tensors in it become parameters. See `torch.nn.ParameterDict`."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._keys[key] = None
        setattr(self, key, _parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def keys(self) -> Any:
        """The keys."""
        return self._keys.keys()

    def values(self) -> Any:
        """The parameters."""
        return [self[key] for key in self._keys]

    def items(self) -> Any:
        """The keys with their parameters."""
        return [(key, self[key]) for key in self._keys]

    def update(self, parameters: Any) -> None:
        """Add parameters from a dict or from pairs of key and value."""
        for key, value in parameters.items() if hasattr(parameters, "items") else parameters:
            self[key] = value

    def extra_repr(self) -> str:
        return "\n".join(f"  ({key}): {_describe(p)}" for key, p in self.items())


def _parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value
