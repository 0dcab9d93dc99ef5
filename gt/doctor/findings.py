"""What is wrong with a machine, in words, and what to do about it. Each check looks at the facts only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gt.doctor.machine import Folder, Machine, Package, SecretFile
from gt.doctor.trials import TrialResult
from gt.launch.backend import INSTALL_TORCH

#: Fewer open files are not enough for a server with many clients, or for groups of many workers.
MIN_OPEN_FILES = 1024
#: The shared memory that every system has; NCCL between GPUs of one machine needs more.
MIN_SHARED_MEMORY_BYTES, MIN_SHARED_MEMORY_NCCL_BYTES = 64 << 20, 1 << 30
MIN_DISK_BYTES = 1 << 30
MIN_MEMORY_BYTES = 1 << 30

#: A problem makes the exit code 1. A note is worth knowing.
PROBLEM, NOTE = "problem", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    what: str
    remedy: str


def find_problems(machine: Machine, trials: list[TrialResult]) -> list[Finding]:
    findings = [finding for check in CHECKS for finding in check(machine)]
    return findings + [
        Finding(PROBLEM, f"{trial.name}: {trial.error}", trial.remedy) for trial in trials if trial.error
    ]


def _packages(machine: Machine) -> Iterator[Finding]:
    for package in machine.packages:
        if package.name == "torch" and not package.version and not machine.torch.installed:
            what = "torch is not installed: workers compute with numpy, which is slow, and move nothing between them"
            yield Finding(NOTE, what, INSTALL_TORCH)
        elif not package.version:
            yield Finding(PROBLEM, f"{package.name} is not installed", _install(package))
        elif _release(package.version) < _release(package.oldest):
            what = f"{package.name} {package.version} is too old: GT needs {package.oldest} or newer"
            yield Finding(PROBLEM, what, _install(package))


def _install(package: Package) -> str:
    return f"pip install '{package.name}{f'>={package.oldest}' if package.oldest else ''}'"


def _release(version: str) -> list[int]:
    """The numbers of a release: [2, 13, 0] of ``2.13.0+cpu``."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _gpus(machine: Machine) -> Iterator[Finding]:
    torch, gpus = machine.torch, machine.gpus
    if torch.error:
        yield Finding(PROBLEM, f"torch cannot be used: {torch.error}", "reinstall torch, or use --backend numpy")
    if gpus.error:
        yield Finding(PROBLEM, f"the GPU driver does not answer: {gpus.error}", "run nvidia-smi; reinstall the driver")
    if gpus.names and not gpus.visible and not gpus.chosen:
        what = f"GT does not find the {len(gpus.names)} GPU(s): /proc/driver/nvidia/gpus cannot be read"
        numbers = ",".join(str(i) for i in range(len(gpus.names)))
        yield Finding(PROBLEM, what, f"name them: CUDA_VISIBLE_DEVICES={numbers}")
    elif gpus.names and not gpus.visible:
        what = f"CUDA_VISIBLE_DEVICES hides the {len(gpus.names)} GPU(s) of this machine: workers use the CPU"
        yield Finding(NOTE, what, "unset CUDA_VISIBLE_DEVICES")
    elif gpus.names and torch.version and not torch.devices:
        reason = torch.cuda_error or "it was built without CUDA"
        remedy = "install a torch for this driver: https://pytorch.org/get-started/locally"
        yield Finding(PROBLEM, f"torch {torch.version} cannot use the GPUs: {reason}", remedy)
    elif len(torch.devices) > 1 and not torch.nccl:
        what = "torch has no NCCL: GPUs exchange data through the host, which is slow"
        yield Finding(PROBLEM, what, "install a torch with NCCL: https://pytorch.org/get-started/locally")
    if torch.version and not torch.gloo:
        what = "torch has no gloo: workers cannot exchange data"
        yield Finding(PROBLEM, what, "install a torch with torch.distributed")


