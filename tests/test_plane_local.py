"""The simulated data plane: the table of collectives, and its assertions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gt.worker.collectives.interface import GroupBroken
from gt.worker.collectives.local import LocalNetwork, LocalPlane
from tests.support.planes import check, copy_of, fits, rows


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
        handles = [plane.start(1, row.kind, copy_of(x, numpy), how) for plane, x, how in parts]
        for rank, handle in enumerate(handles):
            assert handle.done()
            check(row, rank, handle.result(), numpy)


def test_collectives_match_in_the_order_of_their_start() -> None:
    a, b = group_of(2)
    early = [a.start(1, "all_reduce", torch.full((2,), float(n)), {"op": "sum"}) for n in (1, 2)]
    assert not any(handle.done() for handle in early)
    late = [b.start(1, "all_reduce", torch.full((2,), float(n)), {"op": "sum"}) for n in (10, 20)]
    assert [handle.result()[0].item() for handle in early + late] == [11, 22, 11, 22]


def test_members_must_start_the_same_collective() -> None:
    a, b = group_of(2)
    a.start(1, "all_reduce", np.ones(2), {"op": "sum", "overwrite": True})
    with pytest.raises(
        AssertionError, match=r"all_reduce among workers 10, 11: rank 0 started .*sum.*rank 1 started .*max"
    ):
        b.start(1, "all_reduce", np.ones(2), {"op": "max", "overwrite": False})


def test_a_pending_array_must_not_change() -> None:
    a, b = group_of(2)
    x = torch.ones(2)
    a.start(1, "all_reduce", x, {"op": "sum"})
    x.add_(1)
    with pytest.raises(AssertionError, match="was written while it was pending"):
        b.start(1, "all_reduce", torch.ones(2), {"op": "sum"})


def test_a_lost_worker_breaks_its_groups() -> None:
    network = LocalNetwork()
    a, _ = group_of(2, network)
    pending = a.start(1, "all_reduce", torch.ones(2), {"op": "sum"})
    network.lose(11)
    for handle in (pending, a.start(1, "all_gather", torch.ones(2), {"dim": 0, "sizes": (2, 2)})):
        assert handle.done()
        with pytest.raises(GroupBroken, match="among workers 10, 11: worker 11 is gone"):
            handle.result()


def test_leaving_breaks_pending_collectives() -> None:
    a, b = group_of(2)
    handle = a.start(1, "all_reduce", torch.ones(2), {"op": "sum"})
    b.leave(1)
    with pytest.raises(GroupBroken, match="the group was left"):
        handle.result()
    a.close()
