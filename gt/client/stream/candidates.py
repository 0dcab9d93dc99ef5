"""Stretches of words that were seen once: an equal one makes a template of them. And the periods of loops.

Stretches are found by their length and first codes. Several different ones may have these in common, for example two
parts of a pipeline on one stage, which differ only in where they send their results. They are kept side by side.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from gt.ops import Signature
from gt.wire.fragments import NoFragment, SortedWords, make_fragment, sort_words
from gt.wire.structures import Fragment

#: The most keys, the most stretches with one key, and the most words of all stretches.
MAX_KEYS, MAX_SAME_KEY, MAX_WORDS = 64, 4, 1 << 17

#: the first codes of a stretch; its length and these codes
Codes = tuple[int, ...]
Key = tuple[int, Codes]


class Candidate:
    """A stretch: its submissions, and the first id that it may define."""

    __slots__ = ("_form", "base", "submissions")

    def __init__(self, submissions: list[list[Any]], base: int) -> None:
        self.submissions, self.base = submissions, base
        #: see `form`; False: not computed yet
        self._form: tuple[Fragment, SortedWords] | bool | None = False

    def words(self) -> list[Any]:
        return joined(self.submissions)

    def form(self, by_code: Mapping[int, Signature]) -> tuple[Fragment, SortedWords] | None:
        """What equal stretches have in common, the fragment, and the words by kind; None if it cannot be a fragment."""
        if self._form is False:
            words = self.words()
            try:
                kinds = sort_words(words, by_code, self.base, fresh=True)
                self._form = make_fragment(0, words, kinds), kinds
            except (NoFragment, IndexError, TypeError):
                self._form = None
        assert not isinstance(self._form, bool)
        return self._form


class Candidates:
    def __init__(self, by_code: Mapping[int, Signature]) -> None:
        self._by_code = by_code
        #: the least recently used key first; the newest stretch of a key first
        self._by_key: OrderedDict[Key, list[Candidate]] = OrderedDict()
        self._words = 0

    def take_equal(self, key: Key, new: Candidate) -> SortedWords | None:
        """If an equal stretch is kept, remove it, and return the words of the new one by kind."""
        row = self._by_key.get(key)
        if row is None or (form := new.form(self._by_code)) is None:
            return None
        for candidate in row:
            before = candidate.form(self._by_code)
            if before is not None and before[0] == form[0]:
                self._words -= key[0]
                row.remove(candidate)
                if not row:
                    del self._by_key[key]
                return form[1]
        return None

    def add(self, key: Key, new: Candidate) -> None:
        row = self._by_key.setdefault(key, [])
        self._by_key.move_to_end(key)
        row.insert(0, new)
        self._words += key[0] * (1 - len(row[MAX_SAME_KEY:]))
        del row[MAX_SAME_KEY:]
        while len(self._by_key) > MAX_KEYS or self._words > MAX_WORDS:
            oldest, forgotten = self._by_key.popitem(last=False)
            self._words -= oldest[0] * len(forgotten)

    def clear(self) -> None:
        self._by_key.clear()
        self._words = 0


def joined(submissions: list[list[Any]]) -> list[Any]:
    """The words of submissions as one list."""
    return submissions[0] if len(submissions) == 1 else [word for words in submissions for word in words]


# -- loops without cuts --------------------------------------------------------------------

#: How often it must have repeated, and how many instructions all repetitions must have.
MIN_REPEATS, MIN_REPEATED = 3, 24
#: The most periods that are tried. Within a period there may be loops too, over equal layers for example.
MAX_TRIED = 64
_ITEM = array("q").itemsize


def find_period(codes: list[int]) -> int:
    """The period of the longest repeated end of this sequence, if it repeats `MIN_REPEATS` times; else 0.

    Bytes are searched and compared, which takes a few nanoseconds a code.
    """
    data = array("q", codes).tobytes()
    # at least so many codes at the end stand one period before as well
    last = data[-(MIN_REPEATED - MIN_REPEATED // MIN_REPEATS) * _ITEM :]
    best = covered = 0
    end = len(data) - 1
    for _ in range(MAX_TRIED):
        at = data.rfind(last, 0, end)
        if at < 0:
            break
        end = at + len(last) - 1
        shift = len(data) - len(last) - at
        if shift % _ITEM:
            continue  # the bytes are those of other codes
        length = _repeated_bytes(data, shift)
        if length >= max(MIN_REPEATS * shift, MIN_REPEATED * _ITEM) and length > covered:
            best, covered = shift // _ITEM, length
    return best


def _repeated_bytes(data: bytes, shift: int) -> int:
    """How long the end of the data is that equals itself after a shift."""
    low, high = 0, len(data) - shift
    while low < high:
        middle = (low + high + 1) // 2
        if data[len(data) - shift - middle : len(data) - shift] == data[len(data) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low // _ITEM * _ITEM + shift
