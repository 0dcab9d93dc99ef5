"""``gt.debug``: workers, memory, hot paths, traces, the last instructions, and the placement of tensors."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from gt.client.stream import sites
from gt.client.stream.connect import session
from gt.client.stream.tracing import trace
from gt.client.tensor import layout
from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError
from gt.ops import Signature
from gt.wire.fragments import ParsedFragment
from gt.wire.structures import Fragment
from gt.wire.words import FETCH, FORGET, RESET, RUN

if TYPE_CHECKING:
    from gt.launch.dashboard import DashboardProcess

__all__ = [
    "dashboard", "explain", "explain_last_step", "get_worker_stats", "memory", "print_hot_paths", "print_tape",
    "show_layout", "trace",
]  # fmt: skip

#: control word -> its line in `print_tape`
CONTROL = {FETCH: "read", RESET: "forget signatures", FORGET: "forget a fragment"}


#: The figures of a worker that have totals; the last one is a table, whose total has the entries of all workers.
COUNTS, TABLE = ("total_instructions", "hot_instructions", "unique_sequences"), "compilation_stats"


def get_worker_stats() -> dict[str, Any]:
    """Instructions run so far, how many were in repeated fragments, and what was compiled: totals, and one entry per
    worker.

    Example::

        stats = gt.debug.get_worker_stats()
        print(stats["total_instructions"], stats["worker 0"]["total_instructions"])
    """
    workers = _stats_of_workers()
    totals: dict[str, Any] = {key: sum(stats[key] for stats in workers.values()) for key in COUNTS}
    sections = {f"{worker} {name}": entry for worker, stats in workers.items() for name, entry in stats[TABLE].items()}
    return {**totals, TABLE: sections, **workers}


def _stats_of_workers() -> dict[str, dict[str, Any]]:
    keys = (*COUNTS, TABLE, "backend", "device")
    return {f"worker {s.worker}": {key: getattr(s, key) for key in keys} for s in session().worker_stats()}


def print_hot_paths(file: TextIO | None = None) -> None:
    """Print the repeated fragments of this program and how each worker runs them, the largest first.

    Example::

        gt.debug.print_hot_paths()
    """
    print(
        "\n".join(line for item in _stats_of_workers().items() for line in _hot_paths(*item)), file=file or sys.stdout
    )


HOT_PATH_COLUMNS = ("fragment", "length", "runs", "level", "compiling", "saved", "what")


def _hot_paths(worker: str, stats: dict[str, Any]) -> list[str]:
    total, hot, count = (stats[key] for key in ("total_instructions", "hot_instructions", "unique_sequences"))
    share = f"{hot:,} of them ({hot / total:.1%})" if total else "none of them"
    lines = [
        f"{worker} ({stats['device']}, {stats['backend']}): {total:,} instructions, {share} hot; fragments: {count}"
    ]
    fragments = sorted(stats["compilation_stats"].items(), key=lambda item: -item[1]["length"] * item[1]["runs"])
    if not fragments:
        return lines
    rows = [HOT_PATH_COLUMNS, *(_hot_path(name, fragment) for name, fragment in fragments)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, (_, fragment) in zip(rows, [("", {"reasons": []}), *fragments], strict=True):
        # words are aligned left, numbers right
        padded = [f"{cell:{'<' if i in (0, 3, 6) else '>'}{widths[i]}}" for i, cell in enumerate(row)]
        lines.append(f"  {'  '.join(padded)}".rstrip())
        lines += [f"      {reason}" for reason in fragment["reasons"]]
    return lines


def _hot_path(name: str, fragment: dict[str, Any]) -> tuple[str, ...]:
    number, _, what = name.removeprefix("fragment ").partition(": ")
    seconds = (f"{fragment[key]:.2f} s" if fragment[key] else "-" for key in ("compile_seconds", "saved_seconds"))
    ops = what[what.find("(") + 1 :].removesuffix(")")
    return number, f"{fragment['length']:,}", f"{fragment['runs']:,}", fragment["level"], *seconds, ops


def memory() -> dict[str, dict[str, Any]]:
    """One entry per worker: tensors and bytes of this client, those of all clients, and what the device reports.

    Example::

        gt.debug.memory()["worker 0"]["client"]["bytes"]
    """
    return {
        f"worker {s.worker}": {
            "client": {"tensors": s.client_tensors, "bytes": s.client_bytes},
            "all_clients": {"tensors": s.tensors, "bytes": s.bytes},
            "device": s.memory,
        }
        for s in session().worker_stats()
    }


def show_layout(x: Tensor, file: TextIO | None = None) -> None:
    """Print a picture in text of which worker holds which block of a tensor.

    Example::

        gt.debug.show_layout(x)
    """
    print(layout.picture(x), file=file or sys.stdout)


class Explanation(str):
    """Lines of text. A notebook shows them as lines too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def explain(x: Tensor) -> Explanation:
    """Why a tensor is placed where it is, and what the moves to it cost.

    Example::

        print(gt.debug.explain(x))
    """
    placed = layout.layout(x)
    lines = [f"{x._type} is placed {placed.sentence}" if placed.workers else str(x._type), *placed.story]
    return Explanation("\n".join(lines))


