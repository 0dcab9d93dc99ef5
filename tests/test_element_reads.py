"""Reads of single elements: ``x[i].item()`` in a loop asks the workers a few times only, and the values are right."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import gt
from gt.client.tensor import element_reads
from gt.client.tensor.element_reads import FIRST_READS
from gt.testing import Cluster


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ids of the tensors that were asked for."""
    with Cluster(workers=2, backend="numpy").client() as session:
        ids: list[int] = []
        read = session.read
        monkeypatch.setattr(type(session), "read", lambda self, id, type: ids.append(id) or read(id, type))
        yield ids


def test_a_loop_over_elements_copies_the_tensor_once(reads: list[int]) -> None:
    x = gt.arange(100) * 3
    assert [x[i].item() for i in range(100)] == list(range(0, 300, 3))
    assert [int(v) for v in x] == list(range(0, 300, 3))
    assert len(reads) == FIRST_READS + 1
    x[7] = 1
    assert [x[7].item() for _ in range(20)] == [1] * 20
    assert len(reads) == 2 * (FIRST_READS + 1)


def test_a_large_tensor_is_copied_later_or_never(reads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = gt.zeros(1 << 19)  # 2 MiB
    for i in range(50):
        x[i].item()
    assert len(reads) == FIRST_READS + 8 + 1
    monkeypatch.setattr(element_reads, "MAX_BYTES", 1 << 20)
    for i in range(50):
        x[i].item()
    assert len(reads) == FIRST_READS + 8 + 1 + 50


def test_a_compiled_function_still_refuses_to_read(reads: list[int]) -> None:
    x = gt.arange(10.0)
    for i in range(10):
        x[i].item()

    @gt.compile
    def scaled(y: Any) -> Any:
        return y * x[3].item()

    y = gt.ones(2)
    for value in (3.0, 5.0, 7.0):
        x[3] = value
        assert scaled(y).tolist() == [value, value]


def test_a_compiled_function_writes(reads: list[int]) -> None:
    x = gt.zeros(4, 4)

    @gt.compile
    def grow(x: Any) -> None:
        x += 1

    for step in range(1, 8):
        grow(x)
        assert [x[1, i % 4].item() for i in range(8)] == [step] * 8


def test_a_failure_raises_at_every_read(reads: list[int]) -> None:
    x = gt.zeros(10)[gt.tensor([1, 99])]
    for _ in range(2 * FIRST_READS):
        with pytest.raises(gt.GtError, match="index"):
            x[1].item()


VIEWS = [
    lambda x, r: x,
    lambda x, r: x.t(),
    lambda x, r: x[r.randrange(6) :],
    lambda x, r: x[:, ::2],
    lambda x, r: x.reshape(-1, 2),
    lambda x, r: x.diagonal(r.randrange(-2, 3)).unsqueeze(0),
    lambda x, r: x.unfold(1, 3, 2)[1],
    lambda x, r: x[1].expand(3, -1),
]
CHANGES = [
    lambda x, r: x.add_(r.randrange(5)),
    lambda x, r: x[r.randrange(4)].mul_(2),
    lambda x, r: x.t().__setitem__(r.randrange(5), r.randrange(99)),
    lambda x, r: x.copy_(x.flip(0)),
    lambda x, r: x.view(-1).__setitem__(slice(3, 9), 5),
]


@pytest.mark.parametrize("seed", range(8))
def test_random_reads_and_writes_agree_with_torch(seed: int, reads: list[int]) -> None:
    rand = random.Random(seed)
    dtype = rand.choice(["float32", "int64", "bool", "float16", "complex64"])
    pair = [f.arange(64).reshape(8, 8).to(getattr(f, dtype)) for f in (gt, torch)]
    for _ in range(60):
        if rand.random() < 0.1 and dtype != "bool":
            number, choice = rand.random(), rand.choice(CHANGES)
            for x in pair:
                choice(x, random.Random(number))
        number, choice = rand.random(), rand.choice(VIEWS)
        views = [choice(x, random.Random(number)) for x in pair]
        place = tuple(rand.randrange(n) for n in views[1].shape)
        ours, theirs = (view[place] for view in views)
        assert ours.item() == theirs.item(), (dtype, place)
        if dtype == "complex64":
            assert ours.real.item() == theirs.real.item()
            assert ours.imag.item() == theirs.imag.item()
