"""Reads the configuration of signals: from a file, from the environment, or from the program. See docs/signals.md.

The configuration in force is `gt.client.stream.configuration.current`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gt.client.stream import configuration
from gt.client.stream.configuration import PARAMETER, Signal
from gt.client.stream.connect import connected
from gt.errors import ConfigError

__all__ = ["ShardConfig", "SignalConfig", "auto_shard", "load_config", "register_config"]


class _Environment:
    """GT_CONFIG and GT_AUTO_SHARD are read once, unless the program loads a configuration first."""

    lock = threading.RLock()
    is_read = False
    #: the last `load_config` removed all signals
    removed = False


_environment = _Environment()


def from_environment() -> None:
    """Load what GT_CONFIG and GT_AUTO_SHARD configure, before the first use of a signal or session."""
    if _environment.is_read:
        return
    with _environment.lock:
        path = os.environ.get("GT_CONFIG", "")
        signals = _read(path) if path else {}
        _environment.is_read = True
        auto = _auto_from_environment()
        if signals or auto:
            configuration.replace(signals.values(), auto)


configuration.before_session.append(from_environment)


def _auto_from_environment() -> Signal | None:
    value = os.environ.get("GT_AUTO_SHARD", "0")
    return _auto_signal_for(None, value == "speed") if value not in ("", "0") else None


def _auto_signal_for(workers: int | Sequence[int] | None, by_speed: bool) -> Signal:
    """The signal that auto-sharding places parameters by: on a list of workers, the first ``workers``, or all."""
    if workers is None:
        return Signal(name=PARAMETER, replicate=True, by_speed=by_speed)
    numbers = list(workers) if isinstance(workers, Iterable) else [workers]
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers) or len({*numbers}) < len(numbers):
        raise ConfigError(
            f"auto_shard(workers={workers!r}): expected a number, or a list of different workers such as [0, 1]"
        )
    if not numbers or workers == 0:
        raise ConfigError(f"auto_shard(workers={workers!r}): at least one worker is needed")
    if isinstance(workers, int):
        return Signal(name=PARAMETER, replicate=True, mesh=(("", workers),), by_speed=by_speed)
    return Signal(name=PARAMETER, replicate=True, workers=tuple(numbers), by_speed=by_speed)


def _read(path: str | os.PathLike[str]) -> dict[str, Signal]:
    from gt.client.signals.configfile import read  # imported late, because most programs have no such file

    return read(path)


def load_config(path: str | os.PathLike[str] | None) -> None:
    """Configure the signals from a YAML file. This replaces all signals configured before. None removes all signals;
    the program then ignores its signals without a warning.

    Example::

        gt.load_config("signals.yaml")
    """
    signals = {} if path is None else _read(path)
    with _environment.lock:
        for signal in signals.values():
            _check_connected(signal)
        auto = _current_auto_signal() if _environment.is_read else _auto_from_environment()
        _environment.is_read = True
        _environment.removed = path is None
        configuration.replace(signals.values(), auto)


def was_removed() -> bool:
    """Whether the program removed the configuration itself, by ``load_config(None)``."""
    return _environment.removed


def _current_auto_signal() -> Signal | None:
    return configuration.current.signals.get(PARAMETER)


def _check_connected(signal: Signal) -> None:
    if (session := connected()) is not None:
        signal.check_workers(session.connection.worker_ids())


class ShardConfig(msgspec.Struct, frozen=True):
    """Shard dim ``axis`` over these workers, or over all; for `gt.SignalConfig`. ``weights``: see docs/signals.md."""

    axis: int
    workers: Sequence[int] | None = None
    weights: Sequence[int] | str | None = None


class SignalConfig(msgspec.Struct, frozen=True):
    """The configuration of one signal, with the keys of a file; for `gt.register_config`.

    Example::

        gt.register_config("stage0", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    """

    shard: ShardConfig | None = None
    #: the signal under which its gradients run
    backward_signal: str | None = None
    compile: bool = False


def register_config(name: str, config: SignalConfig) -> None:
    """Configure one signal from the program. Other signals stay as they are.

    Example::

        gt.register_config("stage0", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    """
    from gt.client.signals.configfile import signal_from

    from_environment()
    signal = signal_from(name, _file_keys(name, config))
    with _environment.lock:
        _check_connected(signal)
        others = (s for s in configuration.current.signals.values() if s.name != name)
        configuration.replace([*others, signal], _current_auto_signal())


def _file_keys(name: str, config: SignalConfig) -> dict[str, Any]:
    """The same configuration as a file would contain it."""
    if not isinstance(config, SignalConfig):
        raise ConfigError(f"register_config({name!r}, …): expected a gt.SignalConfig, not {type(config).__name__}")
    keys: dict[str, Any] = {"compile": config.compile}
    if config.backward_signal is not None:
        keys["backward"] = config.backward_signal
    if isinstance(config.shard, ShardConfig):
        workers = config.shard.workers
        keys["shard"] = {"axis": config.shard.axis}
        if workers is not None:
            keys["shard"]["workers"] = list(workers) if isinstance(workers, tuple | range) else workers
        if (weights := config.shard.weights) is not None:
            keys["weights"] = list(weights) if isinstance(weights, tuple) else weights
    elif config.shard is not None:
        raise ConfigError(f"register_config({name!r}, …): shard must be a gt.ShardConfig, not {config.shard!r}")
    return keys


def auto_shard(enabled: bool = True, workers: int | Sequence[int] | None = None, by_speed: bool = False) -> None:
    """Shard data over all workers and replicate parameters, without signals in the program.

    ``workers`` limits this to the first n workers, or to a list of workers. With ``by_speed``, a worker that was
    measured as slower gets a smaller block. ``auto_shard(False)`` turns auto-sharding off.

    Example::

        gt.gpu_workers(4)
        gt.auto_shard()
    """
    from_environment()
    auto = _auto_signal_for(workers, by_speed) if enabled else None
    with _environment.lock:
        if auto is not None:
            _check_connected(auto)
        if _current_auto_signal() != auto:
            configuration.replace(configuration.current.signals.values(), auto)
