"""Checks on what a peer sends. A peer that breaks the protocol is refused and loses its connection."""

from __future__ import annotations

from typing import Any

from gt.wire.words import FIRST_DISPATCHER_ID


class Violation(Exception):
    """A peer broke the protocol."""


#: What reading a malformed stream raises: unknown ids and codes, missing words, words of a wrong type.
MALFORMED_STREAM_ERRORS = (KeyError, IndexError, TypeError, AttributeError, ValueError)


def malformed_stream(error: BaseException) -> Violation:
    """The violation for one of the errors above."""
    return Violation(f"the stream is malformed: {type(error).__name__} {error}")


def request_number(word: Any) -> int:
    """The word as the number of a read. A worker sends it back to the dispatcher, so it must be an integer."""
    if type(word) is not int:
        raise Violation(f"the number of a request must be an integer, not {word!r}")
    return word


def check_tensor_id(id: Any) -> None:
    """Raises Violation if the id is reserved for the dispatcher."""
    if id >= FIRST_DISPATCHER_ID:
        raise Violation(f"{id} is not an id that a client may use")
