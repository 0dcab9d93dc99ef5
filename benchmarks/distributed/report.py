"""The record as tables, on the screen and in a file beside it, and as plots."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.core import plots, results, tables
from benchmarks.core.formulas import GIB
from benchmarks.distributed.operations import COLLECTIVES, IN_PLACE, OUT_OF_PLACE, TRANSFERS

Part = dict[str, Any]
Table = tuple[str, list[str], list[list[Any]]]
MIB = 2**20
#: in the table
PLACES = {IN_PLACE: "in", OUT_OF_PLACE: "out"}
TITLE = "Communication back to back, as nccl-tests; single: one at a time, from an idle device (GB = 1e9 bytes)"


def size(count: float | None) -> str:
    """Bytes in powers of two."""
    if count is None:
        return "–"
    units = [(GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")]
    scale, unit = next(((s, u) for s, u in units if abs(count) >= s), (1, "B"))
    return f"{count / scale:.4g} {unit}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


# -- tables --------------------------------------------------------------------------------


def communication(part: Part) -> Iterator[Table]:
    columns = [
        *("operation", "place", "size", "p50 us", "p95 us", "CV", "single us", "launch us"),
        *("algbw GB/s", "busbw GB/s", "wrong", "algorithm"),
    ]
    swept = [name for name in [*COLLECTIVES, *TRANSFERS] if "rows" in part.get(name, {})]
    yield TITLE, columns, [_comm_row(name, r) for name in swept for row in part[name]["rows"] for r in ways(row)]
    columns = ["operation", "alpha us", "beta GB/s", "half of it at", "R2", "pieces", "valid"]
    yield "t = alpha + S/beta", columns, [_fit_row(name, part[name]["fit"]) for name in swept if part[name]["fit"]]
    if "gb_per_s" in part.get("pairs", {}):
        rows = [[f"from {a}", *row] for a, row in enumerate(part["pairs"]["gb_per_s"])]
        columns = ["", *(f"to {b}" for b in range(len(rows)))]
        yield f"One way between each two ranks, {size(part['pairs']['size_bytes'])}, GB/s", columns, rows

    keys = ("operation", "expected_gb_per_s", "measured_gb_per_s", "ratio", "source")
    rows = [[row[key] for key in keys] for row in part.get("expected", [])]
    yield "Bus bandwidth", ["operation", "expected GB/s", "measured GB/s", "ratio", "source of the expected"], rows


def ways(row: Part) -> Iterator[Part]:
    """The row in each way in which it was measured: in place, out of place."""
    yield row
    for key in ("in_place", "out_of_place"):
        if key in row:
            yield row[key] | {"buffers": key.replace("_", " "), "algorithm": row["algorithm"]}


def _comm_row(name: str, row: Part) -> list[Any]:
    time = row["timing"]
    times = [row["latency_us"], time["p95_s"] * 1e6, percent(time["cv"]), row["single_us"], row["launch_us"]]
    bandwidths = [row["algbw_gb_per_s"], row["busbw_gb_per_s"]]
    return [
        name,
        PLACES.get(row.get("buffers", ""), "–"),
        size(row["size_bytes"]),
        *times,
        *bandwidths,
        row["wrong_elements"],
        row["algorithm"],
    ]


def _fit_row(name: str, fit: Part) -> list[Any]:
    alpha, beta = fit["alpha_s"], fit["beta_bytes_per_s"]
    figures = [alpha and alpha * 1e6, beta and beta / 1e9, size(fit["half_bandwidth_bytes"]), fit["r2"]]
    return [name, *figures, len(fit["pieces"]), fit["valid"]]


def training(part: Part) -> Iterator[Table]:
    model = part["model"]
    engines = [name for name in ("ddp", "fsdp") if name in part]
    title = f"Training {model['name']}: {model['parameters']:,} parameters, {model['samples_per_rank']} samples a rank"
    columns = ["", *engines]
    rows = {
        "samples/s": lambda e: e["samples_per_s"],
        "samples/s a rank": lambda e: e["samples_per_s_per_rank"],
        "tokens/s": lambda e: e["tokens_per_s"],
        "step p50 ms": lambda e: e["timing"]["p50_s"] * 1e3,
        "step p95 ms": lambda e: e["timing"]["p95_s"] * 1e3,
        "step CV": lambda e: percent(e["timing"]["cv"]),
        "waiting for data": lambda e: percent(e["data_wait_share"]),
        "exposed communication ms": lambda e: e["exposed"] and e["exposed"]["seconds"] * 1e3,
        "exposed share of passes": lambda e: percent(e["exposed"] and e["exposed"]["share_of_passes"]),
        "peak memory, worst rank": lambda e: size(e["peak_memory_bytes"]),
        "J/sample": lambda e: e["joules_per_sample"],
        "model TFLOP/s": lambda e: e["mfu"]["numerator_flops_per_s"] / 1e12,
        "dense peak TFLOP/s": lambda e: (e["mfu"]["denominator_flops_per_s"] or 0) / 1e12 or None,
        "MFU": lambda e: percent(e["mfu"]["mfu"]),
    }
    yield title, columns, [[name, *(read(part[e]) for e in engines)] for name, read in rows.items()]
    reduced = part.get("gradient_allreduce", {})
    if "measured_s" in reduced:
        predicted = reduced["predicted_s"] and reduced["predicted_s"] * 1e3
        row = [size(reduced["bytes"]), predicted, reduced["measured_s"] * 1e3, reduced["measured_over_predicted"]]
        yield "All-reduce of the gradients", ["bytes", "predicted ms", "measured ms", "measured/predicted"], [row]


def memory(part: Part) -> Iterator[Table]:
    engines = [name for name in ("ddp", "fsdp") if name in part]
    keys = ["parameters", "gradients", "optimizer_state", "activations", "at_rest"]
    columns = ["worst rank", *(f"{e} {kind}" for e in engines for kind in ("read", "counted"))]
    worst = {e: part[e]["worst_rank"] for e in engines}
    pair = lambda e, key: [size(worst[e][f"{kind}_bytes"].get(key)) for kind in ("split", "counted")]
    yield (
        f"Memory (read: {part[engines[0]]['source']})",
        columns,
        [[key, *(text for e in engines for text in pair(e, key))] for key in keys],
    )
    best = part.get("largest_batch", {})
    rows = [[row["batch"], size(row["peak_bytes"]), size(row["needed_bytes"])] for row in best.get("rows", [])]
    yield "Peak by batch", ["batch", "held by tensors", "needed, gaps included"], rows
    if "predicted" in best:
        words = ["budget", "predicted", "ran", "as predicted"]
        yield "Largest batch", words, [[size(best["budget_bytes"]), best["predicted"], best["ran"], best["verified"]]]


def scaling(part: Part) -> Iterator[Table]:
    columns = ["mode", "ranks", "samples a rank", "samples/s", "step p50 ms", "efficiency", "label", "Karp-Flatt"]
    rows = [
        [mode, r["ranks"], r["samples_per_rank"], r["samples_per_s"], r["timing"]["p50_s"] * 1e3,
         percent(r["efficiency"]), r["label"], r["karp_flatt"]]
        for mode in ("weak", "strong") for r in part.get(mode, {}).get("rows", [])
    ]  # fmt: skip
    yield "Scaling", columns, rows


def replay(part: Part) -> Iterator[Table]:
    columns = ["step", "operation", "dtype", "ranks", "count", "bytes", "step p50 ms", "CV", "wrong"]
    rows: list[list[Any]] = []
    for name, step in part.items():
        if isinstance(step, dict) and "by_operation" in step:
            time = step["timing"]
            figures = [time["p50_s"] * 1e3, percent(time["cv"]), step["wrong_elements"]]
            rows.append([name, "all", "", "", step["collectives"], size(step["bytes"]), *figures])
            kinds = [[o["op"], o["dtype"], o["ranks"], o["count"], size(o["bytes"])] for o in step["by_operation"]]
            rows += [["", *kind, "", "", ""] for kind in kinds]
    yield f"Replay of the collectives of a step ({part['source']})", columns, rows


TABLES: dict[str, Callable[[Part], Iterator[Table]]] = {
    "communication": communication,
    "training": training,
    "memory": memory,
    "scaling": scaling,
    "replay": replay,
}


# -- plots ---------------------------------------------------------------------------------


def plot_communication(part: Part, stem: str) -> None:
    swept = {name: part[name]["rows"] for name in [*COLLECTIVES, *TRANSFERS] if "rows" in part.get(name, {})}
    xs = lambda rows: [row["size_bytes"] for row in rows]
    bus = {name: (xs(rows), [row["busbw_gb_per_s"] for row in rows]) for name, rows in swept.items()}
    times = {name: (xs(rows), [row["latency_us"] for row in rows]) for name, rows in swept.items()}
    path = pathlib.Path(f"{stem}_latency.png")
    plots.lines(path, "Median time", "bytes", "us", times, logx=True, logy=True)
    if "gb_per_s" in part.get("pairs", {}):
        plots.lines(pathlib.Path(f"{stem}_bandwidth.png"), "Bus bandwidth", "bytes", "GB/s", bus, logx=True)
        title = f"One way, {size(part['pairs']['size_bytes'])}, GB/s"
        plots.matrix(pathlib.Path(f"{stem}_pairs.png"), title, "to", "from", part["pairs"]["gb_per_s"])


def plot_training(part: Part, stem: str) -> None:
    series = {e: part[e]["timing"]["samples_s"] for e in ("ddp", "fsdp") if e in part}
    steps = {e: (list(range(len(s))), [value * 1e3 for value in s]) for e, s in series.items()}
    plots.lines(pathlib.Path(f"{stem}_steps.png"), "Training steps, slowest rank", "step", "ms", steps)


def plot_memory(part: Part, stem: str) -> None:
    engines = [e for e in ("ddp", "fsdp") if e in part]
    keys = ["parameters", "gradients", "optimizer_state", "activations"]
    stacks = {key: [part[e]["worst_rank"]["counted_bytes"][key] / MIB for e in engines] for key in keys}
    plots.bars(pathlib.Path(f"{stem}_memory.png"), "Memory of the worst rank, counted", "MiB", engines, stacks)


def plot_scaling(part: Part, stem: str) -> None:
    rows = {mode: part[mode]["rows"] for mode in ("weak", "strong") if mode in part}
    lines = {mode: ([r["ranks"] for r in rs], [100 * r["efficiency"] for r in rs]) for mode, rs in rows.items()}
    plots.lines(pathlib.Path(f"{stem}_scaling.png"), "Scaling efficiency", "ranks", "%", lines)


def plot_nothing(part: Part, stem: str) -> None:
    pass


PLOTS: dict[str, Callable[[Part, str], None]] = {
    "communication": plot_communication,
    "training": plot_training,
    "memory": plot_memory,
    "scaling": plot_scaling,
    "replay": plot_nothing,
}


def write(record: results.Record) -> None:
    """Write everything beside the record's file, and show the tables on the screen."""
    parts = record.data["results"]
    texts = []
    for name, part in parts.items():
        PLOTS[name](part, str(record.path.with_suffix("")))
        for title, columns, rows in (table for table in TABLES[name](part) if table[2]):
            tables.show(title, columns, rows)
            texts.append(tables.render(title, columns, rows))
    lines = tables.verdict_lines(record.data["verdict"])
    wrong = results.problems(record.data)
    lines += [f"the record breaks its schema: {problem}" for problem in wrong or []]
    results.beside(record.path.with_suffix(".txt"), lambda to: to.write_text("\n".join([*texts, *lines, ""])))
    print("\n".join([*lines, f"written: {record.path}"]), flush=True)
