"""Values that are requested together with the instructions that make them.

A loop often reads a value in each repetition: the loss, an action. Without a prediction the worker would wait while the
client emits a step, and the client would wait while the worker runs it. So where a program has read the same result of
a fragment in its last runs:

- the stretch is cut behind the instruction that makes the value, so that the worker begins while the client emits the
  rest (*early cut*),
- the words that run the fragment are followed by a request for the value (*prediction*).

When the program reads the value, it is there already, or on its way. A prediction never changes a value: it is used
only for a tensor that was never written in place, and every id is used once. If the program does not read the value,
the reply is dropped, and the value has to be read in a few runs again before the next prediction.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gt.client.stream.candidates import Key
from gt.client.stream.replies import Replies
from gt.client.stream.templates import MIN_WORDS, Template, Templates
from gt.wire import interrupts
from gt.wire.words import FETCH

#: A value is requested early after it was read in this many runs in a row.
MIN_READS = 2
#: The largest value that is requested early.
MAX_PREDICTED_BYTES = 4096
#: The most values of one fragment that are requested early.
MAX_SLOTS = 4
#: A stretch is cut early only if at least this many words follow.
MIN_REST_WORDS = 16
#: After this many early cuts without a read, the stretch is not cut early any more.
MAX_UNREAD_CUTS = 8
#: The most lengths at which stretches are cut early.
MAX_EARLY_CUTS = 16
#: How many of the last runs a read is compared with.
REMEMBERED_RUNS = 4


class ReadHistory:
    """What the program read of the results of one fragment."""

    __slots__ = ("cut", "read_now", "reads")

    def __init__(self) -> None:
        #: result -> (in how many runs in a row it was read, its size in bytes)
        self.reads: dict[int, tuple[int, int]] = {}
        #: the results that were read since the last run
        self.read_now: set[int] = set()
        #: (length, first codes) where the stretch is cut early, if it is
        self.cut: Key | None = None

    def next_run(self) -> None:
        """Forget what was not read since the last run."""
        if len(self.read_now) < len(self.reads):
            self.reads = {slot: row for slot, row in self.reads.items() if slot in self.read_now}
        self.read_now.clear()

    def add(self, slot: int, nbytes: int) -> None:
        if slot not in self.read_now and len(self.read_now) < MAX_SLOTS:
            self.read_now.add(slot)
            self.reads[slot] = self.reads.get(slot, (0, 0))[0] + 1, nbytes


@interrupts.deferred
class PredictedReads:
    """The predictions of one session. `ran`, `abandon` and `clear` run under the lock of its outbox."""

    def __init__(self, replies: Replies, templates: Templates) -> None:
        self._replies, self._templates = replies, templates
        #: the last fragments that ran: (the first id it may have created, the template)
        self._runs: deque[tuple[int, Template]] = deque(maxlen=REMEMBERED_RUNS)
        #: id -> the request of a value that was not read yet
        self._open: dict[int, int] = {}
        #: (length, first codes) of a stretch -> the early cuts there since the last read
        self._cuts: dict[Key, int] = {}
        #: the lengths among them, in order
        self.cut_lengths: list[int] = []
        #: False if workers compile what is repeated: a fragment should be as large as possible then
        self.may_cut = True

    # -- requests --------------------------------------------------------------------------

    def ran(self, template: Template, base: int) -> list[Any]:
        """The words that request values of a fragment that is about to run."""
        self._runs.append((base, template))
        history = template.reads
        if history is None:
            return []
        for slot in history.reads.keys() - history.read_now:
            self._drop_unread(slot, template)
        history.next_run()
        words: list[Any] = []
        for slot, (count, nbytes) in history.reads.items():
            if count >= MIN_READS:
                id = base + slot
                request = self._open[id] = self._replies.predict(nbytes)
                words += (FETCH, request, id)
        return words

    def _drop_unread(self, slot: int, template: Template) -> None:
        """The value that was requested in an earlier run was not read."""
        for base, earlier in self._runs:
            if earlier is template and (request := self._open.pop(base + slot, 0)):
                self._replies.drop(request)

    def drop(self, template: Template) -> None:
        """The program will not read what was requested of the last runs of a fragment."""
        for slot in template.reads.reads if template.reads is not None else ():
            self._drop_unread(slot, template)

    def claim(self, id: int) -> int:
        """The request of this value, which was never written in place; 0 if it was not requested."""
        request = self._open.pop(id, 0)
        if request:
            self._replies.claim(request)
        return request

    def abandon(self) -> None:
        """The program was interrupted: nobody will read what was requested."""
        while self._open:
            self._replies.abandon(self._open.popitem()[1])

    # -- learning --------------------------------------------------------------------------

    def read(self, id: int, nbytes: int) -> None:
        """The program reads a value that was never written in place."""
        if nbytes > MAX_PREDICTED_BYTES:
            return
        for base, template in reversed(self._runs):
            slot = id - base
            if 0 <= slot < template.fragment.created:
                history = template.reads = template.reads or ReadHistory()
                history.add(slot, nbytes)
                if history.reads.get(slot, (0, 0))[0] >= MIN_READS:
                    self._cut_early(template, slot, history)
                return

    def _cut_early(self, template: Template, slot: int, history: ReadHistory) -> None:
        """Cut the stretch early from now on. If it is the first part of one that is, go on with it."""
        words, templates = template.fragment.words, self._templates
        codes = templates.first_codes(words)
        if (len(words), codes) in self._cuts:
            self._cuts[len(words), codes] = 0
        if not self.may_cut or template.compile or history.cut in self._cuts or len(self._cuts) >= MAX_EARLY_CUTS:
            return
        end = templates.end_of_creation(template, slot)
        if MIN_WORDS <= end <= len(words) - MIN_REST_WORDS:
            history.cut = end, templates.first_codes(words[:end])
            self._cuts[history.cut] = 0
            self._update_lengths()

    # -- early cuts ------------------------------------------------------------------------

    def cuts_at(self, words: list[Any]) -> bool:
        """Whether to cut the stretch behind these words."""
        if len(words) not in self.cut_lengths or not self._templates.empty:
            return False
        key = len(words), self._templates.first_codes(words)
        unread = self._cuts.get(key)
        if unread is None:
            return False
        self._cuts[key] = unread + 1
        if unread >= MAX_UNREAD_CUTS:
            del self._cuts[key]
            self._update_lengths()
            return False
        return True

    def next_length(self, count: int) -> int:
        """The next length, above this one, at which the stretch may be cut; 0 if there is none."""
        return next((length for length in self.cut_lengths if length > count), 0)

    def _update_lengths(self) -> None:
        self.cut_lengths = sorted({length for length, _ in self._cuts})

    def clear(self) -> None:
        """The codes have lost their meaning."""
        self._cuts.clear()
        self.cut_lengths = []
        self._runs.clear()
