"""The data plane between real processes: the table of collectives, many at once, and deaths at every moment."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from tests import plane_member as at
from tests.plane_member import Member, everywhere

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def lasting() -> Iterator[list[Member]]:
    """Three members for the tests in which nobody dies."""
    with contextlib.ExitStack() as stack:
        yield started(stack, 3)


@pytest.fixture
def mortal() -> Iterator[list[Member]]:
    with contextlib.ExitStack() as stack:
        yield started(stack, 3)


def started(stack: contextlib.ExitStack, count: int, engine: str = "torch") -> list[Member]:
    members = [Member(engine) for _ in range(count)]
    for member in members:
        stack.callback(member.close)
    for member in members:
        member.address = member.ask(at.address)
    return members


def joined(members: list[Member], but: int = -1) -> int:
    group = next(_numbers)
    for rank, member in enumerate(members):
        if rank != but:
            member.ask(at.join, rank, group, len(members), members[0].address)
    return group


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_table(lasting: list[Member], size: int) -> None:
    members = lasting[:size]
    group = joined(members)
    assert min(everywhere(members, at.run_table, group, size, 1)) > 300
    everywhere(members, at.leave, group)


def test_the_table_with_eight_flights_at_a_time(lasting: list[Member]) -> None:
    group = joined(lasting)
    everywhere(lasting, at.run_table, group, 3, 8)
    everywhere(lasting, at.leave, group)


def test_the_table_with_numpy_arrays() -> None:
    with contextlib.ExitStack() as stack:
        members = started(stack, 2, "numpy")
        group = joined(members)
        assert min(everywhere(members, at.run_table, group, 2, 4)) > 300


def test_groups_beside_each_other(lasting: list[Member]) -> None:
    """Each pair and all three; started in another order by each of them, as groups are no one another's business."""
    everyone, pairs = joined(lasting), [(0, 1), (1, 2), (0, 2)]
    groups = {pair: joined([lasting[rank] for rank in pair]) for pair in pairs}
    for rank, member in enumerate(lasting):
        mine = [groups[pair] for pair in pairs if rank in pair]
        for group in (*mine, everyone) if rank else (everyone, *reversed(mine)):
            for n in (1, 2):
                member.ask(at.start_sum, rank, group, group * 10 + n, 100_000)
    for rank, member in enumerate(lasting):
        mine = [(groups[pair], 2) for pair in pairs if rank in pair]
        order = [*mine, (everyone, 3)] if rank else [(everyone, 3), *reversed(mine)]
        assert member.ask(at.finish_sum, rank) == [size * (group * 10 + n) for group, size in order for n in (1, 2)]
    for rank, member in enumerate(lasting):
        for group in (everyone, *(groups[pair] for pair in pairs if rank in pair)):
            member.ask(at.leave, rank, group)


def test_leaving_breaks_what_is_under_way(lasting: list[Member]) -> None:
    group = joined(lasting)
    everywhere(lasting, at.start_sum, group)
    assert everywhere(lasting, at.finish_sum) == [[3.0]] * 3
    for rank in (0, 1):
        lasting[rank].ask(at.start_sum, rank, group)
    assert lasting[0].ask(at.leave, 0, group) < 1
    assert "all_reduce among workers 10, 11, 12: the group was left" in lasting[0].ask(at.broken, 0, 10)[0][0]
    text, seconds = lasting[1].ask(at.broken, 1, 10)[0]
    assert "all_reduce among workers 10, 11, 12: " in text
    assert seconds < 10
    for rank in (1, 2):
        lasting[rank].ask(at.leave, rank, group)
    works(lasting)


def test_leaving_a_group_that_is_still_being_made(lasting: list[Member]) -> None:
    group = joined(lasting, but=2)
    for rank in (0, 1):
        lasting[rank].ask(at.start_sum, rank, group)
        assert lasting[rank].ask(at.leave, rank, group) < 1
        assert "the group was left" in lasting[rank].ask(at.broken, rank, 10)[0][0]
    works(lasting)


def works(members: list[Member]) -> None:
    """A new group of the same workers does."""
    group = joined(members)
    everywhere(members, at.start_sum, group)
    assert everywhere(members, at.finish_sum) == [[float(len(members))]] * len(members)
    everywhere(members, at.leave, group)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_in_the_middle(mortal: list[Member], victim: int) -> None:
    group = joined(mortal)
    everywhere(mortal, at.start_sum, group)
    everywhere(mortal, at.finish_sum)
    rest = [(rank, member) for rank, member in enumerate(mortal) if rank != victim]
    for rank, member in rest:
        member.ask(at.start_sum, rank, group)
        member.ask(at.start_sum, rank, group)
    mortal[victim].kill()
    for rank, member in rest:
        for text, seconds in member.ask(at.broken, rank, 10):
            assert "all_reduce among workers 10, 11, 12: " in text
            assert seconds < 10
    survivors = [member for _, member in rest]
    for rank, member in rest:
        member.ask(at.leave, rank, group)
    works(survivors)
    assert max(everywhere(survivors, at.close)) < 1


def test_a_death_seen_by_a_member_who_waits_for_another(mortal: list[Member]) -> None:
    """Whoever a flight waits for just then: member 1 never starts it, and member 2 dies."""
    group = joined(mortal)
    everywhere(mortal, at.start_sum, group)
    everywhere(mortal, at.finish_sum)
    mortal[0].ask(at.start_sum, 0, group, 1.0, 1_000_000)
    mortal[2].kill()
    text, seconds = mortal[0].ask(at.broken, 0, 10)[0]
    assert "all_reduce among workers 10, 11, 12: " in text
    assert seconds < 10
    mortal[1].ask(at.start_sum, 1, group)
    assert mortal[1].ask(at.broken, 1, 10)[0][0]


def test_a_leader_that_died_before_the_others_joined(mortal: list[Member]) -> None:
    mortal[0].kill()
    group = joined(mortal, but=0)
    for rank in (1, 2):
        mortal[rank].ask(at.start_sum, rank, group)
    for rank in (1, 2):
        text, _ = mortal[rank].ask(at.broken, rank, 10)[0]
        assert text == "all_reduce among workers 10, 11, 12: worker 10 is not there any more"


def test_a_member_that_never_joins(mortal: list[Member]) -> None:
    group = next(_numbers)
    mortal[2].kill()
    for rank in (0, 1):
        mortal[rank].ask(at.be_patient_for, 1.0)
        mortal[rank].ask(at.join, rank, group, 3, mortal[0].address)
        mortal[rank].ask(at.start_sum, rank, group)
    for rank in (0, 1):
        text, _ = mortal[rank].ask(at.broken, rank, 10)[0]
        assert text == "all_reduce among workers 10, 11, 12: worker 12 did not join within 1 s"
        mortal[rank].ask(at.leave, rank, group)
    works(mortal[:2])
