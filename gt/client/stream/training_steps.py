"""What a session knows of the program's training steps, and what it makes of it: is a step one fragment?

Compiled code is fastest in one piece, so where workers compile for GPUs a step is one fragment. They begin when all of
it is emitted, which costs nothing while the client is ahead of them. A program that reads a value in most steps waits
for each. There the stream is cut before `backward`: workers run the forward pass while the client emits the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from gt.wire.structures import WorkerInfo
from gt.wire.words import MAX_FRAGMENT_WORDS

#: How many of the last steps count, and with how many of them the first decision is made.
REMEMBERED_STEPS, MIN_STEPS = 16, 4
#: Steps become whole if values were read in at most this share of them, and are cut if in more than that share.
WHOLE_SHARE, CUT_SHARE = 0.25, 0.5
#: Gradients that are cleared within this time after an optimizer step belong to it. Workers may wait as long.
SOON_NS = 1_000_000
#: The devices on which one piece is faster: each piece of compiled code waits for its launch there.
DEVICES = "cuda"


class TrainingSteps:
    def __init__(self) -> None:
        #: when the last optimizer steps and `gt.step` were, in nanoseconds
        self.ended: deque[int] = deque(maxlen=2)
        #: calls of `backward` since the last optimizer step, and between the two steps before
        self._backwards = self._backwards_per_step = 0
        #: submissions and words up to the last optimizer step, until gradients are cleared; and when that was
        self._position: tuple[int, int] | None = None
        self._noted = 0
        #: were gradients cleared right after the last optimizer step? Is the step open until they are?
        self._clears = self.open = False
        #: do workers compile what is hot?
        self.compiling = False
        #: did the program read a value since the last optimizer step?
        self.read = False
        #: the same of the last steps
        self._reads: deque[bool] = deque(maxlen=REMEMBERED_STEPS)
        self._wanted, self._too_long = True, False

    def whole(self, workers: Iterable[WorkerInfo]) -> bool:
        """Is the step that is being emitted one fragment?"""
        whole = self.compiling and self._wanted and not self._too_long
        return whole and all(worker.device.startswith(DEVICES) for worker in workers)

    def after_backward(self) -> bool:
        """True if an optimizer step is expected next."""
        self._backwards += 1
        return self._backwards == self._backwards_per_step

    def after_step(self, words: int) -> bool:
        """An optimizer step of so many words. True if gradients are expected to be cleared next, which ends it."""
        self.ended.append(time.perf_counter_ns())
        self._backwards_per_step, self._backwards = self._backwards, 0
        if words > MAX_FRAGMENT_WORDS:
            self._too_long = True
        self._reads.append(self.read)
        self.read = False
        self.open, self._clears = self._clears, False
        return self.open

    def note_position(self, serial: int, count: int) -> None:
        """An optimizer step was emitted: so many submissions are before this position of the stream, and words."""
        self._position, self._noted = (serial, count), time.perf_counter_ns()

    def before_clearing(self, serial: int, words: list[Any]) -> None:
        """Gradients are about to be cleared. Since the step the program may have freed tensors."""
        before, count = self._position or (-1, 0)
        soon = serial == before and time.perf_counter_ns() - self._noted < SOON_NS
        self._clears = soon and all(type(word) is int and word < 0 for word in words[count:])
        self._position = None

    def end_step(self) -> bool:
        """The step is complete. True if the next ones are wanted whole, and were not until now."""
        if len(self._reads) < MIN_STEPS:
            return False
        before, share = self._wanted, sum(self._reads) / len(self._reads)
        self._wanted = share <= (CUT_SHARE if before else WHOLE_SHARE)
        return self._wanted and not before
