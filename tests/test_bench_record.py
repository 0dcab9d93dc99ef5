"""The record of a benchmark run: the file at every moment, its schema, the environment and the sampler in it."""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import time
from dataclasses import replace
from datetime import datetime

import pytest
import torch

from benchmarks.core import audit, environment, health, processor, results, sampler, timing, verdict
from benchmarks.core.ranks import World
from tests.support.processes import ROOT

near = pytest.approx
git = environment.git

# -- the record ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def clean_checkout(monkeypatch):
    """As if no file was changed: the verdict on a run tells."""
    monkeypatch.setattr(environment, "git", lambda: {"commit": "a" * 40, "dirty": False})


def record(folder, **more):
    return results.Record(
        folder,
        suite="test",
        name="a run/of 2 GPUs",
        world_size=2,
        config={"device": "abacus"},
        environment=environment.record({"seed": 0}, ["/some/where/x.py", "--flag"]),
        **more,
    )


def test_a_record_is_valid_at_every_step(tmp_path):
    run = record(tmp_path)
    states = [json.loads(run.path.read_text())]
    run.put("training", "ddp", value={"timing": timing.summary([1.0, 2.0]), "loss": math.nan})
    states.append(json.loads(run.path.read_text()))
    run.put("training", "verdict", value=verdict.judge({"cv": 0.5}, ["cv"]))
    run.finish()
    states.append(json.loads(run.path.read_text()))
    assert [state["status"] for state in states] == ["running", "running", "complete"]
    assert [results.problems(state) for state in states] == [[], [], []]
    assert states[1]["results"]["training"]["ddp"]["loss"] is None
    assert [reason["code"] for reason in states[2]["verdict"]["reasons"]] == ["cv"]
    assert states[2]["environment"]["argv"] == ["x.py", "--flag"]
    assert [path.name for path in tmp_path.iterdir()] == [run.path.name]
    assert re.fullmatch(r"a-run-of-2-GPUs_\d{8}T\d{6}Z\.json", run.path.name)
    assert results.load(run.path) == states[2]


def test_a_file_beside_a_record_that_cannot_be_written_is_reported(tmp_path, capsys):
    def half(path):
        path.write_text("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    assert results.beside(tmp_path / "a.png", half) is None
    assert "not written: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_record_never_writes_over_another(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "utc_now", lambda: "2026-01-01T00:00:00Z")
    first, second = record(tmp_path), record(tmp_path)
    first.put("a", "b", value=1)
    assert first.path != second.path
    assert json.loads(second.path.read_text())["results"] == {}
    with pytest.raises(AssertionError, match="only grows"):
        first.put("a", "b", value=2)


def test_a_clock_that_steps_back_does_not_end_a_run_before_it_began(tmp_path, monkeypatch):
    now = iter(["2026-01-01T12:00:00Z", "2026-01-01T11:00:00Z"])
    monkeypatch.setattr(results, "utc_now", lambda: next(now))
    run = record(tmp_path)
    run.finish()
    began, ended = (datetime.fromisoformat(run.data[key]) for key in ("timestamp", "ended"))
    assert 0 <= (ended - began).total_seconds() <= 300


def test_the_end_of_a_run_has_parts_of_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "utc_now", lambda: "2026-01-01T23:59:59Z")
    run = record(tmp_path)
    monkeypatch.setattr(run, "_begun", time.monotonic() - 9.5)
    run.finish()
    assert results.load(run.path)["ended"].startswith("2026-01-02T00:00:08.5")


def test_a_run_from_changed_files_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "git", lambda: {"commit": "a" * 40, "dirty": True})
    run = record(tmp_path)
    run.finish()
    assert [reason["code"] for reason in run.data["verdict"]["reasons"]] == ["dirty_tree"]


def test_only_the_first_end_counts(tmp_path):
    run = record(tmp_path)
    run.finish("interrupted", "SIGINT")
    run.finish("complete")
    data = results.load(run.path)
    assert (data["status"], data["error"], data["verdict"]["valid"]) == ("interrupted", "SIGINT", False)


