"""What the system is doing, for people: workers, memory, the last instructions, where tensors lie and why."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from gt.client import located, sites
from gt.client.connect import session
from gt.client.tensor import Tensor
from gt.ops import Signature
from gt.wire.fragments import Form
from gt.wire.messages import FETCH, FORGET, RESET, RUN, Fragment

CONTROL = {FETCH: "read", RESET: "forget signatures", FORGET: "forget a fragment"}


def get_worker_stats() -> dict[str, dict[str, Any]]:
    """One entry a worker: instructions run so far, how many of them repeated, what was compiled."""
    keys = ("total_instructions", "hot_instructions", "unique_sequences", "compilation_stats", "backend", "device")
    return {f"worker {s.worker}": {key: getattr(s, key) for key in keys} for s in session().ask()}


def memory() -> dict[str, dict[str, Any]]:
    """One entry a worker: this client's tensors and bytes, those of all clients, and what the device says."""
    return {
        f"worker {s.worker}": {
            "client": {"tensors": s.client_tensors, "bytes": s.client_bytes},
            "all_clients": {"tensors": s.tensors, "bytes": s.bytes},
            "device": s.memory,
        }
        for s in session().ask()
    }


def show_layout(x: Tensor, file: TextIO | None = None) -> None:
    """A picture, in text, of which worker has which part of a tensor."""
    print(located.picture(x), file=file or sys.stdout)


def explain(x: Tensor) -> str:
    """Why a tensor lies where it does, and what it cost to bring it there."""
    found = located.layout(x)
    return "\n".join([f"{x._type} lies {found.sentence}" if found.workers else str(x._type), *found.story])


def print_tape(last: int = 50, file: TextIO | None = None) -> None:
    """The last instructions this client emitted, with the source lines that asked for them."""
    now = session()
    now.flush()
    lines = [line for sent in list(now.recent) for line in _told(*sent)]
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
            form = Form(fragments[stream[i + 1]], {code: found for code, (found, _) in signatures.items()})
            base, own, inputs, numbers = form.run(stream, i)
            lines += _told(form.expand(form.names(base, own, inputs), numbers), signatures, fragments)
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
