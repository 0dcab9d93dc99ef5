"""The data plane on GPUs: NCCL between workers that share one, and gloo through the host."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from tests.support import plane_member as at
from tests.support.plane_member import Member, everywhere

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
_numbers = itertools.count(1)


@pytest.fixture
def members() -> Iterator[list[Member]]:
    members = [Member("torch", "cuda:0") for _ in range(2)]
    for member in members:
        member.ask(at.share_gpus)
    yield members
    for member in members:
        member.close()


def joined(members: list[Member], backend: str) -> int:
    group, store = next(_numbers), members[0].ask(at.address)
    for rank, member in enumerate(members):
        member.ask(at.join, rank, group, len(members), store, backend)
    return group


def works(members: list[Member], backend: str) -> int:
    group = joined(members, backend)
    everywhere(members, at.start_sum, group)
    assert everywhere(members, at.finish_sum) == [[float(len(members))]] * len(members)
    return group


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("together", [1, 8])
def test_the_table(members: list[Member], backend: str, together: int) -> None:
    group = joined(members, backend)
    assert min(everywhere(members, at.run_table, group, 2, together)) > 300
    everywhere(members, at.leave, group)


def test_groups_of_both_kinds_beside_each_other(members: list[Member]) -> None:
    groups = [joined(members, backend) for backend in ("nccl", "gloo", "nccl")]
    for group in groups:
        everywhere(members, at.start_sum, group, float(group), 1_000_000)
    assert everywhere(members, at.finish_sum) == [[2.0 * group for group in groups]] * 2


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_an_array_is_written_once_the_device_has_waited(members: list[Member], backend: str) -> None:
    """Over NCCL a collective is done when it is issued, and still reads its array."""
    group = works(members, backend)
    for _ in range(3):
        wanted = [0.0, 0.0, 1.0, 1.0]
        assert everywhere(members, at.gather_and_write, group, 2, 16 << 20) == [wanted] * 2


def test_a_death_ends_what_a_stream_waits_for(members: list[Member]) -> None:
    group = works(members, "nccl")
    members[0].ask(at.start_sum, 0, group, 1.0, 1_000_000)
    members[1].kill()
    assert members[0].ask(at.settle, 0) < at.PROMPT
    members[0].ask(at.start_sum, 0, group)
    assert "all_reduce among workers 10, 11: " in members[0].ask(at.broken, 0)[0]
    members[0].ask(at.leave, 0, group)
    members[1] = Member("torch", "cuda:0")
    members[1].ask(at.share_gpus)
    works(members, "nccl")


def test_leaving_ends_what_a_stream_waits_for(members: list[Member]) -> None:
    group = works(members, "nccl")
    members[0].ask(at.start_sum, 0, group, 1.0, 1_000_000)
    assert members[0].ask(at.leave, 0, group) < at.PROMPT
    assert members[0].ask(at.settle, 0) < at.PROMPT
    members[1].ask(at.leave, 1, group)
    works(members, "nccl")
    assert max(everywhere(members, at.close)) < at.PROMPT
