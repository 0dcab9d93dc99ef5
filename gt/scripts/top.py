"""``python -m gt.scripts.top``: what the workers and clients of a running system do, like htop. q quits.

Finds the server by itself; ``--host`` and ``--port``, or ``--unix``, name another one. ``--once`` prints one picture of
the next second, ``--json`` one line of JSON for each interval.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gt.errors import ConfigError
from gt.events.load import ClientLoad, LoadMeter, WorkerLoad
from gt.events.viewer import Viewer
from gt.launch.command_name import command_name, make_parser
from gt.ops.families import MAIN_FAMILIES
from gt.scripts.command import add_server_options, chosen_server, run
from gt.wire.event_messages import WAITING

#: The families that are shown first; the others follow by their share.
FIRST_FAMILIES = (*MAIN_FAMILIES, "moves", WAITING)
#: Below this many columns only the most important ones are shown; from the second number on all.
NARROW, WIDE = 60, 100

Loads = tuple[dict[int, WorkerLoad], dict[int, ClientLoad]]


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.top", __doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, one line for each interval")
    parser.add_argument("--once", action="store_true", help="print one interval, then end")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two pictures (default 1)")
    add_server_options(parser)
    options = parser.parse_args(argv)
    return run(command_name("gt.scripts.top"), lambda: _top(options))


def _top(options: argparse.Namespace) -> int:
    if not 0.05 <= options.interval <= 3600:
        raise ConfigError("--interval must be from 0.05 to 3600 seconds")
    address = chosen_server(options)
    with Viewer(address, detail=False) as viewer:
        live = sys.stdout.isatty() and sys.stdin.isatty() and not options.json and not options.once
        if live:
            _show_live(viewer, options.interval)
            return 0
        for loads in _loads(viewer, options.interval, quits=lambda: False):
            print(json.dumps(as_json(address, loads, options.interval)) if options.json else plain(address, loads))
            sys.stdout.flush()
            if options.once:
                break
    return 0


def _loads(viewer: Viewer, interval: float, quits: Any) -> Iterator[Loads]:
    """The loads of each interval, until ``quits()``."""
    meter = LoadMeter()
    while True:
        began = time.monotonic()
        for batch in viewer.batches(interval):
            if batch is not None:
                meter.add(batch)
            if quits():
                return
        assert viewer.listening is not None
        yield meter.read(viewer.listening, time.monotonic() - began)


# -- what is shown -------------------------------------------------------------------------


def as_json(address: str, loads: Loads, interval: float) -> dict[str, Any]:
    """One interval as plain data."""
    workers, clients = loads
    return {
        "server": address,
        "seconds": interval,
        "workers": [asdict(w) | {"worker": id, "busy": w.busy, "idle": w.idle} for id, w in sorted(workers.items())],
        "clients": [asdict(c) | {"client": id} for id, c in sorted(clients.items())],
    }


def picture(address: str, loads: Loads, width: int) -> Any:
    """One interval as tables that fit into ``width`` columns."""
    from rich.console import Group
    from rich.table import Table

    workers, clients = loads
    families = _families(workers, 1 if width < NARROW else 3 if width < WIDE else 6)
    columns = ["worker", "idle", *families]
    columns += ["memory", "peak"] if width >= NARROW else []
    columns += ["of", "queue", "links"] if width >= WIDE else []
    busy = Table(*columns, box=None, pad_edge=False, title_justify="left")
    for id, load in sorted(workers.items()):
        sizes = [_bytes(load.memory.get(key, 0)) for key in ("used", "peak", "total")]
        cells = {"worker": f"{id} {load.device}" if width >= NARROW else str(id), "idle": f"{load.idle:.0%}"}
        cells |= {family: f"{load.families.get(family, 0.0):.0%}" for family in families}
        cells |= {} if load.waits_known else {WAITING: "–"}
        cells |= dict(zip(("memory", "peak", "of"), sizes, strict=True))
        cells |= {"queue": f"{load.queue_us / 1e3:.1f} ms", "links": f"{_bytes(int(load.link_bytes_per_s))}/s"}
        busy.add_row(*[cells[column] for column in columns])
    columns = ["client", "time", *(["instr/s", "memory", "hot"] if width >= NARROW else [])]
    columns += ["blocked others", "longest instruction"] if width >= WIDE else []
    users = Table(*columns, box=None, pad_edge=False)
    for id, client in sorted(clients.items(), key=lambda item: -item[1].share):
        cells = {"client": str(id), "time": f"{client.share:.0%}", "instr/s": f"{client.instructions_per_s:,.0f}"}
        cells |= {"memory": _bytes(client.memory), "hot": f"{client.hot:.0%}"}
        cells |= {"blocked others": f"{client.blocked_ms:.0f} ms"}
        cells |= {"longest instruction": f"{client.longest_ms:.1f} ms {client.longest}".rstrip()[:60]}
        users.add_row(*[cells[column] for column in columns])
    return Group(f"GT {address}  {len(workers)} worker(s), {len(clients)} client(s)"[:width], "", busy, "", users)


def plain(address: str, loads: Loads) -> str:
    """One interval as text."""
    from rich.console import Console

    width = shutil.get_terminal_size((WIDE + 20, 24)).columns
    console = Console(width=max(width, 20), color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(picture(address, loads, width))
    return capture.get().rstrip("\n")


def _families(workers: dict[int, WorkerLoad], count: int) -> list[str]:
    """The families to show: the largest, with the usual ones first."""
    total: dict[str, float] = dict.fromkeys(FIRST_FAMILIES, 0.0)
    for load in workers.values():
        for family, share in load.families.items():
            total[family] = total.get(family, 0.0) + share
    return sorted(total, key=lambda family: -total[family])[:count]


def _bytes(count: int) -> str:
    size, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


# -- on a terminal -------------------------------------------------------------------------


def _show_live(viewer: Viewer, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(f"GT {viewer.address}: waiting for the first interval; q quits", refresh=True)
        for loads in _loads(viewer, interval, quits=lambda: pressed() in ("q", "Q", "\x03")):
            live.update(picture(viewer.address, loads, console.width), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that returns the key pressed since its last call, or "". The terminal is restored at the end."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> str:
        return sys.stdin.read(1) if select.select([sys.stdin], [], [], 0)[0] else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


if __name__ == "__main__":
    sys.exit(main())
