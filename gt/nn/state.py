"""Values into a module, by their names: from GT, from torch, or from numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor
from gt.nn.hooks import each
from gt.nn.parameter import Parameter

if TYPE_CHECKING:
    from gt.nn.module import Module


class IncompatibleKeys(NamedTuple):
    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def load(module: Module, given: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Copy the values into the module's own tensors; nothing is said before all were tried, as in torch."""
    if not isinstance(given, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(given)}.")
    expected: dict[str, tuple[Module, str, Tensor]] = {}
    given = dict(given)
    for path, owner in module.named_modules(remove_duplicate=False):
        each(owner._load_pre_hooks, owner, given, f"{path}." if path else "", {}, strict, [], [], [])
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, x in owner._own_state():
            expected[f"{path}.{name}" if path else name] = owner, name, x
    missing = [key for key in expected if key not in given]
    unexpected = [key for key in given if key not in expected]
    problems: list[str] = []
    with no_grad():
        for key, (owner, name, x) in expected.items():
            if key in given:
                problem = _put(key, x, given[key], (owner, name) if assign else None)
                problems += [problem] if problem else []
    keys = IncompatibleKeys(missing, unexpected)
    for owner in module.modules():
        each(owner._load_hooks, owner, keys)
    problems = [*(_quoted(unexpected, missing) if strict else []), *problems]
    if problems:
        text = "\n\t".join(problems)
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{text}")
    return keys


def _quoted(unexpected: list[str], missing: list[str]) -> list[str]:
    rows = (("Unexpected", unexpected), ("Missing", missing))
    return [f"{what} key(s) in state_dict: " + ", ".join(f'"{k}"' for k in keys) + ". " for what, keys in rows if keys]


def _put(key: str, x: Tensor, value: Any, into: tuple[Module, str] | None) -> str | None:
    value = value_of(value)
    if value.shape != x.shape:
        return (
            f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
            f"the shape in current model is {x.shape}."
        )
    if into is None:
        x.copy_(value)
    elif isinstance(x, Parameter):
        setattr(*into, Parameter(value, x._node is not None))
    else:
        setattr(*into, value)
    return None


def value_of(x: Any) -> Tensor:
    """A tensor of GT's, torch's or numpy's, or a number, as one of GT's."""
    return as_tensor(x)
