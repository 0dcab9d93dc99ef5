"""A private server and its workers, one per GPU, or on CPUs with one thread each; they end with this process."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time

import gt
from benchmarks.core.environment import ROOT
from benchmarks.core.ranks import BadInput
from gt.launch.local import visible_gpus
from gt.launch.parent import with_parent

#: Seconds for all workers to start: the first import of torch from a cold disk is slow.
START_TIMEOUT_S = 180.0


class System:
    """``with System(8, 9000): …`` connects to it inside the block."""

    def __init__(self, workers: int, port: int) -> None:
        self.workers, self.port = workers, port
        self.gpus = visible_gpus()
        sharing = os.environ.get("GT_SHARE_GPUS", "0") not in ("", "0")
        if self.gpus and workers > len(self.gpus) and not sharing:
            raise BadInput(
                f"--gpus {workers}: there are {len(self.gpus)} GPU(s) here; GT_SHARE_GPUS=1 lets workers share"
            )
        _check_free(port)
        self._children: list[subprocess.Popen[bytes]] = []
        self._token = os.environ.get("GT_TOKEN")
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the system runs)

    def __enter__(self) -> System:
        try:
            # its own secret: the run reads no token file, and leaves none behind
            os.environ["GT_TOKEN"] = secrets.token_hex(16)
            self._start({}, "gt.server", "-p", str(self.port))
            for i in range(self.workers):
                environment = {"CUDA_VISIBLE_DEVICES": self.gpus[i % len(self.gpus)]} if self.gpus else {}
                threads = () if self.gpus else ("--threads", "1")
                self._start(environment, "gt.worker", "--host", "localhost", "-p", str(self.port), *threads)
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, environment: dict[str, str], module: str, *options: str) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        talking = any(os.environ.get(name, "0") not in ("", "0") for name in ("GT_VERBOSE", "GT_DEBUG_DISPATCHER"))
        child = subprocess.Popen(
            [sys.executable, "-m", module, *options, *with_parent()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if talking else self._words,
            env={**os.environ, **environment, "PYTHONPATH": path},
        )
        self._children.append(child)

    def _connect(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self._check()
            try:
                gt.connect(f"localhost:{self.port}")
                break
            except gt.ConnectionLost:
                if time.monotonic() > deadline:
                    raise
        while len(gt.workers()) < self.workers:
            self._check()
            if time.monotonic() > deadline:
                raise gt.NoWorkers(
                    f"{len(gt.workers())} of {self.workers} workers were ready after {START_TIMEOUT_S:g} s"
                )
            time.sleep(0.05)

    def _check(self) -> None:
        for child in self._children:
            if child.poll() is not None:
                self._words.seek(0)
                lines = self._words.read().decode(errors="replace").strip().splitlines()
                raise BadInput(f"the system did not start: {lines[-1] if lines else 'a part of it ended at once'}")

    def __exit__(self, *_: object) -> None:
        gt.disconnect()
        for child in reversed(self._children):  # workers first: otherwise they report that they lost their server
            child.terminate()
        for child in self._children:
            try:
                child.wait(2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._words.close()
        del os.environ["GT_TOKEN"]
        if self._token is not None:
            os.environ["GT_TOKEN"] = self._token


def _check_free(port: int) -> None:
    """Check that the port is free: another user's server there would refuse us without a reason."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInput(
                f"--port {port} cannot be used ({error.strerror}): give another, or stop what runs there"
            ) from None
