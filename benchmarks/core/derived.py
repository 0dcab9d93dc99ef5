"""The figures that follow from others within one part of a record, for every suite: one row a kind of part.

A row returns what the keys of the part should be; keys that the part does not have are not compared.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.core import formulas, outliers, peaks, sampler, timing, verdict

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a part is, and the record around it."""

    where: str
    record: Mapping[str, Any]

    @property
    def ranks(self) -> int:
        return int(self.record["world_size"])


def parts(value: Any, where: str) -> Iterator[tuple[Part, str]]:
    """Every object within a value, itself included."""
    if isinstance(value, dict):
        yield value, where
        for key, inner in value.items():
            yield from parts(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from parts(inner, f"{where}[{number}]")


def p50(part: Part, *keys: str) -> float | None:
    """The median of the samples of a timing below these keys."""
    for key in (*keys, "timing"):
        part = part.get(key) or {}
    samples = part.get("samples_s")
    return timing.percentile(samples, 50) if samples else None


# -- the rows ------------------------------------------------------------------------------


def summary(part: Part, place: Place) -> dict[str, Any]:
    """Of the samples of a timing."""
    samples = part.get("samples_s")
    return timing.figures(samples) if samples and "count" in part and numbers(samples) else {}


def median(part: Part, place: Place) -> dict[str, Any]:
    """A figure that is the median of samples beside it."""
    expected = {}
    for key, name in (("samples", "value"), ("ratios", "median"), ("seconds", "median"), ("samples", "median")):
        samples = part.get(key)
        if isinstance(samples, list) and samples and numbers(samples):
            expected[name] = statistics.median(samples)
    return expected


def rate(part: Part, place: Place) -> dict[str, Any]:
    """All samples over all of the time; tokens grow with the samples."""
    if not isinstance(part.get("samples"), int) or not part.get("wall_s"):
        return {}
    per_second = part["samples"] / part["wall_s"]
    expected = {"samples_per_s": per_second, "samples_per_s_per_rank": per_second / place.ranks}
    if part.get("tokens_per_s"):
        expected["tokens_per_s_per_rank"] = part["tokens_per_s"] / place.ranks
    return expected


def mfu(part: Part, place: Place) -> dict[str, Any]:
    bound = part.get("denominator_flops_per_s")
    if not bound or "numerator_flops_per_s" not in part:
        return {}
    config = place.record["config"]
    known = peaks.peak(str(config["device"]), str(part.get("dtype")))
    cards = place.ranks if place.record["suite"] in OF_ALL_RANKS else 1
    expected = {"mfu": part["numerator_flops_per_s"] / bound}
    # another text is that of a table from before, or of a peak that was measured
    return expected | ({"denominator_flops_per_s": known[0] * cards} if known and part["source"] == known[1] else {})


def energy(part: Part, place: Place) -> dict[str, Any]:
    """Of a sample: from the counter of all cards; null without one."""
    if "joules_per_sample" not in part or not isinstance(part.get("samples"), int):
        return {}
    used = [card["energy_j"] for card in part.get("gpu") or ()] or [part.get("energy_j")]
    joules = None if None in used else formulas.joules_per_sample(sum(used), part["samples"])
    return {"joules_per_sample": joules}


def card(part: Part, place: Place) -> dict[str, Any]:
    """The mean power of a GPU: its energy over the time."""
    if part.get("energy_j") is None or not part.get("seconds"):
        return {}
    return {"mean_power_w": part["energy_j"] / part["seconds"]}


def disk_rate(part: Part, place: Place) -> dict[str, Any]:
    """Of a checkpoint of so many MiB."""
    if "mb_per_s" not in part or not part.get("samples_s") or "megabytes" not in place.record["config"]:
        return {}
    return {"mb_per_s": place.record["config"]["megabytes"] * 2**20 / 1e6 / statistics.median(part["samples_s"])}


def case(part: Part, place: Place) -> dict[str, Any]:
    """FLOPs of a chain of products: the batch and the widths of the layers, the input's first."""
    if "dims" not in part or "flops" not in part:
        return {}
    batch, *widths = part["dims"]
    return {"flops": sum(2 * batch * k * n for k, n in itertools.pairwise(widths))}


def asked(part: Part, place: Place) -> dict[str, Any]:
    """The size of a message: of those of the configuration, as many elements as divide by the ranks."""
    dtype, sizes = place.record["config"].get("dtype"), place.record["config"].get("sizes")
    if "asked_bytes" not in part or not place.where.startswith("results.communication.") or dtype not in ITEM_BYTES:
        return {}
    wanted = min(sizes, key=lambda size: abs(size - part["asked_bytes"])) if sizes else part["asked_bytes"]
    item = ITEM_BYTES[dtype]
    return {"asked_bytes": wanted, "size_bytes": formulas.message_elements(wanted, place.ranks, item) * item}


def transfer(part: Part, place: Place) -> dict[str, Any]:
    """One size of a collective: bandwidths of the median time."""
    seconds, alone = p50(part), p50(part, "single")
    if seconds is None or "size_bytes" not in part:
        return {}
    expected = {"latency_us": seconds * 1e6}
    if alone is not None:  # older records do not have it
        expected["single_us"] = alone * 1e6
    if part.get("launch"):  # older records do not have its samples
        expected["launch_us"] = statistics.median(part["launch"]["seconds"]) * 1e6
    operation = next((word for word in re.split(r"[.\[]", place.where) if word in formulas.BUS_FACTORS), None)
    if operation and place.ranks > 1:
        expected["algbw_gb_per_s"] = formulas.algorithm_bandwidth(part["size_bytes"], seconds)
        bus = formulas.bus_bandwidth(operation, part["size_bytes"], seconds, place.ranks)
        expected["busbw_gb_per_s"] = bus or 0.0
    return expected


def fit(part: Part, place: Place) -> dict[str, Any]:
    """Of a sweep of sizes."""
    rows = part.get("rows")
    # older fits were of one piece
    if "pieces" not in (part.get("fit") or {}) or not rows or any("size_bytes" not in row for row in rows):
        return {}
    line = formulas.alpha_beta([row["size_bytes"] for row in rows], [p50(row) or 0.0 for row in rows])
    return {"fit": asdict(line) | {"valid": all(row["verdict"]["valid"] for row in rows)} if line else None}


def pairs(part: Part, place: Place) -> dict[str, Any]:
    """The matrix of bandwidths, from its samples, and the slow ones."""
    if "samples_s" not in part or "gb_per_s" not in part:
        return {}
    bandwidth = lambda samples: samples and formulas.algorithm_bandwidth(part["size_bytes"], statistics.median(samples))
    matrix = [[bandwidth(samples) for samples in row] for row in part["samples_s"]]
    return {"gb_per_s": matrix, "slow": outliers.slow_pairs(matrix, place.record["environment"]["ranks"])}


def exposed(part: Part, place: Place) -> dict[str, Any]:
    synced, unsynced = p50(part, "synced"), p50(part, "unsynced")
    if synced is None or unsynced is None:
        return {}
    return {"seconds": synced - unsynced, "share_of_passes": (synced - unsynced) / synced}


def doubling(part: Part, place: Place) -> dict[str, Any]:
    if p50(part, "once") is None or p50(part, "twice") is None:
        return {}
    return {"ratio": timing.percentile(_ratios(part), 50)}


def largest(part: Part, place: Place) -> dict[str, Any]:
    """The line through the memory of some batches, and the largest batch that it predicts."""
    if not part.get("fit") or "budget_bytes" not in part:
        return {}
    line = formulas.memory_fit(*zip(*((row["batch"], row["needed_bytes"]) for row in part["rows"]), strict=True))
    fit = {"intercept_bytes": line.intercept, "bytes_per_sample": line.slope, "r2": line.r2}
    return {"fit": fit, "predicted": formulas.largest_batch(line, part["budget_bytes"])}


def predicted(part: Part, place: Place) -> dict[str, Any]:
    """A time beside its prediction."""
    seconds, expected = p50(part), part.get("predicted_s")
    if seconds is None or "measured_s" not in part:
        return {}
    return {"measured_s": seconds} | ({"measured_over_predicted": seconds / expected} if expected else {})


def product(part: Part, place: Place) -> dict[str, Any]:
    """A matrix product of a shape."""
    seconds, shape = p50(part), part.get("shape")
    if seconds is None or not shape or part.get("unit") != "TFLOP/s":
        return {}
    m, n, k = shape
    return {"value": statistics.median([2 * m * n * k / 1e12 / s for s in part["timing"]["samples_s"]])}


def best(part: Part, place: Place) -> dict[str, Any]:
    """The fastest product of a sweep, and its share of the peak."""
    rows = part.get("rows")
    if not rows or "tflop_per_s" not in part.get("best", {}):
        return {}
    row = max(rows, key=lambda row: float(row["value"]))
    expected = {"shape": row["shape"], "tflop_per_s": row["value"]}
    return {"best": expected, "mfu": dict(part["mfu"]) | {"numerator_flops_per_s": row["value"] * 1e12}}


def sustained(part: Part, place: Place) -> dict[str, Any]:
    """The rate at the end over that at the beginning, of the rank that lost most."""
    if "end_over_beginning" not in part or not part.get("curves"):
        return {}
    seconds = [[1 / rate for rate in curve["tflop_per_s"]] for curve in part["curves"]]
    return {"end_over_beginning": min(map(timing.end_over_beginning, seconds))}


def training(part: Part, place: Place) -> dict[str, Any]:
    """Of each engine: the samples are those of the batch, the ranks and the steps; tokens and FLOPs are of a sample."""
    model = part.get("model")
    if not isinstance(model, dict) or "samples_per_rank" not in model:
        return {}
    expected = {}
    for engine in ("ddp", "fsdp"):
        run = part.get(engine) or {}
        if "samples" in run and "timing" in run:
            samples = model["samples_per_rank"] * place.ranks * len(run["timing"]["samples_s"])
            rates = formulas.throughput(samples, run["wall_s"], model["tokens_per_sample"], place.ranks)
            flops = model["training_flops_per_sample"] * samples / run["wall_s"]
            used = run["mfu"] | {"numerator_flops_per_s": flops}
            expected[engine] = run | {"samples": samples, **rates, "mfu": used}
    return expected


def scaling(part: Part, place: Place) -> dict[str, Any]:
    """Each point: all samples over all of the time, and relative to one rank."""
    rows, mode = part.get("rows"), part.get("mode")
    if not rows or mode not in ("weak", "strong") or any("wall_s" not in row for row in rows):
        return {}
    follows = []
    for row in rows:
        batch = row["samples_per_rank"] * row["ranks"]
        rate = batch * len(row["timing"]["samples_s"]) / row["wall_s"]
        follows.append(row | {"samples_per_step": batch, "samples_per_s": rate})
    return {"rows": [row | formulas.scaling_point(mode, row, follows[0]) for row in follows]}


def against(part: Part, place: Place) -> dict[str, Any]:
    """Rows that took turns: each relative to the others, in the median of the rounds; and the goals between them."""
    series = {name: samples for name, row in part.items() if (samples := _samples(row, "timing"))}
    ratio = lambda one, other: statistics.median(
        a / b for a, b in zip(series[one], series[other], strict=False)
    )  # fmt: skip
    expected: dict[str, Any] = {}
    for name in (name for name in series if isinstance(part[name].get("ratio"), dict)):
        expected[name] = part[name] | {"ratio": {other: ratio(name, other) for other in series}}
    if isinstance(part.get("goals"), list) and series:
        # a row that failed has no samples, and its goals no value
        expected["goals"] = [
            goal | (_reached(goal, part, ratio) if {goal["row"], goal["against"]} <= series.keys() else NOT_REACHED)
            for goal in part["goals"]
        ]
    return expected


#: of a goal that was not measured
NOT_REACHED = {"value": None, "reached": None}


def _reached(goal: Part, part: Part, ratio: Callable[[str, str], float]) -> dict[str, Any]:
    value, figure = goal["value"], goal.get("figure", "time")
    if figure == "time":
        value = ratio(goal["row"], goal["against"])
    elif figure in ("p50", "p99"):
        own, other = (_samples(part[goal[key]], "latency") for key in ("row", "against"))
        value = timing.percentile(own, float(figure[1:])) / timing.percentile(other, float(figure[1:]))
    return {"value": value, "reached": None if value is None else value <= goal["bound"]}


def _samples(row: Any, key: str) -> list[float]:
    return list((row.get(key) or {}).get("samples_s") or ()) if isinstance(row, dict) else []


#: bytes of an element of a message
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
#: suites whose MFU is that of all ranks together
OF_ALL_RANKS = {"distributed", "transformer"}
ROWS: Sequence[Callable[[Part, Place], dict[str, Any]]] = (
    summary, median, rate, mfu, energy, card, disk_rate, case, asked, transfer, fit, pairs, exposed, doubling,
    largest, predicted, product, best, sustained, training, scaling, against,
)  # fmt: skip


def facts(part: Part, place: Place) -> tuple[dict[str, Any], list[str]]:
    """The facts of a verdict that are in its part, and their rules."""
    config = place.record["config"]
    on_cpu = str(config.get("device_type")).lower() == "cpu"
    expected = {
        "wrong_elements": part.get("wrong_elements"),
        "efficiency": part.get("efficiency"),
        "cv": variation(part, place),
        "slow": slow(part),
        "doubling": doubling_fact(part, place),
    }
    if isinstance(part.get("mfu"), dict):
        expected["mfu"] = part["mfu"].get("mfu")
    if "gpu" in part and "processor" in part:  # of all that was measured together
        expected |= sampler.facts(part["gpu"], part["processor"] if on_cpu else None)
    if expected["cv"] is not None and place.record["suite"] == "distributed":
        expected["ranks_per_gpu"] = config.get("ranks_per_gpu")
    if "samples_per_s" in part and isinstance(part.get("loss"), float):
        expected["loss"] = part["loss"]
    known = {fact: value for fact, value in expected.items() if value is not None}
    return known, [rule.code for rule in verdict.RULES if rule.fact in known]


#: suite -> the timings of a part, over whose variation its verdict is
TIMINGS: Mapping[str, Callable[[Part], Sequence[Any]]] = {
    **dict.fromkeys(("distributed", "node", "transformer"), lambda part: [part.get("timing")]),
    **dict.fromkeys(("compilation_benchmark", "pytorch_baseline"), lambda part: [part.get("timing")]),
    **dict.fromkeys(("quick_benchmark", "auto_shard_benchmark"), lambda part: case_timings(part)),
    "checkpoints": lambda part: [part.get("write"), part.get("read")],
    "input_pipeline": lambda part: [part.get("resident"), part.get("loaded")],
}


def case_timings(part: Part) -> list[Any]:
    """Of a case of auto-sharding. Older records, without the load of the machine, judged all of it together only."""
    judged = ("compute", "together") if "processor" in part else ("together",)
    return [part[key].get("timing") for key in judged if key in part]


def variation(part: Part, place: Place) -> float | None:
    """Of the samples of a part: the largest one, of single steps."""
    suite = place.record["suite"]
    if suite == "distributed" and place.ranks == 1 and "wrong_elements" in part:  # nothing is moved
        return None
    if "unit" in part and "timing" not in part and isinstance(part.get("samples"), list):
        return timing.variation(part["samples"])
    variations = []
    for each in filter(None, TIMINGS.get(suite, lambda _: [])(part)):
        steps = each["steps_per_sample"] if suite == "transformer" else 1
        variations.append((timing.variation(each["samples_s"]) or 0.0) * math.sqrt(steps))
    return max(variations, default=None)


def slow(part: Part) -> list[str] | None:
    """Slow ranks or pairs; in a training they are those of the passes without exchange."""
    outlying = part["exposed"].get("slow") if isinstance(part.get("exposed"), dict) else part.get("slow")
    if isinstance(outlying, dict):
        return outliers.pair_words(outlying)
    return None if outlying is None else outliers.rank_words(outlying)


def doubling_fact(part: Part, place: Place) -> float | None:
    """The upper end of the interval, from the samples: what the record says of it could be edited."""
    if not isinstance(part.get("doubling"), dict) or not part["doubling"].get("interval_95"):
        return None
    interval = timing.median_interval(_ratios(part["doubling"]), place.record["config"].get("seed") or 0)
    return interval[1] if interval else None


def _ratios(part: Part) -> list[float]:
    """Of twice the batch over once, in each turn."""
    once, twice = (part[key]["timing"]["samples_s"] for key in ("once", "twice"))
    return [b / a for a, b in zip(once, twice, strict=True)]


def numbers(samples: Sequence[Any]) -> bool:
    """Whether these are samples, and not rows."""
    return all(isinstance(sample, int | float) for sample in samples)
