"""The local system that GT starts automatically: a server and workers, private to this process, that end with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading

from gt.errors import ConfigError, NoWorkers
from gt.launch.backend import default_backend, warn_about_moves
from gt.launch.own_module import module_command, module_environment
from gt.launch.parent import with_parent
from gt.say import topic

#: How long a child may take to end after SIGTERM.
TERMINATE_TIMEOUT_S = 2.0
#: If one of these variables is set, the children's stderr is shown. Otherwise it is kept to explain a failed start.
VERBOSE_TOPICS = ("GT_VERBOSE", "GT_DEBUG_DISPATCHER", "GT_DEBUG_WORKER", "GT_DEBUG_COMPILE")


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES would name them. Needs no CUDA library."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        return [name for name in names.split(",") if name.strip() not in ("", "-1")]
    with contextlib.suppress(OSError):
        return [str(i) for i in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    return []


def check_gpus(workers: int, gpus: list[str]) -> None:
    """Raises ConfigError if this host has GPUs, but fewer than workers."""
    if gpus and workers > len(gpus) and os.environ.get("GT_SHARE_GPUS", "0") in ("", "0"):
        raise ConfigError(
            f"{workers} workers for {len(gpus)} GPU(s): each worker needs its own; GT_SHARE_GPUS=1 lets them share"
        )


def share_of_host(i: int, workers: int, gpus: list[str]) -> tuple[dict[str, str], list[str]]:
    """Environment and options of worker ``i`` of this host: its GPU, and its share of the cores."""
    environment = {"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {}
    threads = [] if workers == 1 else ["--threads", str(max(1, (os.cpu_count() or 1) // workers))]
    return environment, threads


def _program() -> str:
    """The name of this program, for lists of running systems."""
    folder, name = os.path.split(sys.argv[0] if sys.argv else "")
    return os.path.basename(folder) if name == "__main__.py" else name or "python"


class LocalSystem:
    """A server and its workers as child processes; by default one worker, or with ``every_gpu`` one for each GPU."""

    name = "the local system"
    #: a Unix socket needs none
    keys = None
    #: Seconds within which the system must start; the first import of torch from a cold disk is slow.
    start_timeout = 120.0

    def __init__(self, workers: int | None = None, every_gpu: bool = False) -> None:
        gpus = visible_gpus()
        if workers is None:
            workers = max(1, len(gpus)) if every_gpu else 1
        check_gpus(workers, gpus)
        self.workers = workers
        self._backend = default_backend()
        warn_about_moves(workers)
        self._folder = tempfile.mkdtemp(prefix="gt-")  # only its owner can enter it
        self._socket = os.path.join(self._folder, "server")
        self.address = f"unix:{self._socket}"
        self._errors = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (open as long as the system runs)
        self._stopping = threading.Lock()
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        try:
            self._start("server", "gt.server", {}, f"--program={_program()}")
            for i in range(workers):
                self._start_worker(i, gpus)
        except BaseException:
            self.stop()
            raise

    def _start_worker(self, i: int, gpus: list[str]) -> None:
        environment, options = share_of_host(i, self.workers, gpus)
        self._start(f"worker {i}", "gt.worker", environment, "--backend", self._backend, *options)

    def _start(self, name: str, module: str, environment: dict[str, str], *options: str) -> None:
        child = subprocess.Popen(
            module_command(module, "--unix", self._socket, *with_parent(), *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if any(map(topic, VERBOSE_TOPICS)) else self._errors,
            env=module_environment(**environment),
        )
        self._children.append((name, child))

    def check(self, joined: int = 0) -> bool:
        """Raises NoWorkers if a child has ended. Otherwise False, so a caller that polls it continues to wait."""
        for name, child in self._children:
            if child.poll() is not None:
                raise NoWorkers(f"the local {name} ended (exit code {child.returncode}): {self._last_error_line()}")
        return False

    def explain(self, server_lost: bool) -> str:
        """Nothing is known about a lost process that its connection does not say."""
        return ""

    def _last_error_line(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing; set GT_VERBOSE=1 to see more"

    @property
    def pids(self) -> dict[str, int]:
        """Name of a child ("server", "worker 0", …) -> its process id."""
        return {name: child.pid for name, child in self._children}

    def stop(self) -> None:
        """End all children, by force if necessary. May be called twice, and from any thread."""
        if not self._stopping.acquire(blocking=False):
            return
        for _, child in reversed(self._children):  # workers first: otherwise they report a lost server
            child.terminate()
        for _, child in self._children:
            try:
                child.wait(TERMINATE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._errors.close()
        shutil.rmtree(self._folder, ignore_errors=True)
