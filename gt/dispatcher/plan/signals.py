"""A client's signals, as it configured them, applied to the workers that are connected.

A tensor created under a signal gets the layout that the signal's ``shard`` gives. An op under a signal runs on the
signal's workers. Auto-sharding is the rule for everything without a signal: a tensor that is long on dim 0 is data and
sharded there; a small tensor or a parameter is replicated.

A signal may give its workers weights, or let their measured speeds decide. Speeds never change while a worker is
connected. With recovery, the weights of a mesh stay those of its first use, also with other workers in it: so a program
that runs again is cut as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from msgspec.structs import replace

from gt.dispatcher.plan.layouts import Layout, Lost, Mesh
from gt.dispatcher.plan.speeds import parts_by_speed
from gt.dispatcher.plan.substitutes import Substitutes, shrunk, substituted
from gt.dispatcher.plan.topology import PlacedWorker
from gt.ops.placement import Parts, Placement, R, Shard
from gt.types import TensorType
from gt.wire.structures import MAX_WEIGHT, SignalSpec

#: Auto-sharding replicates tensors of fewer bytes than this.
MIN_SHARDED_BYTES = 16 << 10
#: The reserved signal under which the client places parameters while auto-sharding.
PARAMETER = "@parameter"

#: (the workers that a signal names, the sizes of the axes) -> the weights that the axes got from speeds
KeptParts = dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Parts, ...]]


class SignalRule:
    """One signal on a mesh of workers."""

    def __init__(self, spec: SignalSpec, workers: tuple[int, ...], parts: tuple[Parts, ...]) -> None:
        self.spec = spec
        axes = spec.mesh or [("", len(workers))]
        self.mesh = Mesh(workers[: prod(n for _, n in axes)], parts)
        #: name -> axis of the mesh; the mesh leaves out axes with one worker
        self._axes = {name: i for i, name in enumerate(name for name, n in axes if n > 1)}
        self._only = axes[0][0] if len(axes) == 1 else ""
        self.keep = spec.keep

    def layout(self, t: TensorType) -> Layout:
        """The layout of a tensor created under the signal."""
        return self._layout([] if self.spec.replicate else self.spec.shard, t)

    def output(self, t: TensorType) -> Layout | None:
        """The layout of the result of an op under the signal; None if the planner may choose."""
        return None if self.spec.output is None else self._layout(self.spec.output, t)

    def _layout(self, shards: Sequence[tuple[int, str]], t: TensorType) -> Layout:
        placements: list[Placement] = [R] * len(self.mesh.shape)
        for dim, name in shards:
            axis = self._axes.get(name or self._only)
            dim = dim + t.ndim if dim < 0 else dim
            if axis is not None and 0 <= dim < t.ndim:  # a bias has no dim 1: it is replicated
                placements[axis] = Shard(dim)
        return Layout(self.mesh, tuple(placements))


class AutoShardRule(SignalRule):
    """The rule for tensors without a signal: large data is sharded on dim 0, everything else is replicated."""

    def layout(self, t: TensorType) -> Layout:
        is_data = t.ndim > 0 and t.shape[0] >= len(self.mesh.workers) and t.nbytes >= MIN_SHARDED_BYTES
        return Layout(self.mesh, (Shard(0),) if is_data and self.mesh.shape else ())


class Signals:
    """One client's configuration, and a cache of the rules made from it for the connected workers."""

    def __init__(
        self,
        specs: Iterable[SignalSpec] = (),
        auto: bool = False,
        substitutes: Substitutes | None = None,
        connected: Mapping[int, PlacedWorker] | None = None,
        kept_parts: KeptParts | None = None,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.auto = auto
        #: lost worker -> the worker that takes its place; None: a signal that names a lost worker has no rule
        self._substitutes = substitutes
        #: the connected workers, which know their speeds; and weights that meshes got before, with recovery
        self._connected, self._kept_parts = {} if connected is None else connected, kept_parts
        self._rules: dict[str, SignalRule | Lost] = {}

    def __bool__(self) -> bool:
        return self.auto or bool(self.specs)

    def forget_rules(self) -> None:
        """Call this when the workers have changed."""
        self._rules.clear()

    def meshes(self) -> dict[str, Mesh]:
        """The mesh of each signal that was used since the workers have changed."""
        return {name: rule.mesh for name, rule in self._rules.items() if isinstance(rule, SignalRule)}

    def rule(self, name: str, workers: Sequence[int]) -> SignalRule | Lost | None:
        """The rule of this signal; None if it has none; Lost if it names a worker that is not connected."""
        if name not in self.specs and not self.auto:
            return None
        if name not in self._rules:
            self._rules[name] = self._make_rule(name, workers)
        return self._rules[name]

    def _make_rule(self, name: str, workers: Sequence[int]) -> SignalRule | Lost:
        spec = self.specs.get(name)
        kind = SignalRule
        if spec is None:
            auto = next((s for s in self.specs.values() if s.auto), None) or SignalSpec(
                "", [], [], [], True, None, True
            )
            spec = replace(auto, name=name, mesh=[], replicate=name == PARAMETER, auto=True)
            kind = SignalRule if name == PARAMETER else AutoShardRule
        elif spec.auto and name != PARAMETER:
            kind = AutoShardRule
        chosen = tuple(spec.workers or workers)
        if self._substitutes is not None:
            named = {worker for each in self.specs.values() for worker in each.workers}
            chosen = substituted(chosen, workers, named, self._substitutes)
            spec = replace(spec, mesh=shrunk(spec.mesh, len(chosen)))
        present = set(workers)
        missing = [w for w in chosen if w not in present]
        if missing:
            connected = ", ".join(map(str, workers))
            return Lost(f"signal {name!r} names worker {missing[0]}, which is not connected; connected: {connected}")
        needed = prod(n for _, n in spec.mesh) if spec.mesh else len(chosen)
        if needed > len(chosen):
            return Lost(f"signal {name!r} needs {needed} workers, but has {len(chosen)}")
        return kind(spec, chosen, self._parts(spec, chosen))

    def _parts(self, spec: SignalSpec, chosen: tuple[int, ...]) -> tuple[Parts, ...]:
        """How the axes of the signal's mesh are cut."""
        axes = spec.mesh or [("", len(chosen))]
        if not spec.by_speed:
            weights = {name: tuple(given) for name, given in spec.weights}
            return tuple(_valid(weights.get(name, ()), n) for name, n in axes)
        key = tuple(spec.workers), tuple(n for _, n in axes)
        if self._kept_parts is not None and key in self._kept_parts:
            return self._kept_parts[key]
        speeds = [self._connected[w].info.speed if w in self._connected else 0.0 for w in chosen]
        parts = parts_by_speed(key[1], speeds)
        if self._kept_parts is not None:
            self._kept_parts[key] = parts
        return parts


def _valid(weights: tuple[int, ...], workers: int) -> Parts:
    """The weights of an axis; the number of its workers if it has none, or others than a client may send. An axis that
    was made shorter, because a worker was lost, has more weights than workers."""
    return weights if len(weights) == workers and all(0 < w <= MAX_WEIGHT for w in weights) else workers
