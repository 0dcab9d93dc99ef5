"""Programs that are in the repository and not in the installed package: benchmarks and examples."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn

from gt.errors import GtError

#: The folder that contains the package: the repository, if GT runs from a clone of it.
ROOT = pathlib.Path(__file__).resolve().parents[2]


def programs(folder: str) -> dict[str, pathlib.Path]:
    """Name -> file of each program in a folder of the repository. Raises GtError if there is no such folder."""
    path = ROOT / folder
    if not (ROOT / "pyproject.toml").exists() or not path.is_dir():
        raise GtError(f"the folder {folder}/ is not in the installed package: run this in a clone of the repository")
    files = [file for file in sorted(path.glob("*.py")) if not file.stem.endswith("_child")]
    return {file.stem: file for file in files if 'if __name__ == "__main__"' in file.read_text()}


def replace_process(program: pathlib.Path, options: list[str], **environment: str) -> NoReturn:
    """Run a program instead of this process, so that signals and the exit code are its own."""
    sys.stdout.flush()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.execve(
        sys.executable, [sys.executable, str(program), *options], {**os.environ, "PYTHONPATH": path, **environment}
    )
