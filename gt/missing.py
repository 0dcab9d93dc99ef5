"""What is said of a name that GT does not have: that it is not there yet if it is torch's, else which name is near."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

#: what stands in for a name of torch's that will not come
HINTS = {
    "Generator": "seeds are set by gt.manual_seed",
    "distributed": "one program has all workers: gt.gpu_workers(n), docs/sharding.md",
    "nn.DataParallel": "one program has all workers: gt.auto_shard(), docs/sharding.md",
    "nn.parallel": "one program has all workers: gt.auto_shard(), docs/sharding.md",
    "Tensor.as_strided": "there are no strides to set; see docs/differences.md",
    "Tensor.data_ptr": "a tensor's memory is a worker's; see docs/differences.md",
    "Tensor.share_memory_": "a tensor's memory is a worker's; see docs/differences.md",
}


def missing(place: str, name: str) -> AttributeError:
    """The error for ``gt.<place>.<name>``. It has no ``obj``, or Python would guess a second time what was meant."""
    where = f"{place}.{name}" if place else name
    if name.startswith("_"):
        return AttributeError(f"gt.{where} does not exist", name=name)
    if name in torch_names(place):
        hint = HINTS.get(where, "see the op page, docs/ops.md")
        return AttributeError(f"gt.{where} is not there yet (torch.{where}); {hint}", name=name)
    near = _elsewhere(name) or _nearest(place, name)
    guess = f"; did you mean gt.{near}?" if near else ""
    return AttributeError(f"gt.{where} does not exist, nor does torch.{where}{guess}", name=name)


def torch_names(place: str) -> list[str]:
    from gt.torch_names import NAMES

    return NAMES[place].split()


def _here(place: str) -> list[str]:
    """GT's own names there."""
    there: Any = importlib.import_module("gt")
    there = attrgetter(place)(there) if place else there
    return getattr(there, "__all__", None) or [n for n in dir(there) if not n.startswith("_") and hasattr(there, n)]


def _elsewhere(name: str) -> str:
    """``gt.Linear``: it is `gt.nn.Linear`."""
    places = ("", "nn", "nn.functional", "optim", "optim.lr_scheduler", "linalg", "nn.init", "nn.utils")
    return next((f"{place}.{name}".lstrip(".") for place in places if name in _here(place)), "")


def _nearest(place: str, name: str) -> str:
    from difflib import get_close_matches

    lower = {known.lower(): known for known in _here(place)}
    found = get_close_matches(name.lower(), lower, 1)
    return f"{place}.{lower[found[0]]}".lstrip(".") if found else ""


class Missing:
    """An attribute of a class that only says why it is not there: `hasattr` is false, of the class and of its objects.

    A ``__getattr__`` would say the same, but with it Python looks up every attribute more slowly.
    """

    def __init__(self, place: str, name: str) -> None:
        self._place, self._name = place, name

    def __get__(self, instance: object, owner: type) -> Any:
        raise missing(self._place, self._name)


def absent(place: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``."""

    def getattr_(name: str) -> Any:
        raise missing(place, name)

    return getattr_
