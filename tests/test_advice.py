"""The advice of `gt.debug.explain_last_step`: each pattern is found in a program that has it, in real processes."""

from __future__ import annotations

import contextlib
import pathlib
import re
import textwrap

import pytest

from gt.events.advice import REMEDIES, WAITS, advice
from gt.events.breakdown import KINDS, Breakdown
from tests.support.processes import LONG, ROOT, Process, script

#: Explains the last of a few calls of ``step``; the first ones define fragments and groups of workers.
EXPLAIN = """
for k in range(6):
    step()
    gt.step()
gt.debug.explain_last_step()
step()
print(gt.debug.explain_last_step(stop=True), flush=True)
"""


def advice_of(program: str, stack: contextlib.ExitStack, **settings: str) -> list[str]:
    """The pieces of advice, the best first."""
    settings = {"GT_BACKEND": "numpy", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | settings
    process = script("import time, gt\n" + textwrap.dedent(program) + EXPLAIN, stack=stack, **settings)
    assert process.end(4 * LONG) == 0, process.output
    return advice_in(process)


def advice_in(process: Process) -> list[str]:
    lines = re.findall(r"^  \d\. (.*)$", process.output, re.M)
    assert len(lines) == 3, process.output
    return lines


def test_communication(stack: contextlib.ExitStack) -> None:
    """Little computing, and a large sum over both workers."""
    program = """
    gt.gpu_workers(2)
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with gt.signal.context("rows"):
        x = gt.ones(2, 4_000_000)
    def step():
        for _ in range(3):
            total = x.sum(0)
            total.relu()[:1].item()
    """
    lines = advice_of(program, stack)
    assert any(line.startswith("communication: workers wait for data ") for line in lines[:2]), lines


def test_unbalanced_load(stack: contextlib.ExitStack) -> None:
    """The first worker has twenty times the work of the second."""
    program = """
    gt.gpu_workers(2)
    for w in (0, 1):
        gt.register_config(f"worker{w}", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[w])))
    x = [gt.rand(400, 400), gt.rand(400, 400)]
    def step():
        results = []
        for w, count in ((0, 40), (1, 2)):
            with gt.signal.context(f"worker{w}"):
                y = x[w]
                for _ in range(count):
                    y = gt.tanh(y @ x[w])
                results.append(y)
        with gt.signal.context("worker1"):
            (results[0] + results[1]).sum().item()
    """
    lines = advice_of(program, stack)
    assert lines[0].startswith("unbalanced load: workers wait for others "), lines
    assert "give each worker the same share" in lines[0]


def test_client_bound(stack: contextlib.ExitStack) -> None:
    """Python takes longer than everything else."""
    program = """
    x = gt.rand(8, 8)
    def step():
        (x @ x).sum().item()
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.3:
            sum(range(1000))
    """
    lines = advice_of(program, stack)
    assert lines[0].startswith("client-bound: only Python runs "), lines
    assert "@gt.compile" in lines[0]


@pytest.mark.long
def test_reads(stack: contextlib.ExitStack) -> None:
    """Each value is read: messages go to and fro all the time."""
    program = """
    x = gt.rand(4)
    def step():
        for _ in range(200):
            (x + 1).sum().item()
    """
    lines = advice_of(program, stack)
    assert any(line.startswith("reads: messages are on their way ") for line in lines), lines


def test_short_steps(stack: contextlib.ExitStack) -> None:
    """Nothing is read, and everything is repeated: advice about reads or repetition would be wrong."""
    program = """
    x = gt.rand(4)
    def step():
        for _ in range(50):
            (x + 1).sum()
            gt.step()
    """
    lines = advice_of(program, stack)
    assert not any(line.startswith(("reads", "dispatcher")) for line in lines), lines


def test_a_step_that_no_worker_has_begun() -> None:
    """The program is ahead of its workers. Whether the step is repeated is not known, so no advice is about that."""
    times = dict.fromkeys(KINDS, 0.0) | {"wire": 9e6, "dispatcher": 1e6}
    lines = advice(Breakdown(0, 10_000_000, times, read=0))
    patterns = [line.partition(":")[0] for line in lines]
    assert patterns[0] == "short steps", lines
    assert len(set(patterns)) == 3, lines
    assert "dispatcher" not in patterns, lines


def test_memory(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """The device is nearly full."""

    def start(*arguments: str) -> Process:
        process = Process(*arguments, GT_VERBOSE="1")
        stack.callback(process.close)
        return process

    socket, size = str(tmp_path / "server"), 256 << 20
    start("-m", "gt.server", "--unix", socket).expect("listening")
    worker = start("-m", "tests.support.small_worker", socket, str(size))
    program = f"""
    import time, gt
    from gt.client.stream import connect
    connect._process.session = connect.open_session("unix:{socket}", None, "test", 60)
    limit = time.monotonic() + {LONG}
    while not gt.workers() and time.monotonic() < limit:
        time.sleep(0.05)
    held = [gt.rand(1 << 20) for _ in range({size} // (4 << 20))]
    def step():
        held[0].sum().item()
    """
    process = start("-c", textwrap.dedent(program) + EXPLAIN)
    assert process.end() == 0, process.output + worker.output
    lines = advice_in(process)
    assert re.match(r"memory: a device is (9\d|100)% full: use a smaller batch", lines[0]), lines


@pytest.mark.long
def test_compilation(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    """The last step has another shape: it is compiled, and the step waits for it."""
    program = """
    sizes = iter([3, 3, 3, 3, 3, 3, 4])
    def step():
        x = gt.ones(next(sizes))
        for _ in range(3):
            gt.tanh(x * 2 + 1).sum().item()
    """
    settings = {"GT_BACKEND": "torch", "GT_COMPILE": "1", "GT_CACHE_DIR": str(tmp_path)}
    lines = advice_of(program, stack, **settings)
    assert re.match(r"compilation: workers compile \d+ sections? \d+% of the time: warm up", lines[0]), lines


# -- the page ------------------------------------------------------------------------------


def test_the_page_has_the_same_advice() -> None:
    """Each pattern is a row of docs/tuning.md, with the same words."""
    text = (ROOT / "docs/tuning.md").read_text()
    rows = re.findall(r"^\| (?:\[)?([a-z -]+?)(?:\]\(#[\w-]+\))? \| .* \| (.+) \|$", text, re.M)
    by_name = {name: remedy.replace("`", "") for name, remedy in rows}
    for pattern, remedy in REMEDIES.items():
        assert by_name.get(pattern) == remedy, pattern


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_time_has_advice(kind: str) -> None:
    assert kind == "compute" or WAITS[kind][0] in REMEDIES
