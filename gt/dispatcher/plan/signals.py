"""A client's signals, as it configured them, on the workers there are.

A tensor that is made under a signal is laid out by its ``shard``; an op under it runs on its workers. Auto-sharding
is the signal of whatever has none: what is long on dim 0 is data and cut there, what is small or a parameter is
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from gt.dispatcher.plan.layouts import Layout, Lost, Mesh
from gt.ops.placement import Placement, R, Shard
from gt.types import TensorType
from gt.wire.messages import SignalSpec

#: Bytes below which auto-sharding takes a tensor for small.
SMALL = 16 << 10
#: The name under which the client makes parameters while auto-sharding.
PARAMETER = "@parameter"


class Rule:
    """One signal, on a mesh."""

    def __init__(self, spec: SignalSpec, workers: tuple[int, ...]) -> None:
        self.spec = spec
        axes = spec.mesh or [("", len(workers))]
        self.mesh = Mesh(workers[: prod(n for _, n in axes)], tuple(n for _, n in axes))
        #: name -> which axis of the mesh; axes of one worker are none
        self._axes = {name: i for i, name in enumerate(name for name, n in axes if n > 1)}
        self._only = axes[0][0] if len(axes) == 1 else ""
        self.keep = spec.keep

    def layout(self, t: TensorType) -> Layout:
        """Of what is made under it."""
        return self._placed([] if self.spec.replicate else self.spec.shard, t)

    def output(self, t: TensorType) -> Layout | None:
        """Of the results of ops under it; None if the planner is free."""
        return None if self.spec.output is None else self._placed(self.spec.output, t)

    def _placed(self, cuts: Sequence[tuple[int, str]], t: TensorType) -> Layout:
        placements: list[Placement] = [R] * len(self.mesh.shape)
        for dim, name in cuts:
            axis = self._axes.get(name or self._only)
            dim = dim + t.ndim if dim < 0 else dim
            if axis is not None and 0 <= dim < t.ndim:  # a bias has no dim 1: it is everywhere
                placements[axis] = Shard(dim)
        return Layout(self.mesh, tuple(placements))


class Auto(Rule):
    def layout(self, t: TensorType) -> Layout:
        data = t.ndim > 0 and t.shape[0] >= len(self.mesh.workers) and t.nbytes >= SMALL
        return Layout(self.mesh, (Shard(0),) if data and self.mesh.shape else ())


class Signals:
    def __init__(self, specs: Iterable[SignalSpec] = (), auto: bool = False) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.auto = auto
        self._known: dict[str, Rule | Lost] = {}

    def __bool__(self) -> bool:
        return self.auto or bool(self.specs)

    def forget(self) -> None:
        """The workers changed."""
        self._known.clear()

    def rule(self, name: str, workers: Sequence[int]) -> Rule | Lost | None:
        """What holds under this signal; None if nothing does; Lost if it names a worker that is not there."""
        if name not in self.specs and not self.auto:
            return None
        if name not in self._known:
            self._known[name] = self._find(name, workers)
        return self._known[name]

    def _find(self, name: str, workers: Sequence[int]) -> Rule | Lost:
        spec = self.specs.get(name)
        kind = Rule
        if spec is None:
            everyone = next((s.workers for s in self.specs.values() if s.auto), [])
            spec = SignalSpec(name, everyone, [], [], name == PARAMETER, None, True, True)
            kind = Rule if name == PARAMETER else Auto
        elif spec.auto and name != PARAMETER:
            kind = Auto
        chosen = tuple(spec.workers or workers)
        missing = [w for w in chosen if w not in workers]
        if missing:
            there = ", ".join(map(str, workers))
            return Lost(f"signal {name!r} names worker {missing[0]}, which is not there; there are {there}")
        needed = prod(n for _, n in spec.mesh) if spec.mesh else len(chosen)
        if needed > len(chosen):
            return Lost(f"signal {name!r} needs {needed} workers, and there are {len(chosen)}")
        return kind(spec, chosen)
