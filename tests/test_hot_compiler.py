"""When the compiler is loaded, and how much it has to do for a section."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gt.types import FLOAT, TensorType, float32
from gt.worker.engines.torch import TorchEngine
from gt.worker.hot import compiled, compiler
from gt.worker.hot.cache_folder import set_cache_folder
from gt.worker.hot.compiled import StridedSpec, build
from gt.worker.hot.compiler import Compiler
from gt.worker.hot.levels import Levels
from gt.worker.hot.program import Program
from gt.worker.hot.section import Section
from tests.test_hot_levels import section

PARAMETERS = 24


def step_of_an_optimizer() -> Section:
    """One step of AdamW on parameters of equal shapes."""
    t, n = TensorType((8, 8), float32), PARAMETERS
    operands = (*range(4 * n), *(~k for k in range(6)))
    flags = {"n": n, "amsgrad": False, "maximize": False, "decoupled": True}
    call = ("adam_step", (*[t] * (4 * n), *[FLOAT] * 6), operands, tuple(range(3 * n)), True, flags)
    return section(call, inputs=4 * n, results=())


def test_updates_of_equal_parameters_are_not_all_compared_with_each_other(monkeypatch) -> None:
    """They read the same numbers, so inductor would try to fuse each with the 64 after it."""
    from torch._inductor.scheduler import Scheduler

    counts = {"pairs": 0}
    real_can_fuse = Scheduler.can_fuse

    def can_fuse(*arguments, **options):
        counts["pairs"] += 1
        return real_can_fuse(*arguments, **options)

    def codegen(scheduler):
        raise RuntimeError("scheduled")  # the code is of no interest here

    monkeypatch.setattr(Scheduler, "can_fuse", can_fuse)
    monkeypatch.setattr(Scheduler, "codegen", codegen)
    step, cpu = step_of_an_optimizer(), torch.device("cpu")
    program = Program(step, [1e-3, 0.9, 0.999, 1e-8, 0.01, 1.0], frozenset((0, 5)), cpu, compiled=True)

    def pairs(limit: int) -> int:
        monkeypatch.setattr(compiled, "COMPARED_NODES", limit)
        counts["pairs"] = 0
        with pytest.raises(Exception, match="scheduled"):
            build(program, [StridedSpec((8, 8), (8, 1), torch.float32, cpu)] * step.inputs)
        return counts["pairs"]

    assert 0 < pairs(compiled.COMPARED_NODES) < pairs(64) * 2 // 3


LOAD = """
import sys, torch
from gt.worker.engines.torch import TorchEngine
from gt.worker.hot.compiler import Compiler

compiler = Compiler(TorchEngine("cpu"))
if sys.argv[1] == "broken":
    sys.modules["torch._inductor.compile_fx"] = None
compiler.load_ahead().join(300)
print("torch._inductor.codegen.cpp" in sys.modules)
"""


@pytest.mark.parametrize("state", ["whole", "broken"])
def test_the_compiler_is_loaded_in_the_background(state: str, tmp_path) -> None:
    """An error is left to what is compiled later."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", LOAD, state]
    process = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
    assert (process.stdout.strip(), process.stderr) == (str(state == "whole"), "")


@pytest.mark.parametrize(
    ("mode", "device", "loads"),
    [("auto", "cuda:0", True), ("all", "cuda:0", True), ("graphs", "cuda:0", False), ("auto", "cpu", False)],
)
def test_a_worker_that_will_compile_loads_the_compiler_when_it_starts(monkeypatch, mode, device, loads) -> None:
    """Not on a CPU, whose cores the program needs."""
    loaded = []
    monkeypatch.setattr(compiler.Compiler, "load_ahead", lambda self: loaded.append(self))
    engine = TorchEngine("cpu")
    monkeypatch.setattr(engine, "device", device)
    levels = Levels(engine, mode)
    monkeypatch.setattr(levels, "_make_compiler", lambda prepared: compiler.Compiler(TorchEngine("cpu")))
    levels.load_ahead()
    assert bool(loaded) == loads


@pytest.fixture
def folder(tmp_path, monkeypatch) -> str:
    """The cache folder of some device."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ.get(name, str(tmp_path / name)))
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))
    path = set_cache_folder("cpu", "2", "3")
    assert path == str(tmp_path / "compile/torch-2-triton-3-cpu")
    return path


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720])
def test_a_folder_that_others_may_write_to_is_not_used(folder, mode) -> None:
    """The code in it is run."""
    os.chmod(folder, mode)
    assert set_cache_folder("cpu", "2", "3") == ""
    os.chmod(folder, 0o755)
    assert set_cache_folder("cpu", "2", "3") == folder


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(folder).st_uid + 1)
    assert set_cache_folder("cpu", "2", "3") == ""


def test_without_a_home_folder_nothing_is_kept(folder, monkeypatch, tmp_path) -> None:
    for name in ("GT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    assert set_cache_folder("cpu", "2", "3") == ""
    assert "~" not in os.listdir(tmp_path)


def test_the_log_says_that_code_is_not_kept(monkeypatch, capsys) -> None:
    monkeypatch.setenv("GT_DEBUG_COMPILE", "1")
    for path, says in (("/folder", False), ("", True)):
        Compiler(TorchEngine("cpu")).use_folder(path)
        assert ("compiled code is not kept" in capsys.readouterr().err) == says
