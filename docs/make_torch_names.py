"""``python docs/make_torch_names.py``: writes gt/torch_names.py, torch's public names for a client without torch."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

FILE = pathlib.Path(__file__).parent.parent / "gt" / "torch_names.py"
#: the modules of torch whose names GT has too; the first is torch itself
PLACES = (
    "", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "linalg", "autograd",
    "cuda", "amp", "utils", "special", "nn.utils.rnn",
)  # fmt: skip
VERSION = torch.__version__.split("+")[0]
HEAD = f'''"""Torch's public names, place by place. Made by docs/make_torch_names.py from torch {VERSION}."""

NAMES = {{
'''


def text() -> str:
    rows = "".join(f'    "{place}": """\n{_wrapped(place)}\n""",\n' for place in PLACES)
    return f"{HEAD}{rows}}}\n"


def _wrapped(place: str) -> str:
    module = attrgetter(place)(torch) if place else torch
    return textwrap.fill(" ".join(_names(module)), 120, break_on_hyphens=False)


def _names(module: Any) -> Iterator[str]:
    """The names it defines, without those it imports from other packages."""
    for name in dir(module):
        value = getattr(module, name, None)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "torch"
        is_torch = home.split(".")[0] in ("torch", "builtins", "math")
        if is_torch and not name.startswith("_") and name not in ("annotations", "TYPE_CHECKING"):
            yield name


if __name__ == "__main__":
    FILE.write_text(text())
