"""Real processes for tests: a server, workers and clients on this machine, with bounded waits and no leftovers."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

ROOT = pathlib.Path(__file__).parent.parent.parent
TOKEN, OPERATOR = "a secret for the tests", "the operator of the tests"
#: A first import of torch on two busy cores is slow; only a hang should reach this.
LONG = 120.0

_ports = itertools.count(1009 * os.getpid())


def wait_until(condition, seconds=LONG, what="the condition"):
    """Wait for a condition, with a limit, instead of a fixed sleep."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.01)
    return result


def free_port() -> int:
    """A port that no other program takes before its server does: the kernel assigns only higher ones, and parallel test
    processes start far from each other.
    """
    while True:
        port = 10_000 + next(_ports) % 20_000
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def alive(pid: int) -> bool:
    """Running, and not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def environment(**extra: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GT_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **clean,
        "GT_TOKEN": TOKEN,
        "GT_OPERATOR_TOKEN": OPERATOR,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


class Process:
    """A Python process whose output can be waited for line by line. ``before``: words before its command."""

    def __init__(self, *arguments: str, before: tuple[str, ...] = (), **extra: str) -> None:
        self.popen = subprocess.Popen(
            [*before, sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(**extra),
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed, while a child of the process still holds its end
            for line in self.popen.stdout:
                self.lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def expect(self, text: str, seconds: float = LONG) -> str:
        """Wait for a line that contains the text."""

        def matching_line():
            hit = next((line for line in self.lines if text in line), None)
            if hit is None and self.popen.poll() is not None:
                self._reader.join(5)
                hit = next((line for line in self.lines if text in line), None)
                assert hit is not None, f"ended with {self.popen.returncode} before saying {text!r}:\n{self.output}"
            return hit

        try:
            return wait_until(matching_line, seconds, f"{text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- output so far:\n{self.output}") from None

    def tell(self, line: str = "") -> None:
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def end(self, seconds: float = LONG) -> int:
        code = self.popen.wait(seconds)
        self._reader.join(5)
        return code

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGCONT)
        self.kill()
        self.popen.wait(LONG)
        self._reader.join(5)
        self.popen.stdin.close()
        self.popen.stdout.close()


class System:
    """A server with workers, as a user would start them in terminals."""

    host = "localhost"

    def __init__(self, stack: contextlib.ExitStack, *options: str, **extra: str) -> None:
        self._stack = stack
        self.port = free_port()
        self.server = self.start("-m", "gt.server", "-p", str(self.port), *options, GT_VERBOSE="1", **extra)
        self.server.expect("listening")
        self.workers: list[Process] = []

    def start(self, *arguments: str, **extra: str) -> Process:
        process = Process(*arguments, **extra)
        self._stack.callback(process.close)
        return process

    def worker(self, *options: str, **extra: str) -> Process:
        worker = self.start(
            "-m", "gt.worker", "--host", "localhost", "-p", str(self.port), *options, GT_VERBOSE="1", **extra
        )
        worker.expect("worker")
        self.workers.append(worker)
        return worker

    def client(self, program: str, port: int | None = None, **extra: str) -> Process:
        """A client that runs a program; it is connected already, and ``go()`` waits for the test's `tell`."""
        prelude = f"""
            import sys, time, os, signal, threading
            import numpy as np
            import gt
            def go(): sys.stdin.readline()
            def say(*what): print(*what, flush=True)
            gt.connect("{self.host}:{port or self.port}")
        """
        return self.start("-c", textwrap.dedent(prelude) + textwrap.dedent(program), **extra)


def script(program: str, *, stack: contextlib.ExitStack, **extra: str) -> Process:
    """A separate program, which may start a local system."""
    process = Process("-c", textwrap.dedent(program), **extra)
    stack.callback(process.close)
    return process
