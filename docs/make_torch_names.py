"""``python docs/make_torch_names.py`` writes gt/torch_names.txt, so that a client without torch knows torch's names.

The first line says which torch it was made from. Each section begins with ``[place]``; its names follow.
"""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

FILE = pathlib.Path(__file__).parent.parent / "gt" / "torch_names.txt"
#: Torch's namespaces. The empty one is torch itself.
PLACES = (
    "", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler", "linalg", "autograd",
    "cuda", "amp", "utils", "special", "nn.utils.rnn", "accelerator", "autograd.function", "autograd.graph",
    "backends", "backends.cuda", "backends.cudnn", "backends.mkl", "backends.mkldnn", "backends.mps",
    "backends.openmp", "backends.opt_einsum", "compiler", "cuda.amp", "distributed", "distributions", "fft", "func",
    "fx", "hub", "jit", "library", "multiprocessing", "nn.attention", "nn.attention.flex_attention", "nn.modules",
    "nn.parallel", "nn.utils.fusion", "nn.utils.parametrizations", "nn.utils.parametrize", "onnx", "random",
    "serialization", "sparse", "utils.checkpoint", "utils.data", "ao", "ao.quantization",
    "autograd.functional", "optim.swa_utils",
)  # fmt: skip
#: Classes of torch's C++ parts, which are public names only by their spelling.
PUBLIC_CLASSES = {"Event", "Generator", "Size", "Stream", "Tag", "Tensor", "device", "dtype", "layout", "memory_format"}
#: The modules that torch's public names are from; `torch.pi` is a number, and has no module.
HOMES = ("torch", "builtins", "math")
VERSION = torch.__version__.split("+")[0]


def text() -> str:
    sections = "".join(f"\n[{place}]\n{_wrapped(place)}\n" for place in PLACES)
    sections += f"\n[internal]\n{textwrap.fill(' '.join(_internal()), 120)}\n"
    return f"torch {VERSION}, written by docs/make_torch_names.py\n{sections}"


def _wrapped(place: str) -> str:
    namespace = _namespace(place)
    names = sorted({*_own_names(namespace), *_submodules(namespace)})
    return textwrap.fill(" ".join(names), 120, break_on_hyphens=False)


def _namespace(place: str) -> Any:
    if place in ("", "Tensor"):
        return torch.Tensor if place else torch
    return importlib.import_module(f"torch.{place}")


def _submodules(namespace: Any) -> Iterator[str]:
    """Those that are not imported yet are no attributes of the namespace."""
    for module in pkgutil.iter_modules(getattr(namespace, "__path__", ())):
        if not module.name.startswith("_"):
            yield module.name


def _internal() -> list[str]:
    """The names at torch's top that are classes of its C++ parts."""
    return [
        name
        for name in _own_names(torch)
        if isinstance(value := getattr(torch, name), type)
        and getattr(torch._C, name, None) is value
        and not name.endswith("Tensor")
        and name not in PUBLIC_CLASSES
    ]


def _own_names(namespace: Any) -> Iterator[str]:
    """The public names that torch defines there, without what it imports from elsewhere."""
    for name in dir(namespace):
        value = getattr(namespace, name, None)
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "torch"
        defined_by_torch = home.split(".")[0] in (("torch",) if isinstance(value, ModuleType) else HOMES)
        if defined_by_torch and not name.startswith("_") and name not in ("annotations", "TYPE_CHECKING", "torch"):
            yield name


if __name__ == "__main__":
    FILE.write_text(text())
