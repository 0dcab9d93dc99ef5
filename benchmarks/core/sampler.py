"""NVML in its own process, so that reading it costs the measured process nothing; nvidia-smi where NVML is missing.

``with Sampler(uuids, pids) as nvml: ...`` then ``nvml.cards``: one summary per card, or None without both. The process
ends when its pipe closes, so none is left behind when its parent dies. GPUs are named by UUID: NVML's index differs
from CUDA's if CUDA_VISIBLE_DEVICES is set. This file does not import torch, because it is also the program of that
process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.core import health, processor
from benchmarks.core.curves import curves

ROOT = pathlib.Path(__file__).resolve().parents[2]
PERIOD = 0.1
#: seconds between two calls of nvidia-smi, each of which takes a part of one
SMI_PERIOD = 0.5
#: nvidia-smi's names of what a sample contains
SMI = {
    "kernel_resident": "utilization.gpu",
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "temperature_c": "temperature.gpu",
    "power_limit_w": "enforced.power.limit",
    "card_memory": "memory.used",
}
#: seconds the process may take to start
START = 10.0
#: bits of NVML's clock event reasons
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks",
}
#: what GPM reports on Hopper and later, where it is permitted: its metric numbers
GPM = {"sm_active_percent": 2, "tensor_active_percent": 5}


class Sampler:
    """Samples from the start of the block to its end."""

    def __init__(self, uuids: Sequence[str], pids: Sequence[int], period: float = PERIOD) -> None:
        self.uuids, self.pids, self.period = list(uuids), list(pids), period
        #: one summary per card after the block; None if NVML or nvidia-ml-py is missing
        self.cards: list[dict[str, Any]] | None = None
        self.why: str | None = None if self.uuids else "no GPU"
        #: clock, power and temperature over time, one object per card
        self.curves: list[dict[str, Any]] = []

    def __enter__(self) -> Sampler:
        if self.uuids:
            self._lines = tempfile.TemporaryFile("w+")
            command = [sys.executable, "-m", "benchmarks.core.sampler", str(self.period), *self.uuids]
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=self._lines, env={**os.environ, "PYTHONPATH": path}
            )
            self._begin()
        return self

    def _begin(self) -> None:
        """Wait for the first line: the first value of the energy counter must be from before the measured work."""
        deadline = time.monotonic() + START
        while (
            time.monotonic() < deadline and self._process.poll() is None and not os.fstat(self._lines.fileno()).st_size
        ):
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        if not self.uuids:
            return
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._lines.seek(0)
        lines = self._lines.read().splitlines()
        self.cards, self.why = read(lines, self.pids)
        self.curves = curves(lines)
        self._lines.close()


class Watch:
    """The cards of all nodes of a run; the first rank of each node samples them; ``world`` as in ``ranks``."""

    def __init__(self, world: Any) -> None:
        self.world = world
        local_members = [member for member in world.members if member["host"] == world.members[world.rank]["host"]]
        cards = list(dict.fromkeys(member["gpu"] for member in local_members if member["gpu"]))
        self._pids = [member["pid"] for member in local_members]
        self._sampler = Sampler(cards if world.local_rank == 0 else [], self._pids)
        #: one summary per card on every rank after the block; None without NVML
        self.cards: list[dict[str, Any]] | None = None
        #: those of all cards over time
        self.curves: list[dict[str, Any]] = []
        #: the largest shares of a node's processor time that other programs used and a hypervisor took, and the seconds
        self.processor: dict[str, float | None] | None = None

    def __enter__(self) -> Watch:
        self._sampler.__enter__()
        self._cores = processor.cores(self._pids)
        self._before = processor.read(self._pids, self._cores)
        return self

    def __exit__(self, kind: Any, *rest: object) -> None:
        shares = processor.shares(
            self._before, processor.read(self._pids, self._cores), len(self._cores) or os.cpu_count() or 1
        )
        self._sampler.__exit__()
        if kind is None:  # a rank that failed collects nothing
            everyone = self.world.gather((self._sampler.cards, shares, self._sampler.curves))
            self.cards = [card for cards, _, _ in everyone for card in cards or []] or None
            self.curves = [curve for _, _, curves_there in everyone for curve in curves_there]
            self.processor = largest([each for _, each, _ in everyone if each])

    def facts(self) -> dict[str, Any]:
        """The facts for the verdict."""
        return facts(self.cards, self.processor if self.world.device.type == "cpu" else None)

    def joules(self) -> float | None:
        """The energy of all cards, from their counters."""
        used = [card["energy_j"] for card in self.cards or []]
        return sum(used) if used and None not in used else None


def largest(loads: Sequence[Mapping[str, float | None]]) -> dict[str, float | None] | None:
    """Of the nodes, each by itself; a share that no node knows is None, and so is all of it without a node."""
    return {
        key: max((share for load in loads if (share := load[key]) is not None), default=None)
        for key in (loads[0] if loads else ())
    } or None


def facts(cards: Sequence[Mapping[str, Any]] | None, load: Mapping[str, float | None] | None) -> dict[str, Any]:
    """What the verdict reads from the summaries of cards, and from the load of the processors that measured."""
    known = cards or []
    reasons = [card["throttle_reasons"] for card in known if card["throttle_reasons"] is not None]
    others = [card["neighbours"] for card in known if card["neighbours"] is not None]
    healthy = [card for card in known if card.get("health")]
    problems = [f"{card['uuid']}: {line}" for card in healthy for line in health.problems(card["health"])]
    unlinked = health.unlinked({card["uuid"]: card["health"] for card in healthy})
    problems += [f"{uuid}: none of its NVLinks is up, and other cards have some" for uuid in unlinked]
    return {
        "health": problems if healthy else None,
        "cpu_others": load and load["others"],
        "cpu_steal": load and load["steal"],
        "throttle_reasons": sorted({name for own in reasons for name in own}) if reasons else None,
        "neighbours": max(others, default=None),
    }


def read(lines: Sequence[str], pids: Sequence[int]) -> tuple[list[dict[str, Any]] | None, str | None]:
    """The summaries of the lines that the process wrote, or why there are none."""
    rows = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed process
            rows.append(json.loads(line))
    failed = next((row["error"] for row in rows if "error" in row), None)
    healths = {row["uuid"]: row["health"] for row in rows if "health" in row}  # the last ones, from the end of the run
    rows = [row for row in rows if "uuid" in row and "health" not in row]
    if not rows:
        return None, failed or "the sampler wrote nothing"
    cards = {uuid: [row for row in rows if row["uuid"] == uuid] for uuid in dict.fromkeys(row["uuid"] for row in rows)}
    summaries = [summarize(uuid, samples, pids) for uuid, samples in cards.items()]
    return [card | {"health": healths.get(card["uuid"])} for card in summaries], failed


def summarize(uuid: str, rows: Sequence[dict[str, Any]], pids: Sequence[int]) -> dict[str, Any]:
    """One card: every sample counts, also those at zero; energy comes from its counter, not from power samples."""

    def values(key: str) -> list[Any]:
        return [row[key] for row in rows if row.get(key) is not None]

    def over(act: Callable[[Sequence[float]], float], key: str) -> float | None:
        readings = values(key)
        return act(readings) if readings else None

    energy, ours = values("energy_mj"), set(pids)
    processes = values("processes")
    seconds = rows[-1]["time"] - rows[0]["time"]
    joules = (energy[-1] - energy[0]) / 1e3 if len(energy) > 1 else None
    return {
        "uuid": uuid,
        "samples": len(rows),
        "seconds": seconds,
        "kernel_resident_percent": over(statistics.fmean, "kernel_resident"),
        **{name: over(statistics.fmean, name) for name in GPM},
        "energy_j": joules,
        "mean_power_w": joules / seconds if joules is not None and seconds else None,
        "power_limit_w": over(max, "power_limit_w"),
        "sm_clock_mhz": {
            "min": over(min, "sm_mhz"),
            "mean": over(statistics.fmean, "sm_mhz"),
            "max": over(max, "sm_mhz"),
        },
        "memory_clock_mhz": over(statistics.fmean, "memory_mhz"),
        "temperature_c": over(max, "temperature_c"),
        "throttle_reasons": shares(values("reasons")),
        "process_memory_peak_bytes": max((_ours(now, ours) for now in processes), default=None),
        "card_memory_peak_bytes": over(max, "card_memory"),
        "neighbours": max((n for now in processes if (n := strangers(now, ours)) is not None), default=None),
    }


def shares(masks: Sequence[int]) -> dict[str, float] | None:
    """For each reason, the share of the samples that have it; None if the card does not report reasons."""
    if not masks:
        return None
    counted = {name: sum(bool(mask & bit) for mask in masks) for bit, name in REASONS.items()}
    return {name: count / len(masks) for name, count in counted.items() if count}


def _ours(processes: dict[str, int | None], ours: set[int]) -> int:
    return sum(used or 0 for pid, used in processes.items() if int(pid) in ours)


def strangers(processes: dict[str, int | None], ours: set[int]) -> int | None:
    """Processes on the card that are not part of this run; None if that cannot be known.

    A list without our own processes is that of a container that hides them, or shows the host's pids. Of more
    processes than ours, the rest are others for certain.
    """
    pids = {int(pid) for pid in processes}
    if pids & ours:
        return len(pids - ours)
    return len(pids) - len(ours) if len(pids) > len(ours) else None


# -- the process ---------------------------------------------------------------------------


def main(period: float, uuids: Sequence[str]) -> None:
    """Write a line of JSON per card and period until the pipe closes, and at the end the health of each card."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
        cards = [Card(nvml, uuid) for uuid in uuids]
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        repeat(SMI_PERIOD, lambda: smi(uuids))
        return
    xids, found = health.Xids(nvml, {card.uuid: card.handle for card in cards}), dict[str, list[int]]()

    def sample() -> list[dict[str, Any]]:
        for uuid, numbers in xids.new().items():
            found.setdefault(uuid, []).extend(numbers)
        return [card.sample() for card in cards]

    repeat(period, sample)
    for card in cards:
        read = health.read(nvml, card.handle) | {"xids": found.get(card.uuid, []) if xids else None}
        print(json.dumps({"uuid": card.uuid, "health": read}), flush=True)


