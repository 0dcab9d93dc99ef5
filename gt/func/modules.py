"""Modules as functions of their parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.joining import stack
from gt.nn.module import Module

__all__ = ["functional_call", "stack_module_state"]


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: dict[str, Tensor] | Sequence[dict[str, Tensor]],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call a module with other tensors in place of its parameters and buffers. See `torch.func.functional_call`."""
    dicts = parameter_and_buffer_dicts
    values = {k: v for part in ([dicts] if isinstance(dicts, dict) else dicts) for k, v in part.items()}
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    with _with_tensors(module, values, tie_weights, strict):
        return module(*arguments, **(kwargs or {}))


@contextmanager
def _with_tensors(module: Module, values: dict[str, Tensor], tie_weights: bool, strict: bool) -> Iterator[None]:
    places = {
        f"{path}.{name}".lstrip("."): (table, name)
        for path, inner in module.named_modules(remove_duplicate=False)
        for table in (inner._parameters, inner._buffers)
        for name in table
    }
    unknown, left = values.keys() - places.keys(), places.keys() - values.keys()
    if strict and (unknown or left):
        raise RuntimeError(f"functional_call: Unexpected key(s): {sorted(unknown)}. Missing key(s): {sorted(left)}.")
    before = {key: table[name] for key, (table, name) in places.items()}
    new_of = {id(before[key]): value for key, value in values.items() if key in places} if tie_weights else {}
    try:
        for key, (table, name) in places.items():
            if key in values:
                table[name] = values[key]
            elif id(before[key]) in new_of and before[key] is not None:
                table[name] = new_of[id(before[key])]
        yield
    finally:
        for key, (table, name) in places.items():
            table[name] = before[key]


def stack_module_state(models: Sequence[Module]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the buffers of several modules of one kind, stacked. See `torch.func.stack_module_state`."""
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({type(model) for model in models}) != 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class.")
    tables: list[list[dict[str, Any]]] = [[dict(m.named_parameters()), dict(m.named_buffers())] for m in models]
    parameters, buffers = (
        {key: stack([table[i][key].detach() for table in tables]) for key in tables[0][i]} for i in (0, 1)
    )
    trained = {key: p.requires_grad for key, p in tables[0][0].items()}
    return {key: x.requires_grad_(trained[key]) for key, x in parameters.items()}, buffers
