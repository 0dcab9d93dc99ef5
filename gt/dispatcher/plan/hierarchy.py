"""Collectives along an axis that spans hosts: flat, or in steps within hosts and between them, whichever is quicker.

    flat                 one collective among all workers of the line
    all_reduce           reduce_scatter within the hosts, all_reduce between them, all_gather within
                         (a tensor that is too small to be cut: all_reduce within the hosts, all_reduce between them)
    reduce_scatter       within the hosts, then between them
    all_gather           between the hosts, then within them

A line of n workers on h hosts with m workers each is seen as a mesh of h x m, so each step is an ordinary step of a
move, with groups and an order of its own kind: nothing else has to know about hosts.

The time of each is estimated from the latency (alpha) and the time for a byte (beta) of the links, as gloo does it: a
ring for all_reduce and all_gather, direct sends for reduce_scatter. A ring of n members takes n - 1 rounds, or 2n - 2;
every round waits for the slowest link. What the workers of a host send to other hosts shares one network card.

The order in which terms are added depends on the choice, and with it the last bits of a sum. So the choice is a pure
function of the tensor's type, the layout and a `LineProfile`, and a profile is fixed when it is first used
(`gt.dispatcher.plan.topology`). float16 and bfloat16 are added flat, because there the sum is rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from typing import NamedTuple

from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import MoveStep
from gt.ops.placement import Partial, Placement, R, Shard
from gt.types import TensorType

#: The time to start one more collective: a message, a wait and a thread, in microseconds.
STEP_START_US = 150.0
#: Sums of these are rounded once if they are added by one collective.
ROUNDED_ONCE = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The path between two workers."""

    #: from one to the other
    latency_us: float
    us_per_byte: float


@dataclass(frozen=True, slots=True)
class LineProfile:
    """How the lines along an axis of a mesh lie on hosts. All hosts have the same number of ranks, more than one."""

    #: the ranks on each host
    hosts: tuple[tuple[int, ...], ...]
    #: the most neighbours in a ring of all ranks that one host has on other hosts, in one direction
    crossings: int
    #: the slowest links within a host, and between two hosts
    within: LinkSpeed
    between: LinkSpeed


class HostSteps(NamedTuple):
    """The steps of a collective, and the estimated microseconds."""

    steps: tuple[MoveStep, ...]
    us: float


class _Estimate:
    """Estimates for one line and one size in bytes: of a whole term, or of the gathered tensor."""

    def __init__(self, profile: LineProfile, nbytes: int) -> None:
        self._nbytes, self._crossings = nbytes, profile.crossings
        self._hosts, self._per_host = len(profile.hosts), len(profile.hosts[0])
        self._within, self._between = profile.within, profile.between

    def ring(self, passes: int) -> float:
        """One ring of all workers; ``passes`` is 2 for an all-reduce and 1 for an all-gather."""
        n, link = self._hosts * self._per_host, self._between
        sent = self._nbytes * self._crossings * (n - 1) / n
        return passes * ((n - 1) * link.latency_us + sent * link.us_per_byte)

    def ring_within(self, passes: int) -> float:
        m, link = self._per_host, self._within
        sent = self._nbytes * (m - 1) / m
        return STEP_START_US + passes * ((m - 1) * link.latency_us + sent * link.us_per_byte)

    def ring_between(self, passes: int, copies: int = 1) -> float:
        """The workers of a host send different parts at the same time; or each sends all, ``copies`` times as much."""
        h, link = self._hosts, self._between
        sent = self._nbytes * copies * (h - 1) / h
        return passes * ((h - 1) * link.latency_us + sent * link.us_per_byte)

    def sends(self) -> float:
        """Every worker sends a part to every other one."""
        sent = self._nbytes * self._per_host * (self._hosts - 1) / self._hosts
        return self._between.latency_us + sent * self._between.us_per_byte

    def sends_within(self) -> float:
        m, link = self._per_host, self._within
        return STEP_START_US + link.latency_us + self._nbytes * (m - 1) / m * link.us_per_byte

    def sends_between(self) -> float:
        h, link = self._hosts, self._between
        return link.latency_us + self._nbytes * (h - 1) / h * link.us_per_byte


@lru_cache(1 << 14)
def host_steps(t: TensorType, step: MoveStep, profile: LineProfile) -> tuple[HostSteps, HostSteps]:
    """The quickest steps for a step along an axis with this profile, and the flat ones; the same if flat is best."""
    if step.kind not in OPTIONS:
        return (HostSteps((step,), 0.0),) * 2
    flat, *others = OPTIONS[step.kind](t, step, profile)
    best = min(others, key=lambda option: option.us, default=flat)
    return (best if best.us < flat.us else flat), flat


