"""``gt doctor --cluster``: the report about a running system as a matrix, what is wrong with it, and what to do."""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict

import gt
from gt.doctor.cluster import ClusterFacts, PairPath, WorkerPath, examine_cluster
from gt.doctor.findings import NOTE, PROBLEM, Finding
from gt.launch.up_state import read_state
from gt.wire.addresses import join_address

#: A pair is noted if it is this many times worse than the best quarter of its kind, and its latency is above this. The
#: two kinds are: within a host, and between hosts.
SLOW_FACTOR, SLOW_MS = 5.0, 2.0
#: A finding names at most so many pairs.
NAMED_PAIRS = 6

_OPEN = "let the workers' ports through: those of gt worker --ports, and net.ipv4.ip_local_port_range for gloo and NCCL"
#: What to do: the first row whose words are in the error.
REMEDIES = (
    (("refused",), "the worker, or something that forwards to it, does not listen there: start that worker again"),
    (
        ("No route", "unreachable"),
        "no route between these hosts: name the server by its address in a network that all workers share",
    ),
    (("cannot be reached", "did not join"), f"a firewall or a router drops packets between these hosts; {_OPEN}"),
    (
        ("could not be created",),
        f"the workers meet, but cannot connect for the collectives; {_OPEN}; NCCL_SOCKET_IFNAME names an interface",
    ),
    (("network between them",), "packets are lost between these hosts: check cables, switches, MTU and firewalls"),
    (("no answer",), "the worker is busy or stopped: gt top shows what it does; run this again later"),
)
_OTHER_REMEDY = "see what these workers print, and run gt doctor on their hosts"


def connect(options: argparse.Namespace) -> None:
    """Connect to the server that the options name, to the system that gt up runs, or to port 9000 here."""
    named = options.host is not None or options.port is not None
    if not named and read_state() is not None:
        gt.connect()
    else:
        gt.connect(join_address(options.host or "localhost", options.port or 9000))


def report(options: argparse.Namespace) -> int:
    """Examine the system, print the report and return the exit code."""
    os.environ.pop("GT_CONFIG", None)  # the signals of a program are not for this one
    connect(options)
    try:
        facts = examine_cluster(options.timeout)
    finally:
        gt.disconnect()
    findings = find_problems(facts)
    problems = [finding for finding in findings if finding.level == PROBLEM]
    if options.json:
        printed = {"cluster": asdict(facts), "findings": [*map(asdict, findings)], "ok": not problems}
        print(json.dumps(printed, indent=2))
    else:
        print("\n".join(lines(facts)))
        print()
        for finding in findings:
            print(f"{finding.level}: {finding.what}\n    {finding.remedy}")
        if not problems:
            print("no problem found")
    return 1 if problems else 0


# -- what is shown -------------------------------------------------------------------------


def lines(facts: ClusterFacts) -> Iterator[str]:
    yield f"{'server':<18}{facts.server}: {facts.server_ms:.2f} ms there and back from here"
    for worker in facts.workers:
        yield f"{f'worker {worker.id}':<18}{_worker_text(worker)}"
    if len(facts.workers) < 2:
        return
    yield ""
    yield from matrix(facts, "ms, one way", lambda pair: _number(pair.latency_ms))
    yield ""
    yield from matrix(facts, "MB/s", lambda pair: _number(pair.mb_s))


def _worker_text(worker: WorkerPath) -> str:
    where = f"{worker.device} ({worker.backend}), process {worker.pid} at {worker.address}"
    where += f" ({worker.place})" if worker.place else ""
    if worker.error:
        return f"{where}: fails: {worker.error}"
    latency = f"{_number(worker.latency_ms)} ms there and back from the server"
    return f"{where}: {latency}; values at {_number(worker.mb_s)} MB/s"


def matrix(facts: ClusterFacts, title: str, cell: Callable[[PairPath], str]) -> Iterator[str]:
    """A row for each worker that sends, a column for each that receives."""
    pairs = {(pair.source, pair.target): pair for pair in facts.pairs}
    ids = [worker.id for worker in facts.workers]
    yield f"{title:<18}" + "".join(f"{f'to {id}':>9}" for id in ids)
    for source in ids:
        cells = []
        for target in ids:
            pair = pairs.get((source, target))
            cells.append("" if pair is None else "fails" if pair.error else cell(pair))
        yield f"{f'from {source}':<18}" + "".join(f"{text:>9}" for text in cells)


def _number(figure: float | None) -> str:
    return "?" if figure is None else f"{figure:.2f}" if figure < 100 else f"{figure:.0f}"


# -- what is wrong -------------------------------------------------------------------------


def find_problems(facts: ClusterFacts) -> list[Finding]:
    """Problems first. Pairs that fail in the same way share a finding."""
    findings = [
        Finding(PROBLEM, f"worker {worker.id} ({worker.address}): {worker.error}", remedy(worker.error))
        for worker in facts.workers
        if worker.error
    ]
    failing: dict[str, list[PairPath]] = defaultdict(list)
    for pair in facts.pairs:
        if pair.error:
            failing[remedy(pair.error)].append(pair)
    for what, pairs in failing.items():
        findings.append(Finding(PROBLEM, f"{_names(pairs)}: {pairs[0].error}", what))
    return [*findings, *_slow(facts)]


def remedy(error: str) -> str:
    return next((what for words, what in REMEDIES if any(word in error for word in words)), _OTHER_REMEDY)


def _slow(facts: ClusterFacts) -> Iterator[Finding]:
    addresses = {worker.id: worker.address for worker in facts.workers}
    works = [pair for pair in facts.pairs if not pair.error]
    for between in (False, True):
        kind = [pair for pair in works if (addresses[pair.source] != addresses[pair.target]) is between]
        latencies = [(pair.latency_ms, pair) for pair in kind if pair.latency_ms is not None]
        yield from _outliers(latencies, "ms", lambda figure, usual: figure > max(SLOW_MS, SLOW_FACTOR * usual))
        rates = [(-pair.mb_s, pair) for pair in kind if pair.mb_s is not None]
        yield from _outliers(rates, "MB/s", lambda figure, usual: figure * SLOW_FACTOR > usual)
    if unmeasured := [pair for pair in works if pair.latency_ms is None]:
        yield Finding(NOTE, f"{_names(unmeasured)}: works; there was no time to measure", "--timeout gives more time")


def _outliers(
    figures: list[tuple[float, PairPath]], unit: str, is_slow: Callable[[float, float], bool]
) -> Iterator[Finding]:
    """``figures``: the better the smaller."""
    ordered = sorted(figure for figure, _ in figures)
    usual = ordered[len(ordered) // 4] if ordered else 0.0
    if slow := [(abs(figure), pair) for figure, pair in figures if is_slow(figure, usual)]:
        span = f"{_number(min(slow, key=_figure)[0])} to {_number(max(slow, key=_figure)[0])} {unit}"
        what = f"{_names([pair for _, pair in slow])}: {span}; the quicker pairs have {_number(abs(usual))} {unit}"
        yield Finding(NOTE, what, "keep what communicates most off these pairs; check their links and interfaces")


def _figure(slow: tuple[float, PairPath]) -> float:
    return slow[0]


def _names(pairs: list[PairPath]) -> str:
    named = ", ".join(f"{pair.source} to {pair.target}" for pair in pairs[:NAMED_PAIRS])
    more = f" and {len(pairs) - NAMED_PAIRS} more" if len(pairs) > NAMED_PAIRS else ""
    return f"worker {named}{more}"
