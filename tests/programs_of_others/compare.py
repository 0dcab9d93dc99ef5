"""Run one program in both worlds: compare what it computes, and time its steps."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tests.programs_of_others.table import Program

REPOSITORY = pathlib.Path(__file__).parents[2]
WORLDS = ("torch", "gt")
TIMEOUT_S = 900


class ProgramFailed(Exception):
    """The program ended with an error in one of the worlds."""


@dataclass
class Comparison:
    """What a program computed in both worlds."""

    losses: int
    #: the largest relative difference of two losses
    difference: float
    #: the first pair of printed values that differ, or empty
    printed: str

    def equal(self, program: Program) -> bool:
        return self.difference <= program.tolerance and not self.printed


def prepare(program: Program, root: pathlib.Path, folder: pathlib.Path) -> None:
    """A copy of the program, with its data, for each world."""
    for world in WORLDS:
        shutil.copytree(root, program.copy(folder, world), ignore=shutil.ignore_patterns(".git", "__pycache__"))
        if program.make_data:
            program.make_data((program.copy(folder, world) / program.script).parent)


def run(program: Program, world: str, mode: str, folder: pathlib.Path) -> tuple[dict[str, Any], str]:
    """What the run recorded, and what the program printed."""
    command = [sys.executable, "-m", "tests.programs_of_others.worlds", world, mode, program.name, str(folder)]
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    # torch refuses to load a numpy array that it saved itself, unless it is told that the file can be trusted
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise ProgramFailed(f"{program.name} failed with {world}:\n{done.stdout[-500:]}\n{done.stderr[-3000:]}")
    return json.loads((folder / f"{world}_{mode}.json").read_text()), done.stdout


def compare(program: Program, folder: pathlib.Path) -> Comparison:
    """Losses and printed values of both worlds. Torch runs first: GT gets its initial weights."""
    (torch, torch_output), (gt, gt_output) = (run(program, world, "losses", folder) for world in WORLDS)
    expected, actual = torch["losses"], gt["losses"]
    if len(expected) != len(actual):
        raise ProgramFailed(f"{program.name}: {len(expected)} losses with torch, {len(actual)} with GT")
    differences = [abs(a - b) / max(abs(a), 1e-6) for a, b in zip(expected, actual, strict=True)]
    return Comparison(len(expected), max(differences, default=0.0), _printed(program, torch_output, gt_output))


def _printed(program: Program, torch_output: str, gt_output: str) -> str:
    if not program.prints:
        return ""
    expected, actual = (re.findall(program.prints, output) for output in (torch_output, gt_output))
    if not expected or len(expected) != len(actual):
        return f"{len(expected)} matches of {program.prints!r} with torch, {len(actual)} with GT"
    for pair in zip(_flat(expected), _flat(actual), strict=True):
        if not _close(*pair, program.tolerance):
            return "{!r} with torch, {!r} with GT".format(*pair)
    return ""


def _flat(matches: list[Any]) -> list[str]:
    return [text for match in matches for text in ([match] if isinstance(match, str) else match)]


def _close(a: str, b: str, tolerance: float) -> bool:
    try:
        return math.isclose(float(a), float(b), rel_tol=10 * tolerance, abs_tol=1.01e-4)  # the last printed digit
    except ValueError:
        return a == b


def step_times(program: Program, folder: pathlib.Path, rounds: int) -> dict[str, float]:
    """World -> milliseconds per step, the least of several runs that alternate between the worlds.

    The result is empty if the program has too few steps to be timed.
    """
    times: dict[str, list[float]] = {world: [] for world in WORLDS}
    for _ in range(rounds):
        for world in WORLDS:
            step_ms = run(program, world, "time", folder)[0]["step_ms"]
            if step_ms is None:
                return {}
            times[world].append(step_ms)
    return {world: min(values) for world, values in times.items()}
