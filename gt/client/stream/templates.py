"""Repeated words are sent as one instruction: "run fragment 17 with these inputs".

The stream is cut where a program repeats itself: at reads, after `backward` and optimizer steps, around code that is to
be compiled, and at `gt.step()`. The stretch between two cuts is compared with earlier ones: everything must be equal
except the ids of tensors and the numbers. A stretch seen for the second time gets a `Template`. Words are emitted in
any case, so a stretch that differs is sent as it is; a repetition is never assumed. A loop without cuts is recognised
by its period. A long stretch is recognised section by section, and each section is sent as soon as it is complete.

The comparison takes a fraction of a microsecond for each instruction: a `Template` holds the positions of each kind of
word, and takes all words of a kind in one step.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter, neg
from typing import TYPE_CHECKING, Any

from gt.client.stream.candidates import MIN_REPEATS, Candidate, Candidates, Codes, Key, find_period, joined
from gt.ops import Signature
from gt.ops.signature import HEAD
from gt.wire.fragments import NoFragment, SortedWords, make_fragment, run_words, sort_words
from gt.wire.structures import Fragment
from gt.wire.words import FORGET, MAX_FRAGMENT_WORDS

if TYPE_CHECKING:
    from gt.client.stream.predicted_reads import ReadHistory

#: Words in one submission, if they match no template.
BATCH_WORDS = 640
#: A shorter stretch is sent as it is.
MIN_WORDS = 12
#: With at least this many words, `backward` first cuts the stream, so that the workers begin with the forward pass.
MIN_FORWARD_WORDS = 1024
#: The most templates.
MAX_TEMPLATES = 128
#: `Templates.max_whole_words` as a rule, and the words of a section. One section runs while the next is emitted.
MAX_WHOLE_WORDS, SECTION_WORDS = 4096, 1280
#: A template is looked up by this many codes at its beginning.
KEY_CODES = 4
#: The most times that the background thread waits for the rest of a known stretch. Then it sends the words as they are.
MAX_WAITS = 25
#: To find a period: the last submissions, which are examined. Beyond the second number of them it is searched for less
#: often: a search takes time for each instruction.
PERIOD_SUBMISSIONS, OFTEN_SEARCHED = 80, 8


def _getter(positions: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(positions) > 1:
        return itemgetter(*positions)
    return (lambda words: (words[positions[0]],)) if positions else (lambda words: ())


def _getters(pairs: list[tuple[int, int]]) -> tuple[Callable[[list[Any]], tuple[Any, ...]], ...]:
    """For (position, index) pairs: takes the words at the positions, and the ids they must equal."""
    return _getter([position for position, _ in pairs]), _getter([index for _, index in pairs])


class Template:
    """A fragment, and how to recognise its words."""

    def __init__(
        self, number: int, words: list[Any], kinds: SortedWords, compile: bool, continues: bool = False
    ) -> None:
        self.fragment: Fragment = make_fragment(number, words, kinds, compile)
        self.number, self.length, self.compile = number, len(words), compile
        self.has_run = False
        #: which of its results the program reads; None: none so far
        self.reads: ReadHistory | None = None
        #: is it a section of a longer stretch, and not the last one?
        self.continues = continues
        self._fixed_at = _getter(kinds.fixed)
        self._fixed = self._fixed_at(words)
        self._created_uses_at, self._created_uses = _getters(kinds.created_uses)
        self._created_frees_at, self._created_frees = _getters(kinds.created_frees)
        first = {k: p for p, k in reversed(kinds.input_uses + kinds.input_frees)}
        self._inputs_at = _getter([first[k] for k in range(len(kinds.inputs))])
        self._input_uses_at, self._input_uses = _getters(kinds.input_uses)
        self._input_frees_at, self._input_frees = _getters(kinds.input_frees)
        self._numbers_at = _getter(kinds.numbers)

    def match(self, words: list[Any], base: int) -> list[Any] | None:
        """The words that run the fragment, if it stands for these words; else None."""
        if self._fixed_at(words) != self._fixed:
            return None
        results = list(range(base, base + self.fragment.created))
        if self._created_uses_at(words) != self._created_uses(results):
            return None
        if tuple(map(neg, self._created_frees_at(words))) != self._created_frees(results):
            return None
        inputs = list(map(abs, self._inputs_at(words)))
        if self._input_uses(inputs) != self._input_uses_at(words):
            return None
        if self._input_frees(inputs) != tuple(map(neg, self._input_frees_at(words))):
            return None
        if len(set(inputs)) < len(inputs):  # its inputs are different tensors: what writes one changes no other
            return None
        for id in inputs:  # such an id would name a tensor that the fragment creates
            if base <= id < base + MAX_FRAGMENT_WORDS:
                return None
        return run_words(self.number, 0, base, 0, inputs, self._numbers_at(words))

    def same(self, other: Template) -> bool:
        """Do both stand for the same words?"""
        a, b = ((t.fragment.words, t.fragment.inputs, t.compile, t.continues) for t in (self, other))
        return a == b


class Templates:
    """The templates of one session. `cut`, `sent`, `begin` and `clear` run under the lock of its outbox."""

    def __init__(self, by_code: dict[int, Signature]) -> None:
        self.enabled = os.environ.get("GT_TEMPLATES", "1") not in ("", "0")
        #: a longer stretch is split into sections, unless it is to be compiled
        self.max_whole_words = MAX_WHOLE_WORDS
        #: code -> its signature, kept by `gt.client.stream.signatures`
        self._by_code, self._next_number = by_code, 1
        #: (length, first codes) -> the templates with them
        self._templates: dict[Key, list[Template]] = {}
        #: least recently used first
        self._recent: OrderedDict[int, Template] = OrderedDict()
        self._candidates = Candidates(by_code)
        #: first codes, or the first alone -> (length, does it continue?) of each template that begins so
        self._lengths: dict[Codes, list[tuple[int, bool]]] = {}
        #: the last match: its template, the words that run it, and how many words matched
        self._match: tuple[Template, list[Any], int] | None = None
        #: the submissions of the stretch that is being emitted; None if it is too long for a fragment
        self._submissions: list[list[Any]] | None = []
        #: how many words of it are submitted
        self.submitted = 0
        #: the last submissions of the stretch, whatever its length
        self._last: deque[list[Any]] = deque(maxlen=PERIOD_SUBMISSIONS)
        #: the first id that the stretch may define
        self.base = 1
        #: fragments to announce with the next submission
        self.unannounced: list[Fragment] = []
        #: words that tell the workers which fragments are forgotten
        self.forgotten: list[int] = []
        #: number -> fragment, for those announced and for those in ``unannounced``
        self.announced: dict[int, Fragment] = {}
        #: words after which a loop without cuts repeats; 0 if no period is known
        self.period = 0
        #: words of a stretch to submit before a period is searched for; many for a program with cuts
        self._first_search = self._next_search = 2 * BATCH_WORDS

    # -- while a stretch is emitted --------------------------------------------------------

    def expected_length(self, words: list[Any], more: int = 0) -> int:
        """The length of a known stretch that begins like these words, and has at least ``more`` words more; else 0."""
        if self.submitted or not self.enabled or not self._lengths:
            return 0
        codes = self.first_codes(words)
        same_beginning = self._lengths.get(codes if len(codes) == KEY_CODES else codes[:1], ())
        lengths = [row for row in same_beginning if row[0] >= len(words) + more]
        sections = [length for length, continues in lengths if continues]
        return min(sections) if sections else max(lengths)[0] if lengths else 0

    @property
    def empty(self) -> bool:
        """Is nothing of the stretch submitted yet?"""
        return not self.submitted

    def matches(self, words: list[Any]) -> bool:
        """Does a template stand for exactly these words?"""
        if self.submitted or not self.enabled:
            return False
        for template in self._templates.get((len(words), self.first_codes(words)), ()):
            if (run := template.match(words, self.base)) is not None:
                self._match = template, run, len(words)
                return True
        return False

    def sent(self, words: list[Any]) -> None:
        """These words of the stretch were submitted as they are."""
        if not words:  # tensors were freed between two stretches, which belongs to neither
            return
        self.submitted += len(words)
        self._last.append(words)
        if self._submissions is not None and self.enabled:
            self._submissions.append(words)
            if self.submitted > MAX_FRAGMENT_WORDS:
                self._submissions = None

    # -- at its end ------------------------------------------------------------------------

    def cut(self, words: list[Any], compile: bool) -> tuple[Template, list[Any]] | None:
        """End the stretch: the template of these words, and the words that run it. None: send these words."""
        length = len(words)
        if self.submitted or length < MIN_WORDS or length > MAX_FRAGMENT_WORDS:
            self._learn(words, compile)
            return None
        match, self._match = self._match, None
        if match is not None and match[0].compile == compile and match[2] == length:
            self._recent.move_to_end(match[0].number)
            return match[0], match[1]
        for template in self._templates.get((length, self.first_codes(words)), ()):
            if template.compile == compile and (run := template.match(words, self.base)) is not None:
                self._recent.move_to_end(template.number)
                return template, run
        learned = self._learn(words, compile)
        if learned is None or (run := learned.match(words, self.base)) is None:
            return None
        return learned, run

    def program_cuts(self) -> None:
        """The program cuts the stream where it repeats, so a period is searched for only in very long stretches."""
        self.period = 0
        self._first_search = MAX_FRAGMENT_WORDS

    def begin(self, base: int) -> None:
        """A new stretch begins; the ids it defines are at least ``base``."""
        self.base = base
        self._submissions, self.submitted = [], 0
        self._last.clear()
        self._match = None
        self._next_search = self._first_search

    def _learn(self, words: list[Any], compile: bool) -> Template | None:
        """Keep a stretch that is seen for the first time; make a template of it the second time."""
        length = self.submitted + len(words)
        if self._submissions is None or not MIN_WORDS <= length <= MAX_FRAGMENT_WORDS:
            return None
        stretch = Candidate([*self._submissions, words], self.base)
        codes = self.first_codes(stretch.submissions[0])
        if len(codes) < KEY_CODES:  # the background thread may have submitted the first instructions alone
            codes = self.first_codes(stretch.words())
        key = length, codes
        alike = [t for t in self._templates.get(key, ()) if t.compile == compile] if self.submitted else ()
        if any(t.match(stretch.words(), self.base) is not None for t in alike):
            return None
        template = self._template(stretch, compile, key)
        if template is None:
            self._candidates.add(key, stretch)
        return template

    def _template(self, stretch: Candidate, compile: bool, key: Key) -> Template | None:
        """The template of a stretch, if an equal one was seen before; a long one gets a template for each section."""
        whole = compile or key[0] <= self.max_whole_words
        if not whole and self._begins_known(stretch.words(), key[1]):
            return None  # its sections were not recognised this time, because part of one was submitted too early
        kinds = self._candidates.take_equal(key, stretch)
        if kinds is None:
            return None
        words = stretch.words()
        if whole:
            return self._add(key, words, kinds, self.base, compile)
        with contextlib.suppress(NoFragment, IndexError, TypeError):
            self._add_sections(words, kinds, compile)
        return None

    def _begins_known(self, words: list[Any], codes: Codes) -> bool:
        sections = [length for length, continues in self._lengths.get(codes, ()) if continues]
        templates = [template for length in sections for template in self._templates[length, codes]]
        return any(template.match(words[: template.length], self.base) is not None for template in templates)

    def _add_sections(self, words: list[Any], whole: SortedWords, compile: bool) -> None:
        """Each section ends with the first instruction that makes it long enough, so those of a loop are equal."""
        starts = self.instruction_starts(words) or []
        ends = [after for at, after in pairwise(starts) if words[at] >= 0]
        begin, base, created = 0, self.base, deque(whole.created_uses)
        for end in (*ends, len(words)):
            if end - begin < SECTION_WORDS and end < len(words):
                continue
            begin += _leading_frees(words[begin:end])
            section = words[begin:end]
            if len(section) >= MIN_WORDS:
                key = len(section), self.first_codes(section)
                kinds = sort_words(section, self._by_code, base, fresh=True)
                self._add(key, section, kinds, base, compile, continues=end < len(words))
            while created and created[0][0] < end:
                base = max(base, self.base + created.popleft()[1] + 1)
            begin = end

    def _add(
        self, key: Key, words: list[Any], kinds: SortedWords, base: int, compile: bool, continues: bool = False
    ) -> Template | None:
        template = Template(self._next_number, words, kinds, compile, continues)
        for other in self._templates.get(key, ()):
            if other.same(template):
                return other
        if template.match(words, base) is None:
            return None
        self._templates.setdefault(key, []).insert(0, template)
        self._recent[template.number] = template
        for first in (key[1], key[1][:1]):
            self._lengths.setdefault(first, []).append((key[0], continues))
        self._announce(template)
        if len(self._recent) > MAX_TEMPLATES:
            self._forget(self._recent.popitem(last=False)[1])
        return template

    def add_recorded(self, words: list[Any], kinds: SortedWords, constant: list[int]) -> Template:
        """A template for a recorded function, which runs by number alone. The numbers ``constant`` never change."""
        template = Template(self._next_number, words, kinds, True)
        template.fragment = make_fragment(self._next_number, words, kinds, True, constant)
        self._announce(template)
        return template

    def _announce(self, template: Template) -> None:
        self._next_number += 1
        self.unannounced.append(template.fragment)
        self.announced[template.number] = template.fragment

    def _forget(self, template: Template) -> None:
        key = next(k for k, templates in self._templates.items() if template in templates)
        self._templates[key].remove(template)
        if not self._templates[key]:
            del self._templates[key]
        self.forgotten += (FORGET, template.number)
        if len(self.announced) > 4 * MAX_TEMPLATES:
            recorded = {n: f for n, f in self.announced.items() if f.compile and n not in self._recent}
            self.announced = recorded | {number: t.fragment for number, t in self._recent.items()}
        for first in (key[1], key[1][:1]):
            self._lengths[first].remove((key[0], template.continues))
            if not self._lengths[first]:
                del self._lengths[first]

    def first_codes(self, words: list[Any]) -> Codes:
        """The first codes, without the frees among them: these may differ between repetitions."""
        codes: list[int] = []
        i, end = 0, len(words)
        while i < end and len(codes) < KEY_CODES:
            word = words[i]
            if word < 0:
                i += 1
                continue
            codes.append(word)
            signature = self._by_code.get(word)
            if signature is None:
                break
            i += signature.width
        return tuple(codes)

    def forget(self) -> None:
        """Forget the stretches of this program, except those that are compiled at once."""
        for template in [t for t in self._recent.values() if not t.compile]:
            self._forget(self._recent.pop(template.number))
        self._candidates.clear()

    def clear(self) -> None:
        """Forget everything: the codes have lost their meaning."""
        self._templates.clear()
        self._recent.clear()
        self._candidates.clear()
        self._lengths.clear()
        self.unannounced.clear()
        self.forgotten.clear()
        self.announced = {}
        self.period, self._submissions = 0, None

    # -- loops without cuts ----------------------------------------------------------------

    def find_period(self) -> int:
        """The number of words after which the submitted words repeat; 0 if they do not."""
        if not self._last or self.submitted < self._next_search or not self.enabled:
            return 0
        self._next_search = (2 if len(self._last) <= OFTEN_SEARCHED else 4) * self.submitted
        words = joined(list(self._last))
        starts = self.instruction_starts(words)
        if starts is None:
            return 0
        codes = [words[s] if words[s] >= 0 else -1 for s in starts]
        if not (period := find_period(codes)):
            return 0
        once = starts[-1] - starts[-1 - period]
        length = once * max(1, BATCH_WORDS // once)
        if len(words) - length in starts:  # else other instructions came before those that repeat
            length -= _leading_frees(words[-length:])
        return length if length >= MIN_WORDS else 0

    def instruction_starts(self, words: list[Any]) -> list[int] | None:
        """The position of each instruction; None if a signature was forgotten, or if there are too few instructions."""
        starts, i, end = [], 0, len(words)
        while i < end:
            starts.append(i)
            signature = self._by_code.get(words[i])
            if words[i] < 0:
                i += 1
            elif signature is None:
                return None
            else:
                i += signature.width
        return starts if i == end and len(starts) > 2 * MIN_REPEATS else None

    def end_of_creation(self, template: Template, result: int) -> int:
        """The position behind the instruction that creates the k-th result of a template; 0 if it is not known."""
        words, slot = template.fragment.words, template.fragment.inputs + result
        for at, after in pairwise(self.instruction_starts(words) or ()):
            if words[at] >= 0 and slot in words[at + HEAD : at + self._by_code[words[at]].start]:
                return after
        return 0


def _leading_frees(words: list[Any]) -> int:
    """The number of words before the first instruction. They free tensors and belong to no fragment."""
    return next((k for k, word in enumerate(words) if word >= 0), len(words))
