"""GT_WORKER_BATCH_SIZE: the most instructions that a worker gets in one message.

Without it, a message contains what a client submitted at once, or as much of it as fits into one turn. With it, larger
messages are split. No message ever waits to be filled.
"""

from __future__ import annotations

from typing import Any

from gt.dispatcher.state import Client
from gt.errors import ConfigError
from gt.wire.words import FETCH, FIRST_CODE, KEEP, READ, RUN, TRACE

VARIABLE = "GT_WORKER_BATCH_SIZE"


def parse_batch_size(text: str) -> int | None:
    """The value of the variable; None if it is empty. Raises ConfigError if it is not a positive number."""
    if not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdecimal() and int(text) > 0):
        raise ConfigError(
            f"{VARIABLE}={text}: must be a whole number, 1 or more: the most instructions in one message to a worker; "
            "unset, messages are not split"
        )
    return int(text)


def split(client: Client, words: list[Any], size: int) -> list[list[Any]]:
    """The words in batches of ``size`` instructions. A run of a fragment counts as one instruction. A free
    does not count, and stays with the instruction before it."""
    batches, begin, i, count = [], 0, 0, 0
    while i < len(words):
        if words[i] >= 0:
            if count == size:
                batches.append(words[begin:i])
                begin, count = i, 0
            count += 1
        width = _width(client, words, i)
        if width is None:
            break
        i += width
    return [*batches, words[begin:]]


def _width(client: Client, words: list[Any], i: int) -> int | None:
    """The number of words of the instruction at ``i``; None if it is unknown because its signature was forgotten."""
    code = words[i]
    if code < 0:
        return 1
    if code == RUN:
        fragment = client.fragments.get(words[i + 1])
        parsed = client.ledger.fragments.get(words[i + 1]) if fragment is None else fragment.parsed
        return None if parsed is None else parsed.width
    if code < FIRST_CODE:
        return {FETCH: 3, READ: 4, TRACE: 3, KEEP: 3}.get(code, 2)
    coded = client.ledger.codes.get(code) or client.codes.get(code)
    return None if coded is None else coded.width
