"""What `infer` accepts is safe to run: random calls of every op, on both engines, in a child that may die.

``GT_SEEDS=400 pytest tests/test_safety.py`` tries that many calls of each op instead of the usual few.
``python -m tests.support.fuzz_run`` does the same without pytest, and runs a single case again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gt.ops import OPS
from tests.support.fuzz import Case, Operand
from tests.support.processes import ROOT, environment
from tests.support.samples import INF

SEEDS = int(os.environ.get("GT_SEEDS", "2"))
#: ops that are tried together
GROUP = 20
NAMES = sorted(OPS)


class Runner:
    """A process whose children make the calls."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fuzz_run"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            # without glibc's cache of freed memory all fresh memory is filled
            env=environment(GLIBC_TUNABLES="glibc.malloc.tcache_count=0", CUDA_VISIBLE_DEVICES=""),
            text=True,
        )

    def run(self, op: str, first: int, last: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """What was not in order, and how often each outcome came."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{op} {first} {last}\n")
        self.process.stdin.flush()
        wrong = []
        for line in self.process.stdout:
            report = json.loads(line)
            if "counts" in report:
                return wrong, report["counts"]
            wrong.append(report)
        raise AssertionError("the runner ended")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("first", range(0, len(NAMES), GROUP), ids=lambda i: f"from-{NAMES[i]}")
def test_what_infer_accepts_is_safe_to_run(runner: Runner, first: int) -> None:
    _check(runner, NAMES[first : first + GROUP], 0, SEEDS)


@pytest.mark.long
@pytest.mark.parametrize("op", NAMES)
def test_what_infer_accepts_is_safe_to_run_over_many_seeds(runner: Runner, op: str) -> None:
    _check(runner, [op], SEEDS, SEEDS + 60)


def _check(runner: Runner, ops: list[str], first: int, last: int) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for op in ops:
        reports, counted = runner.run(op, first, last)
        wrong += reports
        counts.update(counted)
    print(dict(counts))
    assert not wrong, "\n".join(json.dumps(report) for report in wrong)
    assert sum(counts.values()) == len(ops) * (last - first)


# -- the test can fail ---------------------------------------------------------------------


def _broken(name: str, **fields: Any) -> Any:
    return OPS[name].__class__(**{f: getattr(OPS[name], f) for f in OPS[name].__struct_fields__} | fields)


def _leaky(torch: Any, x: Any, **_: Any) -> Any:
    result = torch.empty_like(x)
    result[:1] = x[:1]
    return result


#: a wrong kernel, and the expected report
BROKEN = [
    ({"torch": lambda torch, x: _leaky(torch, x)}, "memory that nobody wrote"),
    ({"torch": lambda torch, x: torch.exp(x).double()}, "torch gives"),
    ({"torch": lambda torch, x: torch.exp(x) + 1}, "result 0"),
    ({"torch": lambda torch, x: x.no_such_method()}, "only torch fails"),
    ({"torch": lambda torch, x: os.kill(os.getpid(), 11)}, "died (Segmentation fault)"),
]


def run_here(call: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from tests import test_safety; test_safety.{call}"],
        cwd=ROOT,
        env=environment(GLIBC_TUNABLES="glibc.malloc.tcache_count=0"),
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_broken_kernel_is_seen() -> None:
    """In a process of its own, which may be forked: this one has threads."""
    process = run_here("show_broken()")
    for line, (_, report) in zip(process.stdout.splitlines(), BROKEN, strict=True):
        assert report in line, process.stderr


def show_broken() -> None:
    from tests.support import fuzz_run

    plain = Case("exp", 0, [Operand((64, 4), "float32")], {})
    fuzz_run.make_case = lambda op, seed: plain
    for fields, _ in BROKEN:
        OPS["exp"] = _broken("exp", **fields)
        fuzz_run.check("exp", 0, 1)


def holds(*values: Any, dtype: str = "float32", layout: str = "plain") -> Operand:
    x = torch.tensor(values, dtype=getattr(torch, dtype))
    return Operand(tuple(x.shape), dtype, layout=layout, values=x)


NORM = {"eps": 1e-5, "weight": False, "mask": (True, False, False)}
#: cases in which random calls revealed bugs, and the expected outcome
FOUND = [
    # torch reads the statistics as if they were contiguous
    (
        Case(
            "batch_norm_backward",
            0,
            [*[Operand((2, 4, 1), "float32")] * 2, *[Operand((4,), "float32", "positive", "spaced")] * 2],
            NORM,
        ),
        "ran",
    ),
    # ends the process on x86-64
    (Case("lcm", 0, [holds(-(2**63), 2**62, dtype="int64"), holds(3, 5, dtype="int64")], {}), "ran"),
    # does not end with MKL
    (Case("svd", 0, [holds([INF, 1.0], [INF, 1.0], dtype="float64")], {"full_matrices": False}), "failed"),
    (Case("div", 0, [holds(-(2**63), dtype="int64"), holds(5, dtype="int64")], {"rounding_mode": "trunc"}), "ran"),
]


def test_bugs_that_random_calls_revealed() -> None:
    """In one process of its own: a case that ends it leaves a line missing."""
    process = run_here("show_found()")
    lines = process.stdout.splitlines()
    assert lines == [f"{case} {expected}" for case, expected in FOUND], process.stderr


def show_found() -> None:
    from tests.support.fuzz_run import outcome

    for case, _ in FOUND:
        print(case, outcome(case), flush=True)
