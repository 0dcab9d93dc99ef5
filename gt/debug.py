"""What the system is doing, for people: workers, memory, the last instructions, where tensors lie and why."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from gt.client.stream import sites
from gt.client.stream.connect import session
from gt.client.stream.tracing import trace
from gt.client.tensor import layout
from gt.client.tensor.tensor import Tensor
from gt.ops import Signature
from gt.wire.fragments import ParsedFragment
from gt.wire.messages import FETCH, FORGET, RESET, RUN, Fragment

__all__ = [
    "explain", "get_worker_stats", "memory", "print_hot_paths", "print_tape", "show_layout", "trace",
]  # fmt: skip

CONTROL = {FETCH: "read", RESET: "forget signatures", FORGET: "forget a fragment"}


def get_worker_stats() -> dict[str, dict[str, Any]]:
    """One entry a worker: instructions run so far, how many of them repeated, what was compiled."""
    keys = ("total_instructions", "hot_instructions", "unique_sequences", "compilation_stats", "backend", "device")
    return {f"worker {s.worker}": {key: getattr(s, key) for key in keys} for s in session().worker_stats()}


def print_hot_paths(file: TextIO | None = None) -> None:
    """What comes again in this program, and how each worker runs it: most of the work first."""
    print("\n".join(line for item in get_worker_stats().items() for line in _hot_paths(*item)), file=file or sys.stdout)


HOT_PATHS = ("fragment", "length", "runs", "level", "compiling", "saved", "what")


def _hot_paths(worker: str, stats: dict[str, Any]) -> list[str]:
    total, hot, fragments = (stats[key] for key in ("total_instructions", "hot_instructions", "unique_sequences"))
    share = f"{hot:,} of them ({hot / total:.1%})" if total else "none of them"
    lines = [
        f"{worker} ({stats['device']}, {stats['backend']}): {total:,} instructions, {share} hot; fragments: {fragments}"
    ]
    pieces = sorted(stats["compilation_stats"].items(), key=lambda item: -item[1]["length"] * item[1]["runs"])
    if not pieces:
        return lines
    rows = [HOT_PATHS, *(_hot_path(name, piece) for name, piece in pieces)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, (_, piece) in zip(rows, [("", {"reasons": []}), *pieces], strict=True):
        # words to the left, numbers to the right
        padded = [f"{cell:{'<' if at in (0, 3, 6) else '>'}{widths[at]}}" for at, cell in enumerate(row)]
        lines.append(f"  {'  '.join(padded)}".rstrip())
        lines += [f"      {reason}" for reason in piece["reasons"]]
    return lines


def _hot_path(name: str, piece: dict[str, Any]) -> tuple[str, ...]:
    number, _, what = name.removeprefix("fragment ").partition(": ")
    seconds = (f"{piece[key]:.2f} s" if piece[key] else "-" for key in ("compile_seconds", "saved_seconds"))
    ops = what[what.find("(") + 1 :].removesuffix(")")
    return number, f"{piece['length']:,}", f"{piece['runs']:,}", piece["level"], *seconds, ops


def memory() -> dict[str, dict[str, Any]]:
    """One entry a worker: this client's tensors and bytes, those of all clients, and what the device says."""
    return {
        f"worker {s.worker}": {
            "client": {"tensors": s.client_tensors, "bytes": s.client_bytes},
            "all_clients": {"tensors": s.tensors, "bytes": s.bytes},
            "device": s.memory,
        }
        for s in session().worker_stats()
    }


def show_layout(x: Tensor, file: TextIO | None = None) -> None:
    """A picture, in text, of which worker has which part of a tensor."""
    print(layout.picture(x), file=file or sys.stdout)


def explain(x: Tensor) -> str:
    """Why a tensor lies where it does, and what it cost to bring it there."""
    found = layout.layout(x)
    return "\n".join([f"{x._type} lies {found.sentence}" if found.workers else str(x._type), *found.story])


def print_tape(last: int = 50, file: TextIO | None = None) -> None:
    """The last instructions this client emitted, with the source lines that asked for them."""
    outbox = session().outbox
    outbox.flush()
    lines = [line for sent in list(outbox.recent) for line in _told(*sent)]
    print("\n".join(lines[-last:]), file=file or sys.stdout)


def _told(stream: list[Any], signatures: dict[int, tuple[Signature, str]], fragments: dict[int, Fragment]) -> list[str]:
    lines: list[str] = []
    i = 0
    while i < len(stream):
        code = stream[i]
        if code < 0:
            lines.append(f"free %{-code}")
            i += 1
        elif code == RUN:
            form = ParsedFragment(fragments[stream[i + 1]], {code: found for code, (found, _) in signatures.items()})
            base, own, inputs, numbers = form.read_run(stream, i)
            lines += _told(form.expand(form.slot_ids(base, own, inputs), numbers), signatures, fragments)
            i += form.width
        elif code in CONTROL:
            lines.append(f"read %{stream[i + 2]}" if code == FETCH else CONTROL[code])
            i += 3 if code == FETCH else 2
        else:
            lines.append(_line(stream, i, *signatures[code]))
            i += signatures[code][0].width
    return lines


def _line(stream: list[Any], i: int, signature: Signature, signal: str) -> str:
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
