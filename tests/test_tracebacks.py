"""An uncaught error of GT is printed without the frames inside GT; a bug in GT is printed with all of them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import traceback
from typing import Any

import pytest

import gt
from gt.client.stream.tracebacks import trimmed
from gt.client.tensor import emit
from tests.support.worlds import session

__all__ = ["session"]

ROOT = pathlib.Path(__file__).parent.parent


class Net(gt.nn.Module):
    def forward(self, x: Any) -> Any:
        return x @ x


class Broken(gt.nn.Module):
    def forward(self, x: Any) -> Any:
        return {}["key"]


def files_of(expression: str) -> tuple[list[str], BaseException]:
    """The files in the trimmed traceback of an expression that raises, and the error."""
    try:
        eval(compile(expression, "program.py", "eval"), {"gt": gt, "Net": Net, "Broken": Broken})
    except Exception as error:
        return [frame.filename for frame in traceback.extract_tb(trimmed(error, error.__traceback__))], error
    raise AssertionError(f"{expression} raised nothing")


CALLS = [
    ("gt.ones(2) @ gt.ones(3)", gt.ShapeError),
    ("gt.nn.Sequential(Net())(gt.ones(2, 3))", gt.ShapeError),
    ("gt.ones(3)[gt.tensor([7])].tolist()", gt.RemoteError),
    ("gt.nn.Linear(2, 2).load_state_dict({})", RuntimeError),
    ("gt.ones(2).sum(dimension=0)", TypeError),
    ("gt.ones(2, sise=3)", TypeError),
    ("gt.tensor([[1], [2, 3]])", gt.ShapeError),
    ("gt.nn.Foo", AttributeError),
]


@pytest.mark.parametrize(("call", "kind"), CALLS)
def test_a_traceback_ends_at_the_users_line(session: Any, call: str, kind: type) -> None:
    files, error = files_of(call)
    assert isinstance(error, kind)
    assert files == [__file__, "program.py", *([__file__] if "Net" in call else [])]  # and not the frames between


def test_all_frames_on_request(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_FULL_TRACEBACK", "1")
    assert f"{ROOT}/gt/client/tensor/emit.py" in files_of("gt.ones(2) @ gt.ones(3)")[0]
    monkeypatch.setenv("GT_FULL_TRACEBACK", "0")
    assert files_of("gt.ones(2) @ gt.ones(3)")[0] == [__file__, "program.py"]


def test_a_bug_in_gt_shows_all_frames(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit.sites, "here", lambda: 1 / 0)
    files, error = files_of("gt.ones(2)")
    assert isinstance(error, ZeroDivisionError)
    assert f"{ROOT}/gt/client/tensor/emit.py" in files


def test_an_error_of_the_user_keeps_its_frames(session: Any) -> None:
    files, error = files_of("Broken()(gt.ones(2))")
    assert isinstance(error, KeyError)
    assert files[-2:] == [f"{ROOT}/gt/nn/module.py", __file__]


PROGRAM = """
import threading
import gt
from gt.testing import Cluster

def work():
    gt.ones(2) @ gt.ones(3)

def run(function):
    with Cluster(backend="numpy").client():
        function()

thread = threading.Thread(target=run, args=(work,))
thread.start()
thread.join()
run(work)
"""


def test_python_prints_it(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(program)]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert process.stderr.count("Exception in thread") == 1
    assert process.stderr.count("gt.errors.ShapeError: matmul(float32[2], float32[3]): inner sizes differ") == 2
    assert f"{ROOT}/gt" not in process.stderr
    assert process.stderr.splitlines()[-3].strip() == "gt.ones(2) @ gt.ones(3)"


def test_a_hook_that_was_there_is_called(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', kind.__name__, trace.tb_next)\n"
        "import gt\ngt.nn.Foo\n"
    )
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(program)]
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert process.stdout == "mine AttributeError None\n"


def test_ipython(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("IPython")
    (tmp_path / "cell.ipy").write_text(
        "import gt\nfrom gt.testing import Cluster\n"
        "with Cluster(backend='numpy').client():\n    gt.ones(2) @ gt.ones(3)\n"
    )
    command = [sys.executable, "-m", "IPython", "--colors=NoColor", "--no-banner", str(tmp_path / "cell.ipy")]
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "IPYTHONDIR": str(tmp_path)}
    process = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    shown = process.stdout + process.stderr
    assert "ShapeError" in shown
    assert "gt.ones(2) @ gt.ones(3)" in shown
    assert "emit.py" not in shown
