"""``gt.nn.modules``: torch's longer paths to the names of `gt.nn`, such as ``nn.modules.conv.Conv2d``.

Each of torch's submodules is here, and has all names of `gt.nn`. It may import `gt.nn`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from types import ModuleType
from typing import Any

from gt.missing import missing as _missing

SUBMODULES = (
    "activation", "adaptive", "batchnorm", "channelshuffle", "container", "conv", "distance", "dropout", "flatten",
    "fold", "instancenorm", "linear", "loss", "module", "normalization", "padding", "pixelshuffle", "pooling", "rnn",
    "sparse", "transformer", "upsampling", "utils",
)  # fmt: skip
#: torch's names of base classes -> where GT has them
BASES = {
    "_BatchNorm": ("norm", "_BatchNorm"),
    "_NormBase": ("norm", "_BatchStatistics"),
    "_InstanceNorm": ("norm", "_InstanceNorm"),
    "_ConvNd": ("conv", "_Conv"),
    "_ConvTransposeNd": ("conv", "_ConvTranspose"),
    "_DropoutNd": ("dropout", "_Dropout"),
    "_Loss": ("losses", "_Loss"),
    "_WeightedLoss": ("losses", "_WeightedLoss"),
}


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """A function that repeats a number n times, and turns a sequence into a tuple."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if hasattr(x, "__iter__") else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = (
    _ntuple(n, name) for n, name in enumerate(("_single", "_pair", "_triple", "_quadruple"), 1)
)


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Remove a prefix, such as ``module.``, from the keys that have it, in place."""
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[key.removeprefix(prefix)] = state_dict.pop(key)


UTILS = {f.__name__: f for f in (_ntuple, _single, _pair, _triple, _quadruple, consume_prefix_in_state_dict_if_present)}


class _Path(ModuleType):
    """One of torch's submodules, with the names of `gt.nn`."""

    def __getattr__(self, name: str) -> Any:
        if name in UTILS:
            return UTILS[name]
        if name in BASES:
            file, ours = BASES[name]
            return getattr(importlib.import_module(f"gt.nn.{file}"), ours)
        nn = importlib.import_module("gt.nn")
        if name in nn.__all__:
            return getattr(nn, name)
        raise _missing(self.__name__.removeprefix("gt."), name)


def _paths() -> Iterator[tuple[str, ModuleType]]:
    for name in SUBMODULES:
        path = _Path(f"{__name__}.{name}", f"``{__name__}.{name}``: torch's longer path to the names of `gt.nn`.")
        sys.modules[path.__name__] = path
        yield name, path


globals().update(_paths())


def __getattr__(name: str) -> Any:
    nn = importlib.import_module("gt.nn")
    if name in nn.__all__:
        return getattr(nn, name)
    raise _missing("nn.modules", name)


def __dir__() -> list[str]:
    return [*SUBMODULES, *importlib.import_module("gt.nn").__all__]
