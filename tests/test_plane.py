"""The data plane between real processes: the table of collectives, many at once, and deaths at any time."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gt.worker.collectives.backends import CONNECT_TIMEOUT_S, _prepare_nccl
from tests.support import plane_member as at
from tests.support.plane_member import Member, everywhere
from tests.support.processes import ROOT, wait_until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Member]]:
    members: list[Member] = []
    yield members
    for member in members:
        member.close()


@pytest.fixture
def members(pool: list[Member]) -> list[Member]:
    """Three members; those that the previous test killed are replaced."""
    for dead in [member for member in pool if not member.alive]:
        pool.remove(dead)
        dead.close()
    pool += [Member() for _ in range(3 - len(pool))]
    return list(pool)


def joined(members: list[Member], but: int = -1) -> int:
    group = next(_numbers)
    for rank, member in enumerate(members):
        if rank != but:
            member.ask(at.join, rank, group, len(members), members[0].ask(at.address))
    return group


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_table(members: list[Member], size: int) -> None:
    del members[size:]
    group = joined(members)
    assert min(everywhere(members, at.run_table, group, size, 1)) > 300
    everywhere(members, at.leave, group)


def test_the_table_with_eight_collectives_at_a_time(members: list[Member]) -> None:
    group = joined(members)
    everywhere(members, at.run_table, group, 3, 8)
    everywhere(members, at.leave, group)


def test_the_table_with_numpy_arrays() -> None:
    with contextlib.closing(Member("numpy")) as one, contextlib.closing(Member("numpy")) as other:
        members = [one, other]
        group = joined(members)
        assert min(everywhere(members, at.run_table, group, 2, 4)) > 300


def test_groups_beside_each_other(members: list[Member]) -> None:
    """Each pair and all three. Each member starts them in another order, because groups are independent."""
    everyone, pairs = joined(members), [(0, 1), (1, 2), (0, 2)]
    groups = {pair: joined([members[rank] for rank in pair]) for pair in pairs}
    for rank, member in enumerate(members):
        joined_pairs = [groups[pair] for pair in pairs if rank in pair]
        for group in (*joined_pairs, everyone) if rank else (everyone, *reversed(joined_pairs)):
            for n in (1, 2):
                member.ask(at.start_sum, rank, group, group * 10 + n, 100_000)
    for rank, member in enumerate(members):
        joined_pairs = [(groups[pair], 2) for pair in pairs if rank in pair]
        order = [*joined_pairs, (everyone, 3)] if rank else [(everyone, 3), *reversed(joined_pairs)]
        assert member.ask(at.finish_sum, rank) == [size * (group * 10 + n) for group, size in order for n in (1, 2)]
    for rank, member in enumerate(members):
        for group in (everyone, *(groups[pair] for pair in pairs if rank in pair)):
            member.ask(at.leave, rank, group)


def test_leaving_breaks_pending_collectives(members: list[Member]) -> None:
    group = joined(members)
    everywhere(members, at.start_sum, group)
    assert everywhere(members, at.finish_sum) == [[3.0]] * 3
    for rank in (0, 1):
        members[rank].ask(at.start_sum, rank, group)
    assert members[0].ask(at.leave, 0, group) < at.PROMPT
    assert "all_reduce among workers 10, 11, 12: the group was left" in members[0].ask(at.broken, 0)[0]
    assert "all_reduce among workers 10, 11, 12: " in members[1].ask(at.broken, 1)[0]
    for rank in (1, 2):
        members[rank].ask(at.leave, rank, group)
    works(members)


def test_leaving_a_group_that_is_still_being_made(members: list[Member]) -> None:
    group = joined(members, but=2)
    for rank in (0, 1):
        members[rank].ask(at.start_sum, rank, group)
        assert members[rank].ask(at.leave, rank, group) < at.PROMPT
        assert "the group was left" in members[rank].ask(at.broken, rank)[0]
    works(members)


def test_groups_release_their_resources(members: list[Member]) -> None:
    works(members)
    before = everywhere(members, at.possessions)
    for _ in range(5):
        works(members)

    def released() -> bool:  # a group that was just left may hold some for a moment, before and after
        return all(now <= then for now, then in zip(everywhere(members, at.possessions), before, strict=True))

    wait_until(released, what="the release of the groups' resources")


def test_torch_is_imported_by_the_first_join_only() -> None:
    program = """if True:
        import sys
        from gt.worker.collectives.processes import ProcessPlane
        plane = ProcessPlane()
        assert plane.address.startswith("127.0.0.1:"), plane.address
        plane.close()
        assert not {"torch", "numpy"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def works(members: list[Member]) -> None:
    """A new group of the same workers does."""
    group = joined(members)
    everywhere(members, at.start_sum, group)
    assert everywhere(members, at.finish_sum) == [[float(len(members))]] * len(members)
    everywhere(members, at.leave, group)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_in_the_middle(members: list[Member], victim: int) -> None:
    group = joined(members)
    everywhere(members, at.start_sum, group)
    everywhere(members, at.finish_sum)
    rest = [(rank, member) for rank, member in enumerate(members) if rank != victim]
    for rank, member in rest:
        member.ask(at.start_sum, rank, group)
        member.ask(at.start_sum, rank, group)
    members[victim].kill()
    for rank, member in rest:
        for text in member.ask(at.broken, rank):
            assert "all_reduce among workers 10, 11, 12: " in text
    survivors = [member for _, member in rest]
    for rank, member in rest:
        member.ask(at.leave, rank, group)
    works(survivors)


@pytest.mark.parametrize("length", [10, 1_000_000])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_in_an_exchange(members: list[Member], victim: int, length: int) -> None:
    """The receiver waits for a sender that dies, or the sender for a receiver."""
    pair, survivor = members[:2], 1 - victim
    group = joined(pair)
    everywhere(pair, at.start_exchange, group, length)
    assert pair[1].ask(at.finish_exchange, 1) == (length, 5)
    pair[0].ask(at.finish_send, 0)
    if survivor == 1 or length > 10:  # the kernel takes a short message of a sender at once
        pair[survivor].ask(at.start_exchange, survivor, group, length)
    pair[survivor].ask(at.start_sum, survivor, group)
    pair[victim].kill()
    for text in pair[survivor].ask(at.broken, survivor):
        assert " among workers 10, 11: " in text
    pair[survivor].ask(at.leave, survivor, group)


@pytest.mark.long
def test_an_exchange_waits_longer_than_connecting_may_take(members: list[Member]) -> None:
    group = joined(members[:2])
    members[1].ask(at.start_exchange, 1, group, 10)
    time.sleep(CONNECT_TIMEOUT_S + 1)  # the time itself is what is tested
    members[0].ask(at.start_exchange, 0, group, 10)
    assert members[1].ask(at.finish_exchange, 1) == (10.0, 5)
    members[0].ask(at.finish_send, 0)
    everywhere(members[:2], at.leave, group)


def test_a_death_seen_by_a_member_that_waits_for_another(members: list[Member]) -> None:
    """The collective waits for member 1, which never starts it; member 2 dies."""
    group = joined(members)
    everywhere(members, at.start_sum, group)
    everywhere(members, at.finish_sum)
    members[0].ask(at.start_sum, 0, group, 1.0, 1_000_000)
    members[2].kill()
    assert "all_reduce among workers 10, 11, 12: " in members[0].ask(at.broken, 0)[0]
    members[1].ask(at.start_sum, 1, group)
    assert members[1].ask(at.broken, 1)[0]
    for rank in (0, 1):
        members[rank].ask(at.leave, rank, group)


def test_a_leader_that_died_before_the_others_joined(members: list[Member]) -> None:
    group, address = next(_numbers), members[0].ask(at.address)
    members[0].kill()
    for rank in (1, 2):
        members[rank].ask(at.join, rank, group, 3, address)
        members[rank].ask(at.start_sum, rank, group)
    for rank in (1, 2):
        text = members[rank].ask(at.broken, rank)[0]
        assert text.startswith("all_reduce among workers 10, 11, 12: worker 10 cannot be reached (127.0.0.1:")
        members[rank].ask(at.leave, rank, group)


def test_a_member_that_never_joins(members: list[Member]) -> None:
    group = next(_numbers)
    members[2].kill()
    for rank in (0, 1):
        usual = members[rank].ask(at.be_patient_for, 1.0)
        members[rank].ask(at.join, rank, group, 3, members[0].ask(at.address))
        members[rank].ask(at.start_sum, rank, group)
    for rank in (0, 1):
        text = members[rank].ask(at.broken, rank)[0]
        assert text == "all_reduce among workers 10, 11, 12: worker 12 did not join within 1 s"
        members[rank].ask(at.leave, rank, group)
        members[rank].ask(at.be_patient_for, usual)
    works(members[:2])


def test_closing_never_hangs(members: list[Member]) -> None:
    """With a collective that cannot complete, in a working group and in one that is still being created."""
    for rank, member in enumerate(members[:2]):
        member.ask(at.join, rank, 0, 2, members[0].ask(at.address))
    everywhere(members[:2], at.start_sum, 0)
    everywhere(members[:2], at.finish_sum)
    group = joined(members, but=2)
    members[0].ask(at.start_sum, 0, 0)
    members[0].ask(at.start_sum, 0, group)
    assert max(everywhere(members, at.close)) < at.PROMPT
    assert all(members[0].ask(at.broken, 0))
    for member in members:
        assert member.alive
        member.kill()


def test_a_variable_for_nccl_that_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others are for is tested on a GPU, in tests/test_plane_gpu.py."""
    for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT", "HIGH_PRIORITY"):
        monkeypatch.setenv(f"TORCH_NCCL_{name}", "")
        monkeypatch.delenv(f"TORCH_NCCL_{name}")
    _prepare_nccl()
    assert os.environ["TORCH_NCCL_HIGH_PRIORITY"] == "1"
    monkeypatch.setenv("TORCH_NCCL_HIGH_PRIORITY", "0")
    _prepare_nccl()
    assert os.environ["TORCH_NCCL_HIGH_PRIORITY"] == "0"
