"""Forks with real processes: another session of the same user continues after a client and the server were killed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.test_journal_real import Restarted
from tests.test_tenants import new_token

TAKE = """
    x = gt.arange(200_000)
    taken = gt.snapshot(x=x, keep=600)
    x += 1
    say("taken", taken.wait(), taken)
    go()
"""
FORK = """
    try:
        x = gt.fork(sys.stdin.readline().strip())["x"]
        say("forked", (x * 2)[100_000].item(), x.sum().item() == sum(range(200_000)))
    except gt.ClusterError as error:
        say("refused", error)
"""


@pytest.mark.long
def test_a_session_continues_where_a_killed_one_has_stopped(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    alice, bob = (new_token(folder, user, "client") for user in ("alice", "bob"))
    joining = new_token(folder, "gpu", "worker")
    system = Restarted(stack, tmp_path / "journal", "--folder", str(folder))
    alone = {"XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}
    system.worker("--backend", "numpy", GT_TOKEN=joining, **alone)
    first = system.client(TAKE, GT_TOKEN=alice, **alone)
    text = first.expect("taken True").split()[-1]
    first.kill()
    system.kill()
    system.restart().expect("continues the journal in")
    others = [system.client(FORK, GT_TOKEN=token, **alone) for token in (alice, bob)]
    for client in others:
        client.tell(text)
    others[0].expect("forked 200000 True")
    others[1].expect("no such snapshot of yours")
    assert [client.end() for client in others] == [0, 0]
