"""The simulated data plane: the table of collectives, and what it asserts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gt.worker.collectives.interface import GroupBroken
from gt.worker.collectives.local import LocalNetwork, LocalPlane
from tests.support.planes import check, fits, given, rows


def group_of(size: int, network: LocalNetwork | None = None) -> list[LocalPlane]:
    network = network or LocalNetwork()
    members = tuple(range(10, 10 + size))
    planes = [LocalPlane(network, worker) for worker in members]
    for rank, plane in enumerate(planes):
        plane.join(1, members, rank, planes[0].address, "gloo")
    return planes


@pytest.mark.parametrize("engine", ["torch", "numpy"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_table(size: int, engine: str) -> None:
    planes, numpy = group_of(size), engine == "numpy"
    for row in rows(size):
        if not fits(row, numpy):
            continue
        parts = zip(planes, row.arrays, row.hows, strict=True)
        flights = [plane.start(1, row.kind, given(x, numpy), how) for plane, x, how in parts]
        for rank, flight in enumerate(flights):
            assert flight.done()
            check(row, rank, flight.result(), numpy)


def test_flights_meet_in_the_order_they_were_started() -> None:
    a, b = group_of(2)
    early = [a.start(1, "all_reduce", torch.full((2,), float(n)), {"op": "sum"}) for n in (1, 2)]
    assert not any(flight.done() for flight in early)
    late = [b.start(1, "all_reduce", torch.full((2,), float(n)), {"op": "sum"}) for n in (10, 20)]
    assert [flight.result()[0].item() for flight in early + late] == [11, 22, 11, 22]


def test_members_must_mean_the_same() -> None:
    a, b = group_of(2)
    a.start(1, "all_reduce", np.ones(2), {"op": "sum", "overwrite": True})
    with pytest.raises(
        AssertionError, match=r"all_reduce among workers 10, 11: rank 0 means .*sum.*rank 1 means .*max"
    ):
        b.start(1, "all_reduce", np.ones(2), {"op": "max", "overwrite": False})


def test_an_array_on_its_way_must_not_change() -> None:
    a, b = group_of(2)
    x = torch.ones(2)
    a.start(1, "all_reduce", x, {"op": "sum"})
    x.add_(1)
    with pytest.raises(AssertionError, match="was written while it was pending"):
        b.start(1, "all_reduce", torch.ones(2), {"op": "sum"})


def test_a_loss_breaks_what_its_groups_do() -> None:
    network = LocalNetwork()
    a, _ = group_of(2, network)
    under_way = a.start(1, "all_reduce", torch.ones(2), {"op": "sum"})
    network.lose(11)
    for flight in (under_way, a.start(1, "all_gather", torch.ones(2), {"dim": 0, "sizes": (2, 2)})):
        assert flight.done()
        with pytest.raises(GroupBroken, match="among workers 10, 11: worker 11 is gone"):
            flight.result()


def test_leaving_breaks_what_is_under_way() -> None:
    a, b = group_of(2)
    flight = a.start(1, "all_reduce", torch.ones(2), {"op": "sum"})
    b.leave(1)
    with pytest.raises(GroupBroken, match="the group was left"):
        flight.result()
    a.close()
