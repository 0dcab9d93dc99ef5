"""``python docs/make_torch_names.py`` writes gt/torch_names.txt, so that a client without torch knows torch's names.

The first line says which torch it was made from. Each section begins with ``[place]``; its names follow.
"""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

FILE = pathlib.Path(__file__).parent.parent / "gt" / "torch_names.txt"
#: The namespaces of torch that GT has too. The empty one is torch itself.
PLACES = (
    "", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "linalg", "autograd",
    "cuda", "amp", "utils", "special", "nn.utils.rnn", "fft",
)  # fmt: skip
VERSION = torch.__version__.split("+")[0]


def text() -> str:
    sections = "".join(f"\n[{place}]\n{_wrapped(place)}\n" for place in PLACES)
    return f"torch {VERSION}, written by docs/make_torch_names.py\n{sections}"


def _wrapped(place: str) -> str:
    namespace = attrgetter(place)(torch) if place else torch
    return textwrap.fill(" ".join(_own_names(namespace)), 120, break_on_hyphens=False)


def _own_names(namespace: Any) -> Iterator[str]:
    """The public names that torch defines there, without what it imports from elsewhere."""
    for name in dir(namespace):
        value = getattr(namespace, name, None)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "torch"
        defined_by_torch = home.split(".")[0] in ("torch", "builtins", "math")
        if defined_by_torch and not name.startswith("_") and name not in ("annotations", "TYPE_CHECKING"):
            yield name


if __name__ == "__main__":
    FILE.write_text(text())
