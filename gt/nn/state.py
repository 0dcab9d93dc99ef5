"""The state of a module: its tensors by their paths, and values from GT, torch or numpy copied into them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.client.grad.backward import no_grad
from gt.client.tensor.emit import detached
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor
from gt.nn.hooks import call_all
from gt.nn.parameter import Parameter

if TYPE_CHECKING:
    from gt.nn.module import Module


class IncompatibleKeys(NamedTuple):
    """The paths of a module without a value in a loaded state, and those of the state without a tensor."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def join(path: str, name: str) -> str:
    """The path of a module's attribute."""
    return f"{path}.{name}" if path else name


def member(module: Module, target: str, kind: str, what: str) -> Any:
    """The parameter or buffer at a path."""
    path, _, name = target.rpartition(".")
    owner = module.get_submodule(path)
    if name not in owner.__dict__[kind]:
        raise AttributeError(f"{type(owner).__name__} has no {what} `{name}`")
    return owner.__dict__[kind][name]


def _persistent(module: Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and persistent buffers of one module, by their names."""
    for name, x in (*module._parameters.items(), *module._buffers.items()):
        if x is not None and name not in module._transient:
            yield name, x


#: the key of what a module's own `get_extra_state` returns
EXTRA = "_extra_state"


def collect(module: Module, destination: dict[str, Any] | None, prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Add the state of a module and of all modules inside it to a dict."""
    tensors: dict[str, Any] = OrderedDict() if destination is None else destination
    call_all(module._state_dict_pre_hooks, module, prefix, keep_vars)
    for name, x in _persistent(module):
        tensors[prefix + name] = x if keep_vars else detached(x)
    if hasattr(type(module), "get_extra_state"):
        tensors[prefix + EXTRA] = module.get_extra_state()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=tensors, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    call_all(module._state_dict_hooks, module, tensors, prefix, {})
    return tensors


def load(module: Module, state_dict: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Copy values into the module's tensors. As in torch, all are tried before one error reports every problem."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
    expected: dict[str, tuple[Module, str, Tensor]] = {}
    values = dict(state_dict)
    for path, owner in module.named_modules(remove_duplicate=False):
        call_all(owner._load_pre_hooks, owner, values, f"{path}." if path else "", {}, strict, [], [], [])
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, x in _persistent(owner):
            expected[join(path, name)] = owner, name, x
    extra = {
        join(path, EXTRA): owner
        for path, owner in module.named_modules(remove_duplicate=False)
        if hasattr(type(owner), "set_extra_state")
    }
    missing = [key for key in (*expected, *extra) if key not in values and not _is_newer(key, state_dict)]
    unexpected = [key for key in values if key not in expected and key not in extra]
    problems: list[str] = []
    with no_grad():
        for key, (owner, name, x) in expected.items():
            if key in values:
                problem = _load_one(key, x, values[key], (owner, name) if assign else None)
                problems += [problem] if problem else []
    for key, owner in extra.items():
        if key in values:
            owner.set_extra_state(values[key])
    keys = IncompatibleKeys(missing, unexpected)
    for owner in module.modules():
        call_all(owner._load_hooks, owner, keys)
    problems = [*(_key_problems(unexpected, missing) if strict else []), *problems]
    if problems:
        text = "\n\t".join(problems)
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t{text}")
    return keys


def _is_newer(key: str, state_dict: Mapping[str, Any]) -> bool:
    """Whether old versions of a module have no such key. Dicts without versions count as old, as in torch."""
    path, _, name = key.rpartition(".")
    version = getattr(state_dict, "_metadata", {}).get(path, {}).get("version")
    return name == "num_batches_tracked" and (version is None or version < 2)


def _key_problems(unexpected: list[str], missing: list[str]) -> list[str]:
    rows = (("Missing", missing), ("Unexpected", unexpected))
    return [f"{what} key(s) in state_dict: " + ", ".join(f'"{k}"' for k in keys) + ". " for what, keys in rows if keys]


def _load_one(key: str, x: Tensor, value: Any, replace: tuple[Module, str] | None) -> str | None:
    """Copy a value into a tensor, or replace the attribute that holds it. Returns the problem, if there is one."""
    value = as_tensor(value)
    if value.shape != x.shape:
        return (
            f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
            f"the shape in current model is {x.shape}."
        )
    if replace is None:
        x.copy_(value)
    elif isinstance(x, Parameter):
        setattr(*replace, Parameter(value, x._node is not None))
    else:
        setattr(*replace, value)
    return None
