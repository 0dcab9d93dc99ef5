"""A worker's account of itself: what it holds, and for whom."""

from __future__ import annotations

from collections.abc import Mapping

from gt.wire.messages import WorkerStats
from gt.worker.engines import Engine
from gt.worker.space import ODD, Space


def account(id: int, engine: Engine, instructions: int, spaces: Mapping[int, Space], client: int) -> WorkerStats:
    sizes = {c: [engine.nbytes(v) for v in s.store.values() if type(v) not in ODD] for c, s in spaces.items()}
    mine = sizes.get(client, [])
    return WorkerStats(
        worker=id,
        device=engine.device,
        backend=engine.name,
        total_instructions=instructions,
        hot_instructions=0,
        unique_sequences=0,
        compilation_stats={},
        memory=engine.memory(),
        client_tensors=len(mine),
        client_bytes=sum(mine),
        tensors=sum(map(len, sizes.values())),
        bytes=sum(map(sum, sizes.values())),
    )


def holders(engine: Engine, spaces: Mapping[int, Space], client: int) -> str:
    """What holds the memory, as far as its reader may know: his own tensors by size, the others' as a sum."""
    mine = [v for v in spaces[client].store.values() if type(v) not in ODD]
    mine.sort(key=engine.nbytes, reverse=True)
    shown = ", ".join(f"{tuple(v.shape)} {_gib(engine.nbytes(v))}" for v in mine[:3])
    held = sum(map(engine.nbytes, mine))
    rest = sum(engine.nbytes(v) for s in spaces.values() for v in s.store.values() if type(v) not in ODD) - held
    return (
        f"This client holds {_gib(held)} in {len(mine)} tensors"
        f"{f' (largest: {shown})' if shown else ''}, other clients {_gib(rest)}"
    )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
