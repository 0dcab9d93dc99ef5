"""The processes of ``chaos.py``, and what can happen to them: a server, workers and clients, each behind a proxy."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import DupFd
from typing import Any

from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy

ROOT = pathlib.Path(__file__).parent.parent
#: How long a server may need to start.
START_S = 60.0
#: A process whose files may grow no more has, in effect, a full disk.
FULL_DISK_BYTES = 4096
#: Workers are forked from a process that has imported what they need, so that one starts in a moment.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["torch", "torch.distributed", "gt.worker.shell", "gt.worker.__main__"])


@dataclass(eq=False)
class Worker:
    process: Any
    proxy: Proxy
    joined: bool = False

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


@dataclass(eq=False)
class ChaosClient:
    """A process, and the lines it has printed: what it measured, and what GT said."""

    popen: subprocess.Popen[str]
    proxy: Proxy
    kind: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    #: when it was killed
    ended_at: float | None = None

    def read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                elif line.startswith("[gt]"):
                    self.lines.append({"t": time.monotonic(), "cause": line.strip()})

    def was_there(self, begin: float, end: float) -> bool:
        """Whether it ran all that time."""
        return bool(self.lines) and self.lines[0]["t"] <= begin and (self.ended_at is None or self.ended_at > end)

    def progressed_since(self, moment: float) -> bool:
        return any(line["t"] > moment and "cause" not in line for line in self.lines[-50:])


class ChaosSystem:
    """A server with workers and clients; all of them end with it."""

    def __init__(self, stack: contextlib.ExitStack, threads: int, folder: pathlib.Path, journal: bool) -> None:
        self._stack, self._threads = stack, threads
        #: whether the server continues when it is started again
        self.has_journal = journal
        token, path = os.urandom(16).hex(), os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "GT_TOKEN": token, "PYTHONPATH": path}
        self.port = free_port()
        options = ["-p", str(self.port), "--snapshots", str(folder / "snapshots")]
        options += ["--journal", str(folder / "journal")] if journal else []
        self._server = options, str(folder / "instructions.log")
        self.server = self._start_server()
        # before that, a proxy would accept connections and close them, which looks like a wrong server
        wait_until(self._listens, what="the server listens")
        #: workers that were not disturbed
        self.workers: list[Worker] = []

    def _start_server(self) -> subprocess.Popen[str]:
        options, log = self._server
        return self._start("gt.server", *options, GT_INSTRUCTION_LOG=log)

    def kill_server(self) -> None:
        """Kill the server with -9, and start it again."""
        self.server.kill()
        self.server.wait()
        self.server = self._start_server()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", self.port)):
            return True
        return False

    def _start(self, module: str, *options: str, pipe: bool = False, **extra: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdout=subprocess.PIPE if pipe else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={**self._environment, **extra},
            cwd=ROOT,
            text=True,
        )
        self._stack.callback(child.wait)
        self._stack.callback(child.kill)
        return child

    def add_worker(self) -> Worker:
        """Start a worker. It has joined when it prints that."""
        proxy = Proxy(self._stack, self.port, START_S)
        out, end = os.pipe()
        options = ["--host", "localhost", "-p", str(proxy.port), "--threads", str(self._threads)]
        with os.fdopen(end, "wb") as sender:
            process = _forks.Process(target=run_worker, args=(DupFd(sender.fileno()), self._environment, options))
            process.start()
        worker = Worker(process, proxy)

        def read() -> None:
            with os.fdopen(out, errors="replace") as lines:
                for line in lines:
                    worker.joined = worker.joined or "joined" in line

        self._stack.callback(process.join, 10)
        self._stack.callback(process.kill)
        self._read_in_thread(read)
        self.workers.append(worker)
        return worker

    def joined(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.joined]

    def client(self, kind: str, *arguments: object) -> ChaosClient:
        proxy = Proxy(self._stack, self.port, START_S)
        extra = {"GT_TEMPLATES": "0"} if kind == "plain" else {}
        texts = [str(proxy.port), kind, *map(str, arguments)]
        child = ChaosClient(self._start("benchmarks.chaos_child", *texts, pipe=True, **extra), proxy, kind)
        self._read_in_thread(child.read)
        return child

    def _read_in_thread(self, read: Callable[[], None]) -> None:
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        self._stack.callback(thread.join, 10)


def run_worker(output: Any, environment: dict[str, str], options: list[str]) -> None:
    """In a new process: what ``python -m gt.worker`` does."""
    os.environ.clear()
    os.environ.update(environment)
    fd = output.detach()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)

    from gt.worker.__main__ import main

    os._exit(main(options))


@contextlib.contextmanager
def full_disk(pid: int) -> Any:
    """Files of the process cannot grow any more."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_DISK_BYTES, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}
