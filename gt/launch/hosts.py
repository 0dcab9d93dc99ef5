"""The hosts of ``gt up``: ``host1:8 host2:8 localhost:2``, or a file with one of these on each line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gt.errors import ConfigError

_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:\[\]\s]+)(?::(?P<workers>[0-9]+))?")


class Host(NamedTuple):
    #: as ssh takes it, such as "alice@host1"
    name: str
    workers: int

    @property
    def is_here(self) -> bool:
        """Whether it is this machine by its plain name. Any other name is reached by ssh."""
        return self.name == "localhost"


def parse_host(text: str) -> Host:
    """``host``, ``user@host:8`` or ``[::1]:2``. Raises ConfigError."""
    match = _HOST.fullmatch(text)
    # a name that begins with a dash would be an option of ssh
    if match is None or match["name"].startswith("-") or not 1 <= (workers := int(match["workers"] or 1)) <= 4096:
        raise ConfigError(f"{text!r}: expected HOST or HOST:WORKERS, such as host1:8")
    return Host(match["name"].strip("[]"), workers)


def parse_hosts(words: Iterable[str], file: Path | None) -> list[Host]:
    """The hosts on the command line and in a file, in which ``#`` begins a comment. Raises ConfigError."""
    lines: list[str] = []
    if file is not None:
        try:
            lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
    hosts = [parse_host(text) for text in [*words, *filter(None, lines)]]
    if not hosts:
        raise ConfigError("no hosts: name them, such as host1:8 localhost:2, or a file with --hosts")
    names = [host.name for host in hosts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{twice[0]} is named twice")
    return hosts
