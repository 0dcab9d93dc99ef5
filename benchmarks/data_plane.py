"""Collectives through the data plane against bare torch.distributed: ``python benchmarks/data_plane.py [--size MIB…]``

Workers on this machine run the two in turns. The lower quartile of the rounds is shown, because the machine may be busy
with other work; a ratio of 1 means that the plane adds no time. With ``--backend nccl`` each worker uses its own GPU,
or they share one if GT_NCCL_SHARED is set.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import select
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gt.version import VERSION
from gt.worker.collectives.processes import ProcessPlane

now = time.perf_counter
GOAL = 1.15
#: torch is renaming these classes
ALL_GATHER, REDUCE_SCATTER = (
    getattr(dist, new, None) or getattr(dist, old)
    for new, old in (
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter_tensor"),
    )
)


class Side:
    """One worker: its plane and torch's world, with the same members."""

    def __init__(self, rank: int, size: int, backend: str, pipe: Any) -> None:
        torch.set_num_threads(1)
        self.rank, self.size = rank, size
        self.device = "cpu"
        if backend == "nccl":
            self.device = f"cuda:{0 if os.environ.get('GT_NCCL_SHARED') else rank}"
            torch.cuda.set_device(self.device)
        self.plane = ProcessPlane(device=self.device)
        self.plane.admit(b"the members' secret")
        pipe.send(self.plane.address)
        store, world = pipe.recv()
        self.plane.join(1, tuple(range(size)), rank, store, backend)
        self.poll = select.poll()
        self.poll.register(self.plane.wake_fd(), select.POLLIN)
        self.fly("all_reduce", torch.ones(1, device=self.device), {"op": "sum"})
        dist.init_process_group(backend, init_method=world, rank=rank, world_size=size)

    def fly(self, kind: str, x: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
        flight = self.plane.start(1, kind, x, how)
        while not flight.done():
            self.poll.poll()
            self.plane.drain()
        result = flight.result()
        self.settle()
        return result

    def settle(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def acts(self, count: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
        """name -> the collective through the plane, and the bare one"""
        n, rows = self.size, max(1, count // self.size)
        x, block, whole = (torch.zeros(k, device=self.device) for k in (count, rows, rows * n))
        even, uneven = (rows,) * n, (rows + 1, *[rows] * (n - 1))
        odd = torch.zeros(uneven[self.rank], device=self.device)
        into, part = torch.empty_like(whole), torch.empty_like(block)
        scatter = {"dim": 0, "sizes": even, "op": "sum"}
        bare: Callable[..., Callable[[], Any]] = lambda act, *arguments: lambda: (act(*arguments), self.settle())
        fly: Callable[..., Callable[[], Any]] = lambda *arguments: lambda: self.fly(*arguments)
        gather = bare(ALL_GATHER, into, block)
        reduce = bare(dist.all_reduce, x)
        return {
            "all_reduce in place": (fly("all_reduce", x, {"op": "sum", "overwrite": True}), reduce),
            "all_reduce to a new array": (fly("all_reduce", x, {"op": "sum", "overwrite": False}), reduce),
            "all_gather": (fly("all_gather", block, {"dim": 0, "sizes": even}), gather),
            "all_gather, uneven": (fly("all_gather", odd, {"dim": 0, "sizes": uneven}), gather),
            "reduce_scatter": (fly("reduce_scatter", whole, scatter), bare(REDUCE_SCATTER, part, whole)),
        }


def side(rank: int, options: argparse.Namespace, pipe: Any) -> None:
    member = Side(rank, options.workers, options.backend, pipe)
    rows = []
    for mib in options.size:
        count = max(1, int(mib * 2**20) // 4)
        rounds = options.rounds or (400 if count < 2**14 else 40)
        for name, (plane, bare) in member.acts(count).items():
            seconds: tuple[list[float], list[float]] = [], []
            for turn in range(2 * rounds + 4):
                dist.barrier()  # otherwise a delay on one side would count for the other side's next round
                started = now()
                (plane, bare)[turn % 2]()
                seconds[turn % 2].append(now() - started)
            ours, theirs = (statistics.quantiles(samples[2:], n=4)[0] for samples in seconds)
            row = {"name": name, "bytes": count * 4, "plane_us": ours * 1e6, "bare_us": theirs * 1e6}
            rows.append({**row, "ratio": ours / theirs})
    pipe.send(rows)
    pipe.recv()  # no member leaves before all have measured


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(options.workers)]
    sides = [context.Process(target=side, args=(r, options, there)) for r, (_, there) in enumerate(pipes)]
    for process in sides:
        process.start()
    addresses = [pipe.recv() for pipe, _ in pipes]
    with socket.create_server(("127.0.0.1", 0)) as free:
        world = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    for pipe, _ in pipes:
        pipe.send((addresses[0], world))
    rows, *_ = [pipe.recv() for pipe, _ in pipes]
    for process in sides:
        process.kill()
        process.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", type=float, default=[0, 16], metavar="MIB", help="0 is one number")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], default="gloo")
    parser.add_argument("--rounds", type=int, help="default: 400 of small arrays, 40 of large ones")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    rows = measured(options)
    print(f"{'':28}{'bytes':>10} {'plane':>10} {'bare':>10} {'ratio':>6}   goal for 16 MiB in place: {GOAL}")
    for row in rows:
        figures = f"{row['plane_us']:>7.0f} us {row['bare_us']:>7.0f} us {row['ratio']:>6.2f}"
        print(f"{row['name']:28}{row['bytes']:>10} {figures}")
    environment = {
        "gt": VERSION,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    record = {"environment": environment, "workers": options.workers, "backend": options.backend, "rows": rows}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(record, file, indent=1)
    else:
        print(json.dumps(record))


if __name__ == "__main__":
    main()
