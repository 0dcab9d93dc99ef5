"""``gt doctor``: what this machine has, what is wrong with it, and what to do about it.

It also starts small systems on this machine: one worker, for a round trip, and two workers, for a collective. With
--cluster it examines a running system instead: every pair of workers, and the way to the server. The exit code is 1 if
there is a problem.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from gt.doctor.findings import PROBLEM, Finding, find_problems, size
from gt.doctor.machine import Machine, SecretFile, examine
from gt.doctor.trials import TrialResult, try_collective, try_round_trip
from gt.launch.command_name import command_name, make_parser, option_type
from gt.wire.addresses import parse_port

#: The width of the labels, and the widest text.
LABEL_WIDTH, MAX_WIDTH = 18, 118


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.doctor", __doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-p", "--port", type=option_type(parse_port), help="the port a server would use, or uses (default 9000)"
    )
    parser.add_argument("--no-trials", action="store_true", help="start nothing")
    parser.add_argument("--cluster", action="store_true", help="examine a running system, as an ordinary client of it")
    parser.add_argument(
        "--host", help="with --cluster: where the server runs (default: the system of gt up, else here)"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="with --cluster: seconds for all measurements (default 60)"
    )
    options = parser.parse_args(argv)
    if options.host is not None and not options.cluster:
        parser.error("--host needs --cluster")
    if options.cluster:
        from gt.doctor.cluster_report import report
        from gt.scripts.command import run

        return run(command_name("gt.doctor"), lambda: report(options))
    try:
        return _examine(options)
    except BrokenPipeError:  # the reader of our output has ended; so do we
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _examine(options: argparse.Namespace) -> int:
    machine = examine(options.port or 9000)
    if not options.json:
        _print_rows(fact_rows(machine))
    trials: list[TrialResult] = []
    for attempt in () if options.no_trials else (try_round_trip, try_collective):
        if attempt is try_collective and not machine.torch.version:
            continue  # workers move tensors with torch; that it is missing is a finding of its own
        trials.append(attempt())
        if not options.json:
            _print_rows([(trials[-1].name, trial_text(trials[-1]))])
    findings = find_problems(machine, trials)
    problems = [finding for finding in findings if finding.level == PROBLEM]
    if options.json:
        report = {"machine": asdict(machine), "trials": [*map(asdict, trials)], "findings": [*map(asdict, findings)]}
        print(json.dumps({**report, "ok": not problems}, indent=2))
    else:
        print("\n".join(["", *finding_lines(findings)]))
    sys.stdout.flush()
    return 1 if problems else 0


def _print_rows(rows: list[tuple[str, str]]) -> None:
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    for label, text in rows:
        lines = textwrap.wrap(text, max(20, width - LABEL_WIDTH), break_on_hyphens=False) or [""]
        print(f"{label:<{LABEL_WIDTH}}{lines[0]}")
        for line in lines[1:]:
            print(" " * LABEL_WIDTH + line)
    sys.stdout.flush()


def fact_rows(machine: Machine) -> list[tuple[str, str]]:
    """(label, text) of each fact."""
    m = machine
    limit = "no limit" if m.cgroup_cores is None else f"the container may use {m.cgroup_cores:g}"
    memory_limit = "" if m.cgroup_memory_bytes is None else f", the container may use {size(m.cgroup_memory_bytes)}"
    shared = "none" if m.shared_memory is None else f"{m.shared_memory.path}, {size(m.shared_memory.total_bytes)}"
    values = "through shared memory" if m.shares_values else "through sockets"
    return [
        ("GT", f"{m.gt} (protocol {m.protocol})"),
        ("Python", m.python),
        ("system", m.system),
        ("host", f"{m.hostname}: {', '.join(m.addresses) or 'no address'}"),
        ("packages", ", ".join(f"{p.name} {p.version or 'missing'}" for p in m.packages)),
        ("torch", _torch_text(machine)),
        ("GPUs", "; ".join(m.gpus.names) + f" (driver {m.gpus.driver})" if m.gpus.names else "none"),
        ("cores", f"{m.usable_cores} of {m.cores}, {limit}"),
        ("memory", f"{size(m.memory_available_bytes)} of {size(m.memory_bytes)} available{memory_limit}"),
        ("shared memory", f"{shared}; large values go {values}"),
        ("open files", f"{m.open_files}, at most {m.open_files_limit}"),
        *((f.purpose, f"{f.path}, {size(f.free_bytes)} free") for f in m.folders),
        *((s.purpose, _secret_text(s)) for s in m.secrets),
        (f"port {m.port.number}", _port_text(machine)),
        ("servers", ", ".join(m.servers) or "none of this user"),
    ]


def _torch_text(machine: Machine) -> str:
    torch = machine.torch
    if not torch.version:
        return f"cannot be used: {torch.error}" if torch.installed else "not installed"
    cuda = f"CUDA {torch.cuda}" if torch.cuda else "no CUDA"
    nccl = f"NCCL {torch.nccl}" if torch.nccl else "no NCCL"
    return f"{torch.version}, {cuda}, {nccl}, {'gloo' if torch.gloo else 'no gloo'}, {len(torch.devices)} GPU(s)"


def _secret_text(secret: SecretFile) -> str:
    if secret.variable:
        return f"from {secret.variable}"
    return f"{secret.path}, mode {secret.mode}" if secret.exists else f"none; a server creates {secret.path}"


def _port_text(machine: Machine) -> str:
    port = machine.port
    if port.server_pid:
        return f"a GT server of yours runs there (process {port.server_pid})"
    return port.error or "free"


def trial_text(trial: TrialResult) -> str:
    """What a trial measured, or why it failed."""
    f = trial.figures
    if trial.error:
        return f"failed: {trial.error}"
    if trial.name == "round trip":
        rate = f["large_value_bytes"] * 2 / f["large_value_ms"] / 1e3
        large = f"{size(f['large_value_bytes'])} there and back at {rate:.0f} MB/s"
        where = f"{f['device']} ({f['backend']})"
        return f"{f['round_trip_ms']:.2f} ms on {where}; {large}; a system starts in {f['start_s']:.1f} s"
    what = f"{size(f['collective_bytes'])} summed over 2 workers ({', '.join(f['devices'])}) by {f['transport']}"
    return f"{f['collective_ms']:.2f} ms: {what}; the first one {f['first_ms']:.0f} ms"


def finding_lines(findings: list[Finding]) -> Iterator[str]:
    """What is wrong and what to do, problems first."""
    for finding in sorted(findings, key=lambda finding: finding.level != PROBLEM):
        yield f"{finding.level}: {finding.what}"
        yield f"    {finding.remedy}"
    if not any(finding.level == PROBLEM for finding in findings):
        yield "no problem found"


if __name__ == "__main__":
    sys.exit(main())
