"""Epochs, timed: wall time with an idle device at both ends, of the slowest rank.

Warm-up epochs and then warm-up steps are not measured. The measurements of the ranks are joined after the clock has
stopped.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.core import outliers, peaks, sides, timing, verdict
from benchmarks.core.formulas import joules_per_sample, throughput
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.core.results import Record
from benchmarks.core.sampler import Watch
from benchmarks.core.trainer import Engine, Steps, Trainer, series
from benchmarks.transformer import pagecache
from benchmarks.transformer.dataset import OnDisk
from benchmarks.transformer.loader import Batches, Span, tensors
from benchmarks.transformer.model import training_flops
from benchmarks.transformer.options import Config

#: the rules of the verdict that apply to one run of a model
RULES = [
    *("shared_gpu", "cv", "allocation_retries", "out_of_memory", "skipped_steps"),
    *("loss", "mfu", "launch_bound"),
]
#: turns of the two sides of a comparison after the measured epochs, and the steps of a side on GT
TURNS, STEPS = 10, 6


@dataclass
class Run:
    """One rank's part of the benchmark; only the first rank has the record."""

    config: Config
    world: World
    device_name: str
    engine: Engine
    loader: Batches
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
        extra = {"exposed": self._exposed(), "doubling": self._doubling()}
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
        with Progress(label, steps, rank=self.world.rank) as bar:
            return series(self.engine, steps, _shown(self.loader.first(steps), bar, max(1, steps // 100)))

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

    def _batch(self, samples: int) -> Any:
        return self.engine.stage(tensors(self.loader.source.read(0, samples * self.world.ranks_led)))

    def _exposed(self) -> dict[str, Any] | None:
        """The exchange that does not overlap with computation; not known for GT, which has no passes without it."""
        if not isinstance(self.engine, Trainer):
            return None
        return sides.exposed(self.world, self.engine, self._batch(self.config.batch_size), TURNS, self.config.seed)

    def _doubling(self) -> dict[str, Any] | None:
        """How much longer twice the batch takes; None where it is not known."""
        twice, free = 2 * self.config.batch_size, self.world.alone or self.config.engine == "ddp"
        is_known = self.world.device.type == "cuda" and not self.config.compile
        if not is_known or not free or twice * self.world.ranks_led > self.config.num_samples:
            return None
        both = [self._side(self._batch(samples)) for samples in (self.config.batch_size, twice)]
        return sides.doubled(self.world, *both, TURNS, self.config.seed)

    def _side(self, batch: Any) -> sides.Side:
        """Passes on torch; on GT whole steps, which are complete only when one of their values is read."""
        if isinstance(self.engine, Trainer):
            return sides.passes(self.engine, batch, sync=False)
        return lambda: series(self.engine, STEPS, [batch] * STEPS).wall / STEPS


def _shown(batches: Iterator[Any], bar: Progress, every: int) -> Iterator[Any]:
    """The batches, with their progress."""
    for number, batch in enumerate(batches, 1):
        yield batch
        if number % every == 0:
            bar.step(count=every)


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
        **throughput(samples, wall, 2 * config.sizes.seq_len, sum(r["ranks"] for r in ranks)),
        "data_wait_share": max(r["waited_s"] / r["wall_s"] for r in ranks),
        "skipped_steps": max(r["skipped"] for r in ranks),
        "timing": step_times(slowest([r["laps"] for r in ranks])),
        "losses": [statistics.fmean(at) for at in zip(*(r["losses"] for r in ranks), strict=True)],
        "io": _io(logical, physical) if on_disk else None,
    }


def _io(logical: int, physical: int | None) -> dict[str, Any]:
    return {"logical_bytes": logical, "storage_bytes": physical, "label": pagecache.label(logical, physical)}


def worst(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Memory is never summed over ranks: the rank that needed most, and all of them."""
    return {"worst_rank": max(range(len(ranks)), key=lambda r: ranks[r]["peak_bytes"] or 0), "ranks": ranks}


def totals(epochs: Sequence[Mapping[str, Any]], seq_len: int, ranks: int) -> dict[str, Any]:
    """The figures of all epochs together, which follow from theirs. Throughput is all samples over all of the time."""
    wall, samples = sum(e["wall_s"] for e in epochs), sum(e["samples"] for e in epochs)
    per = epochs[0]["timing"].get("steps_per_sample", 1)
    return {
        "wall_s": wall,
        "samples": samples,
        # a sample has a source and a target: both count as tokens
        **throughput(samples, wall, 2 * seq_len, ranks),
        "timing": step_times([(per, per * s) for e in epochs for s in e["timing"]["samples_s"]]),
        "data_wait_share": max(e["data_wait_share"] for e in epochs),
        "skipped_steps": sum(e["skipped_steps"] for e in epochs),
        "last_loss": epochs[-1]["losses"][-1],
    }


def summary(
    run: Run, epochs: list[dict[str, Any]], watch: Watch, memory: dict[str, Any], extra: dict[str, Any]
) -> dict[str, Any]:
    config, size = run.config, run.world.size
    whole = totals(epochs, config.sizes.seq_len, size)
    samples, wall = whole["samples"], whole["wall_s"]
    flops, dtype = training_flops(config.sizes) * samples, peaks.ran_in(config.precision)
    gpu = run.world.device if run.world.device.type == "cuda" else None
    cards, joules = watch.cards, watch.joules()
    result = {
        **whole,
        "samples_per_s_interval_95": timing.rate_interval(whole["samples_per_s"], whole["timing"]),
        "mfu": peaks.mfu(flops, wall, run.device_name, dtype, size, gpu),
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
        "doubling": sides.doubling_fact(result["doubling"]),
        "slow": result["exposed"] and outliers.rank_words(result["exposed"]["slow"]),
    }
    machine = verdict.MACHINE[run.world.device.type]
    rules = [*machine, *RULES, *(["cached_io"] if labels else []), *(["slow"] if result["exposed"] else [])]
    return verdict.judge(facts, rules, "results.summary")


def step_variation(step_timing: dict[str, Any]) -> float | None:
    """The variation of single steps: the mean of n steps varies less, by the root of n."""
    return None if step_timing["cv"] is None else step_timing["cv"] * math.sqrt(step_timing["steps_per_sample"])


def _largest(memory: dict[str, Any], key: str) -> int | None:
    values = [rank.get(key) for rank in memory["ranks"]]
    return None if None in values else max(v for v in values if v is not None)
