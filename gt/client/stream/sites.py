"""The user's own source line, for every instruction, in a fraction of a microsecond.

A place in a program is a code object and an offset in it. Each is numbered at first sight; the number travels with
the instruction, and comes back with its error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from types import CodeType, FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
#: (id of the code, offset) -> its number
_known: dict[tuple[int, int], int] = {}
#: (id of the code, line) -> its number
_lines: dict[tuple[int, int], int] = {}
#: number -> code and line; holds the code, so that its id is not given to another
_places: list[tuple[CodeType | None, int]] = [(None, 0)]
#: id of the code -> itself, held for the same reason: those inside GT, which are passed over
_inside: dict[int, CodeType] = {}
#: how many hold a place, in all threads together: the rest need not look
_holding = 0


class _Held(threading.local):
    number = 0


_held = _Held()
_frame = sys._getframe
_counting = threading.Lock()


class held:  # noqa: N801, used like a function
    """All that is emitted inside was asked for by the line that led here: it is looked for once."""

    def __enter__(self) -> None:
        global _holding
        self._before = _held.number
        _held.number = self._before or here()
        with _counting:
            _holding += 1

    def __exit__(self, *_: object) -> None:
        global _holding
        with _counting:
            _holding -= 1
        _held.number = self._before


def here() -> int:
    """The number of the innermost place outside GT that led to this call; who emits was called by one inside."""
    if _holding and _held.number:
        return _held.number
    try:
        frame: FrameType | None = _frame(3)
    except ValueError:  # a function of GT's that nobody of Python's called
        return 0
    while frame is not None:
        code = id(frame.f_code)
        if code not in _inside:
            number = _known.get((code, frame.f_lasti)) or _number(frame)
            if number:
                return number
        frame = frame.f_back
    return 0


def _number(frame: FrameType) -> int:
    code = frame.f_code
    if code.co_filename.startswith(_PACKAGE) or code.co_filename == contextlib.__file__:
        _inside[id(code)] = code
        return 0
    # the offset of one and the same call may change as Python learns how it is used; the line does not
    line = id(code), frame.f_lineno
    if line not in _lines:
        _places.append((code, frame.f_lineno))
        _lines[line] = len(_places) - 1
    _known[id(code), frame.f_lasti] = _lines[line]
    return _lines[line]


def describe(number: int) -> str:
    """``train.py:17: y = x @ w``"""
    if not 0 < number < len(_places):
        return ""
    import linecache  # brings the tokenizer with it, and only errors need it

    code, line = _places[number]
    assert code is not None
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line}" + (f": {text}" if text else "")
