"""The system that ``gt up`` runs: a file that tells the user's programs where it is, and a lock that says that it runs.

The process that runs ``gt up`` holds the lock. The kernel releases it when that process ends, also by ``kill -9``.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import struct
from pathlib import Path

import msgspec

from gt.errors import ConfigError
from gt.wire.server_keys import config_folder

#: ``struct flock`` of Linux: type, whence, start, length, process id.
_FLOCK = "hhqqi"


class UpState(msgspec.Struct, frozen=True):
    #: the process that runs ``gt up``, and its host
    pid: int
    host: str
    #: "10.0.0.1:9000"; empty until all workers have joined
    address: str = ""
    #: for clients
    token: str = ""
    workers: int = 0


def state_file() -> Path:
    return config_folder() / "up.json"


def log_file() -> Path:
    """What ``gt up --detach`` prints after it has returned."""
    return config_folder() / "up.log"


def _lock_file() -> Path:
    return config_folder() / "up.lock"


class UpLock:
    """Held by the process that runs ``gt up``. The state file exists while it is held."""

    def __init__(self) -> None:
        _lock_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(_lock_file(), os.O_RDWR | os.O_CREAT, 0o600)

    def acquire(self) -> bool:
        """False if another process holds it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self.write()
        return True

    def write(self, address: str = "", token: str = "", workers: int = 0) -> None:
        draft = state_file().with_name(f".draft-{secrets.token_hex(8)}")
        state = UpState(os.getpid(), socket.gethostname(), address, token, workers)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(state))
        os.replace(draft, state_file())

    def release(self) -> None:
        state_file().unlink(missing_ok=True)
        os.close(self._fd)


def holder() -> int:
    """The process that holds the lock; 0: none. Must not be called by the holder: it would lose the lock."""
    try:
        fd = os.open(_lock_file(), os.O_RDWR)
    except OSError:
        return 0
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
    finally:
        os.close(fd)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def read_state() -> UpState | None:
    """The state of the system that runs; None if none does."""
    if not (pid := holder()):
        return None
    try:
        state = msgspec.json.decode(state_file().read_bytes(), type=UpState)
    except (OSError, msgspec.MsgspecError):
        return UpState(pid, socket.gethostname())
    # a file that an earlier process left behind says nothing about this one
    return state if pid == state.pid or state.host != socket.gethostname() else UpState(pid, socket.gethostname())


def find_system() -> UpState:
    """The system that ``gt up`` runs, with its address. Raises ConfigError if there is none."""
    state = read_state()
    if state is None:
        raise ConfigError(
            "connect() needs an address, because nothing is up: start a system with gt up, or name a server, "
            "for example localhost:9000"
        )
    if not state.address:
        raise ConfigError(f"connect(): gt up (pid {state.pid}) still waits for its workers")
    return state
