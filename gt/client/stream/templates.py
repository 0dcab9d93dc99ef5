"""What a client emits again is sent as one instruction: "run fragment 17 with these inputs".

The stream is cut where a program's own rhythm is: at reads, after `backward` and optimizer steps, around what is to be
compiled, at `gt.step()`. What lies between two cuts is compared with what was seen before, all but the ids of tensors
and the numbers. The words are emitted all the same: whatever differs is simply sent as it is, so a repetition is never
taken for granted. A loop without any cut is found by its period. What is long is known in chunks, each of which goes
out as soon as it is complete.

Comparing costs a fraction of a microsecond an instruction: a `Template` has the places of each kind of word, and takes
them out in one step each.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter, neg
from typing import Any

from gt.ops import Signature
from gt.wire.fragments import NoFragment, Sorted, canonical, run_words, sort
from gt.wire.messages import FORGET, MAX_FRAGMENT, Fragment

#: Words that go out together, if they are nothing known.
BATCH = 640
#: Less than this is sent as it is.
SHORTEST = 12
#: From here on, what is before a `backward` is worth being sent before it.
LONG = 1024
#: Templates, and pieces seen once, that are kept; and words of all the latter.
TEMPLATES, ONCE, ONCE_WORDS = 128, 64, 1 << 17
#: What is longer is known in chunks of about so many words: each is sent, and run, while the next is emitted. Only what
#: is to be compiled as a whole stays whole.
WHOLE, CHUNK = 4096, 1280
#: Codes at its beginning that a piece is looked for by.
FIRST = 4
#: How often the background thread waits for the rest of what may be known before it sends the words as they are.
PATIENCE = 25
#: Instructions looked at for a period; repetitions, and instructions in all of them, it takes to believe in one.
WINDOW, REPEATS, CERTAIN = 1024, 3, 24


#: the first few codes of a piece; its length and those
Codes = tuple[int, ...]
Key = tuple[int, Codes]


def _taking(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda words: (words[places[0]],)) if places else (lambda words: ())


class Template:
    """A fragment, and how to recognise it."""

    def __init__(self, number: int, words: list[Any], found: Sorted, compile: bool, goes_on: bool = False) -> None:
        self.fragment: Fragment = canonical(number, words, found, compile)
        self.number, self.length, self.compile = number, len(words), compile
        #: is it a chunk of something longer, and not the last?
        self.goes_on = goes_on
        self._fixed_at = _taking(found.fixed)
        self._fixed = self._fixed_at(words)
        self._made_at, self._made = _taking([p for p, _ in found.made]), _taking([k for _, k in found.made])
        self._gone_at, self._gone = (
            _taking([p for p, _ in found.made_freed]),
            _taking([k for _, k in found.made_freed]),
        )
        first = {k: p for p, k in reversed(found.given + found.given_freed)}
        firsts = [first[k] for k in range(len(found.inputs))]
        self._inputs_at = _taking(firsts)
        self._given_at, self._given = _taking([p for p, _ in found.given]), _taking([k for _, k in found.given])
        self._freed_at, self._freed = (
            _taking([p for p, _ in found.given_freed]),
            _taking([k for _, k in found.given_freed]),
        )
        self._numbers_at = _taking(found.numbers)

    def match(self, words: list[Any], base: int) -> list[Any] | None:
        """The words that run it, if these are what it stands for."""
        if self._fixed_at(words) != self._fixed:
            return None
        made = list(range(base, base + self.fragment.made))
        if self._made_at(words) != self._made(made):
            return None
        if tuple(map(neg, self._gone_at(words))) != self._gone(made):
            return None
        inputs = list(map(abs, self._inputs_at(words)))
        if self._given(inputs) != self._given_at(words):
            return None
        if self._freed(inputs) != tuple(map(neg, self._freed_at(words))):
            return None
        for id in inputs:
            if base <= id < base + MAX_FRAGMENT:
                return None
        return run_words(self.number, 0, base, 0, inputs, self._numbers_at(words))

    def same(self, other: Template) -> bool:
        """Do both stand for the same words?"""
        a, b = ((t.fragment.words, t.fragment.inputs, t.compile, t.goes_on) for t in (self, other))
        return a == b


class Fragments:
    """One session's; used under its lock."""

    def __init__(self, shapes: dict[int, Signature]) -> None:
        self.enabled = os.environ.get("GT_TEMPLATES", "1") not in ("", "0")
        self._shapes = shapes
        self._next = 1
        #: (length, first codes) -> those there are
        self._known: dict[Key, list[Template]] = {}
        self._recent: OrderedDict[int, Template] = OrderedDict()
        #: (length, first codes) -> words, as they were sent, and base: seen once
        self._once: OrderedDict[Key, tuple[list[list[Any]], int]] = OrderedDict()
        self._once_words = 0
        #: first codes, or the first alone -> the length of each that is known and begins so, and whether it is a chunk
        self._lengths: dict[Codes, list[tuple[int, bool]]] = {}
        #: what the words were last found to be, and how many there were
        self._ready: tuple[Template, list[Any], int] | None = None
        #: what was sent already of the piece that is being emitted; None if that is too long to be one
        self.parts: list[list[Any]] | None = []
        self._sent = 0
        #: the last submissions of it, whatever their length
        self._last: deque[list[Any]] = deque(maxlen=8)
        #: the first id of the piece
        self.base = 1
        #: templates to be told
        self.news: list[Fragment] = []
        #: words that say which are no longer known
        self.forgotten: list[int] = []
        #: all that were told, for whoever shows what was sent
        self.told: dict[int, Fragment] = {}
        #: words after which a loop without cuts comes round, if it is known
        self.rhythm = 0
        #: a program that is cut now and then is looked at for a period only if that may be too far away
        self._first_look = self._next_look = 2 * BATCH

    # -- while a piece is emitted ----------------------------------------------------------

    def expected(self, words: list[Any], more: int = 0) -> int:
        """How many words these may become, with so many more at least, if they begin as something known; else 0."""
        if self._sent or not self.enabled or not self._lengths:
            return 0
        codes = self._first(words)
        known = self._lengths.get(codes if len(codes) == FIRST else codes[:1], ())
        lengths = [one for one in known if one[0] >= len(words) + more]
        chunks = [length for length, goes_on in lengths if goes_on]
        return min(chunks) if chunks else max(lengths)[0] if lengths else 0

    @property
    def empty(self) -> bool:
        """Is nothing of the piece sent yet?"""
        return not self._sent

    def matches(self, words: list[Any]) -> bool:
        """Are these words something known, to the last of them?"""
        if self._sent or not self.enabled:
            return False
        for template in self._known.get((len(words), self._first(words)), ()):
            if (found := template.match(words, self.base)) is not None:
                self._ready = template, found, len(words)
                return True
        return False

    def sent(self, stream: list[Any]) -> None:
        """These words were sent as they are, before the piece was at its end."""
        self._sent += len(stream)
        self._last.append(stream)
        if self.parts is not None and self.enabled:
            self.parts.append(stream)
            if self._sent > MAX_FRAGMENT:
                self.parts = None

    # -- at its end ------------------------------------------------------------------------

    def cut(self, words: list[Any], compile: bool) -> tuple[list[Any], int] | None:
        """What to send instead of these words, and what they weigh."""
        length = len(words)
        if self._sent or length < SHORTEST or length > MAX_FRAGMENT:
            self._learn(words, compile)
            return None
        ready, self._ready = self._ready, None
        if ready is not None and ready[0].compile == compile and ready[2] == length:
            self._recent.move_to_end(ready[0].number)
            return ready[1], length
        for template in self._known.get((length, self._first(words)), ()):
            if template.compile == compile and (found := template.match(words, self.base)) is not None:
                self._recent.move_to_end(template.number)
                return found, length
        learned = self._learn(words, compile)
        if learned is None or (found := learned.match(words, self.base)) is None:
            return None
        return found, length

    def at_a_cut(self) -> None:
        """The program itself says where it comes round."""
        self.rhythm = 0
        self._first_look = MAX_FRAGMENT // 2

    def begin(self, base: int) -> None:
        """A new piece begins; its first id is none before ``base``."""
        self.base = base
        self.parts, self._sent = [], 0
        self._last.clear()
        self._ready = None
        self._next_look = self._first_look

    def _learn(self, words: list[Any], compile: bool) -> Template | None:
        """Seen for the first time it is kept; for the second, it becomes a template."""
        if self.parts is None or self._sent + len(words) > MAX_FRAGMENT:
            return None
        length, whole = self._sent + len(words), [*self.parts, words]
        if length < SHORTEST:
            return None
        key = length, self._first(whole[0])
        if self._sent and any(t.compile == compile for t in self._known.get(key, ())):
            return None
        before = self._once.pop(key, None)
        if before is not None:
            self._once_words -= length
            made = self._template(_joined(whole), (_joined(before[0]), before[1]), compile, key)
            if made is not None:
                return made
        self._once[key] = whole, self.base
        self._once_words += length
        while len(self._once) > ONCE or self._once_words > ONCE_WORDS:
            old, _ = self._once.popitem(last=False)
            self._once_words -= old[0]
        return None

    def _template(self, words: list[Any], before: tuple[list[Any], int], compile: bool, key: Key) -> Template | None:
        whole = compile or len(words) <= WHOLE
        if not whole and self._begins_known(words, key[1]):
            return None  # its chunks were just not recognised this time: a part of it was sent too early
        try:
            found = sort(words, self._shapes, self.base, fresh=True)
            old = sort(before[0], self._shapes, before[1], fresh=True)
            if canonical(0, words, found) != canonical(0, before[0], old):
                return None
            if whole:
                return self._known_as(key, words, found, self.base, compile)
            self._in_chunks(words, found, compile)
        except (NoFragment, IndexError, TypeError):
            pass
        return None

    def _begins_known(self, words: list[Any], codes: Codes) -> bool:
        chunks = [length for length, goes_on in self._lengths.get(codes, ()) if goes_on]
        known = [template for length in chunks for template in self._known[length, codes]]
        return any(template.match(words[: template.length], self.base) is not None for template in known)

    def _in_chunks(self, words: list[Any], whole: Sorted, compile: bool) -> None:
        """Each ends with the first instruction that makes it long enough, so those of a loop are the same."""
        starts = self._instructions(words) or []
        ends = [after for at, after in pairwise(starts) if words[at] >= 0]
        begin, base, made = 0, self.base, deque(whole.made)
        for end in (*ends, len(words)):
            if end - begin < CHUNK and end < len(words):
                continue
            begin += _freed_first(words[begin:end])
            chunk = words[begin:end]
            if len(chunk) >= SHORTEST:
                key = len(chunk), self._first(chunk)
                self._known_as(
                    key, chunk, sort(chunk, self._shapes, base, fresh=True), base, compile, goes_on=end < len(words)
                )
            while made and made[0][0] < end:
                base = max(base, self.base + made.popleft()[1] + 1)
            begin = end

    def _known_as(
        self, key: Key, words: list[Any], found: Sorted, base: int, compile: bool, goes_on: bool = False
    ) -> Template | None:
        template = Template(self._next, words, found, compile, goes_on)
        for other in self._known.get(key, ()):
            if other.same(template):
                return other
        if template.match(words, base) is None:
            return None
        self._next += 1
        self._known.setdefault(key, []).insert(0, template)
        self._recent[template.number] = template
        for first in (key[1], key[1][:1]):
            self._lengths.setdefault(first, []).append((key[0], goes_on))
        self.news.append(template.fragment)
        self.told[template.number] = template.fragment
        if len(self._recent) > TEMPLATES:
            self._forget(self._recent.popitem(last=False)[1])
        return template

    def keep(self, words: list[Any], found: Sorted, constant: list[int]) -> Template:
        """A template of what was recorded, which is run by its number alone; some of its numbers never change."""
        template = Template(self._next, words, found, True)
        template.fragment = canonical(self._next, words, found, True, constant)
        self._next += 1
        self.news.append(template.fragment)
        self.told[template.number] = template.fragment
        return template

    def _forget(self, template: Template) -> None:
        key = next(k for k, found in self._known.items() if template in found)
        self._known[key].remove(template)
        if not self._known[key]:
            del self._known[key]
        self.forgotten += (FORGET, template.number)
        if len(self.told) > 4 * TEMPLATES:
            kept = {number: f for number, f in self.told.items() if f.compile and number not in self._recent}
            self.told = kept | {number: t.fragment for number, t in self._recent.items()}
        for first in (key[1], key[1][:1]):
            self._lengths[first].remove((key[0], template.goes_on))
            if not self._lengths[first]:
                del self._lengths[first]

    def _first(self, words: list[Any]) -> Codes:
        """The first few codes; frees among them come and go."""
        found: list[int] = []
        i, end = 0, len(words)
        while i < end and len(found) < FIRST:
            word = words[i]
            if word < 0:
                i += 1
                continue
            found.append(word)
            shape = self._shapes.get(word)
            if shape is None:
                break
            i += shape.width
        return tuple(found)

    def clear(self) -> None:
        """The codes they are made of mean nothing any more."""
        self._known.clear()
        self._recent.clear()
        self._once.clear()
        self._lengths.clear()
        self.news.clear()
        self.forgotten.clear()
        self.told = {}
        self._once_words, self.rhythm, self.parts = 0, 0, None

    # -- loops without cuts ----------------------------------------------------------------

    def look_for_rhythm(self) -> int:
        """The words after which what was sent comes round, if it does."""
        if not self._last or self._sent < self._next_look or not self.enabled:
            return 0
        self._next_look = 2 * self._sent
        words = [word for part in self._last for word in part]
        starts = self._instructions(words)
        if starts is None:
            return 0
        starts = starts[-WINDOW:]
        names = [words[s] if words[s] >= 0 else -1 for s in starts]
        if not (period := _period(names)):
            return 0
        once = starts[-1] - starts[-1 - period]
        length = once * max(1, BATCH // once)
        length -= _freed_first(words[-length:])
        return length if length >= SHORTEST else 0

    def _instructions(self, words: list[Any]) -> list[int] | None:
        """Where they begin, from the first submission that is whole on."""
        starts, i, end = [], 0, len(words)
        while i < end:
            starts.append(i)
            shape = self._shapes.get(words[i])
            if words[i] < 0:
                i += 1
            elif shape is None:
                return None
            else:
                i += shape.width
        return starts if i == end and len(starts) > 2 * REPEATS else None


def _freed_first(words: list[Any]) -> int:
    """How many of them free what was let go before the first instruction, which is no part of a piece."""
    return next((k for k, word in enumerate(words) if word >= 0), len(words))


def _joined(parts: list[list[Any]]) -> list[Any]:
    return parts[0] if len(parts) == 1 else [word for part in parts for word in part]


def _period(names: list[int]) -> int:
    """After how many names the sequence, read backwards, comes round, if it does so `REPEATS` times; else 0."""
    names = names[::-1]
    border, k, best = [0] * len(names), 0, 0
    for i in range(1, len(names)):
        while k and names[i] != names[k]:
            k = border[k - 1]
        if names[i] == names[k]:
            k += 1
        border[i] = k
        if i + 1 >= max(REPEATS * (i + 1 - k), CERTAIN):
            best = i + 1 - k
    return best
