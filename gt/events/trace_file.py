"""Read a file of `gt.scripts.trace` into an `EventTable`, so that everything that explains a table explains a file.

Times in a file are whole microseconds. Both ends of an event are rounded down, so the order of events stays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gt.errors import ConfigError
from gt.events.log import LogLine, moment, read_log
from gt.events.table import EventTable
from gt.wire.event_messages import DISPATCHER, LEVELS
from gt.wire.structures import EventName


class TraceFile(NamedTuple):
    """A trace that was read."""

    path: str
    table: EventTable
    #: worker -> its device
    devices: dict[int, str]


def read_trace(path: str) -> TraceFile:
    """Read a trace. Raises ConfigError if the file is not a complete trace with at least one instruction."""
    about, lines = read_log(path)
    try:
        table = _table(lines, about)
        devices = {int(worker["id"]): str(worker["device"]) for worker in about["workers"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: the trace is damaged") from None
    if not table.count:
        raise ConfigError(f"{path}: no instruction ran while this was recorded")
    return TraceFile(path, table, devices)


class _Numbers(dict[Any, int]):
    """Numbers for values, in the order in which they are first seen."""

    def __missing__(self, value: Any) -> int:
        self[value] = len(self)
        return self[value]


def _table(lines: list[LogLine], about: dict[str, Any]) -> EventTable:
    rows: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    names: dict[tuple[int, int], _Numbers] = {}
    sites = _Numbers({"": 0})
    for line in lines:
        client = int(line.details["client"])
        if line.event == "WORKER_DONE":
            key = int(line.peer.removeprefix("worker:")), client
            what = names.setdefault(key, _Numbers())[_name(line)]
            rows.setdefault(key, []).append(_worker_row(line, what, sites[line.details.get("site", "")], about))
        else:
            rows.setdefault((DISPATCHER, client), []).append(_dispatcher_row(line, about))
    table = EventTable()
    for (source, client), entries in rows.items():
        texts = {number: site for site, number in sites.items()}
        table.add_rows((source, client), np.array(entries, dtype=np.int64), names.get((source, client), ()), texts)
    return table


def _name(line: LogLine) -> EventName:
    details = line.details
    members = tuple(map(int, details["members"].split(","))) if "members" in details else ()
    op = line.text.split("(")[0].split(" ")[0]
    texts = details["kind"], details["family"], op, line.text, details.get("signal", "")
    return EventName(*texts, line.nbytes, members, details.get("ends") == "device")


def _worker_row(line: LogLine, what: int, site: int, about: dict[str, Any]) -> tuple[int, ...]:
    details = line.details
    started = moment(details["started"], about)
    fragment, level = int(details.get("fragment", 0)), LEVELS.index(details["level"])
    return what, int(details["execute"]), site, started, started, line.time, fragment, level


def _dispatcher_row(line: LogLine, about: dict[str, Any]) -> tuple[int, ...]:
    _, number = line.text.split(" ") if " " in line.text else ("", "0")
    if line.event == "WORKER_SEND":
        worker, serial = int(line.peer.removeprefix("worker:")), int(line.details["submission"])
        return worker, int(number), serial, 0, line.time, line.time
    started = moment(line.details["started"], about)
    return DISPATCHER, 0, int(number), line.time, started, started + int(float(line.details["us"]) * 1000)
