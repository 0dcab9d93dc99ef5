"""Trials that compiled code has passed, kept beside it in the cache folder, so that the next process needs none.

A verdict is found by a key of everything that decides the compiled code and the interpreter's: the traced graph, the
section, the types and strides of the inputs, the settings and versions of what compiles and computes, and GT's own
code. A trial that was failed is not kept: it depends on values, or on how busy the machine was.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from functools import cache
from typing import Any

import torch

from gt.worker.hot.program import Program

#: (seconds of an interpreted and of a compiled run, the same as graphs): see `CompiledProgram`
Times = tuple[tuple[float, float], tuple[float, float]]
#: The packages that decide what is traced, and what the interpreter computes.
DECIDING = ("ops", "worker")


class Verdicts:
    def __init__(self, folder: str) -> None:
        """``folder``: the cache folder; "" if there is none, then nothing is kept."""
        self._folder = os.path.join(folder, "trials") if folder else ""

    def find(self, key: str) -> Times | None:
        """The times of code that has passed its trial."""
        if not key or not self._folder:
            return None
        try:
            with open(os.path.join(self._folder, key)) as file:
                (a, b), (c, d) = json.load(file)
                return (float(a), float(b)), (float(c), float(d))
        except (OSError, ValueError, TypeError):
            return None

    def keep(self, key: str, times: Times) -> None:
        """Code with this key has passed its trial."""
        if not key or not self._folder:
            return
        path = os.path.join(self._folder, key)
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(f"{path}.{os.getpid()}", "w") as file:
                json.dump(times, file)
            os.replace(file.name, path)


def verdict_key(program: Program, graph: Any, inputs: list[Any]) -> str:
    """The key of compiled code; "" if it cannot be named by one. ``graph`` is what inductor compiles."""
    if any(node.op == "get_attr" for node in graph.graph.nodes):
        return ""  # a tensor is a constant of the code
    section = program.section
    calls = [(str(call.signature), call.operands, call.results) for call in section.calls]
    types = [(tuple(x.shape), tuple(x.stride()), str(x.dtype), str(x.device)) for x in inputs]
    settings = _settings(program.device)
    if settings is None:
        return ""
    parts = (graph.code, calls, section.results, sorted(program.donated.items()), types, settings, _source_digest())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _settings(device: Any) -> list[Any] | None:
    """The versions and settings that decide how torch, inductor and the device compute; None if they are not known."""
    import torch._inductor.config as inductor
    from torch._inductor.codecache import CacheBase

    try:
        settings: list[Any] = [torch.version.git_version, CacheBase.get_system(), inductor.save_config_portable()]
    except Exception:  # internals of torch, which another version may not have
        return None
    settings += [torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()]
    if device.type != "cuda":
        return [*settings, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    cudnn: Any = torch.backends.cudnn
    settings += [torch.cuda.get_device_name(device), torch.version.cuda, cudnn.version()]
    return [*settings, cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32]


@cache
def _source_digest() -> str:
    """A digest of GT's code that decides what is traced, and what the interpreter computes."""
    digest, root = hashlib.sha256(), pathlib.Path(__file__).parents[2]
    for package in DECIDING:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
