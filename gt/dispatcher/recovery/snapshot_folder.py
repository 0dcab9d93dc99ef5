"""Snapshots in a folder that the server and all workers see: on a disk, or on a file system that several hosts share.

    FOLDER/lock                      held by the server that uses the folder
    FOLDER/snapshots-1f0c…/3-17-0    client 3, snapshot 17, the part of worker 0

The inner folder has a random name and is made by the server. A worker that does not find it sees another folder under
this path, and reports that.

Workers write the files, and the server removes them. It knows which ones are needed; every other file is removed when
it was found twice, a few seconds apart. So nothing remains of a worker that was killed while it wrote. And if the end
of a journal is lost with the machine, the snapshot that counted before is still there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path

from gt.errors import ConfigError
from gt.wire.recovery_messages import SavedPart

#: How often unneeded files are looked for, in seconds; longer than the end of a journal that may be lost.
CLEAN_S = 5.0
_INNER, _FILE = re.compile(r"snapshots-[0-9a-f]{16}"), re.compile(r"[0-9]+-[0-9]+-[0-9]+")


class SnapshotFolder:
    """Raises ConfigError if the folder cannot be used. ``threaded``: a thread removes unneeded files."""

    def __init__(self, folder: Path, threaded: bool = True) -> None:
        self._folder = folder = folder.absolute()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--snapshots {folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(f"--snapshots {folder}: another server that runs uses this folder") from None
        #: the files that are needed, or may be written
        self._files: set[str] = set()
        #: those that were not needed when last looked for
        self._unneeded: set[str] = set()
        self._threaded = threaded
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        inner = self._inner_folders()
        self._inner = inner[-1] if inner else self._new_inner()

    def _inner_folders(self) -> list[Path]:
        """All of them, the last one that was used last."""
        found = [path for path in self._folder.iterdir() if _INNER.fullmatch(path.name)]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    def _new_inner(self) -> Path:
        inner = self._folder / f"snapshots-{secrets.token_hex(8)}"
        try:
            inner.mkdir(mode=self._folder.stat().st_mode & 0o777)
        except OSError as error:
            raise ConfigError(f"--snapshots {self._folder}: {error.strerror}") from None
        return inner

    def begin(self, files: Iterable[str]) -> set[str]:
        """A server begins with these files, and removes all others. Returns those that are not there."""
        self._files = set(files)
        for inner in self._inner_folders():
            for path in self._found(inner) - self._files:
                _remove(path)
            if not any(os.path.dirname(file) == str(inner) for file in self._files):  # also of those to be written
                with contextlib.suppress(OSError):  # there is something else in it
                    inner.rmdir()
        if not self._inner.is_dir():
            self._inner = self._new_inner()
        if self._threaded and self._thread is None:  # not before: while a journal is read, some files are unknown
            self._thread = threading.Thread(target=self._clean, name="snapshots", daemon=True)
            self._thread.start()
        return {file for file in self._files if not os.path.exists(file)}

    # -- parts ---------------------------------------------------------------------------

    def is_reached_from(self, host: str) -> bool:
        return True

    def new_file(self, client: int, number: int, worker: int) -> str:
        file = str(self._inner / f"{client}-{number}-{worker}")
        self._files.add(file)
        return file

    def hold(self, part: SavedPart) -> SavedPart:
        return part

    def release(self, part: SavedPart) -> None:
        self._files.discard(part.file)

    def __len__(self) -> int:
        return len(self._files)

    # -- files that are not needed -------------------------------------------------------

    def _clean(self) -> None:
        while not self._closed.wait(CLEAN_S):
            with contextlib.suppress(OSError):  # the folder is away; the next time it may be there
                self.clean()

    def clean(self) -> None:
        """Remove what was not needed the last time either. Raises OSError."""
        unneeded = self._found(self._inner) - self._files
        for path in unneeded & self._unneeded:
            _remove(path)
        self._unneeded = unneeded

    def _found(self, inner: Path) -> set[str]:
        return {str(path) for path in inner.iterdir() if _FILE.fullmatch(path.name)}

    def close(self, keep: bool) -> None:
        """``keep``: a server that is started again will need the files."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if not keep:
            with contextlib.suppress(OSError):
                for path in self._found(self._inner):
                    _remove(path)
                self._inner.rmdir()
        os.close(self._lock)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
