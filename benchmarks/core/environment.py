"""The machine and software of a run: enough to repeat it, and to decide whether two runs can be compared."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import torch

UTC_FORM = "%Y-%m-%dT%H:%M:%SZ"
ROOT = pathlib.Path(__file__).resolve().parents[2]
#: The variables that change figures. Nothing else is recorded, because an environment may contain secrets.
ALLOWED = [
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_CPP_LOG_LEVEL", "GLOO_SOCKET_IFNAME", "PYTHONHASHSEED"),
    *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HIGH_PRIORITY"),
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_NET", "NCCL_NET_GDR_LEVEL"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_CROSS_NIC"),
    *(
        "NCCL_CUMEM_ENABLE",
        "NCCL_TOPO_FILE",
        "NCCL_GRAPH_REGISTER",
        "NCCL_GRAPH_MIXING_SUPPORT",
        "LOCAL_WORLD_SIZE",
        "TORCHELASTIC_RESTART_COUNT",
    ),
]


def utc_now() -> str:
    return datetime.now(UTC).strftime(UTC_FORM)


def utc_after(started: str, seconds: float) -> str:
    """The time so many seconds of a clock that never steps back after another, with milliseconds for short runs."""
    ended = datetime.strptime(started, UTC_FORM).replace(tzinfo=UTC) + timedelta(seconds=seconds)
    return ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def program(file: str) -> str:
    """The name of a program in its help and its errors, as the user called it: ``gt bench compare``, or the file."""
    name = pathlib.PurePath(file).name
    called = os.environ.get("BENCH_COMMAND", "")  # the children of a benchmark have it too, and other names
    return called if called == f"gt bench {name.removesuffix('.py')}" else name


def record(seeds: dict[str, int], argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Everything except the configuration and the times, which the record of the run contains itself."""
    words = list(sys.argv if argv is None else argv)
    return {
        "git": git(),
        # the name of the script without folders, which differ between machines
        "argv": [pathlib.PurePath(words[0]).name, *map(_without_folder, words[1:])],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": nccl(),
        "driver": driver(),
        "cpu": cpu(),
        "gpus": gpus(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if _allowed(name)},
        "seeds": dict(seeds),
    }


def _without_folder(word: str) -> str:
    """No folder of this machine: paths below the working directory are relative to it, of others the name remains."""
    flag, equals, path = word.rpartition("=")
    path = path.removeprefix(f"{pathlib.Path.cwd()}/")
    return f"{flag}{equals}{pathlib.PurePath(path).name or path}" if path.startswith("/") else f"{flag}{equals}{path}"


def _allowed(name: str) -> bool:
    """Settings of GT change figures too; its tokens are secret."""
    return name in ALLOWED or (name.startswith("GT_") and "TOKEN" not in name)


def git(folder: pathlib.Path = ROOT) -> dict[str, Any] | None:
    """The commit, and whether files differ from it; None if this is not a checkout."""
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _output("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)}


def _output(*command: str) -> str | None:
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def nccl() -> str | None:
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def driver() -> str | None:
    """The version of the kernel module: often the first difference between two machines."""
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or ""
    match = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return match[0] if match else None


def cpu() -> dict[str, Any]:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": model[1] if model else platform.processor() or platform.machine(),
        "cores": usable,
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def gpus() -> list[dict[str, Any]]:
    """The devices that this process sees, with torch's names."""
    if not torch.cuda.is_available():
        return []
    return [_gpu(index) for index in range(torch.cuda.device_count())]


def _gpu(index: int) -> dict[str, Any]:
    has = torch.cuda.get_device_properties(index)
    return {
        "name": has.name,
        "uuid": uuid(index),
        "memory_bytes": has.total_memory,
        "capability": f"{has.major}.{has.minor}",
        "multiprocessors": has.multi_processor_count,
    }


def uuid(index: int) -> str | None:
    """The UUID in NVML's spelling; NVML's index differs from torch's if CUDA_VISIBLE_DEVICES is set."""
    return nvml_uuid(str(getattr(torch.cuda.get_device_properties(index), "uuid", "")))


def nvml_uuid(text: str) -> str | None:
    """A UUID as torch writes it in NVML's spelling; None if it is empty."""
    return f"GPU-{text}" if text and not text.startswith(("GPU-", "MIG-")) else text or None


def device_name(device: torch.device) -> str:
    """The name of the GPU, or of the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(cpu()["model"])
