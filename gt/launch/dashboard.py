"""The dashboard as a child process: of a server, or of a program that shows it in a notebook."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading

from gt.errors import ConfigError
from gt.launch.own_module import module_command, module_environment
from gt.launch.parent import with_parent
from gt.wire.addresses import parse_port

#: How to install what the dashboard needs.
INSTALL_DASHBOARD = "the dashboard and metrics need it: pip install 'gt-tensor[dashboard]'"
#: What the child prints: a line for each of these, and the last one when it serves.
LINK, METRICS, READY = "dashboard:", "metrics:", "ready"
DEFAULT_ADDRESS = "127.0.0.1:8787"
#: Seconds within which the child must serve; a first start from a cold disk is slow.
START_TIMEOUT_S = 60.0
#: How long a child may take to end after SIGTERM.
TERMINATE_TIMEOUT_S = 2.0


def parse_address(text: str | None, option: str) -> tuple[str, int]:
    """(host, port) of "8787", "0.0.0.0:8787" or "[::1]:8787". Without a host it is this machine only."""
    host, _, port = (text or DEFAULT_ADDRESS).rpartition(":")
    if not port.isdecimal():
        raise ConfigError(f"{option} {text}: expected a port, or an address and a port, such as {DEFAULT_ADDRESS}")
    return host.strip("[]") or "127.0.0.1", parse_port(port, 0)


class DashboardProcess:
    """``python -m gt.dashboard`` for the server at an address. Starting it waits until it serves."""

    def __init__(self, server: str, *options: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the child runs)
        self._child = subprocess.Popen(
            module_command("gt.dashboard", "--server", server, *with_parent(), *options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=module_environment(),
            text=True,
            # Ctrl-C reaches the whole process group, but is meant for the parent
            start_new_session=True,
        )
        #: what it printed: the link, and where the metrics are
        self.lines: list[str] = []
        watchdog = threading.Timer(START_TIMEOUT_S, self._child.kill)
        watchdog.start()
        try:
            while (line := self._read()) != READY:
                self.lines.append(line)
        except BaseException:
            self.stop()
            raise
        finally:
            watchdog.cancel()

    def _read(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self._child.wait()
            self._errors.seek(0)
            reason = self._errors.read().decode(errors="replace").strip().splitlines()
            raise ConfigError(reason[-1].removeprefix("gt.dashboard: ") if reason else "the dashboard has ended")
        return line.strip()

    @property
    def runs(self) -> bool:
        return self._child.poll() is None

    def new_link(self) -> str:
        """Another link that opens the page once."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(file=self._child.stdin, flush=True)
        return self._read().removeprefix(LINK).strip()

    def stop(self) -> None:
        """End the child, by force if necessary."""
        self._child.terminate()
        try:
            self._child.wait(TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for file in (self._child.stdin, self._child.stdout, self._errors):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
