"""How instructions go out.

Emitting appends words to a list and returns; the list goes out when it is long enough, when a value is read, or a
moment later by itself. Nothing on that way takes a lock: ``extend`` of a list is one step for every other thread.

Where a program comes round, the list is cut (`gt.client.stream.templates`): words seen before go out as one short instruction.
So words that begin as something known are kept until it is clear whether they are that.
"""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from gt.client.compile.recording import Recorder
from gt.client.stream import scope
from gt.client.stream.signatures import Codes
from gt.client.stream.templates import BATCH, LONG, PATIENCE, Fragments
from gt.errors import GtError
from gt.wire.codec import encode
from gt.wire.messages import MAX_FRAGMENT, MAX_WORDS, WINDOW, Submit

#: Words that are sent along with a fragment as they are.
FEW = 64
#: Where the ids begin of what is made by fragments that are run by their number alone.
FAR = 1 << 36
#: The most tensors freed at once: what is emitted between two submissions fits into one (`MAX_WORDS`).
FREED = 4096


class Sending(Codes):
    """The part of a session that words go out by."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[Any] = []
        self.extend, self.append = self.words.extend, self.words.append
        #: so many words are too many to wait for more
        self.limit = self.batch = BATCH
        #: ids of tensors that Python let go between two pieces, which go out before the next one and are no part of it:
        #: when that is may differ from time to time; and when there were many words already
        self.ahead: list[int] = []
        self.dropped: deque[int] = deque()
        self.next_id = itertools.count(1).__next__
        self._flushing = threading.RLock()
        self._serial = 0
        #: a submission that is perhaps not sent yet
        self._staged: list[Any] | None = None
        #: weights: sent, and known to be done; of the bytes among the words; of what fragments among them stand for
        self._sent = self._done = self._inline = self._owed = 0
        self.fragments = Fragments(self.shapes)
        #: how many words there were when the background thread last looked, and how often it found as many
        self._lying, self._looked = 0, 0
        #: how often `backward` was called since the last step of an optimizer, and before it
        self._backwards = self._cycle = 0
        #: notes what a function does that is to be compiled, while it runs
        self.recorder: Recorder | None = None
        #: ids of what fragments make that are run by their number alone
        self._far = FAR
        #: the last submissions, for `gt.debug.print_tape`
        self.recent: deque[tuple[list[Any], Any, Any]] = deque(maxlen=16)

    @abstractmethod
    def send(self, frames: list[Any]) -> None: ...

    @abstractmethod
    def await_(self, ready: Callable[[], bool], timeout: float | None = None) -> bool: ...

    @abstractmethod
    def _need_worker(self) -> None: ...

    def free(self) -> None:
        """Tell the workers which tensors Python let go since the last time; many at once, not all of a million."""
        dropped, append, count = self.dropped, self.append, FREED
        while dropped and count:
            try:
                append(-dropped.popleft())
            except IndexError:  # another thread was quicker
                return
            count -= 1

    # -- when ----------------------------------------------------------------------------

    def run(self, words: Callable[[int], list[Any]], made: int, weight: int) -> int:
        """Send the words that run a fragment, given the first id of what it makes; that id."""
        if len(self.words) > FEW:
            self.cut()
        with self._flushing:
            self.free()
            first, self._far = self._far, self._far + made
            emitted = words(first)
            self._owed += max(0, weight - len(emitted))
            self.extend(emitted)
        self.flush()
        with self._flushing:
            self.fragments.begin(self.next_id() + 1)
        return first

    def full(self) -> None:
        """There are words enough to be sent, unless they may be something known: then for the rest of it."""
        fragments, count = self.fragments, len(self.words)
        if self.recorder is not None:
            self.flush()
            return
        if fragments.rhythm:
            if count == fragments.rhythm:
                self._cut(())
                return
            fragments.rhythm = 0
        else:
            if fragments.matches(self.words):
                self._cut(())
                self.limit = self.batch
                return
            if expected := fragments.expected(self.words, 1):
                self.limit = expected
                return
        self.limit = self.batch
        self.flush()
        if rhythm := fragments.look_for_rhythm():
            with self._flushing:
                fragments.begin(self.next_id() + 1)
                fragments.rhythm = self.limit = rhythm

    def cut(self, rest: tuple[Any, ...] = ()) -> None:
        """The program comes round here; ``rest`` are words that go out with what was emitted, and are no part of it."""
        if self.fragments.enabled and self.recorder is None:
            self.limit = self.batch
            self.fragments.at_a_cut()
            self._cut(rest)
        elif rest:
            self.extend(rest)
            self.flush()

    def after_backward(self) -> None:
        """A cut, unless an optimizer's step came next the last time: then both are one piece, in which gradients are
        on their way to the other workers while the rest is computed."""
        self._backwards += 1
        if self._backwards != self._cycle:
            self.cut()

    def after_step(self) -> None:
        self._cycle, self._backwards = self._backwards, 0
        self.cut()

    def cut_if_long(self) -> None:
        """Worth being on its way while the rest is made?"""
        if len(self.words) >= LONG:
            self.cut()

    def _cut(self, rest: tuple[Any, ...]) -> None:
        fragments, compile = self.fragments, scope.innermost().compile
        with self._flushing:
            if self.dropped:
                self.free()
            count = len(self.words)
            if count or not fragments.empty:
                found = fragments.cut(self.words[:count], compile) if count <= MAX_FRAGMENT else None
                if found is not None:
                    run, weight = found
                    self._owed += max(0, weight - len(run))
                    self.words[:count] = run
                self.extend(fragments.forgotten)
                fragments.forgotten.clear()
            self.extend(rest)
        self.flush()
        with self._flushing:
            if not fragments.empty or not self.words:
                fragments.begin(self.next_id() + 1)

    def flush(self) -> None:
        """Send what was emitted so far; before, wait if too much of what was sent is not done yet."""
        if self._sent - self._done > WINDOW:
            while not self.await_(lambda: self._sent - self._done <= WINDOW // 2, 3.0):
                self._need_worker()
        self._submit()

    def flush_by_itself(self) -> bool:
        """For the background thread, which must neither wait nor raise. Is there anything to look after?"""
        if not (self.words or self.ahead or self.dropped) or self.ended is not None or self._sent - self._done > WINDOW:
            return False
        if self._may_be_known():
            return True
        try:
            self._submit()
        except GtError:
            return False
        return True

    def _may_be_known(self) -> bool:
        """May it become something known, and has it grown of late?"""
        count = len(self.words)
        if not (count <= self.fragments.rhythm or count <= self.fragments.expected(self.words)):
            return False
        self._looked = 0 if count != self._lying else self._looked + 1
        self._lying = count
        return self._looked < PATIENCE

    def forget_fragments(self) -> None:
        with self._flushing:
            self.fragments.clear()

    # -- how -----------------------------------------------------------------------------

    def _submit(self) -> None:
        if self.ended is not None:
            raise self.ended.with_traceback(None)
        with self._flushing:
            if self._staged is not None:  # an interrupt came before we knew that it was sent
                self.send(self._staged)
            if self.dropped:
                self.free()
            words, ahead = self.words, self.ahead
            count = min(len(words), MAX_WORDS)
            freed = min(len(ahead), FREED, MAX_WORDS - count)
            if not count + freed:
                return
            piece, definitions, fragments = words[:count], self._definitions[:], self.fragments.news[:]
            stream = [*[-id for id in ahead[:freed]], *piece] if freed else piece
            # counted here, of what is sent: whoever emits may be between two steps of its own just now
            weight = len(stream) + self._owed + sum([len(word) >> 3 for word in stream if type(word) is bytes])
            frames = [encode(Submit(self._serial + 1, definitions, stream, weight, fragments))]
            defined, learned = len(definitions), len(fragments)
            # no call from here to the deletion: an interrupt, or another thread, comes before all of it or after
            self._staged = frames
            self._serial += 1
            self._sent += weight
            self._inline = self._owed = 0
            del words[:count], ahead[:freed], self._definitions[:defined], self.fragments.news[:learned]
            self.send(frames)
            self._staged = None
            if self.recorder is not None:
                self.recorder.parts.append(piece)
            self.fragments.sent(piece)
            self.recent.append((stream, self._by_code, self.fragments.told))
