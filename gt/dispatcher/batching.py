"""GT_WORKER_BATCH_SIZE: how many instructions a worker gets in one message, if that is not left to the stream.

By itself a message is whatever a client submitted at once, or as much of it as is one turn. A number makes it no more
than that; nothing ever waits for a message to fill.
"""

from __future__ import annotations

from typing import Any

from gt.dispatcher.state import Client
from gt.errors import ConfigError
from gt.wire.messages import FETCH, FIRST_CODE, READ, RUN, TRACE

VARIABLE = "GT_WORKER_BATCH_SIZE"


def batch_size(text: str) -> int | None:
    """What the variable says; None if nothing."""
    if not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdecimal() and int(text) > 0):
        raise ConfigError(
            f"{VARIABLE}={text}: a whole number from 1 on, of instructions in one message to a worker; "
            "unset, messages are as large as they happen to be"
        )
    return int(text)


def split(client: Client, words: list[Any], size: int) -> list[list[Any]]:
    """The words, in runs of ``size`` instructions; a fragment counts as one. What is freed goes with what is before."""
    made, begin, i, count = [], 0, 0, 0
    while i < len(words):
        if words[i] >= 0:
            if count == size:
                made.append(words[begin:i])
                begin, count = i, 0
            count += 1
        width = _width(client, words, i)
        if width is None:
            break
        i += width
    return [*made, words[begin:]]


def _width(client: Client, words: list[Any], i: int) -> int | None:
    """None for what was forgotten further on: where the next instruction begins nobody can tell."""
    code = words[i]
    if code < 0:
        return 1
    if code == RUN:
        known = client.fragments.get(words[i + 1])
        form = client.book.fragments.get(words[i + 1]) if known is None else known.form
        return None if form is None else form.width
    if code < FIRST_CODE:
        return {FETCH: 3, READ: 4, TRACE: 3}.get(code, 2)
    told = client.book.told.get(code) or client.codes.get(code)
    return None if told is None else told.width
