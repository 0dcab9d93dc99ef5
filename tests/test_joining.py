"""The table of workers that join: its state, and how it is shown."""

from __future__ import annotations

import io

import pytest

from gt.launch.joining import FAILED, JOINED, MAX_ROWS, WAITING, Joining, JoiningDisplay


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_states_and_reasons():
    joining = Joining(["a/0", "a/1", "b/0", "b/1"])
    assert not joining.complete
    assert joining.summary() == "0 of 4 workers joined"
    joining.note("a/0", "connecting")
    joining.joined("a/1", "worker 0 on cpu (numpy)")
    joining.failed("b/0", "refused")
    joining.failed("b/1", "refused")
    assert joining.rows["a/0"] == (WAITING, "connecting")
    assert joining.rows["a/1"] == (JOINED, "worker 0 on cpu (numpy)")
    assert joining.rows["b/0"] == (FAILED, "refused")
    assert joining.missing == {"a/0": "connecting", "b/0": "refused", "b/1": "refused"}
    assert joining.explain_missing() == ["a/0: connecting", "b/0, b/1: refused"]
    assert joining.hopeless
    assert not joining.settled
    joining.failed("a/0", "refused")
    assert joining.settled


def test_all_have_joined():
    joining = Joining(["a/0"])
    assert not joining.hopeless
    joining.joined("a/0")
    assert joining.complete
    assert joining.summary() == "1 of 1 worker joined"


def test_a_worker_that_is_not_expected():
    with pytest.raises(KeyError, match="no worker 'c' is expected"):
        Joining(["a"]).joined("c")


def test_without_a_terminal_each_change_is_one_line():
    out, joining = io.StringIO(), Joining(["a/0", "a/1"])
    with JoiningDisplay(joining, out) as display:
        display.update()
        assert out.getvalue() == ""
        joining.note("a/0", "connecting")
        display.update()
        display.update()
        joining.joined("a/0")
    assert out.getvalue() == "a/0  waiting: connecting\na/0  joined\n"


def test_on_a_terminal_the_missing_ones_come_first():
    out, joining = Terminal(), Joining(f"h/{i}" for i in range(MAX_ROWS + 2))
    with JoiningDisplay(joining, out) as display:
        for name in list(joining.rows)[:-1]:
            joining.joined(name)
        joining.failed(f"h/{MAX_ROWS + 1}", "a reason [with] brackets")
        display.update()
    last = out.getvalue().rpartition(f"{MAX_ROWS + 1} of {MAX_ROWS + 2} workers joined")[2].splitlines()
    assert "a reason [with] brackets" in last[2]
    assert "and 2 more" in out.getvalue()
