"""What torch and the driver say about GPUs. Each is asked in a process of its own, because it may crash or hang."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from gt.launch.local import visible_gpus
from gt.launch.own_module import module_command, module_environment

#: The first import of torch from a cold disk is slow.
TORCH_TIMEOUT_S = 120.0
DRIVER_TIMEOUT_S = 30.0
DRIVER_FOLDER = "/proc/driver/nvidia"


@dataclass(frozen=True, slots=True)
class TorchFacts:
    installed: bool = False
    #: why it cannot be used; empty: it can
    error: str = ""
    version: str = ""
    #: the CUDA version that it was built for; empty: none
    cuda: str = ""
    #: the GPUs that it can use, and why it can use none although it was built for CUDA
    devices: tuple[str, ...] = ()
    cuda_error: str = ""
    #: empty: it has no NCCL
    nccl: str = ""
    gloo: bool = False


@dataclass(frozen=True, slots=True)
class GpuFacts:
    #: "NVIDIA H200, 143771 MiB"
    names: tuple[str, ...] = ()
    driver: str = ""
    #: why the driver does not answer; empty: it does, or there is none
    error: str = ""
    #: how many of them GT may use, and whether CUDA_VISIBLE_DEVICES says so
    visible: int = 0
    chosen: bool = False


def probe_torch() -> TorchFacts:
    if find_spec("torch") is None:
        return TorchFacts()
    answer, error = _ask(module_command("gt.doctor.torch_probe"), TORCH_TIMEOUT_S)
    if error:
        return TorchFacts(installed=True, error=error)
    facts = json.loads(answer.splitlines()[-1])
    return TorchFacts(installed=True, **{**facts, "devices": tuple(facts["devices"])})


def find_gpus() -> GpuFacts:
    if shutil.which("nvidia-smi") is None:
        missing = "there is a driver, but no nvidia-smi" if os.path.isdir(DRIVER_FOLDER) else ""
        return GpuFacts(error=missing, visible=len(visible_gpus()))
    query = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    answer, error = _ask(query, DRIVER_TIMEOUT_S)
    rows = [line.split(", ", 1) for line in answer.splitlines() if ", " in line]
    names = tuple(row[1] for row in rows)
    chosen = "CUDA_VISIBLE_DEVICES" in os.environ
    return GpuFacts(names, rows[0][0] if rows else "", error, len(visible_gpus()), chosen)


def _ask(command: list[str], timeout: float) -> tuple[str, str]:
    """(what the command printed, why it failed)."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=module_environment())
    except subprocess.TimeoutExpired:
        return "", f"{command[-1] if command[0] == sys.executable else command[0]} did not end within {timeout:g} s"
    except OSError as error:
        return "", str(error)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        return "", lines[-1] if lines else f"exit code {result.returncode}"
    return result.stdout, ""
