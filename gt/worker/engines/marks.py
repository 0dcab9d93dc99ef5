"""Marks in the course of a device's work, for recording: on a CPU the time itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Clock = Callable[[], int]


class Marks(Protocol):
    #: whether a mark costs so little that each instruction can have one
    cheap: bool

    @property
    def mark(self) -> Callable[[], Any]:
        """Notes that the device gets here after all work so far. Never waits."""

    def times(self, marks: list[Any], wait: bool) -> list[int] | None:
        """When the device got to each of these marks, in nanoseconds on the clock; None if it has not got to the last
        one. ``wait``: wait for it. Called for all marks, in order."""


class ClockMarks:
    """The marks of a device that runs an instruction before the call returns."""

    cheap = True

    def __init__(self, clock: Clock) -> None:
        self.mark = clock

    def times(self, marks: list[int], wait: bool) -> list[int]:
        return marks
