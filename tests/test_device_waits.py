"""While calls that wait for a GPU raise, which torch can switch for all threads only, other threads lose nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gt.wire.recovery_messages import SaveTo
from gt.worker.engines import device_waits
from gt.worker.engines.device_waits import MESSAGE, no_device_waits, repeated
from gt.worker.engines.torch import TorchEngine
from gt.worker.hot import compiler as compiler_module
from gt.worker.hot.compiler import CompileJob, Compiler
from gt.worker.hot.program import Program
from gt.worker.recovery.snapshots import WorkerSnapshots
from gt.worker.space import ClientSpace
from tests.test_hot_levels import scaled

GPU = torch.device("cuda")
TIMEOUT_S = 20.0


class Switch:
    """In place of torch's switch: ``wait`` is a call that waits for the GPU. The first one happens in a block without
    device waits, which ends only then."""

    def __init__(self) -> None:
        self.modes: list[str] = []
        self.calls = 0
        self.entered, self.raised = threading.Event(), threading.Event()

    def set(self, mode: str) -> None:
        self.modes.append(mode)

    def wait(self) -> None:
        self.calls += 1
        if self.calls == 1:
            assert self.entered.wait(TIMEOUT_S)
        if self.modes[-1] == "error":
            self.raised.set()
            raise RuntimeError(f"{MESSAGE}\nException raised from …")

    def block(self) -> None:
        with no_device_waits(GPU):
            self.entered.set()
            assert self.raised.wait(TIMEOUT_S)


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    switch = Switch()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switch.set)
    return switch


def test_the_compiler_repeats_what_waited(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(program: Program, inputs: list[Any], kept: Any) -> str:
        switch.wait()
        return "code"

    monkeypatch.setattr(compiler_module, "build", build)
    compiler = Compiler(TorchEngine("cpu"))
    piece = scaled()
    job = CompileJob(piece, Program(piece, [1.0, 2.0], frozenset(), torch.device("cpu"), True), [])
    try:
        future = compiler.submit(job, wait=False)
        switch.block()
        assert future.result(TIMEOUT_S) == "code"
    finally:
        compiler.close()
    assert (switch.calls, switch.modes) == (2, ["error", "default"])


def test_a_snapshot_is_written_although_a_copy_waited(switch: Switch) -> None:
    class Engine(TorchEngine):
        def to_host(self, array: Any) -> Any:
            switch.wait()
            return super().to_host(array)

    done = threading.Event()
    snapshots = WorkerSnapshots(Engine("cpu"), threaded=True, wake=done.set)
    space = ClientSpace(shares_memory=True)
    space.put(1, torch.arange(6.0))
    snapshots.expect(SaveTo(1, 1, "", -1))
    snapshots.take(space, 1, 1)
    switch.block()
    assert done.wait(TIMEOUT_S)
    (saved,) = snapshots.finished()
    assert saved.problem == ""
    assert [block.nbytes for block in saved.blocks] == [24]
    snapshots.forget(1)


def fail(times: int, error: Exception) -> Callable[[], int]:
    left = deque([error] * times)

    def act() -> int:
        if left:
            raise left.popleft()
        return times

    return act


def test_other_errors_are_not_repeated() -> None:
    with pytest.raises(ValueError, match="no"):
        repeated(fail(1, ValueError("no")))
    assert repeated(fail(3, RuntimeError(MESSAGE))) == 3


def test_attempts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_waits, "MAX_ATTEMPTS", 3)
    assert repeated(fail(2, RuntimeError(MESSAGE))) == 2
    with pytest.raises(RuntimeError, match=MESSAGE):
        repeated(fail(3, RuntimeError(MESSAGE)))


def test_the_switch_is_reset_after_an_error(switch: Switch) -> None:
    with pytest.raises(ValueError), no_device_waits(GPU):
        raise ValueError
    with no_device_waits(torch.device("cpu")):
        pass
    assert switch.modes == ["error", "default"]
