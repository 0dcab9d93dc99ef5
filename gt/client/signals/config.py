"""What signals mean: from a file, from ``GT_CONFIG``, or from the program itself. See docs/signals.md.

There is one configuration at a time, for all threads and sessions. It is never changed, only replaced; a session
finds that out when it next numbers a call, and tells the dispatcher.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import msgspec

from gt.errors import ConfigError
from gt.wire.messages import Configure, SignalSpec

__all__ = ["ShardConfig", "SignalConfig", "auto_shard", "load_config", "register_config"]

#: What `gt.auto_shard` lays parameters out by.
PARAMETER = "@parameter"

Cuts = tuple[tuple[int, str], ...]


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One signal, checked; see `gt.wire.messages.SignalSpec` for what the fields mean."""

    name: str
    workers: tuple[int, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    shard: Cuts = ()
    replicate: bool = False
    output: Cuts | None = None
    #: patterns of the names of parameters it lays out
    match: tuple[str, ...] = ()
    backward: str = ""
    compile: bool = False
    #: Does it say anything about places?
    places: bool = True

    def workers_of(self, there: Sequence[int]) -> tuple[int, ...]:
        """Its workers: those named, or the first as many as its mesh has, or () for all there are."""
        if self.workers or not self.mesh:
            return self.workers
        count = prod(size for _, size in self.mesh)
        return tuple(sorted(there)[:count]) if len(there) >= count else tuple(range(count))

    def spec(self, there: Sequence[int]) -> SignalSpec:
        output = None if self.output is None else list(self.output)
        return SignalSpec(
            self.name,
            list(self.workers_of(there)),
            list(self.mesh),
            list(self.shard),
            self.replicate,
            output,
            not self.match,
            self.name == PARAMETER,
        )


class Configuration(msgspec.Struct, frozen=True, eq=False):
    signals: dict[str, Signal] = {}
    auto: bool = False
    #: the signals that lay out parameters by their names
    rules: tuple[Signal, ...] = ()

    def message(self, there: Sequence[int]) -> Configure:
        return Configure([signal.spec(there) for signal in self.signals.values() if signal.places], self.auto)


#: the one in force
current = Configuration()
#: called when it is another one
on_change: list[Callable[[], None]] = []
_lock = threading.RLock()
_environment_read = False


def from_environment() -> None:
    """GT_CONFIG and GT_AUTO_SHARD, when they may first matter, unless the program was quicker."""
    global _environment_read
    if _environment_read:
        return
    with _lock:
        path = os.environ.get("GT_CONFIG", "")
        signals = _read(path) if path else {}
        _environment_read = True
        auto = _auto_asked()
        if signals or auto:
            _replace(signals.values(), auto)


def _auto_asked() -> Signal | None:
    return _parameters(None) if os.environ.get("GT_AUTO_SHARD", "0") not in ("", "0") else None


def _parameters(workers: int | Sequence[int] | None) -> Signal:
    """What stands for auto-sharding on these workers, or the first so many, or all."""
    if workers is None:
        return Signal(name=PARAMETER, replicate=True)
    counted = list(workers) if isinstance(workers, Iterable) else [workers]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in counted) or len({*counted}) < len(counted):
        raise ConfigError(f"auto_shard(workers={workers!r}): a number, or different workers such as [0, 1], is needed")
    if not counted or workers == 0:
        raise ConfigError(f"auto_shard(workers={workers!r}): at least one worker is needed")
    if isinstance(workers, int):
        return Signal(name=PARAMETER, replicate=True, mesh=(("", workers),))
    return Signal(name=PARAMETER, replicate=True, workers=tuple(counted))


def _read(path: str | os.PathLike[str]) -> dict[str, Signal]:
    from gt.client.signals.configfile import read  # most programs have no such file

    return read(path)


def _replace(signals: Iterable[Signal], auto: Signal | None) -> None:
    global current
    known = {signal.name: signal for signal in signals if signal.name != PARAMETER}
    if auto is not None:
        known[PARAMETER] = auto
    current = Configuration(known, auto is not None, tuple(signal for signal in known.values() if signal.match))
    for act in on_change:
        act()


def load_config(path: str | os.PathLike[str] | None) -> None:
    """Let signals mean what this file says, and nothing else; None: let them mean nothing."""
    global _environment_read
    signals = {} if path is None else _read(path)
    with _lock:
        for signal in signals.values():
            _check_connected(signal)
        auto = current.signals.get(PARAMETER) if _environment_read else _auto_asked()
        _environment_read = True
        _replace(signals.values(), auto)


def _check_connected(signal: Signal) -> None:
    from gt.client.stream import connect

    if (session := connect.connected()) is not None:
        check_workers(signal, [w.id for w in session.workers])


def check_workers(signal: Signal, there: Sequence[int]) -> None:
    if (problem := missing(signal, there)) is not None:
        shown = ", ".join(map(str, sorted(there))) or "none"
        what = "auto_shard" if signal.name == PARAMETER else f"signal {signal.name!r}"
        raise ConfigError(
            f"{what}: worker {problem} does not exist; there are: {shown} (gt.gpu_workers(n) starts a system of n)"
        )


def missing(signal: Signal, there: Sequence[int]) -> int | None:
    """A worker it names that is not among these."""
    return next((id for id in signal.workers_of(there) if id not in there), None)


class ShardConfig(msgspec.Struct, frozen=True):
    """Cut along a dim, over these workers (all, if none are named)."""

    axis: int
    workers: Sequence[int] | None = None


class SignalConfig(msgspec.Struct, frozen=True):
    """What a file says of one signal, said by the program."""

    shard: ShardConfig | None = None
    #: the signal its gradients run under
    backward_signal: str | None = None
    compile: bool = False


def register_config(name: str, config: SignalConfig) -> None:
    """Let a signal mean this, besides those already configured."""
    from gt.client.signals.configfile import signal_from

    from_environment()
    made = signal_from(name, _as_in_a_file(name, config))
    with _lock:
        _check_connected(made)
        others = (s for s in current.signals.values() if s.name != name)
        _replace([*others, made], current.signals.get(PARAMETER))


def _as_in_a_file(name: str, config: SignalConfig) -> dict[str, Any]:
    if not isinstance(config, SignalConfig):
        raise ConfigError(f"register_config({name!r}, …): a gt.SignalConfig is needed, not {type(config).__name__}")
    said: dict[str, Any] = {"compile": config.compile}
    if config.backward_signal is not None:
        said["backward"] = config.backward_signal
    if isinstance(config.shard, ShardConfig):
        workers = config.shard.workers
        said["shard"] = {"axis": config.shard.axis}
        if workers is not None:
            said["shard"]["workers"] = list(workers) if isinstance(workers, tuple | range) else workers
    elif config.shard is not None:
        raise ConfigError(f"register_config({name!r}, …): shard is a gt.ShardConfig, not {config.shard!r}")
    return said


def auto_shard(enabled: bool = True, workers: int | Sequence[int] | None = None) -> None:
    """Spread data over all workers, and keep parameters on each of them, without a word in the program.

    ``workers`` are those to use: the first so many, or these.
    """
    from_environment()
    made = _parameters(workers) if enabled else None
    with _lock:
        if made is not None:
            _check_connected(made)
        if current.signals.get(PARAMETER) != made:
            _replace(current.signals.values(), made)
