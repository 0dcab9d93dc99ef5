"""Problems that are not bugs, each with its exit code."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from benchmarks.core.ranks import BadInput, Problem

__all__ = ["BadInput", "NoDisk", "NoMemory", "Problem", "disk", "no_space"]


class NoMemory(Problem):
    """The batch does not fit."""

    code = 3


class NoDisk(Problem):
    """The data cannot be written or read, or the result cannot be written."""

    code = 4


FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def disk(folder: Path, needed: int = 0) -> Iterator[None]:
    """Turn errors of the file system into a `NoDisk` that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise NoDisk(no_space(folder, needed)) from error
        if error.errno in READ_ONLY:
            raise NoDisk(
                f"{folder}: cannot be written ({error.strerror}); give a folder of your own with --data-dir"
            ) from error
        raise NoDisk(f"{folder}: {error.strerror or error}; give another folder with --data-dir") from error


def no_space(folder: Path, needed: int, free: int | None = None) -> str:
    free_text = "" if free is None else f" and {free / 1e9:,.3f} GB are free"
    return (
        f"{folder}: no space on the disk: the data set takes {needed / 1e9:,.3f} GB{free_text}; "
        f"free some, give another --data-dir, or ask for less with --num-samples"
    )
