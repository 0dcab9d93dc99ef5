"""The memory that a worker reports: what is used, the peak of that, and all. The peak is never below what is used."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from gt.worker.engines.numpy import NumpyEngine
from gt.worker.recording import _memory

torch = pytest.importorskip("torch")
GIB = 2**30


class FakeCuda:
    """The figures of torch.cuda: its allocator's, and those of the device, which others use too."""

    def __init__(self) -> None:
        self.others, self.total = GIB, 16 * GIB
        self.allocated = self.most_allocated = self.reserved = self.most_reserved = 0

    def set(self, allocated: int, reserved: int) -> None:
        self.allocated, self.reserved = allocated, reserved
        self.most_allocated = max(self.most_allocated, allocated)
        self.most_reserved = max(self.most_reserved, reserved)

    def names(self) -> SimpleNamespace:
        return SimpleNamespace(
            mem_get_info=lambda device: (self.total - self.others - self.reserved, self.total),
            memory_allocated=lambda device: self.allocated,
            max_memory_allocated=lambda device: self.most_allocated,
            memory_reserved=lambda device: self.reserved,
            max_memory_reserved=lambda device: self.most_reserved,
            reset_peak_memory_stats=self.reset,
        )

    def reset(self, device: Any) -> None:
        self.most_allocated, self.most_reserved = self.allocated, self.reserved


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake.names())
    return fake


@pytest.fixture
def engine(cuda: FakeCuda) -> Any:
    from gt.worker.engines.torch import TorchEngine

    engine = TorchEngine("cpu")
    engine.on_gpu = True
    return engine


def test_used_and_peak_of_a_gpu(cuda: FakeCuda, engine: Any) -> None:
    cuda.set(allocated=300, reserved=500)
    memory = engine.memory()
    assert memory == {
        "used": GIB + 500,  # of all processes, with what the allocator keeps
        "peak": GIB + 500,
        "total": 16 * GIB,
        "allocated": 300,
        "allocated_peak": 300,
        "reserved": 500,
        "reserved_peak": 500,
    }
    cuda.set(allocated=3 * GIB, reserved=4 * GIB)  # between two readings
    cuda.set(allocated=100, reserved=200)
    assert (engine.memory()["used"], engine.memory()["peak"]) == (GIB + 200, 5 * GIB)
    cuda.others = 0
    assert engine.memory()["peak"] == 5 * GIB
    cuda.others = 15 * GIB  # now the peak of the allocator and what others use exceed the device
    assert engine.memory()["peak"] == 16 * GIB


def test_only_statistics_restart_the_peak_of_a_program(cuda: FakeCuda, engine: Any) -> None:
    cuda.set(3 * GIB, 3 * GIB)
    cuda.set(100, 200)
    for _ in range(2):  # the recorder reads it each second
        assert _memory(engine)["allocated_peak"] == 3 * GIB
    assert engine.memory(restart=True)["allocated_peak"] == 3 * GIB
    memory = engine.memory()
    assert memory["allocated_peak"] == 100
    assert memory["peak"] == 4 * GIB


def test_any_course_of_a_gpu(cuda: FakeCuda, engine: Any) -> None:
    rng, before = random.Random(0), 0
    for _ in range(300):
        reserved = rng.randrange(8 * GIB)
        cuda.set(rng.randrange(reserved + 1), reserved)
        cuda.others = rng.randrange(8 * GIB)
        memory = engine.memory(restart=rng.random() < 0.3)
        assert max(before, memory["used"]) <= memory["peak"] <= memory["total"]
        before = memory["peak"]


def test_used_and_peak_of_a_process() -> None:
    memory = _memory(NumpyEngine())
    assert 0 < memory["used"] <= memory["peak"]
    assert memory["used"] < memory["total"]
