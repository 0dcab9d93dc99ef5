"""``gt doctor --cluster``: every pair of workers of a running system, on this machine and on hosts of a network."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.doctor import __main__ as doctor
from gt.doctor import cluster
from gt.doctor.cluster import ClusterFacts, PairPath, WorkerPath
from gt.doctor.cluster_report import find_problems, lines, remedy
from gt.doctor.findings import NOTE, PROBLEM
from tests.support import namespaces
from tests.support.processes import OPERATOR, TOKEN, System, free_port

NUMPY = ("--backend", "numpy", "--threads", "1")


@pytest.fixture(autouse=True)
def ordinary_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GT_TOKEN", TOKEN)
    monkeypatch.setenv("GT_OPERATOR_TOKEN", f"not {OPERATOR}")
    yield
    gt.disconnect()
    gt.load_config(None)


def facts_of(pairs: dict[tuple[int, int], tuple[float, float] | str], hosts: str = "abcd") -> ClusterFacts:
    """(source, target) -> latency and rate, or the error."""
    count = 1 + max(max(pair) for pair in pairs)
    workers = [WorkerPath(i, hosts[i], "cpu", "numpy", 100 + i, 0.5, 90.0) for i in range(count)]
    paths = [
        PairPath(*pair, error=x) if isinstance(x, str) else PairPath(*pair, latency_ms=x[0], mb_s=x[1])
        for pair, x in pairs.items()
    ]
    return ClusterFacts("localhost:9000", 0.25, workers, paths)


# -- the report ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("worker 0 cannot be reached (10.0.0.1:4: timed out)", "a firewall or a router drops packets"),
        ("worker 0 cannot be reached (10.0.0.1:4: Connection refused)", "does not listen there"),
        ("worker 0 cannot be reached (10.0.0.1:4: No route to host)", "no route between these hosts"),
        ("worker 1 did not join within 30 s", "a firewall or a router drops packets"),
        ("the group could not be created: connect timeout", "cannot connect for the collectives"),
        ("worker 0 gets no answer from worker 1 (10 s): the network between them is broken", "packets are lost"),
        ("no answer within 20 s", "busy or stopped"),
        ("something else", "see what these workers print"),
    ],
)
def test_what_to_do(error: str, words: str) -> None:
    assert words in remedy(error)


def test_the_matrix() -> None:
    error = "worker 0 cannot be reached (a:4: timed out)"
    facts = facts_of({(0, 1): (0.5, 80.0), (1, 0): (0.5, 321.0), (0, 2): error, (2, 0): error})
    shown = [line.rstrip() for line in lines(facts)]
    assert shown[0] == "server            localhost:9000: 0.25 ms there and back from here"
    assert shown[1].endswith("process 100 at a: 0.50 ms there and back from the server; values at 90.00 MB/s")
    facts.workers[0].place = "node1, NUMA node 0"
    assert "process 100 at a (node1, NUMA node 0): 0.50 ms" in [*lines(facts)][1]
    assert shown[5:9] == [
        "ms, one way            to 0     to 1     to 2",
        "from 0                          0.50    fails",
        "from 1                 0.50",
        "from 2                fails",
    ]
    assert shown[12] == "from 1                  321"
    (problem,) = find_problems(facts)
    assert problem.level == PROBLEM
    assert problem.what == f"worker 0 to 2, 2 to 0: {error}"


def test_slow_pairs_are_compared_with_their_kind() -> None:
    within, slow, between = (0.1, 9000.0), (30.0, 2.0), (0.4, 100.0)
    quick = dict.fromkeys([(0, 1), (1, 0), (2, 3), (3, 2)], within)
    others = dict.fromkeys([(0, 2), (2, 0), (1, 2), (2, 1), (1, 3), (3, 1)], between)
    assert find_problems(facts_of(quick | others, "aabb")) == []
    latency, rate = find_problems(facts_of(quick | others | dict.fromkeys([(0, 3), (3, 0)], slow), "aabb"))
    assert latency.level == rate.level == NOTE
    assert latency.what == "worker 0 to 3, 3 to 0: 30.00 to 30.00 ms; the quicker pairs have 0.40 ms"
    assert rate.what == "worker 0 to 3, 3 to 0: 2.00 to 2.00 MB/s; the quicker pairs have 100 MB/s"


# -- a system on this machine ----------------------------------------------------------------


def report(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = doctor.main(["--cluster", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_workers_on_this_machine(stack: contextlib.ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    system = System(stack)
    for _ in range(2):
        system.worker(*NUMPY)
    port = str(system.port)
    code, printed = report(capsys, "-p", port)
    assert code == 0, printed["findings"]
    assert printed["ok"]
    assert [worker["address"] for worker in printed["cluster"]["workers"]] == ["127.0.0.1"] * 2
    assert all(worker["latency_ms"] is not None and worker["mb_s"] for worker in printed["cluster"]["workers"])
    pairs = {(pair["source"], pair["target"]): pair for pair in printed["cluster"]["pairs"]}
    assert set(pairs) == {(0, 1), (1, 0)}
    assert all(pair["latency_ms"] < 1000 and pair["mb_s"] for pair in pairs.values())

    assert doctor.main(["--cluster", "-p", port, "--host", "localhost", "--timeout", "0"]) == 0
    text = capsys.readouterr().out
    assert "from 1                    ?" in text
    assert "note: worker 0 to 1, 1 to 0: works; there was no time to measure" in text
    assert text.endswith("no problem found\n")


def test_a_worker_that_does_not_answer(
    stack: contextlib.ExitStack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(stack)
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 3.0)
    system.worker(*NUMPY)
    system.worker(*NUMPY).kill(signal.SIGSTOP)
    code, printed = report(capsys, "-p", str(system.port))
    assert code == 1
    assert printed["cluster"]["workers"][0]["error"] == ""
    (problem,) = printed["findings"]
    assert problem["what"] == "worker 1 (127.0.0.1): no answer within 3 s"


def test_no_server_and_no_workers(stack: contextlib.ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--cluster", "-p", str(free_port())]) == 1
    assert "no GT server" in capsys.readouterr().err
    assert doctor.main(["--cluster", "-p", str(System(stack).port)]) == 1
    assert "has no workers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        doctor.main(["--host", "localhost"])


# -- hosts of a network ----------------------------------------------------------------------


def printed_json(doctor):
    """Its output from the first brace on: a line about a long wait, which goes to the same file, may be before it."""
    return json.loads(doctor.output[doctor.output.index("{") :])


@pytest.mark.long
@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_a_pair_that_is_cut_and_a_slow_host(stack: contextlib.ExitStack) -> None:
    network = namespaces.Network(stack, 4)
    first, slow, third, _ = network.hosts
    slow.shape(delay_ms=30)
    system = namespaces.HostsSystem(stack, network)
    system.join(1, *NUMPY)
    first.cut_from(third)
    doctor = system.start("-m", "gt", "doctor", "--cluster", "--host", system.host, "--json")
    assert doctor.end() == 1
    printed = printed_json(doctor)
    pairs = {(pair["source"], pair["target"]): pair for pair in printed["cluster"]["pairs"]}
    assert {pair for pair, path in pairs.items() if path["error"]} == {(0, 2), (2, 0)}
    problem = next(finding for finding in printed["findings"] if finding["level"] == PROBLEM)
    assert f"worker 0 cannot be reached ({first.address}:" in problem["what"]
    assert "a firewall or a router drops packets" in problem["remedy"]
    # a difference of two measured times: one that is disturbed makes it shorter
    latencies = {pair: path["latency_ms"] for pair, path in pairs.items() if 1 in pair}
    assert len(latencies) == 6
    assert min(latencies.values()) > 27
    assert printed["cluster"]["workers"][1]["latency_ms"] > 54
