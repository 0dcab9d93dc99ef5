"""Reads a stream of words for the logs, as entries: an instruction, a move, a run of a fragment, or a control word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.ledger import CodeInfo
from gt.dispatcher.state import Client
from gt.wire.fragments import ParsedFragment
from gt.wire.words import DISCARD, FETCH, FIRST_DISPATCHER_CODE, FORGET, KEEP, LEAVE, READ, RESET, RUN, SNAPSHOT, TRACE


@dataclass(frozen=True, slots=True)
class StreamEntry:
    #: "matmul(float32[8,4], float32[4,4])", or the name of a control word
    text: str
    #: the bytes of the results
    nbytes: int = 0
    #: the ids of its results and operands; None: it is a control word
    outs: list[int] | None = None
    ins: tuple[int, ...] = ()
    #: what the dispatcher decided, if the instruction has a code of the dispatcher
    plan: CodeInfo | None = None
    signal: str = ""
    #: "id=7", of a control word
    note: str = ""


@dataclass(frozen=True, slots=True)
class ControlWord:
    name: str
    width: int
    note: Callable[[list[Any]], str] = lambda words: ""


CONTROL_WORDS = {
    FETCH: ControlWord("fetch", 3, lambda words: f"id={words[2]}"),
    READ: ControlWord("read", 4, lambda words: f"id={words[2]}"),
    TRACE: ControlWord("trace", 3, lambda words: f"begin={words[2]}"),
    DISCARD: ControlWord("discard", 2),
    RESET: ControlWord("reset", 2),
    LEAVE: ControlWord("leave", 2),
    FORGET: ControlWord("forget a fragment", 2),
    SNAPSHOT: ControlWord("snapshot", 2),
    KEEP: ControlWord("keep", 3, lambda words: f"id={words[2]}"),
}


def read_entries(client: Client, stream: list[Any], expand: bool) -> Iterator[StreamEntry]:
    """The entries of a stream. ``expand``: a fragment instruction by instruction; otherwise it is one entry."""
    i = 0
    while i < len(stream):
        fragment = _fragment(client, stream[i + 1]) if stream[i] == RUN else None
        if fragment is None:
            entry, width = _entry(client, stream, i)
            yield entry
            i += width
            continue
        base, dispatcher_base, inputs, numbers = fragment.read_run(stream, i)
        if expand:
            words = fragment.expand(fragment.slot_ids(base, dispatcher_base, inputs), numbers)
            yield from read_entries(client, words, expand)
        else:
            yield StreamEntry(_fragment_text(client, stream[i + 1], fragment), outs=[], ins=tuple(inputs))
        i += int(fragment.width)


def _entry(client: Client, stream: list[Any], i: int) -> tuple[StreamEntry, int]:
    """The entry at ``i``, and how many words it has."""
    code = stream[i]
    if code < 0:
        return StreamEntry("free", note=f"id={-code}"), 1
    if (word := CONTROL_WORDS.get(code)) is not None:
        return StreamEntry(word.name, note=word.note(stream[i : i + word.width])), word.width
    if (info := client.ledger.codes.get(code)) is not None:
        outs, ins = _operands(stream, i, info)
        return StreamEntry(info.text, info.nbytes, outs, ins, info, info.signal), info.width
    coded = client.codes.get(code)
    if coded is None:  # its length is unknown, and so is the position of the next instruction
        text = "run an unknown fragment" if code == RUN else f"code {code}"
        return StreamEntry(text), len(stream)
    signature = coded.signature
    outs, ins = _operands(stream, i, coded)
    nbytes = sum(t.nbytes for t in signature.outs)
    return StreamEntry(str(signature), nbytes, outs, ins, None, coded.definition.signal), coded.width


def _operands(stream: list[Any], i: int, format: Any) -> tuple[list[int], tuple[int, ...]]:
    return stream[i + 2 : i + format.start], tuple(stream[i + offset] for offset in format.offsets)


def _fragment(client: Client, number: int) -> ParsedFragment | None:
    known = client.fragments.get(number)
    return client.ledger.fragments.get(number) if known is None else known.parsed


def _fragment_text(client: Client, number: int, fragment: ParsedFragment) -> str:
    codes = [one.code for one in fragment.instructions if one.code >= 0]
    texts = (client.ledger.codes[c].text if c in client.ledger.codes else _call(client, c) for c in codes)
    name = f"d{number - FIRST_DISPATCHER_CODE}" if number >= FIRST_DISPATCHER_CODE else number
    return f"fragment {name} of {len(codes)} instructions ({count_ops(texts)})"


def _call(client: Client, code: int) -> str:
    coded = client.codes.get(code)
    return f"code {code}" if coded is None else str(coded.signature)


def count_ops(texts: Iterable[str]) -> str:
    """The ops of these calls with their numbers: ``matmul 2, add``."""
    counts = Counter(text.partition("(")[0].strip() for text in texts)
    return ", ".join(f"{op} {n}" if n > 1 else op for op, n in counts.items())
