"""Trials: a small system on this machine, in a process of its own, that computes something known and measures it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from gt.launch.local import visible_gpus
from gt.launch.own_module import module_command, module_environment
from gt.say import topic

#: Starting workers takes seconds, the first import of torch from a cold disk a minute.
TRIAL_TIMEOUT_S = 180.0
#: Settings of the user's program that say nothing about the machine.
IGNORED = ("GT_CONFIG", "GT_AUTO_SHARD", "GT_INSTRUCTION_LOG", "GT_WORKER_BATCH_SIZE", "GT_COMPILE", "GT_AUTO_COMPILE")


@dataclass(frozen=True, slots=True)
class TrialResult:
    name: str
    #: what was measured; empty if it failed
    figures: dict[str, Any] = field(default_factory=dict)
    #: why it failed, and what to do; empty: it did not
    error: str = ""
    remedy: str = ""


def try_round_trip(timeout: float = TRIAL_TIMEOUT_S) -> TrialResult:
    """A server and a worker start, a value is sent there and back, and large ones too."""
    return _run("round trip", "round_trip", timeout, "GT_VERBOSE=1 gt doctor shows what the processes print")


def try_collective(timeout: float = TRIAL_TIMEOUT_S) -> TrialResult:
    """Two workers start and combine their parts of a sum."""
    remedy = "check that the firewall lets this machine connect to itself; GT_VERBOSE=1 gt doctor shows more"
    return _run("collective", "collective", timeout, remedy)


def _run(name: str, trial: str, timeout: float, remedy: str) -> TrialResult:
    environment = {key: value for key, value in module_environment().items() if key not in IGNORED}
    if len(visible_gpus()) == 1:
        environment["GT_SHARE_GPUS"] = "1"  # two workers are possible on one GPU
    command = module_command("gt.doctor.trial_program", trial)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return TrialResult(name, error=f"it did not end within {timeout:g} s", remedy=remedy)
    if topic("GT_VERBOSE"):
        sys.stderr.write(result.stderr)
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        return TrialResult(name, error=lines[-1] if lines else f"exit code {result.returncode}", remedy=remedy)
    return TrialResult(name, json.loads(result.stdout.splitlines()[-1]))