@pytest.mark.parametrize("act", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_last_state(act, tmp_path, monkeypatch):
    run = record(tmp_path)
    run.put("a", "b", value=1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(results.os, act, full)
    with pytest.raises(results.Unwritable, match=r"No space left .* holds what was measured before"):
        run.put("a", "c", value=2)
    assert json.loads(run.path.read_text())["results"] == {"a": {"b": 1}}
    assert [path.name for path in tmp_path.iterdir()] == [run.path.name]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(results.Unwritable, match=r"cannot write to .*file.*--output-dir"):
        record(tmp_path / "file")


FOREIGN = {
    "not JSON": ("{", "not JSON"),
    "another program's": ('{"results": []}', "no schema_version"),
    "a list": ("[1]", "no schema_version"),
    "a later version": ('{"schema_version": "9.0"}', "9.0; this reads 1.0"),
    "no number": ('{"schema_version": "1.0", "a": NaN}', "NaN is no finite number"),
    "an infinity": ('{"schema_version": "1.0", "a": 1e999}', "1e999 is no finite number"),
    "an integer that no float can hold": (f'{{"schema_version": "1.0", "a": 1{"0" * 400}}}', "is no finite number"),
    "lists without end": ("[" * 100_000, "recursion"),
    "half a record": ('{"schema_version": "1.0"}', "required property"),
}


@pytest.mark.parametrize(("text", "message"), FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        results.load(path)


def test_an_audit_finds_what_does_not_follow(tmp_path, capsys):
    run = record(tmp_path)
    run.put("a", value={"rows": [{"timing": timing.summary([1.0, 2.0, 3.0])}]})
    row = {"batch": 8, "peak_bytes": 25, "needed_bytes": 27}
    run.put("memory", "largest_batch", value={"rows": [row]})
    run.finish()
    assert audit.main([str(run.path)]) == 0
    assert "verdict: valid" in capsys.readouterr().out
    row["needed_bytes"] = 24
    run.data["results"]["a"]["rows"][0]["timing"]["p50_s"] = 1.0
    run.path.write_text(json.dumps(run.data))
    assert audit.main([str(run.path), str(tmp_path / "missing.json")]) == 1
    out = capsys.readouterr().out
    assert "results.a.rows[0].timing.p50_s is 1.0, and 2.0 follows from its samples" in out
    assert "a batch of 8 needs 24 bytes and holds 25" in out
    assert "missing.json" in out


def test_an_audit_names_what_it_cannot_read(tmp_path, capsys):
    assert audit.main([]) == 2
    assert "usage" in capsys.readouterr().err
    run = record(tmp_path)
    run.put(
        "a", value={"verdict": {"valid": True, "reasons": [], "unchecked": []}, "timing": timing.summary([1.0, 1.0])}
    )
    run.finish()
    run.data["results"]["a"]["mfu"] = {"denominator_flops_per_s": "x", "numerator_flops_per_s": 1}
    run.path.write_text(json.dumps(run.data))
    assert audit.main([str(run.path)]) == 1
    assert "Error" in capsys.readouterr().out


def failed_checks(judged):
    """As in the table of results/README.md."""
    messages = {}
    for reason in judged["reasons"]:
        messages.setdefault(reason["code"], []).append(reason["message"])
    for code, lines in messages.items():
        varied = [float(found[1]) for line in lines if (found := re.search(r"vary by ([\d.]+)%", line))]
        yield f"`{code}` ({len(lines)}{f', up to {max(varied):.0f} %' if varied else ''})"


def test_every_kept_record_that_is_not_valid_has_its_reasons_in_the_docs():
    folder = ROOT / "benchmarks/results"
    rows = dict(re.findall(r"^\| \[(.+?)\]\(.+?\) \| (.+) \|$", (folder / "README.md").read_text(), re.M))
    records = {path.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in folder.rglob("*.json")}
    judged = {name: data["verdict"] for name, data in records.items() if isinstance(data, dict) and "verdict" in data}
    wanted = {name: ", ".join(failed_checks(each)) for name, each in judged.items() if not each["valid"]}
    assert rows == wanted


def test_the_script_of_records_wants_a_gpu_and_a_clean_checkout(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "python").chmod(0o755)
    script = ["bash", str(ROOT / "benchmarks/records_gpu.sh"), str(tmp_path)]
    process = subprocess.run(
        script, env=os.environ | {"PYTHON": str(tmp_path / "python")}, capture_output=True, text=True
    )
    assert process.returncode == 2
    assert re.search("torch sees no GPU|files differ from the commit", process.stderr)


@pytest.fixture
def records(tmp_path):
    """The script in a clean checkout of its own, with a Python that only writes what it was called with."""
    root, log = tmp_path / "checkout", tmp_path / "log"
    for name in ("records_gpu.sh", "transformer/run_benchmark.sh"):
        (root / "benchmarks" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "benchmarks" / name, root / "benchmarks" / name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 1 || echo "$@" >>{log}\n')
    python.chmod(0o755)
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)

    def run(*words):
        log.write_text("")
        script = ["bash", str(root / "benchmarks/records_gpu.sh"), *words]
        process = subprocess.run(script, env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True)
        return process, [
            line for line in log.read_text().splitlines() if "audit" not in line and "report.py" not in line
        ]

    return run


def test_the_parts_of_the_records_can_be_made_one_by_one(records, tmp_path):
    process, everything = records("new")
    assert process.returncode == 0, process.stderr
    parts = [line.removeprefix("== ") for line in process.stdout.splitlines() if line.startswith("== ")]
    assert len(parts) == 9
    one_by_one = [records("new", part)[1] for part in parts]
    assert all(one_by_one)
    assert [line for lines in one_by_one for line in lines] == everything
    assert records("new", "quick", "60m")[1] == [*one_by_one[parts.index("quick")], *one_by_one[parts.index("60m")]]
    assert all(f"{tmp_path / 'checkout' / 'new'}" in line for line in everything)
    assert f"--output-dir {tmp_path / 'there'}" in records(str(tmp_path / "there"), "quick")[1][0]
    process, lines = records("new", "60m", "61m")
    assert (process.returncode, lines) == (2, [])
    others = ["steps", "more-steps", "mini-gpt", "input", "sharded"]
    assert f"no part 61m; the parts are {' '.join([*parts, *others])}" in process.stderr
    for part in others:
        (line,) = records("new", part)[1]
        assert f"--output-dir {tmp_path / 'checkout' / 'new'}" in line


BROKEN = {
    "an unknown status": lambda d: d.update(status="perhaps"),
    "no verdict": lambda d: d.pop("verdict"),
    "invalid without a reason": lambda d: d["verdict"].update(valid=False, reasons=[]),
    "a timing without samples": lambda d: d["results"].update(a={"b": [{"timing": {"p50_s": 1.0}}]}),
    "a verdict deep within": lambda d: d["results"].update(a={"b": {"c": {"verdict": "fine"}}}),
    "a row without wrong_elements": lambda d: d["results"].update(communication={"allreduce": {"rows": [{}]}}),
    "local time": lambda d: d.update(timestamp="2026-01-01 00:00"),
    "an unknown field": lambda d: d.update(extra=1),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_the_schema_refuses(tmp_path, change):
    run = record(tmp_path)
    run.finish()
    assert results.problems(run.data) == []
    change(run.data)
    assert results.problems(run.data)


def test_the_environment_holds_allowed_variables_only(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("GT_TOKEN", "hidden")
    monkeypatch.setenv("GT_OPERATOR_TOKEN", "hidden")
    monkeypatch.setenv("GT_AUTO_COMPILE", "graphs")
    record = environment.record({"seed": 1}, ["x.py"])
    assert record["variables"]["NCCL_ALGO"] == "Ring"
    assert record["variables"]["GT_AUTO_COMPILE"] == "graphs"
    assert "hidden" not in json.dumps(record)
    assert record["torch"] == str(torch.__version__)
    assert record["seeds"] == {"seed": 1}


def test_words_of_a_command_name_no_folder_of_the_machine(tmp_path):
    outside, inside = tmp_path / "me" / "step.json", pathlib.Path.cwd() / "results" / "new"
    words = ["/x/y.py", "--replay", str(outside), f"--out={outside}", "--output-dir", str(inside), "1/2", "/"]
    argv = environment.record({}, words)["argv"]
    assert argv == ["y.py", "--replay", "step.json", "--out=step.json", "--output-dir", "results/new", "1/2", "/"]


def test_git_of_this_and_of_no_checkout(tmp_path):
    assert git(tmp_path) is None
    checkout = git(ROOT)
    assert checkout is None or re.fullmatch("[0-9a-f]{40}", checkout["commit"])


# -- the sampler ---------------------------------------------------------------------------


def sample(**more):
    fixed = {"uuid": "GPU-1", "time": 0.0, "energy_mj": 1000, "kernel_resident": 0, "reasons": 0, "card_memory": 10}
    return json.dumps({**fixed, **more})


def test_a_summary_of_samples():
    lines = [
        sample(processes={"7": 5, "8": None}),
        sample(time=2.0, kernel_resident=100, energy_mj=1_401_000, reasons=0x4, card_memory=30, processes={"7": 20}),
        sample(time=4.0, energy_mj=2_801_000, reasons=0x24, sm_mhz=1980),
        '{"uuid": "GPU-1", "ti',
    ]
    (card,), why = sampler.read(lines, [7])
    assert why is None
    assert (card["samples"], card["kernel_resident_percent"]) == (3, near(100 / 3))  # zeros count
    assert (card["energy_j"], card["mean_power_w"]) == (2800.0, 700.0)
    assert card["throttle_reasons"] == {"sw_power_cap": near(2 / 3), "sw_thermal_slowdown": near(1 / 3)}
    assert (card["process_memory_peak_bytes"], card["card_memory_peak_bytes"]) == (20, 30)
    assert (card["neighbours"], card["temperature_c"]) == (1, None)
    assert not verdict.judge(card, ["throttled"])["valid"]


STRANGERS = [
    # the listed processes, ours, and how many are others
    ({"7": 0}, {7, 8}, 0),
    ({"7": 0, "9": 0}, {7, 8}, 1),
    ({"1": 0, "2": 0, "3": 0}, {7, 8}, 1),  # the host's pids, but more than we are
    ({"1": 0, "2": 0}, {7, 8}, None),  # the host's pids: ours, or others'
    ({}, {7}, None),  # a container in which none is listed, although we use the card
]


@pytest.mark.parametrize(("listed", "ours", "others"), STRANGERS)
def test_processes_of_others_are_unknown_where_our_own_are_not_listed(listed, ours, others):
    assert sampler.strangers(listed, ours) == others
    (card,), _ = sampler.read([sample(processes=listed)], list(ours))
    assert verdict.judge(card, ["neighbour"])["unchecked"] == (["neighbour"] if others is None else [])


HEALTHY = {
    "power_limit_w": 700.0, "default_power_limit_w": 700.0, "applications_clock_mhz": 1980,
    "default_applications_clock_mhz": 1980, "uncorrected_ecc_errors": 0, "pcie_width": 16, "pcie_width_max": 16,
    "remapped_rows": {"corrected": 0, "uncorrected": 0, "pending": 0, "failed": 0},
    "nvlinks": {"active": 18, "all": 18}, "xids": [],
}  # fmt: skip
SICK = {
    "a lowered power limit": ({"power_limit_w": 500.0}, "a power limit of 500 W instead of 700 W"),
    "lowered clocks": ({"applications_clock_mhz": 1200}, "clocks limited to 1200 MHz instead of 1980 MHz"),
    "ECC": ({"uncorrected_ecc_errors": 2}, "2 uncorrected memory error(s) (ECC)"),
    "rows": ({"remapped_rows": {"pending": 1}}, "rows of its memory are to be remapped"),
    "an Xid": ({"xids": [79, 31]}, "Xid 79 in the driver"),
    "PCIe": ({"pcie_width": 8}, "PCIe with 8 of 16 lanes"),
    "NVLink": ({"nvlinks": {"active": 17, "all": 18}}, "17 of 18 NVLinks are up"),
}


@pytest.mark.parametrize(("change", "message"), SICK.values(), ids=SICK)
def test_hardware_that_is_not_in_order(change, message):
    assert health.problems(HEALTHY) == []
    (line,) = health.problems(HEALTHY | change)
    assert line.startswith(message)


def test_hardware_that_is_not_known_is_unchecked():
    assert health.problems(dict.fromkeys(HEALTHY)) == []
    assert health.problems(HEALTHY | {"nvlinks": {"active": 0, "all": 18}, "xids": [31]}) == []  # not connected; a bug
    watch = sampler.Watch(
        World(0, 1, 0, torch.device("cuda", 0), "nccl", members=[{"host": "a", "gpu": None, "pid": 1}])
    )
    assert watch.facts()["health"] is None
    watch.cards = [
        {"uuid": "GPU-1", "throttle_reasons": None, "neighbours": None, "health": HEALTHY | {"pcie_width": 8}}
    ]
    assert watch.facts()["health"] == ["GPU-1: PCIe with 8 of 16 lanes"]
    cards = [
        {"uuid": f"GPU-{active}", "throttle_reasons": None, "neighbours": None,
         "health": HEALTHY | {"nvlinks": {"active": active, "all": 18}}}
        for active in (18, 0)
    ]  # fmt: skip
    watch.cards = cards
    assert watch.facts()["health"] == ["GPU-0: none of its NVLinks is up, and other cards have some"]
    watch.cards = cards[1:]
    assert watch.facts()["health"] == []  # alone it is one that is not connected


def test_the_load_of_others_and_stolen_time(tmp_path):
    def machine(user, steal, own, on=()):
        """/proc with one process of ours, its child, and another program's; in ticks."""
        (tmp_path / "stat").write_text(
            f"cpu {user} 0 0 0 0 0 0 {steal} 0 0\ncpu0 1 0 0 0 0 0 0 0\ncpu1 {user} 0 0 0 0 0 0 {steal} 0 0\n"
        )
        for pid, parent, ticks in ((70, 1, own), (71, 70, own), (72, 1, 10_000)):
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} {'0 ' * 9}{ticks} 0 0 0 0")
        return processor.read([70], on, tmp_path)

    tick = 1 / processor.TICK
    first, second = machine(1000, 0, 100), machine(2000, 60, 400)
    assert second.own - first.own == near(600 * tick)
    spent = replace(second, at=first.at + 1000 * tick)
    assert processor.shares(first, spent, 2) == {"others": near(0.2), "steal": near(0.03), "seconds": near(1000 * tick)}
    # bound to one of two cores, twice the share is lost
    first, second = machine(1000, 0, 100, {1}), machine(2000, 60, 400, {1})
    spent = replace(second, at=first.at + 1000 * tick)
    assert processor.shares(first, spent, 1)["others"] == near(0.4)
    assert machine(2000, 60, 400, {0}).busy == near(tick)
    assert processor.cores([os.getpid()]) == os.sched_getaffinity(os.getpid())
    busier = replace(spent, busy=spent.busy + 1000)  # ticks are counted to one process and not to the machine
    assert processor.shares(first, busier, 1)["others"] == 1.0
    instant = replace(busier, at=first.at + 0.012)
    assert processor.shares(first, instant, 1) == {"others": None, "steal": None, "seconds": near(0.012)}
    assert processor.shares(None, second, 2) is None
    assert processor.read([1], (), tmp_path / "nowhere") is None
    assert processor.read([os.getpid()]).own > 0


def test_a_load_that_no_node_knows_is_unchecked():
    short, known = {"others": None, "steal": None, "seconds": 0.1}, {"others": 0.2, "steal": 0.0, "seconds": 2.0}
    assert sampler.largest([short, known]) == known
    assert sampler.largest([]) is None
    judged = verdict.judge(sampler.facts(None, sampler.largest([short])), verdict.MACHINE["cpu"])
    assert (judged["valid"], judged["unchecked"]) == (True, verdict.MACHINE["cpu"])


def test_on_a_cpu_the_load_counts_into_the_verdict():
    members = [{"host": "a", "gpu": None, "pid": os.getpid()}]
    with sampler.Watch(World(0, 1, 0, torch.device("cpu"), "gloo", members=members)) as watch:
        pass
    watch.processor = {"others": 0.5, "steal": 0.5}
    judgement = verdict.judge(watch.facts(), verdict.MACHINE["cpu"])
    assert [reason["code"] for reason in judgement["reasons"]] == ["cpu_load", "cpu_steal"]
    assert "neighbour" in judgement["unchecked"]


def test_the_sampler_without_nvml_says_why(tmp_path):
    with sampler.Sampler(["GPU-none"], [os.getpid()]) as nvml:
        pass
    assert nvml.cards is None
    assert "Error" in nvml.why


SMI = """#!/bin/sh
echo "GPU-1, 80, 1980, 2619, 45, 700.00, 1024"
echo "GPU-2, [N/A], 1980, 2619, 45, 700.00, 1"
"""


def test_the_sampler_reads_nvidia_smi_where_nvml_is_missing(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with sampler.Sampler(["GPU-1"], [os.getpid()]) as nvml:
        pass
    (card,) = nvml.cards
    assert (card["kernel_resident_percent"], card["power_limit_w"], card["card_memory_peak_bytes"]) == (80, 700, 2**30)
    assert (card["energy_j"], card["neighbours"], card["throttle_reasons"], card["health"]) == (None, None, None, None)
    assert "Error" in nvml.why


def test_the_sampler_without_a_gpu_starts_nothing():
    with sampler.Sampler([], []) as nvml:
        pass
    assert (nvml.cards, nvml.why) == (None, "no GPU")


FAKE = """
import types, time
NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0
made = types.SimpleNamespace
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetUtilizationRates(h): return made(gpu=50)
def nvmlDeviceGetTotalEnergyConsumption(h): return int(time.time() * 1000)
def nvmlDeviceGetClockInfo(h, which): return 1980
def nvmlDeviceGetTemperature(h, which): return 40
def nvmlDeviceGetEnforcedPowerLimit(h): return 700_000
def nvmlDeviceGetCurrentClocksEventReasons(h): return 0
def nvmlDeviceGetMemoryInfo(h): return made(used=123)
def nvmlDeviceGetComputeRunningProcesses(h): raise OSError("not permitted")
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = nvmlEventTypeXidCriticalError = 1
def nvmlDeviceGetPowerManagementDefaultLimit(h): return 800_000
def nvmlDeviceGetTotalEccErrors(h, kind, since): return 1
def nvmlDeviceGetRemappedRows(h): return (0, 0, False, False)
def nvmlDeviceGetCurrPcieLinkWidth(h): return 16
def nvmlDeviceGetMaxPcieLinkWidth(h): return 16
def nvmlDeviceGetNvLinkState(h, link): return [0, *[1] * 17][link]
def nvmlEventSetCreate(): return [("GPU-2", 79)]
def nvmlDeviceRegisterEvents(h, kind, events): pass
def nvmlDeviceGetPciInfo(h): return made(busId=f"bus of {h}")
def nvmlEventSetWait_v2(events, wait):
    device, number = events.pop()
    return made(device=device, eventData=number)
"""


def test_the_sampler_process_with_a_fake_nvml(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with sampler.Sampler(["GPU-1", "GPU-2"], [1], period=0.01) as nvml:
        process = nvml._process
        assert process.poll() is None
    assert process.returncode == 0
    assert [card["uuid"] for card in nvml.cards] == ["GPU-1", "GPU-2"]
    card = nvml.cards[0]
    assert (card["kernel_resident_percent"], card["power_limit_w"], card["neighbours"]) == (50, 700, None)
    assert card["samples"] >= 2
    assert card["energy_j"] >= 0
    assert [health.problems(each["health"]) for each in nvml.cards] == [
        [
            "a power limit of 700 W instead of 800 W",
            "1 uncorrected memory error(s) (ECC)",
            *xids,
            "17 of 18 NVLinks are up",
        ]
        for xids in ([], ["Xid 79 in the driver"])
    ]