def repeat(period: float, sample: Callable[[], list[dict[str, Any]]]) -> None:
    """Print the samples until the pipe closes, and once more, for the last value of the energy counter."""
    ended = False
    while True:
        rows = sample()
        for row in rows:
            print(json.dumps(row), flush=True)
        if ended or not rows:
            return
        ended = bool(select.select([sys.stdin], [], [], period)[0])


def smi(uuids: Sequence[str]) -> list[dict[str, Any]]:
    """One sample of each card by nvidia-smi; none without it. It has no counter of energy."""
    query = f"--query-gpu=uuid,{','.join(SMI.values())}"
    try:
        process = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in process.stdout.splitlines()]
    found = {row[0]: dict(zip(SMI, map(_number, row[1:]), strict=False)) for row in rows if row[0] in uuids}
    for row in found.values():
        if row.get("card_memory") is not None:
            row["card_memory"] = int(row["card_memory"] * 2**20)
    return [{"uuid": uuid, "time": time.monotonic(), **row} for uuid, row in found.items()]


def _number(text: str) -> Any:
    """``[N/A]`` is null."""
    with contextlib.suppress(ValueError):
        return float(text)
    return None


class Card:
    """One GPU; values that a card or driver does not support are null."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self.nvml, self.uuid = nvml, uuid
        self.handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._gpm: Any = None

    def ask(self, act: Callable[[Any], Any]) -> Any:
        try:
            return act(self.handle)
        except Exception:
            return None

    def sample(self) -> dict[str, Any]:
        n = self.nvml
        reasons = (
            getattr(n, "nvmlDeviceGetCurrentClocksEventReasons", None) or n.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        return {
            "uuid": self.uuid,
            "time": time.monotonic(),  # this clock never steps back
            "kernel_resident": self.ask(lambda h: n.nvmlDeviceGetUtilizationRates(h).gpu),
            "energy_mj": self.ask(n.nvmlDeviceGetTotalEnergyConsumption),
            "sm_mhz": self.ask(lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
            "memory_mhz": self.ask(lambda h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)),
            "temperature_c": self.ask(lambda h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
            "power_limit_w": self.ask(lambda h: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3),
            "reasons": self.ask(reasons),
            "card_memory": self.ask(lambda h: n.nvmlDeviceGetMemoryInfo(h).used),
            "processes": self.ask(self._processes),
            **(self.ask(self._activity) or {}),
        }

    def _processes(self, handle: Any) -> dict[str, int | None]:
        return {str(p.pid): p.usedGpuMemory for p in self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)}

    def _activity(self, handle: Any) -> dict[str, float]:
        """SM and tensor activity between the last sample and this one."""
        n = self.nvml
        if not n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return {}
        last, self._gpm = self._gpm, n.nvmlGpmSampleAlloc()
        n.nvmlGpmSampleGet(handle, self._gpm)
        if last is None:
            return {}
        request = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, sample1=last, sample2=self._gpm)
        request.numMetrics = len(GPM)
        for place, number in enumerate(GPM.values()):
            request.metrics[place].metricId = number
        try:
            n.nvmlGpmMetricsGet(request)
        finally:
            n.nvmlGpmSampleFree(last)
        metrics = list(zip(GPM, request.metrics, strict=False))
        return {name: float(metric.value) for name, metric in metrics if metric.nvmlReturn == 0}


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
