"""The output on the screen: a line as soon as a case is complete, the comparison, and the summary."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.autoshard.cases import GROUPS, Case
from benchmarks.core.formulas import geometric_mean

WIDTH = 84
#: the results of one case: number of workers -> its record
Results = Mapping[int, Mapping[str, Any]]
#: what is compared: a title, the key of its seconds, the key of its TFLOPS
VIEWS = {
    "together": ("creation, compute and retrieval together", "tflops"),
    "compute": ("compute alone", "compute_tflops"),
}


def device_word(count: int, device: str) -> str:
    """``1 GPU``, ``8 GPUs``, ``2 CPUs``."""
    return f"{count} {device}{'s' if count != 1 else ''}"


def seconds(value: float) -> str:
    return f"{value:.3f}s" if value >= 0.1 else f"{value:.5f}s"


def tflops(value: float) -> str:
    return f"{value:.1f} TF" if value >= 10 else f"{value:.4f} TF"


def figure(result: Mapping[str, Any], view: str = "together") -> str:
    return f"{seconds(taken(result, view))} ({tflops(result[VIEWS[view][1]])})"


def taken(result: Mapping[str, Any], view: str) -> float:
    """The median, in seconds."""
    return float(result[view]["timing"]["p50_s"])


def speedups(results: Results, view: str = "together") -> dict[int, float]:
    """The speedup relative to the smallest number of workers with figures."""
    first, *rest = sorted(results)
    return {n: taken(results[first], view) / taken(results[n], view) for n in rest}


def heading(number: int, group: str) -> str:
    return f"\nBENCHMARK {number}: {GROUPS[group][0]}\n---"


def live(case: Case, results: Results, device: str) -> str:
    """Print the line of a case and its speedup, as soon as it is complete."""
    cells = [f"{device_word(n, device)}: {figure(results[n])}" for n in sorted(results)]
    return "\n".join(_pair(case.name, cells, results, "together"))


def _pair(name: str, cells: Sequence[str], results: Results, view: str, width: int = 0) -> list[str]:
    gained = ["baseline", *(f"{s:.2f}x" for s in speedups(results, view).values())]
    width_of_names = max(len(name), len("Speedup:"), width)
    row = [f"{name:{width_of_names}} | " + " | ".join(cells)]
    if len(cells) > 1:
        padded = [f"{text:{len(cell)}}" for text, cell in zip(gained, cells, strict=True)]
        row.append((f"{'Speedup:':{width_of_names}} | " + " | ".join(padded)).rstrip())
    return row


def comparison(rows: Sequence[tuple[Case, Results]], device: str, view: str = "together") -> str:
    lines = ["=" * WIDTH, f"PERFORMANCE COMPARISON: {VIEWS[view][0]}", "=" * WIDTH]
    for group, (title, head) in GROUPS.items():
        group_rows = [(case, results) for case, results in rows if case.group == group]
        if group_rows:
            lines += ["", f"--- {title} ---", *_table(head, group_rows, device, view)]
    return "\n".join(lines)


def _table(head: str, rows: Sequence[tuple[Case, Results]], device: str, view: str) -> list[str]:
    width_of_names = max(len(head), len("Speedup:"), *(len(case.name) for case, _ in rows))
    counts = sorted(rows[0][1])
    column = max(len(figure(results[n], view)) for _, results in rows for n in counts)
    heads = [f"{device_word(n, device):{column}}" for n in counts]
    lines = [f"{head:{width_of_names}} | {' | '.join(heads)}".rstrip(), "-" * (WIDTH - 4)]
    for case, results in rows:
        cells = [f"{figure(results[n], view):>{column}}" for n in counts]
        lines += _pair(case.name, cells, results, view, width_of_names)
    return lines


def summary(rows: Sequence[tuple[Case, Results]]) -> dict[str, Any]:
    """The speedups of each number of workers over all cases: means, minimum and maximum."""
    return {view: _gains([speedups(results, view) for _, results in rows]) for view in VIEWS}


def _gains(speedups_by_case: Sequence[Mapping[int, float]]) -> dict[str, Any]:
    means: dict[str, Callable[[Sequence[float]], float]] = {
        "geometric_mean": geometric_mean,
        "arithmetic_mean": statistics.fmean,
        "min": min,
        "max": max,
    }
    return {
        str(n): {name: of([gains[n] for gains in speedups_by_case]) for name, of in means.items()}
        for n in speedups_by_case[0]
    }


def summary_text(summed: Mapping[str, Any], counts: Sequence[int], device: str) -> str:
    lines = ["=" * WIDTH, "SUMMARY", "=" * WIDTH]
    if len(counts) < 2:
        return "\n".join(
            [*lines, "", f"Only {device_word(counts[0], device)} measured: no speedup; give --gpus 1 too."]
        )
    for n in sorted(counts)[1:]:
        lines += ["", f"{device_word(n, device)} vs {device_word(min(counts), device)}:"]
        for view, (title, _) in VIEWS.items():
            gains = summed[view][str(n)]
            lines += [
                f"  {title}:",
                f"    Average speedup: {gains['geometric_mean']:.2f}x (geometric mean;"
                f" arithmetic {gains['arithmetic_mean']:.2f}x)",
                f"    Min speedup: {gains['min']:.2f}x",
                f"    Max speedup: {gains['max']:.2f}x",
            ]
    return "\n".join(lines)


#: group -> the band of its speedup on 8 GPUs against 1, and why
BANDS = {
    "square": ((4.0, 6.0), "partial scaling: the second operand is gathered at its first use"),
    "batch": ((7.0, 8.0), "linear scaling: a large batch is divided"),
    "mlp": ((7.0, 8.0), "linear scaling: a large batch is divided, the weights are replicated"),
}
#: below this the band is one of small operations
BAND_OF_SMALL = ((1.0, 2.0), "limited scaling: too small to benefit")
SMALL_FLOPS = 2 * 4096**3
EXPECTED = ("case", "expected", "measured", "ratio to the middle", "source: documented for 8 GPUs")


def expected(rows: Sequence[tuple[Case, Results]], device: str) -> list[list[Any]]:
    """The documented band of each case on 8 GPUs, the measured speedup, and its ratio to the middle of the band."""
    lines = []
    for case, results in rows:
        if device == "GPU" and {1, 8} <= set(results):
            (low, high), why = BAND_OF_SMALL if case.flops < SMALL_FLOPS else BANDS[case.group]
            gained = taken(results[1], "together") / taken(results[8], "together")
            lines.append([case.name, f"{low:g} – {high:g}x", f"{gained:.2f}x", gained / ((low + high) / 2), why])
    return lines


def parts(rows: Sequence[tuple[Case, Results]]) -> list[list[Any]]:
    """One row per case and number of workers: the median seconds of each part."""
    keys = ("create", "compute", "retrieve", "together", "barrier")
    return [
        [case.name, n, *(taken(results[n], key) for key in keys), results[n]["tflops"], results[n]["compute_tflops"]]
        for case, results in rows
        for n in sorted(results)
    ]


PARTS = ("case", "workers", "create s", "compute s", "retrieve s", "together s", "barrier s", "TFLOPS", "of compute")
