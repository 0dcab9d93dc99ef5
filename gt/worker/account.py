"""A worker's account of itself: what it holds, and for whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt.wire.messages import WorkerStats
from gt.worker.engines import Engine
from gt.worker.fragments import Program
from gt.worker.hot.levels import Levels
from gt.worker.replay import Replaying
from gt.worker.space import ODD, Space


def account(worker: Replaying, id: int, engine: Engine, spaces: Mapping[int, Space], client: int) -> WorkerStats:
    sizes = {c: [engine.nbytes(v) for v in s.store.values() if type(v) not in ODD] for c, s in spaces.items()}
    mine = sizes.get(client, [])
    return WorkerStats(
        worker=id,
        device=engine.device,
        backend=engine.name,
        total_instructions=worker.instructions,
        hot_instructions=worker.hot,
        unique_sequences=sum(len(space.fragments) for space in spaces.values()),
        compilation_stats=_pieces(worker.levels, spaces[client]) if client in spaces else {},
        memory=engine.memory(),
        client_tensors=len(mine),
        client_bytes=sum(mine),
        tensors=sum(map(len, sizes.values())),
        bytes=sum(map(sum, sizes.values())),
    )


def _pieces(levels: Levels, space: Space) -> dict[str, dict[str, Any]]:
    """What comes again of a client's program, with how it is run; its own alone."""
    found: dict[str, dict[str, Any]] = {}
    for number, program in space.fragments.items():
        for at, part in enumerate(program.parts if isinstance(program, Program) else ()):
            if part.piece is not None:
                told = levels.told(part.piece, part.runs)
                found[f"fragment {number}.{at}: {told.pop('title')}"] = told
    return found


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
