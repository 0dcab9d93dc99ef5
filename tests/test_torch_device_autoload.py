"""The entry point in ``torch.backends``: `import torch` registers the device if asked to, otherwise it is as before."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

from gt.errors import GtError
from gt.worker import __main__ as worker
from tests.support.processes import LONG, ROOT, environment

SETTING = "GT_TORCH_DEVICE"


def installed(folder: pathlib.Path) -> str:
    """A path with GT's module for torch, and what an installed GT says about its entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ((name, function),) = project["project"]["entry-points"]["torch.backends"].items()
    assert project["tool"]["setuptools"]["py-modules"] == [function.partition(":")[0]]
    described = folder / "gt_of_the_test-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: gt_of_the_test\nVersion: 1\n")
    (described / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {function}\n")
    return os.pathsep.join([str(ROOT), str(folder)])


@pytest.mark.parametrize(
    ("value", "printed"), [("1", "True gtx:0"), ("0", "False meta"), ("", "False meta")], ids=["on", "off", "empty"]
)
def test_import_torch_registers_the_device_if_asked_to(value: str, printed: str, tmp_path: pathlib.Path) -> None:
    program = """
        import sys, torch
        loaded = "gt" in sys.modules
        print(loaded, torch.empty(2, device="gtx" if loaded else "meta").device)
    """
    process = subprocess.run(
        [sys.executable, "-c", program.replace("\n        ", "\n")],
        env=environment(PYTHONPATH=installed(tmp_path), **{SETTING: value}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert process.stdout.strip() == printed, process.stderr


def test_a_worker_does_not_register_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def engine(*_: object) -> None:
        raise GtError(f"the setting is {os.environ.get(SETTING)}")

    monkeypatch.setenv(SETTING, "1")
    monkeypatch.setattr(worker, "make_engine", engine)
    assert worker.main(["--unix", "nowhere"]) == 1
    assert capsys.readouterr().err == "gt.worker: the setting is None\n"
