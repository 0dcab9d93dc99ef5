"""Settings that only the server or the workers read are pointed out if only a client has set them."""

from __future__ import annotations

import re

import pytest

from gt.wire.settings import SERVER_SETTINGS, WORKER_SETTINGS, settings_on, unread_settings
from tests.support.processes import ROOT, System

EVERY = sorted({*SERVER_SETTINGS, *WORKER_SETTINGS})


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch):
    for name in EVERY:
        monkeypatch.delenv(name, raising=False)


def test_the_names_are_those_of_the_documentation():
    rows = re.findall(r"^\| `(GT_\w+)` \|.*\| ([^|]+) \|$", (ROOT / "docs/settings.md").read_text(), re.M)
    for reader, names in (("server", SERVER_SETTINGS), ("workers", WORKER_SETTINGS)):
        only = {
            name for name, readers in rows if reader in (by := readers.split(", ")) and {*by} <= {"server", "workers"}
        }
        assert only == set(names)


@pytest.mark.parametrize(("value", "on"), [("1", True), ("/tmp/log", True), ("0", False), ("", False)])
def test_what_is_on(value, on, monkeypatch):
    monkeypatch.setenv("GT_VERBOSE", value)
    assert settings_on(["GT_VERBOSE", "GT_COMPILE"]) == ["GT_VERBOSE"] * on


@pytest.mark.parametrize("name", EVERY)
def test_each_is_pointed_out_unless_it_is_on_elsewhere(name, monkeypatch):
    monkeypatch.setenv(name, "7")
    reader = "the server" if name in SERVER_SETTINGS else "workers"
    assert unread_settings([], has_workers=True) == {name: reader}
    assert unread_settings([name], has_workers=True) == {}
    assert unread_settings([], has_workers=False) == ({name: reader} if name in SERVER_SETTINGS else {})


def warnings(client) -> list[str]:
    assert client.end() == 0, client.output
    return [line for line in client.lines if line.startswith("[gt] ")]


CONNECT_AGAIN = 'gt.connect("localhost:{}"); say(gt.ones(3).sum().item())'


def test_one_line_at_the_first_connection(system):
    settings = {"GT_INSTRUCTION_LOG": "/nowhere/log", "GT_AUTO_COMPILE": "1"}
    client = system.client(CONNECT_AGAIN.format(system.port), **settings)
    text = "GT_AUTO_COMPILE (read by workers), GT_INSTRUCTION_LOG (read by the server) have no effect in a client of"
    assert warnings(client) == [f"[gt] {text} localhost:{system.port}: set them where the server and its workers start"]
    assert client.lines[-1] == "3.0"


def test_what_the_server_or_a_worker_has_too_is_not_pointed_out(stack, tmp_path):
    system = System(stack)  # it has GT_VERBOSE
    system.worker("--backend", "numpy", GT_AUTO_COMPILE="1", GT_CACHE_DIR=str(tmp_path))
    for settings in ({}, {"GT_VERBOSE": "1", "GT_AUTO_COMPILE": "1", "GT_CACHE_DIR": "/other"}):
        assert warnings(system.client("gt.ones(3).sum().item()", **settings)) == []
    assert warnings(system.client("pass", GT_DEBUG_WORKER="1")) == [
        f"[gt] GT_DEBUG_WORKER (read by workers) has no effect in a client of localhost:{system.port}: "
        "set it where the server and its workers start"
    ]
