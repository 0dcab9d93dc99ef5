"""The user's own source line, for every instruction, in a fraction of a microsecond.

A place in a program is a code object and an offset in it. Each is numbered at first sight; the number travels with
the instruction, and comes back with its error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: (id of the code, offset) -> its number, or 0 for places inside GT, which are passed over
_known: dict[tuple[int, int], int] = {}
#: (id of the code, line) -> its number
_lines: dict[tuple[int, int], int] = {}
#: number -> code and line; holds the code, so that its id is not given to another
_places: list[tuple[CodeType | None, int]] = [(None, 0)]
#: the codes inside GT, held for the same reason
_inside: list[CodeType] = []


class _Held(threading.local):
    number = 0


_held = _Held()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """All that is emitted inside was asked for by the line that led here: it is looked for once."""
    before = _held.number
    if not before:
        _held.number = here()
    try:
        yield
    finally:
        _held.number = before


def here() -> int:
    """The number of the innermost place outside GT that led to this call."""
    if _held.number:
        return _held.number
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        key = id(frame.f_code), frame.f_lasti
        number = _known.get(key)
        if number is None:
            number = _number(key, frame)
        if number:
            return number
        frame = frame.f_back
    return 0


def _number(key: tuple[int, int], frame: FrameType) -> int:
    code = frame.f_code
    if code.co_filename.startswith(_PACKAGE) or code.co_filename == contextlib.__file__:
        _inside.append(code)
        _known[key] = 0
        return 0
    # the offset of one and the same call may change as Python learns how it is used; the line does not
    line = id(code), frame.f_lineno
    if line not in _lines:
        _places.append((code, frame.f_lineno))
        _lines[line] = len(_places) - 1
    _known[key] = _lines[line]
    return _known[key]


def describe(number: int) -> str:
    """``train.py:17: y = x @ w``"""
    if not 0 < number < len(_places):
        return ""
    import linecache  # brings the tokenizer with it, and only errors need it

    code, line = _places[number]
    assert code is not None
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line}" + (f": {text}" if text else "")
