"""``python docs/make_torch_names.py``: writes gt/torch_names.py, so that a client without torch knows its names."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

FILE = pathlib.Path(__file__).parent.parent / "gt" / "torch_names.py"
#: where GT has names of torch's; the first is torch itself
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
    there = attrgetter(place)(torch) if place else torch
    return textwrap.fill(" ".join(_names(there)), 120, break_on_hyphens=False)


def _names(there: Any) -> Iterator[str]:
    """Those that are its own: not what it imports from elsewhere."""
    for name in dir(there):
        value = getattr(there, name, None)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "torch"
        ours = home.split(".")[0] in ("torch", "builtins", "math")
        if ours and not name.startswith("_") and name not in ("annotations", "TYPE_CHECKING"):
            yield name


if __name__ == "__main__":
    FILE.write_text(text())