def _limits(machine: Machine) -> Iterator[Finding]:
    if machine.open_files < MIN_OPEN_FILES:
        what = f"a process may open only {machine.open_files} files; connections and groups of workers need more"
        if machine.open_files_limit >= MIN_OPEN_FILES:
            remedy = f"ulimit -n {min(machine.open_files_limit, 65536)}"
        else:
            remedy = (
                f"raise the hard limit, which is {machine.open_files_limit} (limits.conf, or docker --ulimit nofile)"
            )
        yield Finding(PROBLEM, what, remedy)
    memory = [machine.memory_available_bytes, machine.cgroup_memory_bytes or machine.memory_available_bytes]
    if machine.memory_bytes and min(memory) < MIN_MEMORY_BYTES:
        what = f"only {size(min(memory))} of memory can be used"
        yield Finding(PROBLEM, what, "end other programs, or raise the container's limit")
    limit = machine.cgroup_cores
    if limit is not None and limit < machine.usable_cores and not machine.threads_set:
        threads = max(1, int(limit))
        what = f"the container may use {limit:g} of {machine.usable_cores} cores; torch starts a thread for each core"
        yield Finding(NOTE, what, f"OMP_NUM_THREADS={threads}")


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    folder, gpus = machine.shared_memory, len(machine.torch.devices)
    needed = MIN_SHARED_MEMORY_NCCL_BYTES if gpus > 1 else MIN_SHARED_MEMORY_BYTES
    if folder is None:
        yield Finding(PROBLEM, "there is no /dev/shm, which torch needs", "mount a tmpfs there")
    elif folder.total_bytes < needed:
        why = f"NCCL needs {size(needed)} for {gpus} GPUs" if gpus > 1 else f"torch needs {size(needed)}"
        remedy = "docker run --shm-size=1g, or mount -o remount,size=1G /dev/shm"
        yield Finding(PROBLEM, f"{folder.path} has only {size(folder.total_bytes)}: {why}", remedy)
    if not machine.shares_values:
        what = "large values go through sockets, not through shared memory: GT_SHM=0 is set, or /proc cannot be read"
        yield Finding(NOTE, what, "unset GT_SHM; mount /proc")


def _folders(machine: Machine) -> Iterator[Finding]:
    for folder in machine.folders:
        if not folder.writable:
            yield Finding(PROBLEM, f"{folder.path} ({folder.purpose}) cannot be written", _other_folder(folder))
        elif folder.free_bytes < MIN_DISK_BYTES:
            what = f"{folder.path} ({folder.purpose}) has only {size(folder.free_bytes)} free"
            yield Finding(PROBLEM, what, f"free some space, or {_other_folder(folder)}")


def _other_folder(folder: Folder) -> str:
    variable = "GT_CACHE_DIR" if folder.purpose == "compiled code" else "TMPDIR"
    return f"name another folder: {variable}=/path"


def _secrets(machine: Machine) -> Iterator[Finding]:
    for secret in machine.secrets:
        if secret.exists and int(secret.mode, 8) & 0o077:
            what = f"{secret.path} (the {secret.purpose}) has mode {secret.mode}: others can read it, so GT refuses it"
            yield Finding(PROBLEM, what, _new_secret(secret))
        elif secret.empty:
            what = f"{secret.path} (the {secret.purpose}) is empty"
            yield Finding(PROBLEM, what, f"rm {secret.path}; the next start of a server creates a new one")


def _new_secret(secret: SecretFile) -> str:
    return f"chmod 600 {secret.path}; if others may have read it, rm it: the next start of a server creates a new one"


def _network(machine: Machine) -> Iterator[Finding]:
    name, port = machine.hostname, machine.port
    if not machine.addresses:
        what = f"the name of this machine, {name!r}, has no address: workers on other machines cannot find it"
        yield Finding(PROBLEM, what, f"add a line to /etc/hosts: <address> {name}")
    if not machine.localhost:
        what = "the name localhost has no address: gt.connect('localhost:9000') cannot work"
        yield Finding(PROBLEM, what, "add a line to /etc/hosts: 127.0.0.1 localhost")
    if port.error and not port.server_pid:
        what = f"a server cannot use port {port.number}: {port.error}"
        yield Finding(PROBLEM, what, "choose another port: gt server -p PORT")


CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    *(_packages, _gpus, _limits, _shared_memory, _folders, _secrets, _network),
)


def size(nbytes: float) -> str:
    """The bytes in a readable unit: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
