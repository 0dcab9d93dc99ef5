"""The parts in turn, each with a record of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.core import environment, outliers, plots, ranks, results, tables, verdict
from benchmarks.core.ranks import Guard, World
from benchmarks.core.sampler import Watch
from benchmarks.node import host_link, memory, products, sustained

#: name -> (world, put, quick)
PARTS: dict[str, Callable[[World, Callable[..., None], bool], None]] = {
    "products": products.run,
    "memory": memory.run,
    "host_link": host_link.run,
    "sustained": sustained.run,
}


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser("benchmarks.node", description=__doc__)
    command_line.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    command_line.add_argument("--quick", action="store_true", help="small sizes, for a first look")
    command_line.add_argument("--output-dir", default="./results")
    return command_line


def main(guard: Guard, words: Sequence[str] | None = None) -> int:
    options = parser().parse_args(sys.argv[1:] if words is None else words)
    world = guard.world = ranks.start()
    for name in options.parts:
        record = start_record(world, name, options) if world.first else None
        if record:
            guard.close = record.finish
        measure(world, name, options.quick, record)
        if record:
            record.finish()
            show(name, record)
        world.gather(None)
    return ranks.DONE


def measure(world: World, name: str, quick: bool, record: results.Record | None) -> None:
    part: dict[str, Any] = {}

    def put(key: str, value: Any) -> None:
        part[key] = value
        if record:
            record.put(name, key, value=value)

    with Watch(world) as watch:
        PARTS[name](world, put, quick)
    if "skipped" in part:  # nothing was measured that the machine could disturb
        put("verdict", verdict.together([]))
        return
    if name == "sustained":
        put("gpu_curves", watch.curves or {"skipped": "clock, power and temperature are read from a GPU, by NVML"})
    put("gpu", watch.cards)
    put("processor", watch.processor)
    machine = verdict.judge(watch.facts(), verdict.MACHINE[world.device.type], name)
    put("verdict", verdict.together([machine, *results.verdicts(part)]))


def start_record(world: World, name: str, options: argparse.Namespace) -> results.Record:
    kind = "gpu" if world.device.type == "cuda" else "cpu"
    config = {
        "device": environment.device_name(world.device),
        "device_type": world.device.type,
        "nodes": world.nodes(),
        "ranks_per_gpu": world.ranks_per_gpu(),
        "part": name,
        "quick": options.quick,
    }
    return results.Record(
        options.output_dir,
        suite="node",
        name=f"{name}_{world.size}{kind}",
        world_size=world.size,
        config=config,
        environment=environment.record({}) | {"ranks": outliers.described(world.members)},
    )


# -- on the screen -------------------------------------------------------------------------


def show(name: str, record: results.Record) -> None:
    part = record.data["results"][name]
    rows = [[row["name"], row["value"], row["unit"], max(r["value"] for r in row["by_rank"])] for row in figures(part)]
    if rows:
        tables.show(name.replace("_", " "), ["", "slowest rank", "", "fastest rank"], rows)
    skipped = [
        f"{key}: {value['skipped']}" for key, value in part.items() if isinstance(value, dict) and "skipped" in value
    ]
    if "skipped" in part:
        skipped.append(f"{name}: {part['skipped']}")
    if name == "sustained":
        draw(part, record)
    lines = [*skipped, *tables.verdict_lines(record.data["verdict"]), f"written: {record.path}"]
    print("\n".join(lines), flush=True)


def figures(part: Any) -> list[dict[str, Any]]:
    """All rows of a part, at any depth."""
    if isinstance(part, dict):
        return [part] if "by_rank" in part else [row for value in part.values() for row in figures(value)]
    return [row for value in part for row in figures(value)] if isinstance(part, list) else []


def draw(part: dict[str, Any], record: results.Record) -> None:
    """The curves beside the record: the rate of each rank, and the clock, power and temperature of each card."""
    draws = {"rate": ("TFLOP/s", {f"rank {c['rank']}": (c["seconds"], c["tflop_per_s"]) for c in part["curves"]})}
    cards = part["gpu_curves"] if isinstance(part["gpu_curves"], list) else []
    for key, unit in (("sm_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "°C")) if cards else ():
        draws[key] = (unit, {card["uuid"]: (card["seconds"], card[key]) for card in cards})
    for key, (unit, series) in draws.items():
        path = record.path.with_name(f"{record.path.stem}_{key}.png")
        plots.lines(path, f"Sustained: {key.replace('_', ' ')}", "seconds", unit, series)
