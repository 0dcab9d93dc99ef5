"""Comparing result files: which ones are comparable, what differs between them, and the figures of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core import formulas, results
from benchmarks.core.formulas import GIB
from benchmarks.core.ranks import BadInput
from benchmarks.transformer.measuring import throughput_interval

SUITE = "transformer"
#: keys of the configuration that must be equal for two throughputs to be comparable
EQUAL = [
    *("d_model", "nhead", "num_encoder_layers", "num_decoder_layers", "dim_feedforward", "vocab_size", "seq_len"),
    *("precision", "compile", "global_batch_size", "num_samples", "data", "page_cache"),
]
#: keys that may change a figure but do not prevent a comparison
CONFIG_WARNS = ["batch_size", "epochs", "warmup_epochs", "warmup_steps", "seed", "num_shards", "nodes"]
VERSION_WARNS = ["torch", "cuda", "nccl", "driver", "python", "git"]


class Unequal(BadInput):
    """The results are of different work."""


@dataclass(frozen=True)
class Result:
    name: str
    data: dict[str, Any]
    #: $ per hour of one GPU
    price: float | None = None

    @property
    def summary(self) -> dict[str, Any]:
        return dict(self.data["results"]["summary"])

    @property
    def gpus(self) -> int:
        return int(self.data["world_size"])

    @property
    def throughput(self) -> float:
        return float(self.summary["samples_per_s"])

    @property
    def interval(self) -> list[float] | None:
        """From the raw samples, so that records of every version are treated alike."""
        return throughput_interval(self.throughput, self.summary["timing"])


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
    return _named(results), skipped


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
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path}: not what benchmark.py writes: {type(error).__name__}: {error}") from error
    return result


def _named(results: list[Result]) -> list[Result]:
    """Refuse duplicates: a file named twice, or two files of one name from two folders, would be the same row twice."""
    names = [result.name for result in results]
    double = next((name for name in names if names.count(name) > 1), None)
    if double:
        raise BadInput(f"{double}.json is given twice: give each result once, under a name of its own")
    return results


# -- prices --------------------------------------------------------------------------------


def priced(results: list[Result], costs: Sequence[str]) -> list[Result]:
    """Prices by position, or as NAME=PRICE with a part of the result's name."""
    named = ["=" in cost for cost in costs]
    if any(named) and not all(named):
        raise BadInput(f"--cost {' '.join(costs)}: prices by position or all as NAME=PRICE, not both")
    prices = _by_name(results, costs) if any(named) else _by_position(results, costs)
    return [Result(result.name, result.data, prices[result.name]) for result in results]


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
        hits = [name for name in prices if name == part] or [name for name in prices if part and part in name]
        if not hits:
            raise BadInput(f"--cost {cost}: {part!r} is in none of the names: {', '.join(prices)}")
        other = next((name for name in hits if prices[name] is not None), None)
        if other:
            raise BadInput(f"--cost {cost}: {other} has a price already; give longer names")
        prices |= dict.fromkeys(hits, _price(price))
    return prices


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
    Column("device", lambda r, _: r.data["config"]["device"]),
    Column("GPUs", lambda r, _: r.gpus),
    Column("engine", lambda r, _: r.data["config"]["engine"]),
    Column("samples/s", lambda r, _: r.throughput),
    Column("95 % interval", _interval),
    Column("against the first", _ratio),
    Column("samples/s a GPU", lambda r, _: r.throughput / r.gpus),
    Column("tokens/s", lambda r, _: float(r.summary["tokens_per_s"])),
    Column("step p50 ms", lambda r, _: r.summary["timing"]["p50_s"] * 1e3),
    Column("MFU %", lambda r, _: None if r.summary["mfu"]["mfu"] is None else r.summary["mfu"]["mfu"] * 100),
    Column("peak GiB", _peak),
    Column("J a sample", lambda r, _: r.summary["joules_per_sample"]),
    Column("$ a GPU-hour", lambda r, _: r.price),
    Column("$ a million samples", _dollars),
    Column("break-even $ a GPU-hour", _break_even),
    Column("verdict", _verdict),
]


def table(results: list[Result]) -> list[list[Any]]:
    return [[column.value(result, results[0]) for column in COLUMNS] for result in results]