def explain_last_step(stop: bool = False) -> Explanation:
    """Where the time of the last step went, and the three most useful things to do about it.

    The first call begins to record, which costs a few percent of the speed. Each later call explains the time since the
    one before, or between the last two optimizer steps (or calls of `gt.step`) since then. ``stop=True`` ends the
    recording.

    Example::

        for batch in batches:
            train_step(batch)
            print(gt.debug.explain_last_step())
    """
    from gt.client.stream.step_report import last_step_report

    return Explanation(last_step_report(stop))


class DashboardView:
    """The dashboard of a session. A notebook shows the page; printed it is a link, which works once."""

    def __init__(self, process: DashboardProcess, height: int) -> None:
        self._process, self._height = process, height

    @property
    def link(self) -> str:
        """A new link that opens the page once."""
        return self._process.new_link()

    def __repr__(self) -> str:
        return self.link

    def _repr_html_(self) -> str:
        # cookies belong to a host name, so the page must have the name under which the notebook is shown
        link, id = self.link, f"gt-dashboard-{time.monotonic_ns()}"
        style = f"box-sizing:border-box;width:100%;height:{self._height}px;border:1px solid #8884"
        return (
            f"<iframe id='{id}' style='{style}'></iframe><script>"
            f"document.getElementById('{id}').src = '{link}'.replace('127.0.0.1', "
            "['localhost', '[::1]'].includes(location.hostname) ? 'localhost' : '127.0.0.1')</script>"
            f"<a href='{self.link}' target='_blank'>open in a tab</a>"
        )


def dashboard(height: int = 800) -> DashboardView:
    """A web page that shows what this program's system does. In a notebook it appears in the cell.

    Example::

        gt.debug.dashboard()
    """
    from gt.launch.dashboard import DashboardProcess

    client = session()
    if not client.connection.address:
        raise ConfigError("gt.debug.dashboard: this session is inside one process, and has no server to look at")
    if client.dashboard is None or not client.dashboard.runs:
        client.dashboard = DashboardProcess(client.connection.address, "--listen", "0")
    return DashboardView(client.dashboard, height)


def print_tape(last: int = 50, file: TextIO | None = None) -> None:
    """Print the last instructions that this client emitted, with the source lines they come from.

    Example::

        gt.debug.print_tape(last=10)
    """
    outbox = session().outbox
    outbox.flush()
    lines = [line for submission in list(outbox.recent) for line in _lines(*submission)]
    print("\n".join(lines[-last:]), file=file or sys.stdout)


def _lines(
    stream: list[Any], signatures: dict[int, tuple[Signature, str]], fragments: dict[int, Fragment]
) -> list[str]:
    """One line per instruction of a stream of words; fragments are expanded."""
    lines: list[str] = []
    i = 0
    while i < len(stream):
        code = stream[i]
        if code < 0:
            lines.append(f"free %{-code}")
            i += 1
        elif code == RUN:
            by_code = {code: signature for code, (signature, _) in signatures.items()}
            fragment = ParsedFragment(fragments[stream[i + 1]], by_code)
            base, dispatcher_base, inputs, numbers = fragment.read_run(stream, i)
            ids = fragment.slot_ids(base, dispatcher_base, inputs)
            lines += _lines(fragment.expand(ids, numbers), signatures, fragments)
            i += fragment.width
        elif code in CONTROL:
            lines.append(f"read %{stream[i + 2]}" if code == FETCH else CONTROL[code])
            i += 3 if code == FETCH else 2
        else:
            lines.append(_line(stream, i, *signatures[code]))
            i += signatures[code][0].width
    return lines


def _line(stream: list[Any], i: int, signature: Signature, signal: str) -> str:
    """The instruction at position i: results, call, operands, signal and source line."""
    outs = ", ".join(f"%{id}" for id in stream[i + 2 : i + signature.start])
    ins = []
    for at in range(signature.start, signature.width):
        word = stream[i + at]
        if at in signature.offsets:
            ins.append(f"%{word}")
        else:
            ins.append(f"{len(word)} bytes" if isinstance(word, bytes) else repr(word))
    under = f" under {signal}" if signal else ""
    return f"{outs} = {signature} of {', '.join(ins) or 'nothing'}{under}    # {sites.describe(stream[i + 1])}"
