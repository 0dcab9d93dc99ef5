"""How instructions are sent.

Emitting appends words to a list and returns. The list is submitted when it is long enough, when a value is read, or a
moment later by the background thread. Emitting takes no lock: ``extend`` of a list is atomic for all threads.

Where a program repeats itself, the list is cut: a stretch of words that was seen before is replaced by one short
instruction (`gt.client.stream.templates`). So words that begin like a known stretch wait until it is complete, or until
they differ from it.

Every submission uses up credit, and the workers return credit as they finish. A client that is far ahead waits in
`flush`, so no queue grows without bound. Such a wait raises if there is no worker. An instruction that writes a tensor
waits before it is emitted (`free`), so one that raised does not happen later.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gt.client.stream import scope
from gt.client.stream.predicted_reads import PredictedReads
from gt.client.stream.recorder import Recorder
from gt.client.stream.replies import Replies
from gt.client.stream.server_connection import ServerConnection
from gt.client.stream.templates import BATCH_WORDS, MAX_WAITS, MAX_WHOLE_WORDS, MIN_FORWARD_WORDS, Template, Templates
from gt.client.stream.training_steps import TrainingSteps
from gt.errors import GtError, NoWorkers
from gt.ops import Signature
from gt.wire import interrupts
from gt.wire.codec import announced_weight, bytes_weight, definition, encode
from gt.wire.messages import Cancel, Configure, Submit
from gt.wire.structures import Definition
from gt.wire.words import MAX_FRAGMENT_WORDS, MAX_SUBMIT_WORDS, RESET, WINDOW_WORDS

#: The most words that are sent as they are in one submission with a fragment.
MAX_TAIL_WORDS = 64
#: The first id of tensors that compiled functions create. Ids of other tensors stay below it.
FIRST_COMPILED_ID = 1 << 36
#: The most tensors freed in one submission: what is emitted between two submissions fits into one (`MAX_SUBMIT_WORDS`).
MAX_FREED = 4096


@interrupts.deferred
class Outbox:
    """The words of one session that are not yet submitted, and how many of the submitted ones the workers finished."""

    def __init__(self, connection: ServerConnection, templates: Templates, replies: Replies) -> None:
        self._connection, self.templates, self._replies = connection, templates, replies
        #: values that are requested with the fragments that make them
        self.predictions = PredictedReads(replies, templates)
        self.training = TrainingSteps()
        self.words: list[Any] = []
        #: adds the words of an instruction; `gt.client.grad.pass_form` replaces it while it records a backward pass
        self.extend: Callable[[Iterable[Any]], None] = self.words.extend
        #: `full` is called at this many words: ``batch``, or more while a known stretch may be complete soon
        self.limit = self.batch = BATCH_WORDS
        #: ids of tensors that Python freed between two fragments. They are sent before the next fragment and belong to
        #: neither: when Python frees them may differ from one repetition to the next
        self.freed_between: list[int] = []
        self.freed_late: deque[int] = deque()  #: those that Python freed while there were many words already
        self.next_id = itertools.count(1).__next__
        self.lock = threading.RLock()
        #: signatures that are not announced yet
        self._definitions: list[Definition] = []
        #: bytes of signatures: all since `forget_codes`, and those that are not announced yet
        self.defined_bytes = self._unannounced = 0
        #: code -> its signature, and the signal it is emitted under
        self.announced_codes: dict[int, tuple[Signature, str]] = {}
        #: the number of submissions
        self.serial = 0
        #: a submission of which it is not certain that it was sent: an interrupt came
        self._staged: list[Any] | None = None
        #: weights in words: submitted in all, finished by the workers, and up to the last first run of compiled code
        self.sent = self.finished = self._compiled_at = 0
        #: weights of what is not submitted yet: bytes inside the words, and what fragments stand for beyond their words
        self._inline = self._extra = 0
        #: (submissions, words) when the background thread last checked, and how often they were the same
        self._last_check, self._same_count = (0, 0), 0
        #: notes what a function does while `gt.compile` records it
        self.recorder: Recorder | None = None
        self._next_compiled_id = FIRST_COMPILED_ID
        #: the last submissions, for `gt.debug.print_tape`: words, announced codes, announced fragments
        self.recent: deque[tuple[list[Any], Any, Any]] = deque(maxlen=16)

    # -- what is emitted -----------------------------------------------------------------

    def free(self) -> None:
        """Before an instruction is emitted: wait while too many words are not finished, and put the tensors that Python
        freed into the stream."""
        if self.sent - self.finished > WINDOW_WORDS:
            self._wait_for_credit()
        if self.freed_late:
            self._free()

    def _free(self) -> None:
        """Put the tensors that Python freed into the stream, up to `MAX_FREED` of them."""
        freed, append, count = self.freed_late, self.words.append, MAX_FREED
        while freed and count:
            try:
                append(-freed.popleft())
            except IndexError:  # another thread took the last one
                return
            count -= 1

    def add_inline(self, nbytes: int) -> None:
        """Count bytes that are about to be emitted as a word. Eight bytes weigh as much as a word."""
        if self._inline >= WINDOW_WORDS // 2:
            self.flush()
        self._inline += nbytes >> 3

    def define(self, code: int, signature: Signature, signal: str) -> None:
        """Announce, with the next submission, what a code stands for."""
        if self._unannounced >= WINDOW_WORDS // 2:
            self.flush()
        announced = definition(code, signature, signal)
        nbytes = len(encode(announced))
        self._definitions.append(announced)
        self.defined_bytes += nbytes
        self._unannounced += nbytes
        self.announced_codes[code] = signature, signal

    def forget_codes(self, oldest: int) -> None:
        """Every call needs a new code from here on. The workers drop the codes below ``oldest``, and the fragments
        that use them."""
        self.announced_codes = {}
        self.defined_bytes = 0
        with self.lock:
            self.templates.clear()
            self.predictions.clear()
        self.words.extend((RESET, oldest))

    def before_fragment(self) -> None:
        """Call this before `run_fragment`, and before what the fragment changes is changed here. Raises NoWorkers."""
        if len(self.words) > MAX_TAIL_WORDS:
            self.cut()
        self._wait_for_credit()

    def run_fragment(self, template: Template, words: Callable[[int], list[Any]], results: int) -> int:
        """Emit the words that run a recorded fragment. They depend on the id of its first result, which is returned."""
        with self.lock:
            self._free()
            first, self._next_compiled_id = self._next_compiled_id, self._next_compiled_id + results
            emitted = words(first)
            self._extra += max(0, template.length - len(emitted))
            self.words.extend(emitted + self.predictions.ran(template, first))
            self._ran(template)
        self.flush()
        self.begin_stretch()
        return first

    def _ran(self, template: Template) -> None:
        if template.compile and not template.has_run:
            self._compiled_at = self.sent + len(self.words)
        template.has_run = True

    @property
    def compiles(self) -> bool:
        """May a worker be compiling a fragment? It does so at the first run."""
        return self.finished < self._compiled_at

    def begin_stretch(self) -> None:
        """The next word begins a new stretch that may repeat."""
        with self.lock:
            self.templates.begin(self.next_id() + 1)

    # -- when it is submitted ------------------------------------------------------------

    def full(self) -> None:
        """There are ``limit`` words. Submit them, unless they begin like a known stretch: then raise the limit."""
        # a copy: the background thread may submit the words meanwhile
        templates, words = self.templates, self.words[:]
        if self.recorder is not None:
            self.flush()
            return
        if templates.period:
            if len(words) == templates.period:
                self._cut(())
                return
            templates.period = 0
        elif self._cut_or_wait(words):
            return
        self.limit = self.batch
        self.flush()
        if period := templates.find_period():
            with self.lock:
                templates.begin(self.next_id() + 1)
                templates.period = self.limit = period

    def _cut_or_wait(self, words: list[Any]) -> bool:
        """Cut if a known stretch, or an early part of one, is complete; else wait for the next length where that may
        be. False if nothing is to be waited for."""
        count, predictions = len(words), self.predictions
        early = bool(predictions.cut_lengths) and not scope.innermost().compile and predictions.cuts_at(words)
        if early or (count >= self.batch and self.templates.matches(words)):
            self._cut(())
            self.limit = self._first_limit()
            return True
        expected = self.templates.expected_length(words, 1) if count >= self.batch else self.batch
        if expected:
            self.limit = min(expected, predictions.next_length(count) or expected)
        return expected > 0

    def _first_limit(self) -> int:
        """The limit of a new stretch."""
        return min(self.batch, self.predictions.next_length(0) or self.batch)

    def cut(self, rest: tuple[Any, ...] = ()) -> None:
        """A repeated stretch may end here. ``rest`` is emitted after it and is not part of it.

        Without ``rest`` it does not raise NoWorkers, because what was emitted happens when a worker joins; the next
        instruction raises it.
        """
        if self.templates.enabled and self.recorder is None:
            self.limit = self._first_limit()
            self.templates.program_cuts()
            try:
                self._cut(rest)
            except NoWorkers:
                if rest:
                    raise
        elif rest:
            self.words.extend(rest)
            self.flush()

    def after_backward(self) -> None:
        """Share, unless an optimizer step is expected next. Both are one fragment then, in which gradients move between
        workers while the rest is computed."""
        if not self.training.after_backward():
            self.cut()

    def after_step(self) -> None:
        """Share after an optimizer step, or after the gradients are cleared if that is expected next: they are results
        of the fragment otherwise, which are written to memory."""
        if not self.training.after_step(len(self.words) + self.templates.submitted):
            self._end_step()
        self.training.note_position(self.serial, len(self.words))

    def before_clearing(self) -> None:
        """Gradients are about to be cleared."""
        self.training.before_clearing(self.serial, self.words)

    def after_clearing(self) -> None:
        if self.training.open:
            self._end_step()

    def _end_step(self) -> None:
        training, templates, self.training.open = self.training, self.templates, False
        whole = training.whole(self._connection.workers)
        templates.max_whole_words = MAX_FRAGMENT_WORDS if whole else MAX_WHOLE_WORDS
        try:
            self.cut()
        finally:
            templates.max_whole_words = MAX_WHOLE_WORDS
        if training.end_step():
            with self.lock:
                templates.forget()  # what is known of a part would end the step there

    def before_backward(self) -> None:
        """Share if there are enough words that workers should begin with them now."""
        if len(self.words) >= MIN_FORWARD_WORDS and not self.training.whole(self._connection.workers):
            self.cut()

    def _cut(self, rest: tuple[Any, ...]) -> None:
        interrupts.install()
        templates, compile = self.templates, scope.innermost().compile
        with self.lock:
            if self.freed_late:
                self._free()
            count = len(self.words)
            if count or not templates.empty:
                match = templates.cut(self.words[:count], compile) if count <= MAX_FRAGMENT_WORDS else None
                if match is not None:
                    template, run = match
                    self._extra += max(0, count - len(run))
                    self.words[:count] = run + self.predictions.ran(template, templates.base)
                    self._ran(template)
                self.words.extend(templates.forgotten)
                templates.forgotten.clear()
            self.words.extend(rest)
        self.flush()
        with self.lock:
            if not templates.empty or not self.words:
                templates.begin(self.next_id() + 1)

    def flush(self) -> None:
        """Submit all words. Before that, wait while too many submitted words are not finished."""
        if self.training.open:
            self._end_step()
        self._wait_for_credit()
        self._submit()

    def _wait_for_credit(self) -> None:
        """Raises NoWorkers if no worker is there to return it."""
        if self._no_credit():
            self._connection.wait_for_progress(lambda: self.sent - self.finished <= WINDOW_WORDS // 2)

    def _no_credit(self) -> bool:
        """Too many submitted words are not finished. A `Cancel` may follow up to twice as many: the words before it say
        what was freed, and so what need not run."""
        return self.sent - self.finished > (2 * WINDOW_WORDS if self._connection.cancels_due else WINDOW_WORDS)

    def cancel(self) -> None:
        """Submit everything, with what Python has freed; then cancel what has not started and is not needed."""
        submissions = 1 + (len(self.freed_between) + len(self.freed_late)) // MAX_FREED
        self._connection.cancels_due = max(self._connection.cancels_due, submissions)
        for _ in range(submissions):
            self.flush()
        self._send_cancel()

    def _send_cancel(self) -> None:
        with self.lock:
            self.predictions.abandon()
            abandoned = self._replies.abandoned
            reads = abandoned[:]
            self._connection.send([encode(Cancel(reads))])
            del abandoned[: len(reads)]

    def flush_in_background(self) -> bool:
        """For the background thread, which must neither wait nor raise. True if it should come back soon."""
        waiting = self.words or self.freed_between or self.freed_late
        if not waiting or self._connection.ended is not None or self._no_credit():
            return False
        if self._may_become_fragment():
            return True
        try:
            self._submit()
        except GtError:
            return False
        return True

    def _may_become_fragment(self) -> bool:
        """Do the words begin like a known stretch, and did more arrive lately?"""
        words = self.words[:]  # a copy: another thread may submit them meanwhile
        count, check = len(words), (self.serial, len(words))
        if not (count <= self.templates.period or count <= self.templates.expected_length(words)):
            return False
        self._same_count = 0 if check != self._last_check else self._same_count + 1
        self._last_check = check
        return self._same_count < MAX_WAITS

    def flush_within(self, seconds: float | None) -> bool:
        """Submit all words if the credit for them arrives in time. True if all are submitted."""
        enough = WINDOW_WORDS // 2
        while self._connection.wait(lambda: self.sent - self.finished <= enough, seconds) and self.words:
            self._submit()
        return not self.words

    def configure(self, message: Configure) -> None:
        """Send a configuration after everything that was emitted so far."""
        self.flush()
        with self.lock:
            self._submit()
            self.sent += message.weight
            self._connection.send([encode(message)])

    def acknowledge(self, finished: int) -> None:
        """The workers have finished this weight in all, in words."""
        self.finished = max(self.finished, finished)

    # -- one submission ------------------------------------------------------------------

    def _submit(self) -> None:
        interrupts.install()
        self._connection.check_open()
        with self.lock:
            if self._staged is not None:  # an interrupt came before we knew that it was sent
                self._connection.send(self._staged)
            if self.freed_late:
                self._free()
            words, freed_between = self.words, self.freed_between
            count = min(len(words), MAX_SUBMIT_WORDS)
            freed = min(len(freed_between), MAX_FREED, MAX_SUBMIT_WORDS - count)
            if not count + freed:
                return
            submitted, definitions, fragments = words[:count], self._definitions[:], self.templates.unannounced[:]
            stream = [*[-id for id in freed_between[:freed]], *submitted] if freed else submitted
            # counted from the words themselves: another thread may be in the middle of emitting
            weight = len(stream) + self._extra + bytes_weight(stream)
            if definitions or fragments:
                weight += announced_weight(definitions, fragments)
            frames = [encode(Submit(self.serial + 1, definitions, stream, weight, fragments))]
            defined, learned = len(definitions), len(fragments)
            # No call from here to the deletion: an interrupt or another thread comes before all of it or after it.
            self._staged = frames
            self.serial += 1
            self.sent += weight
            self._inline = self._extra = self._unannounced = 0
            del words[:count], freed_between[:freed], self._definitions[:defined], self.templates.unannounced[:learned]
            self._connection.send(frames)
            self._staged = None
            if self.recorder is not None:
                self.recorder.submissions.append(submitted)
            self.templates.sent(submitted)
            self.recent.append((stream, self.announced_codes, self.templates.announced))
            if self._connection.cancels_due:
                self._connection.cancels_due -= 1
                self._send_cancel()
