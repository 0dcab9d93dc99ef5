"""The connection of ``gt up`` to one host: an agent there (`gt.launch.host_agent`), over ssh or on this machine."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import threading
from collections.abc import Callable

import msgspec

from gt.launch.host_agent import HostReport, HostTask
from gt.launch.hosts import Host
from gt.launch.own_module import module_command, module_environment

AGENT = "gt.launch.host_agent"
#: No questions, and a bound for each wait: a host that cannot be reached, and a connection that was cut.
SSH_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
#: How long the agent may take to end its processes; it needs about two seconds.
STOP_TIMEOUT_S = 8.0
#: Lines of ssh's error output that are kept.
KEPT_LINES = 4
#: Exit codes of ssh itself, and of a shell that does not find the command or may not run it.
SSH_FAILED, NOT_EXECUTABLE, NOT_FOUND = 255, 126, 127


class HostConnection:
    """``on_report`` and ``on_end`` are called by a thread; ``on_end`` with the reason, after all reports."""

    def __init__(
        self,
        host: Host,
        task: HostTask,
        ssh: str,
        python: str,
        on_report: Callable[[HostReport], object],
        on_end: Callable[[str], object],
    ) -> None:
        self._host, self._python = host, python
        self._on_report, self._on_end = on_report, on_end
        remote = [*shlex.split(python), "-P", "-m", AGENT]
        self._child = subprocess.Popen(
            module_command(AGENT)
            if host.is_here
            else [*shlex.split(ssh), *SSH_OPTIONS, host.name, "exec", *map(shlex.quote, remote)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=module_environment() if host.is_here else None,
            start_new_session=True,  # Ctrl-C is meant for gt up, which ends its agents in order
        )
        self._errors: list[str] = []
        threading.Thread(target=self._send, args=(task,), daemon=True).start()
        self._reading_errors = threading.Thread(target=self._read_errors, daemon=True)
        self._reading_errors.start()
        threading.Thread(target=self._read, daemon=True).start()

    def _send(self, task: HostTask) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; `_read` reports why
            self._child.stdin.write(msgspec.json.encode(task) + b"\n")
            self._child.stdin.flush()

    def _read_errors(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            if text := line.decode(errors="replace").strip():
                self._errors = [*self._errors, text][-KEPT_LINES:]

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                report = msgspec.json.decode(line, type=HostReport)
            except msgspec.MsgspecError:  # a greeting of the login shell
                self._errors = [*self._errors, line.decode(errors="replace").strip()][-KEPT_LINES:]
                continue
            self._on_report(report)
        code = self._child.wait()
        self._reading_errors.join(1.0)
        self._on_end(explain_end(code, self._errors, self._python))

    def stop(self) -> None:
        """Ask the agent to end all that it started. `wait` waits for it."""
        with contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.close()

    def wait(self) -> None:
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def explain_end(code: int, errors: list[str], python: str) -> str:
    """Why an agent has ended, from the exit code of ssh or Python and the last lines it printed."""
    text = " / ".join(errors)
    if code == SSH_FAILED:
        return f"ssh: {text.removeprefix('ssh: ') or 'the agent was killed there, or the connection was cut'}"
    if code in (NOT_EXECUTABLE, NOT_FOUND):
        return f"Python cannot be run there ({text or python}); --python names another"
    if "Unknown option: -P" in text:
        return f"GT needs Python 3.11 or newer, and {python} is older there; --python names another"
    if missing := re.search(r"No module named '?([\w.]+)", text):
        # a version without this module has the package, but not the module
        why = "GT is not installed" if missing[1] == "gt" else "another version of GT, or not all of it, is installed"
        return f"{why} there for {python} ({missing[0]}); install GT there, or name its Python with --python"
    return f"the agent ended (exit code {code}): {text or 'it printed nothing'}"
