"""Epochs, timed: wall time with an idle device at both ends, of the slowest rank.

Warm-up epochs and then warm-up steps are not measured. The measurements of the ranks are joined after the clock has
stopped.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.core import peaks, timing, verdict
from benchmarks.core.formulas import joules_per_sample
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.results import Record
from benchmarks.core.sampler import Watch
from benchmarks.transformer import pagecache
from benchmarks.transformer.dataset import OnDisk
from benchmarks.transformer.engines import Engine, Steps
from benchmarks.transformer.fitting import is_out_of_memory
from benchmarks.transformer.loader import Loader, Span, tensors
from benchmarks.transformer.model import training_flops
from benchmarks.transformer.options import Config

#: the rules of the verdict that apply to one run of a model
RULES = [
    *("throttled", "neighbour", "shared_gpu", "cv", "allocation_retries", "out_of_memory", "skipped_steps"),
    *("loss", "mfu", "launch_bound"),
]
#: steps of each of the two sides of a comparison after the measured epochs
STEPS = 6


@dataclass
class Run:
    """One rank's part of the benchmark; only the first rank has the record."""

    config: Config
    world: World
    device_name: str
    engine: Engine
    loader: Loader
    record: Record | None

    def put(self, *keys: str, value: Any) -> None:
        if self.record is not None:
            self.record.put(*keys, value=value)

    def all(self) -> dict[str, Any]:
        """The whole benchmark; the summary, on every rank."""
        self._warm_up()
        self.engine.reset_memory()
        with Watch(self.world) as watch:
            epochs = [self._epoch(number) for number in range(1, self.config.epochs + 1)]
        memory = worst([rank for reports in self.world.gather(self.engine.memory()) for rank in reports])
        self.put("memory", value=memory)
        extra = {"communication": self._communication(), "doubling": self._doubling()}
        result = summary(self, epochs, watch, memory, extra)
        self.put("summary", value=result)
        return result

    def _warm_up(self) -> None:
        started, losses = time.perf_counter(), []
        for _ in range(self.config.warmup_epochs):
            losses += self._pass(len(self.loader.spans), "warm-up").losses
        losses += self._pass(self.config.warmup_steps, "warm-up").losses
        self.put("warmup", value={"steps": len(losses), "wall_s": time.perf_counter() - started, "losses": losses})

    def _pass(self, steps: int, label: str) -> Steps:
        """This many steps, from an idle device to an idle device."""
        every = max(1, steps // 100)
        self.engine.begin(steps)
        with Progress(label, steps, rank=self.world.rank) as bar:
            for number, (_, batch) in enumerate(self.loader.first(steps), 1):
                self.engine.step(batch)
                if number % every == 0:
                    bar.step(count=every)
        return self.engine.finish()

    def _epoch(self, number: int) -> dict[str, Any]:
        source, spans = self.loader.source, self.loader.spans
        if isinstance(source, OnDisk) and self.config.page_cache == "drop" and self.world.local_rank == 0:
            pagecache.drop(source.paths)
        self.world.barrier()
        read = pagecache.storage_bytes()
        steps = self._pass(len(spans), f"epoch {number}")
        now = pagecache.storage_bytes()
        own_figures = {
            "wall_s": steps.wall,
            "ranks": self.world.ranks_led,
            "samples": sum(span.samples for span in spans),
            "waited_s": sum(self.loader.waited),
            "storage_bytes": None if read is None or now is None else now - read,
            "skipped": steps.skipped,
            "laps": full_laps(spans, steps.laps),
            "losses": steps.losses,
        }
        result = epoch(
            self.config, self.world.gather(own_figures), isinstance(source, OnDisk), source.spec.sample_bytes
        )
        self.put("epochs", str(number), value=result)
        return result

    # -- after the measured epochs -----------------------------------------------------------

    def _series(self, samples: int, sync: bool) -> float:
        batch = self.engine.stage(tensors(self.loader.source.read(0, samples * self.world.ranks_led)))
        self.engine.begin(STEPS)
        for _ in range(STEPS):
            self.engine.step(batch, sync=sync)
        return statistics.median(seconds / steps for steps, seconds in self.engine.finish().laps[1:])

    def _communication(self) -> dict[str, Any] | None:
        """The communication in a step that does not overlap with computation: step(sync) - step(no_sync)."""
        if self.world.size == 1 or self.config.engine != "ddp":
            return None
        seconds = [self._series(self.config.batch_size, sync) for sync in (True, False)]
        sync, alone = (max(side) for side in zip(*self.world.gather(seconds), strict=True))
        return {"step_s": sync, "step_without_s": alone, "exposed_s": sync - alone, "exposed_share": 1 - alone / sync}

    def _doubling(self) -> float | None:
        """How much longer a step of twice the batch takes; None if it does not fit or is not known."""
        twice, free = 2 * self.config.batch_size, self.world.alone or self.config.engine == "ddp"
        is_known = self.world.device.type == "cuda" and not self.config.compile
        if not is_known or not free or twice * self.world.ranks_led > self.config.num_samples:
            return None
        try:
            factor = self._series(twice, False) / self._series(self.config.batch_size, False)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            factor = None
        ratios = self.world.gather(factor)
        return None if None in ratios else max(ratios)


# -- what the ranks saw, put together ----------------------------------------------------------


def full_laps(spans: list[Span], laps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Comparable samples: without the last, shorter batch, and without samples of fewer steps."""
    samples, ends = [], itertools.accumulate(steps for steps, _ in laps)
    for (steps, seconds), end in zip(laps, ends, strict=True):
        if all(span.full for span in spans[end - steps : end]):
            samples.append((steps, seconds))
    most = max((steps for steps, _ in samples), default=1)
    return [lap for lap in samples if lap[0] == most]


def step_times(laps: list[tuple[int, float]]) -> dict[str, Any]:
    """The timing of steps; ``steps_per_sample`` is the number of steps that a sample is the mean of."""
    return {**timing.summary([seconds / steps for steps, seconds in laps]), "steps_per_sample": laps[0][0]}


def slowest(ranks: list[list[tuple[int, float]]]) -> list[tuple[int, float]]:
    """The maximum over the ranks, sample by sample."""
    return [(at[0][0], max(seconds for _, seconds in at)) for at in zip(*ranks, strict=True)]


def epoch(config: Config, ranks: list[dict[str, Any]], on_disk: bool, sample_bytes: int) -> dict[str, Any]:
    """One epoch from the measurements of each rank, or of the process that leads several."""
    wall, samples = max(r["wall_s"] for r in ranks), sum(r["samples"] for r in ranks)
    storage_bytes = [r["storage_bytes"] for r in ranks]
    physical, logical = (None if None in storage_bytes else sum(storage_bytes)), samples * sample_bytes
    return {
        "wall_s": wall,
        "samples": samples,
        "steps": len(ranks[0]["losses"]),
        **rates(config, samples, wall, sum(r["ranks"] for r in ranks)),
        "data_wait_share": max(r["waited_s"] / r["wall_s"] for r in ranks),
        "skipped_steps": max(r["skipped"] for r in ranks),
        "timing": step_times(slowest([r["laps"] for r in ranks])),
        "losses": [statistics.fmean(at) for at in zip(*(r["losses"] for r in ranks), strict=True)],
        "io": _io(logical, physical) if on_disk else None,
    }


def _io(logical: int, physical: int | None) -> dict[str, Any]:
    return {"logical_bytes": logical, "storage_bytes": physical, "label": pagecache.label(logical, physical)}


def rates(config: Config, samples: int, seconds: float, ranks: int) -> dict[str, float]:
    """A sample has a source and a target: both count as tokens."""
    rate = samples / seconds
    return {
        "samples_per_s": rate,
        "samples_per_s_per_rank": rate / ranks,
        "tokens_per_s": rate * 2 * config.sizes.seq_len,
    }


def worst(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Memory is never summed over ranks: the rank that needed most, and all of them."""
    return {"worst_rank": max(range(len(ranks)), key=lambda r: ranks[r]["peak_bytes"] or 0), "ranks": ranks}


def summary(
    run: Run, epochs: list[dict[str, Any]], watch: Watch, memory: dict[str, Any], extra: dict[str, Any]
) -> dict[str, Any]:
    config, size = run.config, run.world.size
    wall, samples = sum(e["wall_s"] for e in epochs), sum(e["samples"] for e in epochs)
    per = epochs[0]["timing"]["steps_per_sample"]
    step_timing = step_times([(per, per * s) for e in epochs for s in e["timing"]["samples_s"]])
    used = peaks.mfu(training_flops(config.sizes) * samples, wall, run.device_name, config.precision, size)
    cards, joules = watch.cards, watch.joules()
    result = {
        "wall_s": wall,
        "samples": samples,
        **rates(config, samples, wall, size),
        "samples_per_s_interval_95": throughput_interval(samples / wall, step_timing),
        "timing": step_timing,
        "data_wait_share": max(e["data_wait_share"] for e in epochs),
        "skipped_steps": sum(e["skipped_steps"] for e in epochs),
        "last_loss": epochs[-1]["losses"][-1],
        "mfu": used,
        "energy_j": joules,
        "joules_per_sample": None if joules is None else joules_per_sample(joules, samples),
        "kernel_resident_percent": _mean([card["kernel_resident_percent"] for card in cards or []]),
        "peak_memory_bytes": memory["ranks"][memory["worst_rank"]]["peak_bytes"],
        "gpu": cards,
        **extra,
    }
    return result | {"verdict": _verdict(run, epochs, result, memory, watch)}


def _mean(values: list[float | None]) -> float | None:
    return None if not values or None in values else statistics.fmean(v for v in values if v is not None)


def throughput_interval(rate: float, step_timing: dict[str, Any]) -> list[float] | None:
    """The 95 % interval around the rate, from the mean of the step times."""
    interval = timing.mean_interval(step_timing["samples_s"])
    return [rate * step_timing["mean_s"] / bound for bound in reversed(interval)] if interval else None


def _verdict(
    run: Run, epochs: list[dict[str, Any]], result: dict[str, Any], memory: dict[str, Any], watch: Watch
) -> dict[str, Any]:
    labels = [e["io"]["label"] for e in epochs if e["io"]]
    bad = [loss for e in epochs for loss in e["losses"] if not math.isfinite(loss)]
    facts = {
        **watch.facts(),
        "ranks_per_gpu": run.world.ranks_per_gpu() if run.world.size > 1 else 1,
        "cv": step_variation(result["timing"]),
        "allocation_retries": _largest(memory, "allocation_retries"),
        "ooms": _largest(memory, "ooms"),
        "skipped_steps": result["skipped_steps"],
        "io": None if None in labels else next((label for label in labels if label != "cold"), "cold"),
        "loss": bad[0] if bad else result["last_loss"],
        "mfu": result["mfu"]["mfu"],
        "doubling": result["doubling"],
    }
    return verdict.judge(facts, [*RULES, "cached_io"] if labels else RULES, "results.summary")


def step_variation(step_timing: dict[str, Any]) -> float | None:
    """The variation of single steps: the mean of n steps varies less, by the root of n."""
    return None if step_timing["cv"] is None else step_timing["cv"] * math.sqrt(step_timing["steps_per_sample"])


def _largest(memory: dict[str, Any], key: str) -> int | None:
    values = [rank.get(key) for rank in memory["ranks"]]
    return None if None in values else max(v for v in values if v is not None)
