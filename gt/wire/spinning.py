"""Whether a process that waits for a message keeps looking for it for a moment before it blocks.

A process that blocks has to be woken by the kernel, which takes 20 to 50 µs on a virtual machine. A read of a value has
four such waits: client to server to worker and back. A process that looks again and again (*spins*) has the message
about 5 µs after it was sent, but it occupies a core meanwhile. So a wait spins only if all of these are true:

    there are cores     this process may use `MIN_CORES` or more, and at most half of the machine's are busy
    messages come soon  the last `SHORT_WAITS` waits ended with a message within `LIMIT_S`
    nobody else waits   a look that takes long shows that another process has taken the core, or another thread
                        Python's lock: then this wait spins no more, and counts as long

A wait spins for `LIMIT_S` at most. So a system without messages uses no processor time, and one in which they are rare
uses none for this.
"""

from __future__ import annotations

import os
from collections.abc import Callable

#: The longest time in seconds that a wait spins, and the longest wait that is followed by one that spins.
LIMIT_S = 0.001
#: So many short waits in a row are followed by one that spins.
SHORT_WAITS = 2
#: A client, a server and a worker may spin at the same time; one core is for everything else.
MIN_CORES = 4
#: Seconds between two looks at how busy the machine is.
CHECK_S = 0.05
#: A look for messages that takes longer than this many seconds was interrupted.
INTERRUPTED_S = 0.0001


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


def make_spinning() -> Spinning | None:
    """None where no wait may spin: too few cores, or ``GT_SPIN=0``. With ``GT_SPIN=1`` cores do not matter."""
    setting = os.environ.get("GT_SPIN", "")
    if setting == "0" or not hasattr(os, "sched_getaffinity"):
        return None
    if setting:
        return Spinning(lambda: False)
    return Spinning(_machine_is_busy) if usable_cores() >= MIN_CORES else None


def usable_cores() -> float:
    """The number of cores that this process may use, according to its affinity and its cgroup."""
    cores = len(os.sched_getaffinity(0))
    if cores < MIN_CORES:
        return cores
    from gt.launch.cgroup import cgroup_limits

    return min(cores, cgroup_limits()[0] or cores)


def _machine_is_busy() -> bool:
    """Are threads running, or waiting for a core, on more than half of the cores of this machine?"""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return True
    return running > (os.cpu_count() or 1) // 2
