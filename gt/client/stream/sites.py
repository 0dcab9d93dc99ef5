"""Sites: the user's source line of every instruction. Looking one up takes a fraction of a microsecond.

A site is a code object and an offset in it. Each gets a number when it is first seen. The number travels with the
instruction, and comes back with its error.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from types import CodeType, FrameType

#: where the files of GT are
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
#: where files are that are not the user's: those of GT, and of what calls GT for the user
_skipped = [PACKAGE, contextlib.__file__]
#: (id of the code, offset) -> its number
_by_offset: dict[tuple[int, int], int] = {}
#: (id of the code, line) -> its number
_lines: dict[tuple[int, int], int] = {}
#: number -> code and line; keeps the code alive, so that its id is not reused
_sites: list[tuple[CodeType | None, int]] = [(None, 0)]
#: id of the code -> the code: those inside GT, which are skipped; kept alive for the same reason
_inside: dict[int, CodeType] = {}
#: how many `held` blocks are open in all threads together; 0: `here` need not check
_held_count = 0


class _HeldSite(threading.local):
    number = 0


_held = _HeldSite()
_frame = sys._getframe
_count_lock = threading.Lock()


class held:  # noqa: N801, used like a function
    """Everything emitted inside the block has the same site, which is looked up once."""

    def __enter__(self) -> None:
        global _held_count
        self._before = _held.number
        _held.number = self._before or here()
        with _count_lock:
            _held_count += 1

    def __exit__(self, *_: object) -> None:
        global _held_count
        with _count_lock:
            _held_count -= 1
        _held.number = self._before


def skip(folder: str) -> None:
    """From now on, lines in this folder are not the user's: they call GT for the user."""
    _skipped.append(folder)


def here() -> int:
    """The number of the innermost line outside GT that led to this call. Called by functions that emit."""
    if _held_count and _held.number:
        return _held.number
    try:
        # The first three frames are inside GT: this one, the one that emits, and the one that calls that.
        frame: FrameType | None = _frame(3)
    except ValueError:  # there are fewer than three Python frames
        return 0
    while frame is not None:
        code = id(frame.f_code)
        if code not in _inside:
            number = _by_offset.get((code, frame.f_lasti)) or _number(frame)
            if number:
                return number
        frame = frame.f_back
    return 0


def _number(frame: FrameType) -> int:
    """The number of a frame's line, which may be new; 0 if the frame is inside GT."""
    code = frame.f_code
    if code.co_filename.startswith(tuple(_skipped)):
        _inside[id(code)] = code
        return 0
    # Python may change the offset of a call when it specializes the code; the line stays the same
    line = id(code), frame.f_lineno
    if line not in _lines:
        _sites.append((code, frame.f_lineno))
        _lines[line] = len(_sites) - 1
    _by_offset[id(code), frame.f_lasti] = _lines[line]
    return _lines[line]


def describe(number: int) -> str:
    """A site as text, ``train.py:17: y = x @ w``; "" for an unknown one."""
    if not 0 < number < len(_sites):
        return ""
    import linecache  # imports the tokenizer, which only errors need

    code, line = _sites[number]
    assert code is not None
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line}" + (f": {text}" if text else "")
