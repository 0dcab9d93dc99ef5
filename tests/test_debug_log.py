"""GT_DEBUG_DISPATCHER: ops, types, plans and moves, for a person to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gt
from gt.dispatcher.actions import Close, SendAll
from gt.dispatcher.debug_log import DebugLog
from gt.testing import Cluster
from tests.support.pages import blocks
from tests.support.processes import ROOT, script


class Logged(Cluster):
    """A cluster whose dispatcher is logged as its server does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lines: list[str] = []
        log = DebugLog(self.dispatcher, self.lines.append)
        handle = self.dispatcher.handle

        def logged(peer: Any, message: Any, *frames: Any) -> Any:
            actions = handle(peer, message, *frames)
            log.received(peer, message)
            for action in actions:
                if not isinstance(action, Close):
                    peers = action.peers if isinstance(action, SendAll) else (action.peer,)
                    log.sent(peers, action.message, () if isinstance(action, SendAll) else action.rest)
            return actions

        self.dispatcher.handle = logged  # type: ignore[method-assign]

    def said(self, program: Callable[[], object]) -> list[str]:
        """The lines of a program that ends with a read."""
        self.settle()
        self.lines.clear()
        program()
        return list(self.lines)


def test_ops_types_and_operands() -> None:
    cluster = Logged(workers=1, backend="numpy")
    with cluster.client():
        x, w = gt.ones(3, 4), gt.ones(4, 2)
        lines = cluster.said(lambda: gt.relu(x @ w).sum().item())
    assert lines == [
        "from client 1: 5 instructions (full 2, matmul, relu, sum), free 2, fetch",
        "to worker 0: %1 = full(int, shape=(3, 4), dtype=float32)",
        "to worker 0: %2 = full(int, shape=(4, 2), dtype=float32)",
        "to worker 0: %3 = matmul(float32[3,4], float32[4,2]) of %1, %2",
        "to worker 0: %4 = relu(float32[3,2]) of %3",
        "to worker 0: free %3",
        "to worker 0: %5 = sum(float32[3,2], dim=(0, 1), keepdim=False, dtype=None) of %4",
        "to worker 0: free %4",
        "to worker 0: fetch %5",
        "from worker 0: Reply client:1 request=1",
        "to client 1: a value, 21 B",
    ]


def test_plans_and_moves() -> None:
    """They are the example in the documentation."""
    cluster = Logged(workers=2)
    with cluster.client():
        gt.auto_shard()
        x = gt.ones(1000, 64)
        lines = cluster.said(lambda: (x * x.sum(0)).numpy())
    shown = next(block for block in blocks((ROOT / "docs/settings.md").read_text(), "text") if "from client" in block)
    assert [line for line in lines if line != "from client 1: Configure"][: shown.count("\n")] == shown.splitlines()


def test_a_copy_has_a_name_and_a_signal_is_shown() -> None:
    cluster = Logged(workers=2)
    gt.register_config("split", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with cluster.client():
        with gt.signal.context("split"):
            x = gt.ones(4, 4)
        y = gt.ones(4, 4)
        lines = cluster.said(lambda: (x @ y).numpy())
    assert any(line.endswith("S(0) on workers 0,1 under split") for line in lines), lines
    (move,) = (line for line in lines if "move" in line)
    assert move == ("to workers 0, 1: move %2 as %d1: exchange(float32[4,4]) of 64 B: worker 0 -> R on workers 0,1")


def test_a_repeated_fragment_is_one_line() -> None:
    cluster = Logged(workers=1, backend="numpy")
    with cluster.client():

        def step() -> float:
            x = gt.ones(8)
            for _ in range(6):
                x = x * 0.5 + 1
            return x.sum().item()

        for _ in range(3):
            cluster.said(step)
        lines = cluster.said(step)
    assert lines[0] == "from client 1: 1 instruction (fragment 1 of 14 instructions), free 2, fetch"
    assert "to worker 0: fragment 1 of 14 instructions (full, mul 6, add 6, sum)" in lines


def test_failures_and_ends() -> None:
    cluster = Logged(workers=1, backend="numpy")
    with cluster.client() as session:
        gt.ones(3)[gt.tensor([7])]
        session.outbox.flush()
        cluster.settle()
        name = cluster.name_of(session)
    assert any("FailureReport ERROR RemoteError: index(" in line for line in cluster.lines)
    cluster.settle()
    assert "from client 1: Bye" in cluster.lines
    assert name not in cluster.dispatcher.by_peer


def test_a_malformed_stream_is_shown_as_such() -> None:
    cluster = Logged(workers=1, backend="numpy")
    with cluster.client() as session:
        session.outbox.extend((6,))
        session.outbox.flush()
        cluster.settle()
    assert any(line.startswith("to client 1: Refusal the stream is malformed: ") for line in cluster.lines), (
        cluster.lines
    )


def test_the_server_prints_it(stack) -> None:
    client = script("import gt; gt.ones(3).sum().item()", stack=stack, GT_BACKEND="numpy", GT_DEBUG_DISPATCHER="1")
    assert client.end() == 0, client.output
    assert "to worker 0: %1 = full(int, shape=(3,), dtype=float32)" in client.output
