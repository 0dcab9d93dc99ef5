"""``simulate.py --scale``: the figures of `scale` and `connections`, as tables and a record."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.core import environment, results, tables
from benchmarks.simulation.connections import raise_file_limit
from benchmarks.simulation.scale import STEP_S, in_new_process

#: The most that the control plane may take of a step in replay, with these numbers of workers.
GOAL, GOAL_WORKERS = 0.02, (8, 64)
CORE_COLUMNS = ("workers", "join s", "MB", "cold ms", "cold", "replay ms", "replay", "messages", "confirmations")
SERVER_COLUMNS = ("workers", "join s", "MB", "files", "opening s", "step ms", "of it main", "share", "confirmations")
LEGEND = f"""  processor time of the dispatcher; shares are of a step of {STEP_S * 1e3:g} ms; cold: the first step;
  MB: memory that the workers and the program added
"""


def core_cells(row: dict[str, Any]) -> list[Any]:
    megabytes = round(row["running_bytes"] / 1e6, 1)
    cold, replay = row["cold_s"], row["replay_s"]
    shares = [cold * 1e3, f"{cold / STEP_S:.0%}", replay * 1e3, f"{row['replay_share']:.1%}"]
    return [row["workers"], row["join_s"], megabytes, *shares, row["replay_messages"], row["confirmations"]]


def server_cells(row: dict[str, Any]) -> list[Any]:
    megabytes = round(row["running_bytes"] / 1e6, 1)
    times = [row["opening_s"], row["step_s"] * 1e3, row["step_main_thread_s"] * 1e3, f"{row['step_share']:.0%}"]
    return [row["workers"], row["join_s"], megabytes, row["descriptors"], *times, round(row["confirmations"])]


def run(options: argparse.Namespace) -> int:
    raise_file_limit(max(options.connections, default=0))
    record = results.Record(
        options.output_dir,
        suite="simulate",
        name="scale",
        world_size=1,
        config={"device": "simulated", "workload": "mini-gpt", "step_s": STEP_S, "rounds": options.rounds},
        environment=environment.record({"gt": 0}),
    )
    core = []
    for workers in options.scale:
        core.append(in_new_process("benchmarks.simulation.scale", workers, options.rounds))
        record.put("core", str(workers), value=core[-1])
    tables.show("The dispatcher's core, Mini-GPT data parallel", CORE_COLUMNS, [core_cells(row) for row in core])
    servers = []
    for workers in options.connections:
        servers.append(in_new_process("benchmarks.simulation.connections", workers, options.rounds))
        record.put("connections", str(workers), value=servers[-1])
    if servers:
        tables.show(
            "A server process, one TCP connection per worker", SERVER_COLUMNS, [server_cells(row) for row in servers]
        )
    print(LEGEND)
    for row in (row for row in core if row["workers"] in GOAL_WORKERS):
        verb = "is within" if row["replay_share"] <= GOAL else "misses"
        print(
            f"  {row['workers']} workers: {row['replay_share']:.1%} of a step in replay {verb} the goal of {GOAL:.0%}"
        )
    record.finish()
    print(f"record: {record.path}")
    return 0
