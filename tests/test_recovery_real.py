"""Recovery with real processes: a worker is killed during training, another one joins, and the losses are the same."""

from __future__ import annotations

import json
import os
import signal

import pytest

from benchmarks.chaos_child import KINDS
from tests.support.processes import System, wait_until

long = pytest.mark.long
STEPS = 8


def losses(client):
    lines = [json.loads(line) for line in client.lines if not line.startswith("[gt]")]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize(
    ("kind", "templates"),
    [
        ("data_parallel", "1"),
        pytest.param("plain", "0", marks=long),
        *[pytest.param(kind, "1", marks=long) for kind in KINDS if kind != "data_parallel"],
    ],
)
def test_kill_9_changes_no_loss(stack, kind, templates):
    system = System(stack)
    for _ in range(2):
        system.worker("--threads", "1")
    arguments = ("-m", "benchmarks.chaos_child", str(system.port), kind, str(STEPS))
    undisturbed = system.start(*arguments, "off", "0", "1", GT_TEMPLATES=templates)
    assert undisturbed.end() == 0, undisturbed.output
    client = system.start(*arguments, "120", "3", "1", GT_TEMPLATES=templates)
    wait_until(lambda: len(losses(client)) >= STEPS // 2 or client.popen.poll() is not None, what="half of the steps")
    first = json.loads(client.lines[0])["workers"][0]
    os.kill(first, signal.SIGKILL)
    system.worker("--threads", "1")
    assert client.end() == 0, client.output
    assert losses(client) == losses(undisturbed), client.output
