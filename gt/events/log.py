"""Traces as text, in the format of the instruction log, with completion times.

    # gt-trace 1 {"wall": 1794879879176600819, "now": 48596006803228, …}
    12:31:07.482913 | #1 | RECV | client:1 | submission 15 | 0B | client:1 started=12:31:07.482920 us=60.300
    12:31:07.482990 | #2 | WORKER_SEND | worker:0 | execute 1 | 0B | client:1 submission=15
    12:31:07.483120 | #3 | WORKER_DONE | worker:0 | matmul(…) | 128B | client:1 execute=1 started=12:31:07.483020
        us=100.000 family=matmul fragment=3 level=template site="train.py:17: y = x @ w"   (one line in the file)

The first line is about the whole trace; the last line, ``# end``, shows that the file is complete.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

from gt.errors import ConfigError
from gt.events.table import EventTable
from gt.wire.event_messages import DISPATCHER, Listening

FORMAT = 1
HEAD = "# gt-trace "
END = "# end"


class LogLine(NamedTuple):
    """One line of a trace. Times are nanoseconds on the server's clock."""

    time: int
    event: str
    peer: str
    text: str
    nbytes: int
    #: client, execute, submission, started, us, family, kind, signal, fragment, level, members, ends, site
    details: dict[str, str]


def write_log(file: TextIO, table: EventTable, listening: Listening) -> int:
    """Write all events, in the order of time; returns how many lines."""
    head = {
        "wall": listening.wall,
        "now": listening.now,
        "error_ns": table.error,
        "dropped": table.dropped,
        "dropped_events": table.dropped_events,
        "workers": [{"id": w.id, "device": w.device, "backend": w.backend} for w in listening.workers],
    }
    file.write(f"{HEAD}{FORMAT} {json.dumps(head)}\n")
    shift = listening.wall - listening.now
    lines = sorted([*_dispatcher_lines(table, shift), *_worker_lines(table, shift)])
    for number, (moment, text) in enumerate(lines, 1):
        event, rest = text.split(" | ", 1)
        file.write(f"{_stamp(moment + shift)} | #{number} | {event} | {rest}\n")
    file.write(f"{END} {len(lines)}\n")
    return len(lines)


def _dispatcher_lines(table: EventTable, shift: int) -> Iterator[tuple[int, str]]:
    """A submission arrives before the dispatcher begins to handle it, the rest when it is handled."""
    for source, client in table.sources():
        if source != DISPATCHER:
            continue
        for worker, execute, serial, received, started, ended in table.rows(source, client).tolist():
            if worker >= 0:
                yield (
                    ended,
                    f"WORKER_SEND | worker:{worker} | execute {execute} | 0B | client:{client} submission={serial}",
                )
            else:
                text = f"submission {serial}" if serial else "message"
                times = f"started={_stamp(started + shift)} us={(ended - started) / 1e3:.3f}"
                yield received or started, f"RECV | client:{client} | {text} | 0B | client:{client} {times}"


def _worker_lines(table: EventTable, shift: int) -> Iterator[tuple[int, str]]:
    for e in table.events():
        name = e.name
        details = [f"client:{e.client}", f"execute={e.execute}", f"started={_stamp(e.started + shift)}"]
        details += [f"us={(e.ended - e.started) / 1e3:.3f}", f"kind={name.kind}", f"family={name.family}"]
        details += [f"signal={name.signal}"] if name.signal else []
        details += [f"fragment={e.fragment}"] if e.fragment else []
        details += [f"level={e.level}"]
        details += [f"members={','.join(map(str, name.members))}"] if name.members else []
        details += ["ends=device"] if name.ends_on_device else []
        details += [f"site={json.dumps(e.site)}"] if e.site else []
        yield e.ended, f"WORKER_DONE | worker:{e.worker} | {name.text} | {name.nbytes}B | {' '.join(details)}"


def _stamp(nanoseconds: int) -> str:
    """A wall-clock time as text, in microseconds."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{rest // 1000:06d}"


# -- reading -------------------------------------------------------------------------------

_LINE = re.compile(r"(\S+) \| #\d+ \| (\w+) \| (\S+) \| (.*) \| (\d+)B \|(.*)")
_DETAIL = re.compile(r'(\w+)[=:]("(?:[^"\\]|\\.)*"|\S*)')


def read_log(path: str) -> tuple[dict[str, Any], list[LogLine]]:
    """The head and the lines of a trace. Raises ConfigError if the file is not a complete trace of this format."""
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if not lines:
        raise ConfigError(f"{path}: the file is empty")
    version, _, head = lines[0].removeprefix(HEAD).partition(" ")
    if not lines[0].startswith(HEAD):
        raise ConfigError(f"{path}: this is not a trace; python -m gt.scripts.trace writes one")
    if version != str(FORMAT):
        raise ConfigError(f"{path}: a trace of format {version[:20]}; this version of GT reads format {FORMAT}")
    if lines[-1] != f"{END} {len(lines) - 2}":
        raise ConfigError(f"{path}: the trace is not complete: its last line is missing")
    try:
        about = json.loads(head)
        return about, [_parse(line, about) for line in lines[1:-1]]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(f"{path}: the trace is damaged") from None


def _parse(line: str, about: dict[str, Any]) -> LogLine:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    stamp, event, peer, text, nbytes, rest = match.groups()
    details = {key: json.loads(value) if value[:1] == '"' else value for key, value in _DETAIL.findall(rest)}
    return LogLine(moment(stamp, about), event, peer, text, int(nbytes), details)


def moment(stamp: str, about: dict[str, Any]) -> int:
    """The time of a stamp on the server's clock. A trace that runs over midnight goes on with the next day."""
    begun = about["wall"]
    midnight = time.localtime(begun // 1_000_000_000)
    hours, minutes, seconds = stamp.split(":")
    second, fraction = seconds.split(".")
    passed = (int(hours) - midnight.tm_hour) * 3600 + (int(minutes) - midnight.tm_min) * 60
    passed += int(second) - midnight.tm_sec
    passed += 86_400 if passed < -43_200 else 0
    return int((begun // 1_000_000_000 + passed) * 1_000_000_000 + int(fraction) * 1000 - begun + about["now"])
