"""Compiled code of earlier processes, found by the section instead of by its traced graph.

torch keeps compiled code on disk, under a key that it computes from the traced graph. To trace a training step takes
seconds, about as long as everything else at a second start. So torch is given the key of the section (`section_key`)
instead, and at a later start a stand-in for the graph. If torch has the code, it looks at the key only. If it has not,
it runs the stand-in, which raises; then the section is traced and compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from gt.worker.hot.kept_files import KeptFiles

#: for each result what it shares memory with: see `CompiledProgram.expected_sharing`
Sharing = list[set[int]]


class KeptCode:
    """Which sections were compiled, and what is known of them only after tracing."""

    def __init__(self, folder: str) -> None:
        self._files = KeptFiles(folder, "sections")

    def find(self, key: str, results: int) -> Sharing | None:
        """What the results of a section share memory with; None if no code of it is kept."""
        try:
            sharing = [{int(i) for i in row} for row in self._files.find(key)]
        except (ValueError, TypeError):
            return None
        return sharing if len(sharing) == results else None

    def keep(self, key: str, sharing: Sharing) -> None:
        self._files.keep(key, [sorted(row) for row in sharing])


@contextlib.contextmanager
def key_for_torch(key: str, kept: bool = False) -> Iterator[None]:
    """torch keeps what it compiles in here under this key, if it is not empty; or looks for code that is ``kept``."""
    module = _torch_cache() if key else None
    own = getattr(module, "autograd_cache_key", None)
    if module is None or own is None:
        yield
        return

    def section_key(graph: Any, *arguments: Any, **options: Any) -> tuple[str, list[str]]:
        if not kept:
            module.check_cacheable(graph)
        return f"a{key}", []

    module.autograd_cache_key = section_key
    try:
        yield
    finally:
        module.autograd_cache_key = own


def _torch_cache() -> Any:
    """The module that finds kept code. It is internal to torch, and another version may not have it: then None."""
    try:
        from torch._functorch._aot_autograd import autograd_cache
    except ImportError:
        return None
    return autograd_cache


def stand_in(inputs: int) -> torch.fx.GraphModule:
    """A graph in place of one with so many inputs. Whoever runs it, or traces it, gets an exception."""
    graph = torch.fx.Graph()
    operands = tuple(graph.placeholder(f"input_{k}") for k in range(inputs))
    graph.output([graph.call_function(_refuse, operands)])
    return torch.fx.GraphModule({}, graph)


def _refuse(*operands: Any) -> Any:
    raise LookupError("torch does not have the code")
