"""The error for a name that GT does not have: it says whether torch has the name, or which name is similar."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

#: What to use instead of a name of torch's that GT will not have.
HINTS = {
    "distributed": "one program has all workers: gt.gpu_workers(n), docs/sharding.md",
    "nn.DataParallel": "one program has all workers: gt.auto_shard(), docs/sharding.md",
    "nn.parallel": "one program has all workers: gt.auto_shard(), docs/sharding.md",
    "Tensor.as_strided": "there are no strides to set; see docs/differences.md",
    "Tensor.data_ptr": "a tensor's memory belongs to a worker; see docs/differences.md",
    "Tensor.share_memory_": "a tensor's memory belongs to a worker; see docs/differences.md",
}

#: The namespaces in which a missing name is searched, in this order; "" is `gt` itself.
NAMESPACES = ("", "nn", "nn.functional", "optim", "optim.lr_scheduler", "linalg", "nn.init", "nn.utils")


def missing(place: str, name: str) -> AttributeError:
    """The error for ``gt.<place>.<name>``; ``place`` is a namespace such as "nn", or "" for `gt` itself.

    The error has no ``obj`` attribute: with one, Python would append another suggestion.
    """
    path = f"{place}.{name}" if place else name
    if name.startswith("_"):
        return AttributeError(f"gt.{path} does not exist", name=name)
    if name in torch_names(place):
        hint = HINTS.get(path, "see the op page, docs/ops.md")
        return AttributeError(f"gt.{path} is not there yet (torch.{path}); {hint}", name=name)
    similar = _in_other_namespace(name) or _closest(place, name)
    suggestion = f"; did you mean gt.{similar}?" if similar else ""
    return AttributeError(f"gt.{path} does not exist, nor does torch.{path}{suggestion}", name=name)


def torch_names(place: str) -> frozenset[str]:
    """Torch's public names in a namespace, from gt/torch_names.txt (written by docs/make_torch_names.py)."""
    return frozenset(_sections()[place].split())


@cache
def _sections() -> dict[str, str]:
    """Namespace -> torch's names in it, separated by white space."""
    # pkgutil, because importing importlib.resources would add 6 ms to `import gt`
    sections = (pkgutil.get_data("gt", "torch_names.txt") or b"").decode().split("\n[")
    return {title: body for title, _, body in (section.partition("]\n") for section in sections[1:])}


def _public_names(place: str) -> list[str]:
    """GT's names in a namespace."""
    gt: Any = importlib.import_module("gt")
    namespace = attrgetter(place)(gt) if place else gt
    listed: list[str] | None = getattr(namespace, "__all__", None)
    return listed or [name for name in dir(namespace) if not name.startswith("_") and hasattr(namespace, name)]


def _in_other_namespace(name: str) -> str:
    """The full name of a name written in the wrong namespace: ``Linear`` gives ``nn.Linear``."""
    return next((f"{place}.{name}".lstrip(".") for place in NAMESPACES if name in _public_names(place)), "")


def _closest(place: str, name: str) -> str:
    """The full name of the most similar name in the namespace, or an empty text."""
    from difflib import get_close_matches

    names = {public.lower(): public for public in _public_names(place)}
    matches = get_close_matches(name.lower(), names, 1)
    return f"{place}.{names[matches[0]]}".lstrip(".") if matches else ""


class Missing:
    """A class attribute that raises the error for a missing name; `hasattr` is false for it.

    A ``__getattr__`` would raise the same error, but it would slow down every attribute access of the class.
    """

    def __init__(self, place: str, name: str) -> None:
        self._place, self._name = place, name

    def __get__(self, instance: object, owner: type) -> Any:
        raise missing(self._place, self._name)


def absent(place: str) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that raises the error for a missing name."""

    def getattr_(name: str) -> Any:
        raise missing(place, name)

    return getattr_
