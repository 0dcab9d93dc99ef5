"""Which algorithm NCCL chose, if it is known: from the variable that forces one, or from its log of tuning decisions.

The log costs a line of text per call, so it is on only if requested (``--nccl-log``) or set by the user. All-to-all and
transfers are sends and receives, which the log does not mention.
"""

from __future__ import annotations

import os
import pathlib
import re
import socket
import tempfile

#: NCCL's numbers for algorithms and protocols, in releases that print numbers
NAMES = ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"]
PROTOCOLS = ["LL", "LL128", "Simple"]
LINE = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)", re.I)
#: bytes of the all-reduce of one number that makes the ranks start together; its choice is not of interest
BARRIER = 8


def switch_on() -> None:
    """Before NCCL is loaded: write its tuning decisions into a file of this process."""
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "TUNING")
    os.environ.setdefault("NCCL_DEBUG_FILE", os.path.join(tempfile.mkdtemp(prefix="nccl-"), "log.%h.%p"))


def parse(text: str) -> list[str]:
    """The choices in a stretch of the log, without repetition: ``Ring/Simple``."""
    choices = [(algorithm, protocol) for count, algorithm, protocol in LINE.findall(text) if int(count) > BARRIER]
    return list(dict.fromkeys(f"{_name(a, NAMES)}/{_name(p, PROTOCOLS)}" for a, p in choices))


def _name(word: str, names: list[str]) -> str:
    if word.isdigit():
        return names[int(word)] if int(word) < len(names) else word
    return {name.upper(): name for name in names}.get(word.upper(), word)


class Algorithms:
    """The choices since the log was last read."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._path = _log() if backend == "nccl" else None
        self._read = 0
        self._seen: dict[str, None] = {}

    def since_last(self) -> str:
        """The choice for the operation that was just measured."""
        choices: list[str] = []
        if self._path and self._path.exists():
            with self._path.open(errors="replace") as file:
                file.seek(self._read)
                choices = parse(file.read())
                self._read = file.tell()
        self._seen.update(dict.fromkeys(choices))
        return ", ".join(choices) or self._forced() or "unknown"

    def all(self) -> str:
        return ", ".join(self._seen) or self._forced() or "unknown"

    def _forced(self) -> str | None:
        forced = os.environ.get("NCCL_ALGO") if self.backend == "nccl" else None
        return f"NCCL_ALGO={forced}" if forced else None


def _log() -> pathlib.Path | None:
    name = os.environ.get("NCCL_DEBUG_FILE")
    if not name:
        return None
    return pathlib.Path(name.replace("%h", socket.gethostname()).replace("%p", str(os.getpid())))
