"""What signals mean: the configuration that sessions announce to the dispatcher.

There is one configuration at a time, for all threads and sessions. It is immutable and only ever replaced as a whole.
A session notices a new one when it next defines a signature, and sends it to the dispatcher first.
`gt.client.signals.config` reads the configuration: from files, the environment and calls of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import msgspec

from gt.errors import ConfigError
from gt.wire.codec import encode
from gt.wire.messages import Configure
from gt.wire.structures import SignalSpec
from gt.wire.words import MAX_CONFIGURE_BYTES

#: The signal that `gt.auto_shard` places parameters by.
PARAMETER = "@parameter"

#: (dim, the mesh axis that shards it) pairs
DimAxes = tuple[tuple[int, str], ...]


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One validated signal; see `gt.wire.structures.SignalSpec` for what the fields mean."""

    name: str
    workers: tuple[int, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    #: (axis, the weights of its workers); and whether the workers' measured speeds are the weights
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    by_speed: bool = False
    shard: DimAxes = ()
    replicate: bool = False
    output: DimAxes | None = None
    #: patterns of the names of the parameters it places
    match: tuple[str, ...] = ()
    #: patterns of the names of the modules whose calls run under it
    modules: tuple[str, ...] = ()
    #: does it place the tensors that the client uploads outside of any signal?
    uploads: bool = False
    #: the signal that gradients run under
    backward: str = ""
    compile: bool = False
    #: False: it says nothing about placement
    places: bool = True

    def workers_of(self, connected: Sequence[int]) -> tuple[int, ...]:
        """Its workers: those it names, or the first ones that fill its mesh, or () for all connected ones."""
        if self.workers or not self.mesh:
            return self.workers
        count = prod(size for _, size in self.mesh)
        return tuple(sorted(connected)[:count]) if len(connected) >= count else tuple(range(count))

    def missing_worker(self, connected: Sequence[int]) -> int | None:
        """The first worker that it needs and that is not connected; None if all are."""
        return next((id for id in self.workers_of(connected) if id not in connected), None)

    def check_workers(self, connected: Sequence[int]) -> None:
        """Raise ConfigError if one of its workers is not connected."""
        if (missing := self.missing_worker(connected)) is not None:
            existing = ", ".join(map(str, sorted(connected))) or "none"
            subject = "auto_shard" if self.name == PARAMETER else f"signal {self.name!r}"
            raise ConfigError(
                f"{subject}: worker {missing} does not exist; there are: {existing} "
                "(gt.gpu_workers(n) starts a system of n)"
            )

    def spec(self, connected: Sequence[int]) -> SignalSpec:
        """The signal as the dispatcher gets it."""
        output = None if self.output is None else list(self.output)
        return SignalSpec(
            self.name,
            list(self.workers_of(connected)),
            list(self.mesh),
            list(self.shard),
            self.replicate,
            output,
            not self.match,
            self.name == PARAMETER,
            [(axis, list(weights)) for axis, weights in self.weights],
            self.by_speed,
        )


class Configuration(msgspec.Struct, frozen=True, eq=False):
    #: name -> signal; with auto-sharding also `PARAMETER`
    signals: dict[str, Signal] = {}
    #: is auto-sharding on?
    auto: bool = False
    #: the signals for parameters and for modules of some names
    rules: tuple[Signal, ...] = ()
    #: those for modules
    module_rules: tuple[Signal, ...] = ()
    #: the signal for tensors that the client uploads; "": none
    uploads: str = ""

    def message(self, connected: Sequence[int], rebalanced: list[int] | None = None) -> Configure:
        specs = [signal.spec(connected) for signal in self.signals.values() if signal.places]
        nbytes = len(encode(Configure(specs, self.auto, 0, rebalanced)))
        if nbytes > MAX_CONFIGURE_BYTES:
            raise ConfigError(f"{len(specs)} signals take {nbytes} bytes; at most {MAX_CONFIGURE_BYTES} are allowed")
        return Configure(specs, self.auto, nbytes // 8 + 1, rebalanced)


#: the configuration in force
current = Configuration()
#: called after it was replaced
on_change: list[Callable[[], None]] = []
#: called before a session is created: `gt.client.signals.config` reads GT_CONFIG and GT_AUTO_SHARD here
before_session: list[Callable[[], None]] = []


def replace(signals: Iterable[Signal], auto: Signal | None) -> None:
    """Put a new configuration in force: these signals, and auto-sharding by ``auto`` if there is one."""
    global current
    by_name = {signal.name: signal for signal in signals if signal.name != PARAMETER}
    if auto is not None:
        by_name[PARAMETER] = auto
    rules = tuple(signal for signal in by_name.values() if signal.match or signal.modules)
    module_rules = tuple(signal for signal in rules if signal.modules)
    uploads = next((signal.name for signal in by_name.values() if signal.uploads), "")
    current = Configuration(by_name, auto is not None, rules, module_rules, uploads)
    for callback in on_change:
        callback()


def prepare() -> None:
    """Read what the environment configures, if that has not happened yet."""
    for callback in before_session:
        callback()
