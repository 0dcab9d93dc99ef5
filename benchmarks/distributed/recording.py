"""The collectives of a training step, recorded from torch, in a file that ``--replay`` runs again.

    {"format": "collectives/1", "ranks": 2, "source": "gpt2, bf16, 8 samples a rank",
     "steps": {"ddp": {"left_out": {}, "collectives": [
         {"op": "allreduce", "bytes": 1049600, "dtype": "fp32", "group": [0, 1]}, …]}}}

``op`` is a name in `COLLECTIVES`, ``bytes`` its S (the larger of what a rank sends and receives), ``group`` the ranks
that take part. The order of the list is one that every rank followed. ``left_out`` counts what a replay cannot run:
other operations (a barrier, a send) and dtypes.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.core.ranks import BadInput
from benchmarks.core.trainer import DTYPES
from benchmarks.distributed.operations import COLLECTIVES

FORMAT = "collectives/1"
#: the dtypes of a file
NAMES = {**DTYPES, "fp64": torch.float64, "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8}
#: torch's operation -> ours, and the number of the argument whose bytes are S
OPERATIONS = {
    "allreduce_": ("allreduce", 0),
    "broadcast_": ("broadcast", 0),
    "_allgather_base_": ("allgather", 0),
    "_reduce_scatter_base_": ("reducescatter", 1),
    "alltoall_base_": ("alltoall", 0),
}

Entry = dict[str, Any]


class Recorder(TorchDispatchMode):
    """Sees every collective until it ends, also those that DDP starts in C++ during the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.left_out: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            self._note(function.overloadpacket.__name__, args)
        return function(*args, **(kwargs or {}))

    def _note(self, operation: str, args: Sequence[Any]) -> None:
        name, place = OPERATIONS.get(operation, (None, 0))
        if name is None:
            self.left_out[operation] += 1
            return
        for tensor in args[place] if isinstance(args[place], list) else [args[place]]:
            dtype = next((key for key, value in NAMES.items() if value == tensor.dtype), None)
            if dtype is None:
                self.left_out[f"{operation} {tensor.dtype}"] += 1
            else:
                group = dist.get_process_group_ranks(_group(args))
                self.entries.append({"op": name, "bytes": tensor.nbytes, "dtype": dtype, "group": group})


def _group(args: Sequence[Any]) -> Any:
    """The process group among the arguments of an operation."""
    for value in args:
        try:
            return dist.ProcessGroup.unbox(value)
        except (TypeError, RuntimeError, ValueError):
            continue
    raise AssertionError("a collective without a process group")


def merged(by_rank: Sequence[Sequence[Entry]]) -> list[Entry]:
    """One order in which every rank finds its own: a collective is next if it is next on each rank of its group."""
    queues = [collections.deque(entries) for entries in by_rank]
    order: list[Entry] = []
    while any(queues):
        entry = next((q[0] for q in queues if q and all(_next(queues, rank) == q[0] for rank in q[0]["group"])), None)
        if entry is None:
            heads = [queue[0] if queue else None for queue in queues]
            raise AssertionError(f"the ranks do not agree on the next collective: {heads}")
        order.append(entry)
        for rank in entry["group"]:
            queues[rank].popleft()
    return order


def _next(queues: Sequence[collections.deque[Entry]], rank: int) -> Entry | None:
    return queues[rank][0] if queues[rank] else None


def write(path: str, ranks: int, source: str, steps: dict[str, Any]) -> None:
    """One line for each collective. An existing file is not overwritten."""
    try:
        with open(path, "x") as file:
            file.write(text(ranks, source, steps))
    except OSError as error:
        raise BadInput(f"--record {path}: {error.strerror}") from error


def text(ranks: int, source: str, steps: dict[str, Any]) -> str:
    lines = lambda step: ",\n".join(f"  {json.dumps(entry)}" for entry in step["collectives"])
    written = [
        f'{json.dumps(name)}: {{"left_out": {json.dumps(step["left_out"])}, "collectives": [\n{lines(step)}]}}'
        for name, step in steps.items()
    ]
    head = json.dumps({"format": FORMAT, "ranks": ranks, "source": source})[:-1]
    return head + ', "steps": {\n ' + ",\n ".join(written) + "}}\n"


def check_new(path: str) -> None:
    """Before a run: the file can be written later."""
    folder = pathlib.Path(path).parent
    if os.path.exists(path):
        raise BadInput(f"--record {path}: File exists")
    if not os.access(folder, os.W_OK):
        raise BadInput(f"--record {path}: cannot write to {folder}")


def read(path: str, ranks: int) -> dict[str, Any]:
    """The contents of a file, each entry checked, for a run on so many ranks."""
    try:
        data = json.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise BadInput(f"--replay {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"--replay {path}: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadInput(f"--replay {path}: no file of collectives ({FORMAT}); --record FILE writes one")
    if data.get("ranks") != ranks:
        raise BadInput(f"--replay {path}: recorded on {data.get('ranks')} ranks, and this run has {ranks}")
    try:
        for step, recorded in data["steps"].items():
            for number, entry in enumerate(recorded["collectives"]):
                if wrong := _problem(entry, ranks):
                    raise BadInput(f"--replay {path}: steps.{step}.collectives[{number}]: {wrong}")
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"--replay {path}: {type(error).__name__}: {error}") from error
    return data


def _problem(entry: Entry, ranks: int) -> str | None:
    group, size = entry["group"], entry["bytes"]
    if entry["op"] not in COLLECTIVES:
        return f"op {entry['op']!r}: one of {', '.join(COLLECTIVES)}"
    if entry["dtype"] not in NAMES:
        return f"dtype {entry['dtype']!r}: one of {', '.join(NAMES)}"
    if not group or sorted(set(group)) != sorted(group) or not set(group) <= set(range(ranks)):
        return f"group {group}: different ranks from 0 to {ranks - 1}"
    parts = 1 if entry["op"] in ("allreduce", "broadcast") else len(group)
    unit = NAMES[entry["dtype"]].itemsize * parts
    if not isinstance(size, int) or size < unit or size % unit:
        return f"bytes {size}: a multiple of {unit}"
    return None
