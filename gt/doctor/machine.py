"""The facts about this machine that GT depends on. Nothing here judges them; see `gt.doctor.findings`."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import pathlib
import platform
import re
import resource
import shutil
import socket
import stat
import sys
import tempfile
from dataclasses import dataclass, field

from gt.doctor.accelerators import GpuFacts, TorchFacts, find_gpus, probe_torch
from gt.launch.cgroup import cgroup_limits
from gt.launch.running import running_servers
from gt.version import PROTOCOL, VERSION
from gt.wire.auth import operator_file, token_file
from gt.wire.shared import host_identity

#: The shared memory that NCCL, gloo and data loaders use.
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    #: None: not installed
    version: str | None
    #: the oldest version that GT works with; empty: any
    oldest: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder and the file system that it is, or will be, on."""

    purpose: str
    path: str
    total_bytes: int
    free_bytes: int
    writable: bool


@dataclass(frozen=True, slots=True)
class SecretFile:
    purpose: str
    path: str
    #: the variable that replaces the file, if it is set
    variable: str = ""
    exists: bool = False
    #: "600"
    mode: str = ""
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    number: int
    #: why a server cannot use it; empty: it can
    error: str = ""
    #: the process of this user's GT server that listens there, or 0
    server_pid: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    gt: str
    protocol: int
    python: str
    system: str
    hostname: str
    #: the addresses of the host name, and of "localhost"; empty: it has none
    addresses: tuple[str, ...]
    localhost: tuple[str, ...]
    #: all cores; those this process may use; the limit of its cgroup, if there is one
    cores: int
    usable_cores: int
    cgroup_cores: float | None
    #: whether OMP_NUM_THREADS sets the threads of an op
    threads_set: bool
    memory_bytes: int
    memory_available_bytes: int
    cgroup_memory_bytes: int | None
    packages: tuple[Package, ...]
    torch: TorchFacts
    gpus: GpuFacts
    shared_memory: Folder | None
    #: whether processes can share large values without copying them through sockets
    shares_values: bool
    open_files: int
    open_files_limit: int
    folders: tuple[Folder, ...]
    secrets: tuple[SecretFile, ...]
    port: Port
    #: the addresses of the GT servers that this user runs here
    servers: tuple[str, ...] = field(default=())


def examine(port: int) -> Machine:
    """The facts about this machine. ``port`` is the one that a server would use."""
    cgroup_cores, cgroup_memory = cgroup_limits()
    memory = _memory()
    open_files, open_files_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Machine(
        gt=VERSION,
        protocol=PROTOCOL,
        python=f"{platform.python_version()} ({sys.executable})",
        system=platform.platform(),
        hostname=socket.gethostname(),
        addresses=_addresses(socket.gethostname()),
        localhost=_addresses("localhost"),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        cgroup_cores=cgroup_cores,
        threads_set=bool(os.environ.get("OMP_NUM_THREADS")),
        memory_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=memory.get("MemAvailable", 0),
        cgroup_memory_bytes=cgroup_memory,
        packages=_packages(),
        torch=probe_torch(),
        gpus=find_gpus(),
        shared_memory=_folder("shared memory", SHARED_MEMORY) if os.path.isdir(SHARED_MEMORY) else None,
        shares_values=bool(host_identity()),
        open_files=open_files,
        open_files_limit=open_files_limit,
        folders=_folders(),
        secrets=(
            _secret("secret", token_file(), "GT_TOKEN"),
            _secret("operator's token", operator_file(), "GT_OPERATOR_TOKEN"),
        ),
        port=_port(port),
        servers=tuple(server.address for server in running_servers()),
    )


def _addresses(name: str) -> tuple[str, ...]:
    try:
        return tuple(sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}))
    except OSError:
        return ()


def _memory() -> dict[str, int]:
    """Bytes by their names in /proc/meminfo."""
    try:
        text = pathlib.Path("/proc/meminfo").read_text()
    except OSError:
        return {}
    return {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}


def _packages() -> tuple[Package, ...]:
    """The packages that GT requires, and torch."""
    try:
        lines = importlib.metadata.requires("gt-tensor") or []
    except importlib.metadata.PackageNotFoundError:  # a copy of the source that is not installed
        lines = []
    needed = [line for line in lines if "extra ==" not in line or 'extra == "worker"' in line]
    return tuple(_package(line) for line in needed)


def _package(requirement: str) -> Package:
    """From a line such as ``pyzmq>=26`` or ``torch>=2.11; extra == "worker"``."""
    name, _, oldest = requirement.partition(";")[0].strip().partition(">=")
    try:
        return Package(name, importlib.metadata.version(name), oldest)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, None, oldest)


def _folders() -> tuple[Folder, ...]:
    cache = os.environ.get("GT_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gt"
    )
    return _folder("temporary files", tempfile.gettempdir()), _folder("compiled code", cache)


def _folder(purpose: str, path: str) -> Folder:
    """A folder that need not exist yet: then its nearest parent counts."""
    existing = pathlib.Path(path).absolute()
    while not existing.is_dir() and existing != existing.parent:
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return Folder(purpose, path, usage.total, usage.free, os.access(existing, os.W_OK | os.X_OK))


def _secret(purpose: str, path: pathlib.Path, variable: str) -> SecretFile:
    if os.environ.get(variable, "").strip():
        return SecretFile(purpose, str(path), variable)
    try:
        status = path.stat()
    except OSError:
        return SecretFile(purpose, str(path))
    mode = f"{stat.S_IMODE(status.st_mode):03o}"
    return SecretFile(purpose, str(path), exists=True, mode=mode, empty=status.st_size == 0)


def _port(number: int) -> Port:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does: old connections do not count
        try:
            probe.bind(("127.0.0.1", number))
            return Port(number)
        except OSError as error:
            servers = (server for server in running_servers() if server.address.endswith(f":{number}"))
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else str(error.strerror)
            return Port(number, reason, next((server.pid for server in servers), 0))
