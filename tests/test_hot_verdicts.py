"""Trials that compiled code has passed are not repeated by the next process."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch

from gt.types import FLOAT
from gt.worker.hot import level_switch, verdicts
from gt.worker.hot.compiled import CompiledProgram
from gt.worker.hot.compiler import Compiler
from gt.worker.hot.level_switch import LevelSwitch
from gt.worker.hot.levels import Levels
from gt.worker.hot.program import Program
from gt.worker.hot.section import Section
from gt.worker.hot.verdicts import Verdicts
from tests.test_hot_levels import ENGINE, scaled, section


def test_a_second_process_needs_no_trial(tmp_path, monkeypatch) -> None:
    """The same code has passed its trial; other code has not, even if only a number differs, or GT itself."""
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))
    # the code itself may be from an earlier run of the tests
    monkeypatch.setenv(
        "TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"gt-tests-{os.getuid()}", "code")
    )
    trials: list[Section] = []
    real = level_switch.run_trial
    monkeypatch.setattr(level_switch, "run_trial", lambda s, *rest: trials.append(s) or real(s, *rest))

    def start(factor: int) -> dict:
        levels, x, y = Levels(ENGINE, "all"), torch.ones(3, 4), torch.ones(3, 4)
        repeated = scaled()
        for _ in range(3):
            (result,) = levels.run(repeated, [x, y], [1, factor], {})
            assert result[0, 0] == 2 * factor
        (stats,) = levels.stats()
        levels.close()
        assert stats["level"] == "compiled"
        return stats

    start(3)
    assert len(trials) == 1
    start(3)
    assert len(trials) == 1
    start(4)
    assert len(trials) == 2
    monkeypatch.setattr(verdicts, "_source_digest", lambda: "another version of GT")
    start(4)
    assert len(trials) == 3
    for path in tmp_path.rglob("trials/*"):
        path.write_text("not json")
    start(4)
    assert len(trials) == 4
    start(4)
    assert len(trials) == 4


def test_code_that_was_slower_is_tried_again(tmp_path) -> None:
    """In a process that uses it only if it is faster."""
    kept = Verdicts(str(tmp_path))
    kept.keep("key", ((1.0, 2.0), (0.0, 0.0)))
    assert kept.find("key") == ((1.0, 2.0), (0.0, 0.0))
    assert kept.find("other") is None
    assert Verdicts("").find("key") is None
    program = Program(scaled(), [2, 3], frozenset(), torch.device("cpu"), compiled=True)
    for at_once, passes in ((True, True), (False, False)):
        compiled = CompiledProgram(program, None, [set()], [], 0.0, "key")
        compiler = Compiler(ENGINE)
        compiler.use_folder(str(tmp_path))
        switch = LevelSwitch(scaled(), ENGINE, at_once, compiler)
        assert switch._passes_trial(compiled, [torch.ones(3, 4), torch.ones(3, 4)], [2, 3]) == passes, at_once


def test_without_torch_s_settings_nothing_is_kept(monkeypatch) -> None:
    """They are internals of torch, which another version may not have."""
    from torch._inductor.codecache import CacheBase

    def missing() -> None:
        raise AttributeError("get_system")

    assert verdicts._settings(torch.device("cpu"))
    monkeypatch.setattr(CacheBase, "get_system", missing)
    assert verdicts._settings(torch.device("cpu")) is None


def test_code_without_inputs_is_for_one_device(monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "_settings", lambda device: [])
    ones = section(
        ("full", (FLOAT,), (~0,), (0,), False, {"shape": (3, 4), "dtype": "float32"}), inputs=0, results=(0,)
    )
    devices = map(torch.device, ("cpu", "cuda:0", "cuda:1"))
    keys = {verdicts.section_key(Program(ones, [1.0], frozenset(), d, compiled=True), []) for d in devices}
    assert len(keys) == 3


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the files that decide what is traced, in place of them."""
    root = Path(verdicts.__file__).parents[2]
    for pattern in verdicts.DECIDING:
        for path in root.glob(pattern):
            copy = tmp_path / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    monkeypatch.setattr(verdicts, "__file__", str(tmp_path / "worker/hot/verdicts.py"))
    return tmp_path


@pytest.mark.parametrize("name", ["types.py", "ops/nn/linear.py", "worker/hot/program.py"])
def test_other_source_files_are_other_code(copied, monkeypatch, name) -> None:
    monkeypatch.setattr(verdicts, "_began", time.time)
    before = verdicts._source_digest.__wrapped__()
    (copied / name).write_text("another version")
    assert verdicts._source_digest.__wrapped__() not in ("", before)


def test_nothing_is_kept_if_a_source_file_changed_since_the_process_began(copied, monkeypatch) -> None:
    """The process may have imported the file as it was before."""
    assert verdicts._source_digest.__wrapped__() == ""
    monkeypatch.setattr(verdicts, "_source_digest", lambda: "")
    program = Program(scaled(), [2, 3], frozenset(), torch.device("cpu"), compiled=True)
    assert verdicts.section_key(program, [torch.ones(3, 4), torch.ones(3, 4)]) == ""


def test_when_the_process_began() -> None:
    assert 0 < time.time() - verdicts._began() < 86400
