"""Whether a figure is valid: one row per possible reason against it.

A rule reads one fact. A fact that is missing or null is not a pass: the rule is listed under ``unchecked``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CV_MAX = 0.10
EFFICIENCY_MAX = 1.05
#: shares of the processors' time on a machine that measures on its CPUs
CPU_OTHERS_MAX, CPU_STEAL_MAX = 0.10, 0.02
#: doubling the batch must raise the step time by at least this factor, otherwise the device waits for its instructions
DOUBLING_MIN = 1.10
#: NVML's reasons for lower clocks that make a figure invalid. The software power cap is the normal state of a card
#: under full load: it is recorded with the power limit, and is not a reason against the figure.
THROTTLES = {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}


@dataclass(frozen=True)
class Rule:
    code: str
    #: the fact it reads
    fact: str
    broken: Callable[[Any], bool]
    message: str


RULES = [
    Rule("throttled", "throttle_reasons", lambda v: bool(THROTTLES & set(v)), "the clocks were lowered: {0}"),
    Rule("neighbour", "neighbours", lambda v: v > 0, "{0} other process(es) used the GPU"),
    Rule("health", "health", bool, "the hardware is not in order: {0}"),
    Rule("cpu_load", "cpu_others", lambda v: v > CPU_OTHERS_MAX, "other programs used {0:.1%} of the processors"),
    Rule("cpu_steal", "cpu_steal", lambda v: v > CPU_STEAL_MAX, "the hypervisor took {0:.1%} of the processors' time"),
    Rule("shared_gpu", "ranks_per_gpu", lambda v: v > 1, "two ranks on one GPU: {0} share it, no link was measured"),
    Rule("cv", "cv", lambda v: v > CV_MAX, "samples vary by {0:.1%} (at most " + f"{CV_MAX:.0%})"),
    Rule(
        "allocation_retries", "allocation_retries", lambda v: v > 0, "{0} allocation(s) freed the cache and tried again"
    ),
    Rule("out_of_memory", "ooms", lambda v: v > 0, "{0} allocation(s) failed within the measured region"),
    Rule(
        "skipped_steps",
        "skipped_steps",
        lambda v: v > 0,
        "{0} measured step(s) skipped the optimizer (fp16 loss scale)",
    ),
    Rule("cached_io", "io", lambda v: v != "cold", "the data came {0} from the page cache: memory was measured"),
    Rule("loss", "loss", lambda v: not math.isfinite(v), "the loss is {0}"),
    Rule("mfu", "mfu", lambda v: v > 1, "MFU of {0:.1%}: more than the device can do"),
    Rule("efficiency", "efficiency", lambda v: v > EFFICIENCY_MAX, "efficiency of {0:.1%}: the baseline is too slow"),
    Rule(
        "launch_bound",
        "doubling",
        lambda v: v < DOUBLING_MIN,
        "twice the batch takes {0:.2f} times as long: launch-bound",
    ),
    Rule("slow", "slow", bool, "slower than its peers: {0}"),
    Rule(
        "loss_difference",
        "loss_difference",
        lambda v: v > 1,
        "the first losses differ from torch's by {0:.1f} times the tolerance",
    ),
    Rule("wrong_elements", "wrong_elements", lambda v: v > 0, "{0} element(s) of the results are wrong"),
]
#: where a reason is that is about a run as a whole
RUN = "run"
CODES = [rule.code for rule in RULES]
#: the rules that are about the machine, by the device that measures; a CPU's clocks and neighbours are not known
MACHINE = {
    "cuda": ["throttled", "neighbour", "health"],
    "cpu": ["throttled", "neighbour", "health", "cpu_load", "cpu_steal"],
}


def judge(facts: Mapping[str, Any], rules: Iterable[str] = CODES, where: str = "") -> dict[str, Any]:
    """The verdict on one measurement: ``valid``, ``reasons`` and what could not be checked."""
    codes, reasons, unchecked = set(rules), [], []
    assert codes <= set(CODES), f"no such rule: {codes - set(CODES)}"
    for rule in (rule for rule in RULES if rule.code in codes):
        value = facts.get(rule.fact)
        if value is None:
            unchecked.append(rule.code)
        elif is_nan(value) or rule.broken(value):
            reasons.append({"code": rule.code, "message": rule.message.format(_format(value)), "where": where})
    return {"valid": not reasons, "reasons": reasons, "unchecked": unchecked}


def is_nan(value: Any) -> bool:
    """No comparison holds for it, so a rule would not see it."""
    return isinstance(value, float) and math.isnan(value)


def of_machine(judged: Mapping[str, Any] | None) -> bool:
    """Whether a verdict has a reason that is about the machine, and so about everything that was measured meanwhile."""
    codes = {code for rules in MACHINE.values() for code in rules}
    return any(reason["code"] in codes for reason in (judged or {}).get("reasons", ()))


def _format(value: Any) -> Any:
    return "; ".join(sorted(value)) if isinstance(value, list | set | tuple | dict) else value


def ended(status: str, error: str | None, git: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The verdict on a run, from the way it ended and the checkout it ran from."""
    reasons = []
    if status != "complete":
        reasons.append({"code": status, "message": error or f"the run is {status}", "where": RUN})
    if git and git["dirty"]:
        message = "the files differ from the recorded commit, so the run cannot be repeated"
        reasons.append({"code": "dirty_tree", "message": message, "where": RUN})
    # without a checkout nobody knows which files ran
    return {"valid": not reasons, "reasons": reasons, "unchecked": [] if git or status == "running" else ["dirty_tree"]}


def predicted(where: str) -> dict[str, Any]:
    """The verdict on figures that were computed: they are no measurement."""
    reason = {"code": "predicted", "message": "a prediction, not a measurement", "where": where}
    return {"valid": False, "reasons": [reason], "unchecked": []}


def failed(error: str, where: str) -> dict[str, Any]:
    """The verdict on a figure that could not be measured."""
    return {"valid": False, "reasons": [{"code": "failed", "message": error, "where": where}], "unchecked": []}


def together(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One verdict over many: invalid if one of them is; unchecked is what one of them could not check."""
    all_verdicts = list(verdicts)
    reasons = [reason for verdict in all_verdicts for reason in verdict["reasons"]]
    unchecked = [set(verdict["unchecked"]) for verdict in all_verdicts]
    return {"valid": not reasons, "reasons": reasons, "unchecked": sorted(set().union(*unchecked))}
