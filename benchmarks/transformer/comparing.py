"""Comparing result files: which ones are comparable, what differs between them, and the figures of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.core import audit, formulas, results, timing
from benchmarks.core.formulas import GIB
from benchmarks.core.ranks import BadInput
from benchmarks.transformer import measuring, model

SUITE = "transformer"
#: keys of the configuration that must be equal for two throughputs to be comparable
EQUAL = [
    *("d_model", "nhead", "num_encoder_layers", "num_decoder_layers", "dim_feedforward", "vocab_size", "seq_len"),
    *("precision", "compile", "global_batch_size", "num_samples", "data", "page_cache"),
]
#: keys that may change a figure but do not prevent a comparison
CONFIG_WARNS = ["batch_size", "epochs", "warmup_epochs", "warmup_steps", "seed", "num_shards", "nodes"]
#: keys that are equal in repeated runs, beside those
SAME_RUN = ["batch_size", "nodes", "num_shards"]
VERSION_WARNS = ["torch", "cuda", "nccl", "driver", "python", "git"]


class Unequal(BadInput):
    """The results are of different work."""


@dataclass(frozen=True)
class Result:
    name: str
    data: dict[str, Any]
    #: $ per hour of one GPU
    price: float | None = None
    #: the throughputs of all runs like this one, itself included
    runs: tuple[float, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        return dict(self.data["results"]["summary"])

    @property
    def device(self) -> str:
        return str(self.data["config"]["device"])

    @property
    def gpus(self) -> int:
        return int(self.data["world_size"])

    @property
    def throughput(self) -> float:
        return float(self.summary["samples_per_s"])

    @cached_property
    def interval(self) -> list[float] | None:
        """Between runs if there are three of them; otherwise within this one, which says nothing about another run."""
        between = timing.runs_interval(self.runs)
        if between is None:
            return timing.rate_interval(self.throughput, self.summary["timing"])
        return [min(between[0], self.throughput), max(between[1], self.throughput)]


def follows(data: dict[str, Any]) -> list[str]:
    """What in a record does not follow from its raw samples."""
    results, config = data["results"], data["config"]
    summary, epochs = results["summary"], list(results["epochs"].values())
    whole = measuring.totals(epochs, config["seq_len"], data["world_size"])
    samples = whole.pop("timing")["samples_s"]
    rate = model.training_flops(_sizes(config)) * whole["samples_per_s"]
    energy = summary.get("energy_j")
    whole["joules_per_sample"] = None if energy is None else formulas.joules_per_sample(energy, whole["samples"])
    ranks = results["memory"]["ranks"]
    whole["peak_memory_bytes"] = ranks[measuring.worst(ranks)["worst_rank"]]["peak_bytes"]
    return [
        *(line for number, e in results["epochs"].items() for line in _epoch(e, number, config["seq_len"])),
        *audit.differences(summary, {k: v for k, v in whole.items() if k in summary}, "results.summary"),
        *audit.differences(summary["timing"], timing.figures(samples), "results.summary.timing"),
        *audit.differences(summary["mfu"], {"numerator_flops_per_s": rate}, "results.summary.mfu"),
        *audit.problems(data),
    ]


def _epoch(e: dict[str, Any], number: str, seq_len: int) -> Iterator[str]:
    rate = e["samples"] / e["wall_s"]
    follows = {"samples_per_s": rate, "tokens_per_s": rate * 2 * seq_len, "steps": len(e["losses"])}
    yield from audit.differences(e, follows, f"results.epochs.{number}")


def _sizes(config: dict[str, Any]) -> model.Sizes:
    return model.Sizes(**{name: config[name] for name in model.Sizes.__dataclass_fields__})


# -- reading -------------------------------------------------------------------------------


def gather(paths: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """The results of files and folders, and why other files of the folders are left out. A named file must be valid."""
    results, skipped = [], []
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path}: no such file or folder")
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            try:
                results.append(read(file))
            except ValueError as error:
                if not path.is_dir():
                    raise BadInput(str(error)) from error
                skipped.append(f"left out: {error}")
    if not results:
        raise BadInput("\n".join([f"no finished result of benchmark.py in {', '.join(map(str, paths))}", *skipped]))
    return _repeated(_named(results)), skipped


def read(path: Path) -> Result:
    """``ValueError`` says why the file is not a result to compare."""
    try:
        data = results.load(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if data.get("suite") != SUITE:
        raise ValueError(f"{path}: a result of the suite {data.get('suite')!r}, not of {SUITE!r}")
    if data.get("status") != "complete":
        raise ValueError(f"{path}: the run is {data.get('status')}, not complete: {data.get('error')}")
    try:
        result = Result(path.stem, data)
        for column in COLUMNS:
            column.value(result, result)
        _ = [data["config"][key] for key in EQUAL]
        wrong = follows(data)
    except audit.MALFORMED as error:
        raise ValueError(f"{path}: not what benchmark.py writes: {type(error).__name__}: {error}") from error
    if wrong:
        raise ValueError(f"{path}: its figures do not follow from its samples: {wrong[0]}")
    return result


def _repeated(results: list[Result]) -> list[Result]:
    """Each result with the throughputs of all runs of the same work on the same hardware."""
    alike = lambda r: (r.device, r.gpus, *(r.data["config"].get(key) for key in ("engine", *EQUAL, *SAME_RUN)))
    return [replace(r, runs=tuple(other.throughput for other in results if alike(other) == alike(r))) for r in results]


def _named(results: list[Result]) -> list[Result]:
    """Refuse duplicates: a file named twice, or two files of one name from two folders, would be the same row twice.

    A copy under another name is no other run, and would narrow the interval between runs.
    """
    names = [result.name for result in results]
    double = next((name for name in names if names.count(name) > 1), None)
    if double:
        raise BadInput(f"{double}.json is given twice: give each result once, under a name of its own")
    originals: dict[str, str] = {}
    for result in results:
        original = originals.setdefault(audit.origin(result.data), result.name)
        if original != result.name:
            raise BadInput(f"{result.name}.json is a copy of {original}.json, with the same samples: give one of them")
    return results


# -- prices --------------------------------------------------------------------------------


def priced(results: list[Result], costs: Sequence[str]) -> list[Result]:
    """Prices by position, or as NAME=PRICE with a word of the recorded GPU's name, or a part of the result's name."""
    named = ["=" in cost for cost in costs]
    if any(named) and not all(named):
        raise BadInput(f"--cost {' '.join(costs)}: prices by position or all as NAME=PRICE, not both")
    prices = _by_name(results, costs) if any(named) else _by_position(results, costs)
    return [replace(result, price=prices[result.name]) for result in results]


def _by_position(results: list[Result], costs: Sequence[str]) -> dict[str, float | None]:
    if len(costs) != len(results):
        names = "\n  ".join(result.name for result in results)
        raise BadInput(
            f"--cost has {len(costs)} price(s) for {len(results)} result(s), which are in this order:\n  {names}"
        )
    return {result.name: _price(cost) for result, cost in zip(results, costs, strict=True)}


def _by_name(results: list[Result], costs: Sequence[str]) -> dict[str, float | None]:
    prices: dict[str, float | None] = dict.fromkeys((result.name for result in results), None)
    for cost in costs:
        part, _, price = cost.partition("=")
        hits = _hits(results, part)
        if not hits:
            devices = ", ".join(f"{result.name} ({result.device})" for result in results)
            raise BadInput(f"--cost {cost}: {part!r} is in none of the names: {devices}")
        other = next((name for name in hits if prices[name] is not None), None)
        if other:
            raise BadInput(f"--cost {cost}: {other} has a price already; give longer names")
        prices |= dict.fromkeys(hits, _price(price))
    return prices


def _hits(results: list[Result], part: str) -> list[str]:
    """The results of this name, else those on a GPU whose name has this word, else those with it in their name."""
    words = lambda result: re.split(r"[^A-Za-z0-9.]+", result.device.lower())
    rules: list[Callable[[Result], bool]] = [
        lambda result: result.name == part,
        lambda result: part.lower() in (*words(result), result.device.lower()),
        lambda result: part in result.name,
    ]
    found = ([result.name for result in results if rule(result)] for rule in rules) if part else iter(())
    return next((names for names in found if names), [])


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"--cost: {text!r} is no price; give $ for an hour of one GPU, for example 3.00")
    return value


# -- differences ---------------------------------------------------------------------------


def _differing(results: list[Result], part: str, keys: Sequence[str]) -> list[str]:
    lines = []
    for key in keys:
        values = [result.data[part].get(key) for result in results]
        if any(value != values[0] for value in values):
            values_text = "; ".join(f"{_format(v)} ({r.name})" for v, r in zip(values, results, strict=True))
            lines.append(f"{key} differs: {values_text}")
    return lines


def _format(value: Any) -> str:
    """A commit is shown in short form."""
    if isinstance(value, dict) and "commit" in value:
        return f"{value['commit'][:10]}{' and changes' if value.get('dirty') else ''}"
    return str(value)


def check(results: list[Result], allow: bool) -> list[str]:
    """Warnings; raises `Unequal` unless differences are allowed."""
    unequal = _differing(results, "config", EQUAL)
    if unequal and not allow:
        advice = "run them alike, or give --allow-different to compare all the same"
        raise Unequal("\n".join(["the results are not of the same work:", *(f"  {line}" for line in unequal), advice]))
    warned = [f"NOT THE SAME WORK: {line}" for line in unequal]
    others = [*_differing(results, "config", CONFIG_WARNS), *_differing(results, "environment", VERSION_WARNS)]
    return [*warned, *(f"warning: {line}" for line in others)]


# -- figures -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    title: str
    #: (a result, the first of all results) -> the cell
    value: Callable[[Result, Result], Any]


def _interval(result: Result, _: Result) -> str | None:
    interval = result.interval
    return f"{interval[0]:,.4g} – {interval[1]:,.4g}" if interval else None


def _ratio(result: Result, first: Result) -> str:
    """A throughput with a mark if the two intervals overlap: then they may be equal."""
    a, b = first.interval, result.interval
    same = result is not first and a and b and a[0] <= b[1] and b[0] <= a[1]
    return f"{result.throughput / first.throughput:.3f}{' ~' if same else ''}"


def _dollars(result: Result, _: Result) -> float | None:
    if result.price is None:
        return None
    return formulas.dollars_per_million(result.price * result.gpus, result.throughput)


def _break_even(result: Result, first: Result) -> float | None:
    if first.price is None:
        return None
    return formulas.break_even_price(first.price, first.throughput, first.gpus, result.throughput, result.gpus)


def _peak(result: Result, _: Result) -> float | None:
    peak = result.summary["peak_memory_bytes"]
    return None if peak is None else peak / GIB


def _verdict(result: Result, _: Result) -> str:
    verdict = result.data["verdict"]
    return (
        "valid" if verdict["valid"] else "NOT VALID: " + ", ".join(dict.fromkeys(r["code"] for r in verdict["reasons"]))
    )


COLUMNS = [
    Column("result", lambda r, _: r.name),
    Column("device", lambda r, _: r.device),
    Column("GPUs", lambda r, _: r.gpus),
    Column("engine", lambda r, _: r.data["config"]["engine"]),
    Column("wall s", lambda r, _: r.summary["wall_s"]),
    Column("samples/s", lambda r, _: r.throughput),
    Column("95 % interval", _interval),
    Column("runs", lambda r, _: len(r.runs) or 1),
    Column("against the first", _ratio),
    Column("samples/s a GPU", lambda r, _: r.throughput / r.gpus),
    Column("tokens/s", lambda r, _: float(r.summary["tokens_per_s"])),
    Column("step p50 ms", lambda r, _: r.summary["timing"]["p50_s"] * 1e3),
    Column("MFU %", lambda r, _: None if r.summary["mfu"]["mfu"] is None else r.summary["mfu"]["mfu"] * 100),
    Column("kernel resident %", lambda r, _: r.summary["kernel_resident_percent"]),
    Column("peak GiB", _peak),
    Column("J a sample", lambda r, _: r.summary["joules_per_sample"]),
    Column("$ a GPU-hour", lambda r, _: r.price),
    Column("$ a million samples", _dollars),
    Column("break-even $ a GPU-hour", _break_even),
    Column("verdict", _verdict),
]


def table(results: list[Result]) -> list[list[Any]]:
    return [[column.value(result, results[0]) for column in COLUMNS] for result in results]
