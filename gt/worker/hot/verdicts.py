"""Trials that compiled code has passed, kept beside it in the cache folder, so that the next process needs none.

A verdict is found by a key of everything that decides the compiled code and the interpreter's: the section, the numbers
that are constants, the types and strides of the inputs, the settings and versions of what compiles and computes, and
GT's own code. A trial that was failed is not kept: it depends on values, or on how busy the machine was.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import time
from functools import cache
from typing import Any

import array_api_compat
import torch

from gt.worker.hot.kept_files import KeptFiles
from gt.worker.hot.program import Program

#: (seconds of an interpreted and of a compiled run, the same as graphs): see `CompiledProgram`
Times = tuple[tuple[float, float], tuple[float, float]]
#: The files that decide what is traced, and what the interpreter computes.
DECIDING = ("ops/**/*.py", "worker/**/*.py", "types.py")


class Verdicts:
    def __init__(self, folder: str) -> None:
        """``folder``: the cache folder; "" if there is none, then nothing is kept."""
        self._files = KeptFiles(folder, "trials")

    def find(self, key: str) -> Times | None:
        """The times of code that has passed its trial."""
        try:
            (a, b), (c, d) = self._files.find(key)
            return (float(a), float(b)), (float(c), float(d))
        except (ValueError, TypeError):
            return None

    def keep(self, key: str, times: Times) -> None:
        """Code with this key has passed its trial."""
        self._files.keep(key, times)


def section_key(program: Program, inputs: list[Any]) -> str:
    """The key of a section's compiled code for such inputs; "" if not all that decides it is known."""
    settings, source = _settings(program.device), _source_digest()
    if settings is None or not source:
        return ""
    section, constants = program.section, program.constants
    calls = [(str(call.signature), call.operands, call.results) for call in section.calls]
    numbers = [(call.registers, call.numbers, call.last_used) for call in program.calls]
    fixed = section.registers, section.results, sorted(program.donated.items()), program.checks_positions
    types = [(tuple(x.shape), tuple(x.stride()), str(x.dtype), str(x.device)) for x in inputs]
    device = str(program.device)  # there may be no inputs
    parts = (calls, numbers, constants.indices, constants.values, fixed, types, device, settings, source)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _settings(device: Any) -> list[Any] | None:
    """The versions and settings that decide how torch, inductor and the device compute; None if they are not known."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    from torch._inductor.codecache import CacheBase

    try:
        settings: list[Any] = [torch.version.git_version, array_api_compat.__version__, CacheBase.get_system()]
        settings += [inductor.save_config_portable(), functorch.save_config_portable()]
    except Exception:  # internals of torch, which another version may not have
        return None
    settings += [torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()]
    settings += [torch.backends.mkldnn.enabled, *_attention_settings()]
    if device.type != "cuda":
        return [*settings, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]
    cudnn: Any = torch.backends.cudnn
    settings += [torch.cuda.get_device_name(device), torch.version.cuda, cudnn.version()]
    return [*settings, cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32]


def _attention_settings() -> list[bool]:
    """Which kernels of attention torch may choose: the choice is made when a section is traced."""
    cuda: Any = torch.backends.cuda
    kinds = (cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled)
    return [enabled() for enabled in kinds]


@cache
def _source_digest() -> str:
    """A digest of GT's code that decides what is traced, and what the interpreter computes.

    "" if a file was changed since this process began: what it imported is not known.
    """
    digest, root = hashlib.sha256(), pathlib.Path(__file__).parents[2]
    paths = sorted(path for pattern in DECIDING for path in root.glob(pattern))
    for path in paths:
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return "" if max(path.stat().st_ctime for path in paths) > _began() else digest.hexdigest()


def _began() -> float:
    """When this process began, in seconds since 1970."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])  # since the machine started
    started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return started + ticks / os.sysconf("SC_CLK_TCK")
