"""Which servers this user runs on this machine: each one writes a small file while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunningServer:
    #: "tcp://127.0.0.1:9000" or "unix:/tmp/gt-x/server"
    address: str
    pid: int
    #: when it was started, in seconds since 1970
    started: float
    #: the program that started it, for a local system; empty for a server of its own
    program: str = ""
    #: the process id of that program
    program_pid: int = 0

    def __str__(self) -> str:
        """For people: the address, and who started it."""
        if self.program:
            return f"{self.address} (started by {self.program}, pid {self.program_pid})"
        return f"{self.address} (gt server, pid {self.pid})"


def servers_folder() -> Path:
    """A folder that only this user can enter."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "gt" if base else Path(tempfile.gettempdir()) / f"gt-servers-{os.getuid()}"


@contextlib.contextmanager
def registered(address: str, started: float, program: str = "") -> Iterator[None]:
    """Inside the block this process is listed as a server. A folder that cannot be written is no error.

    ``program``: the name of the parent's program, if it started this server for itself.
    """
    entry = RunningServer(address, os.getpid(), started, program, os.getppid() if program else 0)
    path = servers_folder() / f"{os.getpid()}.json"
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(entry)))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def running_servers() -> list[RunningServer]:
    """The servers that run, the newest first. Files of servers that were killed are removed."""
    found = []
    for path in servers_folder().glob("*.json") if _is_mine(servers_folder()) else ():
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            entry = json.loads(path.read_text())
            server = RunningServer(**entry)
            if _alive(server.pid):
                found.append(server)
            else:
                path.unlink()
    return sorted(found, key=lambda server: -server.started)


def _is_mine(folder: Path) -> bool:
    """Whether this user made the folder: another user's could name a server of theirs."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o022


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return False
    return True
