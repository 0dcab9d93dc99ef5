"""Where the stages of a pipeline run: one signal for each stage.

The signals come from the configuration (``signals=["stage0", "stage1"]``), so that a stage may be sharded in any way.
Or the pipeline configures signals itself, on the workers it is given, or on all workers in equal shares. A stage with
several workers then splits each microbatch between them.

Parameters keep their layout if they are on the workers of their stage already: a ``match`` in the configuration placed
them, or they were created under a signal. All others are placed whole on each worker of their stage. The same holds for
buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.signals.config import from_environment
from gt.client.signals.signal import PIPELINE_SIGNAL, placing_signal
from gt.client.stream import configuration
from gt.client.stream.configuration import PARAMETER, Signal
from gt.client.stream.connect import session
from gt.client.tensor.layout import layout
from gt.client.tensor.placing import keep_placed, place_parameters, workers_of
from gt.client.tensor.relocation import place_by
from gt.errors import ConfigError
from gt.nn import Module, ModuleList

Workers = Sequence[int | Sequence[int]]


class StageSignals:
    """The signals of the stages, and the placement of the parameters by them."""

    def __init__(self, stages: int, signals: Sequence[str] | None, workers: Workers | None) -> None:
        if signals is not None and workers is not None:
            raise ConfigError("pipeline: pass signals or workers, not both")
        for what, given in (("signals", signals), ("workers", workers)):
            if given is not None:
                _check_stages(what, given, stages)
        self._stages, self._given, self._workers = stages, signals, workers
        #: the configuration under which the parameters were placed, and the signals of the stages in it
        self._placed_under: Any = None
        self._names: list[str] = []

    def prepare(self, parts: Sequence[Any], stage_of: Sequence[int]) -> list[str]:
        """Configure signals that are missing, and place the parameters once. Returns the signal of each part; "" if it
        is not configured."""
        from_environment()
        if self._placed_under is not configuration.current:
            self._names = [placing_signal(name) for name in self._given or self._configure_own()]
            self._place(parts, [self._names[s] for s in stage_of])
            self._placed_under = configuration.current
        return [self._names[s] for s in stage_of]

    def _configure_own(self) -> list[str]:
        connected = sorted(session().connection.worker_ids())
        signals = [self._own_signal(s, connected) for s in range(self._stages)]
        _configure(signals)
        return [signal.name for signal in signals]

    def _own_signal(self, stage: int, connected: list[int]) -> Signal:
        workers = self._workers[stage] if self._workers is not None else _share(connected, stage, self._stages)
        numbers = (workers,) if isinstance(workers, int) else tuple(workers)
        shard = ((0, ""),) if len(numbers) > 1 else ()
        name = f"{PIPELINE_SIGNAL}{'worker' if len(numbers) == 1 else 'workers'} {', '.join(map(str, numbers))}"
        signal = Signal(name=name, workers=numbers, shard=shard, replicate=not shard)
        signal.check_workers(connected)
        return signal

    def _place(self, parts: Sequence[Any], names: Sequence[str]) -> None:
        modules = [part for part in parts if isinstance(part, Module)]
        before = configuration.current
        _configure([_parameter_signal(name) for name in dict.fromkeys(names) if name])
        keep_placed([p for module in modules for p in module.parameters()], before)
        if configuration.current.rules:
            place_parameters(ModuleList(modules))
        placed: set[int] = set()
        for part, name in zip(parts, names, strict=True):
            for tensor in (*part.parameters(), *part.buffers()) if isinstance(part, Module) and name else ():
                if id(tensor) not in placed and not _is_on(tensor, name):
                    place_by(tensor, _parameter_signal(name).name)
                placed.add(id(tensor))


def _check_stages(what: str, given: Any, stages: int) -> None:
    """Raise ConfigError unless there is one entry for each stage: a name, or a worker or several."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"pipeline: {what}={given!r}; expected a list with one item for each stage")
    if len(given) != stages:
        raise ConfigError(f"pipeline: {len(given)} {what} for {stages} stages")
    for stage, item in enumerate(given):
        if what == "signals":
            if not isinstance(item, str):
                raise ConfigError(f"pipeline: stage {stage}: signals has {item!r}; expected the name of a signal")
            continue
        numbers = [item] if not isinstance(item, Sequence) or isinstance(item, str) else list(item)
        if not numbers or any(type(n) is not int for n in numbers) or len(set(numbers)) < len(numbers):
            raise ConfigError(
                f"pipeline: stage {stage}: workers has {item!r}; expected a worker, or several, each once"
            )


def _configure(signals: Sequence[Signal]) -> None:
    """Add signals to the configuration, if they are not in it already."""
    current = configuration.current.signals
    new = {signal.name: signal for signal in signals}
    if any(current.get(name) != signal for name, signal in new.items()):
        configuration.replace([*(current | new).values()], current.get(PARAMETER))


def _share(connected: list[int], stage: int, stages: int) -> list[int]:
    """The workers of a stage, if all workers are shared equally; with fewer workers than stages, one of them."""
    if not connected:
        raise ConfigError("pipeline: there are no workers")
    if len(connected) < stages:
        return [connected[stage * len(connected) // stages]]
    n = len(connected) // stages
    return connected[stage * n : (stage + 1) * n]


def _is_on(parameter: Any, name: str) -> bool:
    """Whether a rule placed the parameter, or it is on the workers of this stage."""
    if configuration.current.rules and workers_of(parameter) is not None:
        return True
    connected = session().connection.worker_ids()
    workers = configuration.current.signals[name].workers_of(connected) or connected
    return set(layout(parameter).workers) == set(workers)


def _parameter_signal(name: str) -> Signal:
    """The signal that places the parameters of a stage whole on its workers."""
    stage = configuration.current.signals[name]
    return Signal(
        name=f"{name} parameters",
        workers=stage.workers,
        mesh=stage.mesh,
        weights=stage.weights,
        by_speed=stage.by_speed,
        replicate=True,
    )
