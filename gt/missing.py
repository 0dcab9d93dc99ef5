"""The error for a name that GT does not have: it says whether torch has the name, or which name is similar.

Attribute access, ``from gt.optim import X`` and ``import gt.nn.X`` all give the same text. docs/torch_names.md lists
torch's names; its reasons for missing ones are those of this file.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, NoReturn

PAGE = "docs/torch_names.md lists torch's names"
ONE_PROGRAM = "one program has all workers: gt.gpu_workers(n), gt.auto_shard(), docs/sharding.md"
NO_GRAPH = "GT runs a program's Python as it is: gt.compile makes repeated calls fast, docs/hot_paths.md"
NO_DEVICE = "the client has no device; the workers have, docs/differences.md"
NO_MEMORY = "a tensor's memory belongs to a worker, docs/differences.md"
NO_QUANTIZED = "GT has no quantized tensors, docs/differences.md"
SPARSE = "GT has sparse matrices in the COO and CSR forms, docs/sparse.md"
#: a pattern for the full names of torch that GT does not have -> the reason, or what to use instead
REASONS = {
    r"(distributed|multiprocessing|nn\.parallel)\b.*": ONE_PROGRAM,
    r"(jit|fx|onnx|export|compiler|package|library|overrides)\b.*": NO_GRAPH,
    r"(cuda|accelerator|backends|xpu|mtia|mps|cpu)\b.*": NO_DEVICE,
    r"(utils\.data)\b.*": (
        "it is torch's, which must be installed; or use any iterable of arrays, and gt.to_device(loader)"
    ),
    r"(profiler|monitor|autograd\.profiler.*)\b.*": "gt.debug.trace records what the workers do, docs/hot_paths.md",
    r"(ao|quantization|nn\.(qat|quantized|quantizable|intrinsic))\b.*": NO_QUANTIZED,
    r".*(quantize|fake_quant|fbgemm|q_scale|q_zero|q_per_channel|qint|quint|int_repr|qscheme).*": NO_QUANTIZED,
    r".*(cudnn|miopen|mkldnn|mkl_|_cuda|cufft|cublas).*": "the workers choose the kernels, docs/differences.md",
    r".*[a-z](Storage|storage|storage_type)\b.*": NO_MEMORY,
    r"Tensor\.(as_strided.*|data_ptr|share_memory_|set_|resize.*|.*storage.*|const_data_ptr)": NO_MEMORY,
    r"autograd\.forward_ad\b.*": "gradients in forward mode are not built, docs/differences.md",
    r".*(named|names|refine_names|align_).*|Tensor\.(rename.*|has_names)": "GT has no named dims",
    r"sparse\..*|(Tensor\.)?\w*(sparse|coalesce|spmm|spaddmm|smm|dsmm)\w*": SPARSE,
    r"Tensor\.(indices|values|c?crow_indices|c?col_indices|row_indices|dense_dim)": SPARSE,
    r"(nested|masked)\b.*": "GT has no nested or masked tensors",
    r"(nn\.)?(functional\.)?[a-z][a-z0-9_]*_": "use the tensor's method, such as x.relu_()",
    r"u?int[1-7]|bits.*": "GT has no such dtype, docs/differences.md",
    r".*autocast_.*|.*_autocast.*": "gt.autocast has the same lists for all devices, docs/differences.md",
    r"nn\.(Lazy|Uninitialized).*": "layers need their sizes",
    r"(Sym|sym_|parse_|import_ir|native_|batch_norm_|merge_type|unify_type|USE_|has_).*": "internal to torch",
}

#: The namespaces in which a missing name is searched, in this order; "" is `gt` itself.
NAMESPACES = ("", "nn", "nn.functional", "optim", "optim.lr_scheduler", "linalg", "nn.init", "nn.utils")


class _Text:
    """The text of an error, made when it is read. Most of these errors are never shown: pickle and the compiler ask
    each module for each name they write, which took a second of compiling a large step."""

    def __init__(self, place: str, name: str) -> None:
        self._place, self._name = place, name

    def __str__(self) -> str:
        return _text(self._place, self._name)

    def __repr__(self) -> str:
        return repr(str(self))


def missing(place: str, name: str) -> AttributeError:
    """The error for ``gt.<place>.<name>``; ``place`` is a namespace such as "nn", or "" for `gt` itself."""
    # no ``obj``: with one, Python would append another suggestion
    return AttributeError(_Text(place, name), name=name)


def _text(place: str, name: str) -> str:
    path = f"{place}.{name}" if place else name
    if name.startswith("_") or place not in _sections():
        return f"gt.{path} does not exist"
    if name in torch_names(place):
        return f"gt.{path} is not there yet (torch.{path}); {reason(path)}"
    similar = _in_other_namespace(name) or _closest(place, name)
    suggestion = f"; did you mean gt.{similar}?" if similar else ""
    return f"gt.{path} does not exist, and {_torch()} has no public name torch.{path}{suggestion}"


def reason(path: str) -> str:
    """Why GT does not have this name of torch, or what to use instead."""
    return next((text for pattern, text in REASONS.items() if re.fullmatch(pattern, path)), PAGE)


def torch_names(place: str) -> frozenset[str]:
    """Torch's public names in a namespace, from gt/torch_names.txt (written by docs/make_torch_names.py)."""
    return frozenset(_sections()[place].split())


@cache
def _file() -> str:
    # pkgutil, because importing importlib.resources would add 6 ms to `import gt`
    return (pkgutil.get_data("gt", "torch_names.txt") or b"").decode()


def _torch() -> str:
    """Which torch the names are from: ``torch 2.13.0``."""
    return _file().partition(",")[0]


@cache
def _sections() -> dict[str, str]:
    """Namespace -> torch's names in it, separated by white space."""
    sections = _file().split("\n[")
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
    """Let a module raise the error for a missing name, by a ``__getattr__``, which is returned too; imports as well.

    A module calls this instead of defining ``__getattr__``: with one in its text, every name would exist for a type
    checker.
    """

    def getattr_(name: str) -> Any:
        refuse(place, name)

    module = sys.modules[f"gt.{place}"].__dict__
    module["__getattr__"] = getattr_
    module.setdefault("__path__", [])  # makes it a package for Python, so that ``import gt.fx.X`` asks `MissingModules`
    return getattr_


def refuse(place: str, name: str, text: str = "") -> NoReturn:
    """Raise the error for a missing name from a module's ``__getattr__``; ``text`` replaces the usual one.

    Python replaces the text of an AttributeError by its own if the module's user writes ``from gt.optim import X``. So
    this raises an ImportError if that is the instruction at which the user's code is.
    """
    if name.startswith("__"):  # a question of Python's own tools, which ask every module: no suggestion is searched
        raise AttributeError(f"module has no attribute {name!r}", name=name)
    from opcode import opmap

    frame = sys._getframe(2)
    if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        raise ImportError(text or _text(place, name), name=f"gt.{place}".rstrip("."))
    raise AttributeError(text, name=name) if text else missing(place, name)


class MissingModules:
    """The last finder of modules: ``import gt.nn.X`` raises the same error as ``gt.nn.X`` if there is no module."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> None:
        """Raise for a missing module of GT that is being imported. `importlib.util.find_spec` gets None."""
        if fullname.startswith("gt.") and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            place, _, name = fullname.removeprefix("gt.").rpartition(".")
            raise ModuleNotFoundError(_text(place, name), name=fullname)
