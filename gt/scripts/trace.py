"""``python -m gt.scripts.trace -s 10``: record what a running system does, without changing its programs.

Writes ``traces/trace_….log``, in the format of the instruction log with completion times; with ``--perfetto`` also a
file for ui.perfetto.dev. Then it prints where the time went.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from gt.errors import ConfigError
from gt.events.breakdown import break_down
from gt.events.log import write_log
from gt.events.perfetto import write_perfetto
from gt.events.table import EventTable
from gt.events.viewer import Viewer
from gt.launch.command_name import command_name, make_parser
from gt.scripts.command import add_server_options, chosen_server, run, written
from gt.wire.event_messages import Listening

#: Seconds between two lines of progress where the output is not a terminal.
PLAIN_PROGRESS_S = 1.0
#: Seconds to wait for the last events: a worker sends them after the work that it has.
REST_TIMEOUT_S = 60.0


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.trace", __doc__)
    parser.add_argument("-s", "--seconds", type=float, default=10.0, help="how long to record (default 10)")
    parser.add_argument("-n", "--events", type=int, help="stop after this many events")
    parser.add_argument("--dir", default="traces", help="the folder for the files (default traces)")
    parser.add_argument("--perfetto", action="store_true", help="also write a file for ui.perfetto.dev")
    add_server_options(parser)
    options = parser.parse_args(argv)
    return run(command_name("gt.scripts.trace"), lambda: _trace(options))


def _trace(options: argparse.Namespace) -> int:
    if not options.seconds > 0 or (options.events is not None and options.events <= 0):
        raise ConfigError("-s and -n must be more than 0")
    os.makedirs(options.dir, exist_ok=True)
    stem = os.path.join(options.dir, f"trace_{time.strftime('%Y%m%d_%H%M%S')}_{os.getpid()}")
    with Viewer(chosen_server(options)) as viewer:
        assert viewer.listening is not None
        table, listening = _record(viewer, viewer.listening, options)
    with written(stem + ".log") as file:
        write_log(file, table, listening)
    print(f"{stem}.log: {table.count:,} events of {len(listening.workers)} worker(s)")
    if options.perfetto:
        with written(stem + ".json") as file:
            write_perfetto(file, table, listening)
        print(f"{stem}.json: open it in ui.perfetto.dev")
    _summarize(table, listening)
    return 0


def _record(viewer: Viewer, listening: Listening, options: argparse.Namespace) -> tuple[EventTable, Listening]:
    # a client may be far ahead: what runs now arrived long ago
    table, progress = EventTable(since=listening.now, arrived=False), _Progress(options.seconds)
    began = time.monotonic()
    try:
        for batch in viewer.batches(options.seconds):
            if batch is not None:
                table.add(batch)
            progress.show(time.monotonic() - began, table.count)
            if options.events is not None and table.count >= options.events:
                break
    except KeyboardInterrupt:  # keep what there is
        pass
    finally:
        progress.end()
    for batch in viewer.rest(REST_TIMEOUT_S):
        table.add(batch)
    return table, listening


class _Progress:
    """A line that is written again and again on a terminal; else a line each second, and one at half of the time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._terminal, self._last = seconds, sys.stderr.isatty(), 0.0
        self._pause = 0.1 if self._terminal else min(PLAIN_PROGRESS_S, seconds / 2)

    def show(self, passed: float, events: int) -> None:
        if passed - self._last < self._pause:
            return
        self._last = passed
        text = f"recording: {min(passed, self._seconds):.1f} of {self._seconds:g} s, {events:,} events"
        print(f"\r{text}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal and self._last:
            print(file=sys.stderr)


def _summarize(table: EventTable, listening: Listening) -> None:
    if table.dropped:
        print(f"{table.dropped} batches were dropped: this machine could not read them fast enough")
    if table.dropped_events:
        print(f"{table.dropped_events:,} events were dropped: the GPU of their worker was too far behind")
    if table.count:
        breakdown = break_down(table, *table.span())
        print("\n".join(breakdown.lines_of_text()))
        unused = [str(worker.id) for worker in listening.workers if worker.id not in breakdown.computing]
        if unused and listening.operator:
            print(f"worker(s) {', '.join(unused)} ran nothing in this time and are not counted above")
    elif listening.operator:
        print("no instruction ran in this time")
    else:
        print("the instructions of other users are visible only with the operator's token (GT_OPERATOR_TOKEN); shares:")
        spent: dict[tuple[int, str], int] = {}
        for share in table.shares:
            spent[share.client, share.family] = spent.get((share.client, share.family), 0) + share.nanoseconds
        for (client, family), nanoseconds in sorted(spent.items(), key=lambda item: -item[1]):
            print(f"  client {client}  {family:<16} {nanoseconds / 1e6:10.3f} ms")


if __name__ == "__main__":
    sys.exit(main())
