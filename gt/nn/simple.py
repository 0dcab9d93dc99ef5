"""Modules that only hold the options of one function. Each is one call of `layer`.

A call gives the module's name, what it computes, the function of `gt.nn.functional`, the options with their defaults in
torch's order, and how the options are printed. The options are attributes of the module and keywords of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from gt.nn.module import Module

#: The default of an option that has no default: the caller must pass it.
REQUIRED: Any = Parameter.empty

Function = Callable[..., Any]
Options = dict[str, Any]
Show = Callable[[Any], str]


class FunctionModule(Module):
    """The base of all modules that `layer` creates; its ``__init__`` and ``forward`` are replaced in each of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def layer(
    name: str,
    doc: str,
    function: Function,
    options: Options,
    show: Show = lambda self: "",
    *,
    passed: str | None = None,
    inputs: str = "input",
    prepare: Callable[[Options], Options] = lambda values: values,
) -> type[FunctionModule]:
    """Create the class of a module.

    ``passed`` names the attributes that go to the function, if they are not the options (``training`` may be one).
    ``inputs`` names the arguments of ``forward``. ``prepare`` changes the options before they become attributes.
    """

    def __init__(self: Module, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        Module.__init__(self)
        for key, value in prepare(bind(name, options, args, kwargs)).items():
            if key.endswith("weight"):
                self.register_buffer(key, value)
            else:
                setattr(self, key, value)

    def extra_repr(self: Module) -> str:
        """The options, as they are printed."""
        return show(self)

    keywords = [Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=value) for key, value in options.items()]
    __init__.__signature__ = Signature([SELF, *keywords])  # type: ignore[attr-defined]
    attributes = list(options) if passed is None else passed.split()
    forward = _forward(function, attributes) if inputs == "input" else _forward_many(function, attributes, inputs)
    methods = {"__init__": __init__, "forward": forward, "extra_repr": extra_repr}
    for key, method in methods.items():
        method.__qualname__ = f"{name}.{key}"
    body = {**methods, "__doc__": f"{doc} See `torch.nn.{name}`.", "__module__": "gt.nn"}
    return type(name, (FunctionModule,), body)


SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)


def _forward(function: Function, attributes: list[str]) -> Function:
    def forward(self: Module, input: Any) -> Any:
        """Apply the function with the module's options."""
        values = self.__dict__
        return function(input, **{key: values[key] for key in attributes})

    return forward


def _forward_many(function: Function, attributes: list[str], inputs: str) -> Function:
    """A ``forward`` of several inputs, for modules whose options may be buffers."""

    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        """Apply the function with the module's options."""
        values = self.__dict__
        buffers = values["_buffers"]
        options = {key: buffers[key] if key in buffers else values[key] for key in attributes}
        return function(*args, **kwargs, **options)

    tensors = [Parameter(key, Parameter.POSITIONAL_OR_KEYWORD) for key in inputs.split()]
    forward.__signature__ = Signature([SELF, *tensors])  # type: ignore[attr-defined]
    return forward


def bind(name: str, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Options:
    """The value of each option in a call, with Python's errors for wrong calls."""
    if len(args) > len(options):
        raise TypeError(f"{name}() takes at most {len(options)} arguments, but {len(args)} were given")
    values = options | dict(zip(options, args, strict=False))
    for key, value in kwargs.items():
        if key not in options:
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'")
        values[key] = value
    for key, value in values.items():
        if value is REQUIRED:
            raise TypeError(f"{name}() missing 1 required positional argument: '{key}'")
    return values


def showing(*names: str) -> Show:
    """A function that prints attributes as ``a=1, b=2``."""
    return lambda self: ", ".join(f"{name}={getattr(self, name)}" for name in names)
