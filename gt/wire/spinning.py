"""Whether a process that waits for a message keeps looking for it for a moment before it blocks.

A process that blocks has to be woken by the kernel, which takes tens of microseconds on a virtual machine. A read of a
value has four such waits: client to server to worker and back. A process that looks again and again (*spins*) is not
woken, but it occupies a core meanwhile. So a wait spins only if all of these are true:

    there are cores     see `gt.launch.idle_cores`
    messages come soon  the last `SHORT_WAITS` waits ended with a message within `LIMIT_S`
    nobody else waits   a look that takes long shows that another process has taken the core, or another thread
                        Python's lock: then this wait spins no more, and counts as long

A wait spins for `LIMIT_S` at most. So a system without messages uses no processor time, and one in which they are rare
uses none for this.
"""

from __future__ import annotations

from collections.abc import Callable

#: The longest time in seconds that a wait spins, and the longest wait that is followed by one that spins.
LIMIT_S = 0.001
#: So many short waits in a row are followed by one that spins.
SHORT_WAITS = 2
#: Seconds between two looks at how busy the machine is.
CHECK_S = 0.05
#: A look for messages that takes longer than this many seconds was interrupted. A round of the client's background
#: thread takes less; the turn of a process or a thread that computes takes several milliseconds.
INTERRUPTED_S = 0.0005


class Spinning:
    """Decides for the waits of one thread. Times are seconds of a monotonic clock.

    ``is_busy`` tells whether others need the cores.
    """

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy, self._busy, self._next_check = is_busy, True, 0.0
        #: how many waits in a row were short
        self._short_waits = 0
        self._begun = self._last_look = 0.0
        self._interrupted = False

    def begin(self, now: float) -> bool:
        """A wait begins: does it spin?"""
        self._begun = self._last_look = now
        self._interrupted = False
        if self._short_waits < SHORT_WAITS:
            return False
        if now >= self._next_check:
            self._next_check, self._busy = now + CHECK_S, self._is_busy()
        return not self._busy

    def goes_on(self, now: float) -> bool:
        """A look found nothing: does the wait look again?"""
        self._interrupted = now - self._last_look > INTERRUPTED_S
        self._last_look = now
        return not self._interrupted and now - self._begun < LIMIT_S

    def end(self, now: float, found: bool) -> None:
        """The wait is over, with a message or without."""
        short = found and not self._interrupted and now - self._begun < LIMIT_S
        self._short_waits = self._short_waits + 1 if short else 0