def _all_reduce(t: TensorType, step: MoveStep, profile: LineProfile) -> list[HostSteps]:
    placement = step.source.placements[step.axis]
    assert isinstance(placement, Partial)
    local = step.source.largest(t)
    time = _Estimate(profile, local.nbytes)
    options = [HostSteps((step,), time.ring(2))]
    if t.dtype.name in ROUNDED_ONCE and placement.rounds:
        return options
    mesh, line = _refined(step, profile.hosts), _Line(step)
    shards = {p.dim for p in step.source.placements if isinstance(p, Shard)}
    dims = [d for d in range(t.ndim) if d not in shards and local.shape[d] >= len(profile.hosts[0])]
    if dims:
        cut = Shard(max(dims, key=local.shape.__getitem__))
        steps = (
            line.step("reduce_scatter", mesh, (placement, placement), (placement, cut), 1),
            line.step("all_reduce", mesh, (placement, cut), (R, cut), 0),
            line.step("all_gather", mesh, (R, cut), (R, R), 1),
        )
        options.append(HostSteps(steps, time.sends_within() + time.ring_between(2) + time.ring_within(1)))
    steps_whole = (
        line.step("all_reduce", mesh, (placement, placement), (placement, R), 1),
        line.step("all_reduce", mesh, (placement, R), (R, R), 0),
    )
    options.append(HostSteps(steps_whole, time.ring_within(2) + time.ring_between(2, len(profile.hosts[0]))))
    return options


def _reduce_scatter(t: TensorType, step: MoveStep, profile: LineProfile) -> list[HostSteps]:
    placement, cut = step.source.placements[step.axis], step.target.placements[step.axis]
    assert isinstance(placement, Partial)
    time = _Estimate(profile, step.source.largest(t).nbytes)
    options = [HostSteps((step,), time.sends())]
    rounded_once = t.dtype.name in ROUNDED_ONCE and placement.rounds
    if rounded_once or not _equal_blocks(t, step.target, step.axis, profile):
        return options
    mesh, line = _refined(step, profile.hosts, within_first=True), _Line(step)
    steps = (
        line.step("reduce_scatter", mesh, (placement, placement), (cut, placement), 0, len(profile.hosts)),
        line.step("reduce_scatter", mesh, (cut, placement), (cut, cut), 1),
    )
    return [*options, HostSteps(steps, time.sends_within() + time.sends_between())]


def _all_gather(t: TensorType, step: MoveStep, profile: LineProfile) -> list[HostSteps]:
    cut = step.source.placements[step.axis]
    time = _Estimate(profile, step.target.largest(t).nbytes)
    options = [HostSteps((step,), time.ring(1))]
    if not _equal_blocks(t, step.source, step.axis, profile):
        return options
    mesh, line = _refined(step, profile.hosts, within_first=True), _Line(step)
    steps = (
        line.step("all_gather", mesh, (cut, cut), (cut, R), 1),
        line.step("all_gather", mesh, (cut, R), (R, R), 0, len(profile.hosts)),
    )
    return [*options, HostSteps(steps, time.ring_between(1) + time.ring_within(1))]


#: kind of a step -> its options, the flat one first
OPTIONS = {"all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "all_gather": _all_gather}


class _Line:
    """The axis of a step, which a refined mesh has twice."""

    def __init__(self, step: MoveStep) -> None:
        self._axis, self._order = step.axis, step.holders
        self._others = step.source.placements

    def step(
        self,
        kind: str,
        mesh: Mesh,
        before: tuple[Placement, Placement],
        after: tuple[Placement, Placement],
        axis: int,
        interleave: int = 0,
    ) -> MoveStep:
        """``before`` and ``after``: the placements on the two axes. ``axis``: the one of them that changes."""
        source, target = (
            Layout(mesh, (*self._others[: self._axis], *pair, *self._others[self._axis + 1 :]))
            for pair in (before, after)
        )
        return MoveStep(kind, source, target, self._axis + axis, self._order, interleave)


@lru_cache(1 << 10)
def _refined_mesh(mesh: Mesh, axis: int, hosts: tuple[tuple[int, ...], ...], within_first: bool) -> Mesh:
    counts = (len(hosts[0]), len(hosts)) if within_first else (len(hosts), len(hosts[0]))
    shape = (*mesh.shape[:axis], *counts, *mesh.shape[axis + 1 :])
    parts = (*mesh.parts[:axis], *counts, *mesh.parts[axis + 1 :])
    workers = {at: worker for worker, at in mesh.coordinates.items()}
    order = []
    for at in product(*map(range, shape)):
        host, number = reversed(at[axis : axis + 2]) if within_first else at[axis : axis + 2]
        order.append(workers[*at[:axis], hosts[host][number], *at[axis + 2 :]])
    return Mesh(tuple(order), parts)


def _refined(step: MoveStep, hosts: tuple[tuple[int, ...], ...], within_first: bool = False) -> Mesh:
    """The mesh with the step's axis as two: hosts, and workers of a host; or the other way round."""
    return _refined_mesh(step.source.mesh, step.axis, hosts, within_first)


def _equal_blocks(t: TensorType, layout: Layout, axis: int, profile: LineProfile) -> bool:
    """Whether the blocks along the axis follow the hosts, and have equal sizes.

    Only then the two axes of the refined mesh cut a tensor as the one axis does, except for the order of the blocks.
    """
    cut = layout.placements[axis]
    assert isinstance(cut, Shard)
    others = [p for i, p in enumerate(layout.placements) if i != axis]
    ranks = tuple(chain.from_iterable(profile.hosts))
    whole = layout.with_placement(axis, R).local(t, layout.worker).shape[cut.dim]
    follow_hosts = cut not in others and ranks == tuple(range(len(ranks)))
    return follow_hosts and layout.mesh.parts[axis] == len(ranks) and whole % len(ranks) == 0
