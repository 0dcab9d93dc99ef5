"""Limits of queues, chunks and caches that are so small that every random program reaches them."""

from __future__ import annotations

import random

import pytest

from gt import testing
from gt.client.stream import outbox, signatures, uploads
from gt.dispatcher import delivery, ledger, scheduling
from gt.wire import transfers


def shrink_limits(patch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    patch.setattr(transfers, "CHUNK_BYTES", rng.choice((1 << 12, 1 << 15)))
    patch.setattr(transfers, "MAX_UNACKNOWLEDGED_BYTES", 1 << 16)
    patch.setattr(transfers, "SHARED_CHUNK_BYTES", rng.choice((1 << 13, 40_000)))
    patch.setattr(transfers, "SHARED_RING_BYTES", rng.choice((1 << 16, 100_000)))
    patch.setattr(outbox, "BATCH_WORDS", rng.choice((10, 60, 640)))
    for module in (outbox, scheduling):
        patch.setattr(module, "WINDOW_WORDS", rng.choice((256, 1 << 16)))
    patch.setattr(signatures, "MAX_SIGNATURES", rng.choice((20, 20_000)))
    patch.setattr(outbox, "MAX_FREED", rng.choice((1, 4096)))
    patch.setattr(scheduling, "MAX_AHEAD_US", rng.choice((30.0, 6000.0)))
    patch.setattr(scheduling, "TURN_US", rng.choice((9.0, 2000.0)))
    if rng.random() < 0.5:  # frames instead of shared memory
        patch.setattr(testing, "host_identity", lambda: "")
        patch.setattr(uploads, "host_identity", lambda: "")
    patch.setattr(delivery, "CONFIRM_AFTER_US_PER_WORKER", rng.choice((0.0, 50.0, 5000.0)))
    patch.setattr(delivery, "MAX_WORKER_SETS", rng.choice((1, 256)))
    patch.setattr(ledger, "MAX_GROUP_DESCRIPTORS", rng.choice((0, 256)))
    patch.setattr(ledger, "MIN_GROUPS", rng.choice((1, 2)))
