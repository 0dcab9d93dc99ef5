"""A line search for the strong Wolfe conditions (Nocedal and Wright, algorithms 3.5 and 3.6) with torch's constants."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

from gt.client.tensor.tensor import Tensor

#: the least decrease of the loss, as a part of what the slope at the start promises
SUFFICIENT_DECREASE = 1e-4
#: the most that may remain of the slope at the start
REMAINING_SLOPE = 0.9
#: a new point closer to an end of the bracket than this part of its width is moved
MARGIN = 0.1


class Point(NamedTuple):
    """A point on the line."""

    #: its distance from the start, in units of the direction
    t: float
    loss: float
    gradient: Tensor
    #: the derivative of the loss along the line
    slope: float


class WolfeSearch:
    """Looks for a point that satisfies both conditions. ``evaluations`` counts the calls of ``evaluate``."""

    def __init__(self, evaluate: Callable[[float], Point], start: Point, max_iterations: int) -> None:
        self.start, self.max_iterations = start, max_iterations
        self.iterations = self.evaluations = 0
        self._evaluate = evaluate

    def run(self, t: float, longest: float, tolerance: float) -> Point:
        """The point to go to; ``longest`` is the largest element of the direction."""
        previous, point = self.start, self._at(t)
        while self.iterations < self.max_iterations:
            if self._too_high(point) or (self.iterations > 1 and point.loss >= previous.loss):
                return self._zoom([previous, point], longest, tolerance)
            if self._flat_enough(point):
                return point
            if point.slope >= 0:
                return self._zoom([previous, point], longest, tolerance)
            bounds = (point.t + 0.01 * (point.t - previous.t), point.t * 10)
            previous, point = point, self._at(_minimum_of_cubic(previous, point, bounds))
            self.iterations += 1
        return min(self.start, point, key=lambda p: p.loss)

    def _zoom(self, bracket: list[Point], longest: float, tolerance: float) -> Point:
        """Narrow a bracket that contains a solution."""
        low = _lower(bracket)
        stuck = False
        while self.iterations < self.max_iterations:
            first, last = sorted((bracket[0].t, bracket[1].t))
            if (last - first) * longest < tolerance:
                break
            t, stuck = _inside(_minimum_of_cubic(bracket[0], bracket[1], (first, last)), first, last, stuck)
            point = self._at(t)
            self.iterations += 1
            if self._too_high(point) or point.loss >= bracket[low].loss:
                bracket[1 - low] = point
                low = _lower(bracket)
                continue
            if self._flat_enough(point):
                return point
            if point.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
                bracket[1 - low] = bracket[low]
            bracket[low] = point
        return bracket[low]

    def _at(self, t: float) -> Point:
        self.evaluations += 1
        return self._evaluate(t)

    def _too_high(self, point: Point) -> bool:
        return point.loss > self.start.loss + SUFFICIENT_DECREASE * point.t * self.start.slope

    def _flat_enough(self, point: Point) -> bool:
        return abs(point.slope) <= -REMAINING_SLOPE * self.start.slope


def _lower(bracket: list[Point]) -> int:
    return 0 if bracket[0].loss <= bracket[1].loss else 1


def _inside(t: float, first: float, last: float, stuck: bool) -> tuple[float, bool]:
    """The new point, moved away from an end if it is outside or was close to an end twice; and whether it is close."""
    margin = MARGIN * (last - first)
    if min(last - t, t - first) >= margin:
        return t, False
    if not stuck and first < t < last:
        return t, True
    return (last - margin if abs(t - last) < abs(t - first) else first + margin), False


def _minimum_of_cubic(a: Point, b: Point, bounds: tuple[float, float]) -> float:
    """The minimum, within bounds, of the cubic through two points with their slopes; the middle if it has none."""
    if a.t > b.t:
        a, b = b, a
    mixed = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = mixed * mixed - a.slope * b.slope
    root = sqrt(square) if square >= 0 else None
    if root is None or not (curvature := b.slope - a.slope + 2 * root):
        return (bounds[0] + bounds[1]) / 2
    position = b.t - (b.t - a.t) * ((b.slope + root - mixed) / curvature)
    return min(max(position, bounds[0]), bounds[1])
