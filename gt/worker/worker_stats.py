"""The statistics of a worker: what it has run, and what it holds for each client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt.wire.structures import WorkerStats
from gt.worker.engines import Engine
from gt.worker.fragments import LinkedFragment
from gt.worker.hot.levels import Levels
from gt.worker.replay import Replayer
from gt.worker.space import PLACEHOLDERS, ClientSpace


def worker_stats(
    worker: int,
    engine: Engine,
    spaces: Mapping[int, ClientSpace],
    replayer: Replayer,
    interpreted: int,
    client: int,
) -> WorkerStats:
    """The statistics for one client. ``interpreted``: the number of instructions that the interpreter has run."""
    sizes = {c: [engine.nbytes(v) for v in s.store.values() if type(v) not in PLACEHOLDERS] for c, s in spaces.items()}
    client_sizes = sizes.get(client, [])
    return WorkerStats(
        worker=worker,
        device=engine.device,
        backend=engine.name,
        total_instructions=interpreted + replayer.instructions,
        hot_instructions=replayer.hot_instructions,
        unique_sequences=sum(len(space.fragments) for space in spaces.values()),
        compilation_stats=_sections(replayer.levels, spaces[client]) if client in spaces else {},
        memory=engine.memory(restart=True),
        client_tensors=len(client_sizes),
        client_bytes=sum(client_sizes),
        tensors=sum(map(len, sizes.values())),
        bytes=sum(map(sum, sizes.values())),
    )


def _sections(levels: Levels, space: ClientSpace) -> dict[str, dict[str, Any]]:
    """How each section of a client's fragments runs; only sections with a body, of fragments that have run."""
    stats: dict[str, dict[str, Any]] = {}
    for number, fragment in space.fragments.items():
        for index, section in enumerate(fragment.sections if isinstance(fragment, LinkedFragment) else ()):
            if section.body is not None:
                entry = levels.section_stats(section.body, section.runs)
                stats[f"fragment {number}.{index}: {entry.pop('title')}"] = entry
    return stats
