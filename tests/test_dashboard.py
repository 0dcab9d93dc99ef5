"""The dashboard without a browser: who gets in, what a page is told, metrics, and bad input."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import socket
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt.dashboard import feed
from gt.dashboard.__main__ import main
from gt.dashboard.access import LinkAccess
from gt.dashboard.metrics import Metrics
from gt.dashboard.recent import KEPT_NS, RecentEvents
from gt.dashboard.web import FRAMES, build_page
from gt.dispatcher.inspection import MAX_OPEN
from gt.dispatcher.tenants.access import Access
from gt.dispatcher.violations import Violation
from gt.errors import ConfigError
from gt.launch.dashboard import DashboardProcess, parse_address
from gt.scripts.timeline_panel import COLOURS
from gt.testing import Cluster
from gt.wire.event_messages import EVENT_FIELDS, EventBatch, Inspect, Inspection, Listening
from gt.wire.structures import EventName, WorkerInfo
from tests.support.dashboards import Messages, TrainingSystem, get, sign_in
from tests.support.keys import copy_server_key
from tests.support.processes import ROOT, Process, System, free_port, wait_until
from tests.test_events import ClusterViewer, training_step

LINEAR = EventName("op", "matmul", "linear", "linear(…)", "", 8)
RELU = EventName("op", "elementwise", "relu", "relu(…)", "", 8)
REDUCE = EventName("move", "moves", "all_reduce", "all_reduce among workers 0, 1", "", 8, (0, 1))
NAMES = [LINEAR, RELU, REDUCE]


@pytest.fixture(scope="module")
def system() -> Iterator[TrainingSystem]:
    with contextlib.ExitStack() as stack:
        system = TrainingSystem(stack)
        system.train()
        yield system


@pytest.fixture(scope="module")
def cookie(system: TrainingSystem) -> str:
    return sign_in(system.link)


# -- who gets in ---------------------------------------------------------------------------


def test_a_link_works_once() -> None:
    access = LinkAccess("127.0.0.1")
    first, second = access.new_link(), access.new_link()
    session = access.redeem(first)
    assert access.redeem(first) is None
    assert access.redeem("") is None
    assert access.redeem("é") is None
    assert access.is_session(session)
    assert not access.is_session(None)
    assert not access.is_session(second)
    assert access.redeem(second) not in (None, session)
    assert access.is_session(session)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:8787", True),
        ("LOCALHOST", True),
        ("127.0.0.1:9", True),
        ("[::1]:8787", True),
        ("10.0.0.7:8787", True),
        (f"{socket.gethostname()}:8787", True),
        ("evil.example:8787", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_known_hosts(host: str, known: bool) -> None:
    assert LinkAccess("127.0.0.1").is_known_host(host) == known


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        (None, True),
        ("http://localhost:8787", True),
        ("http://localhost:8788", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_origins(origin: str | None, same: bool) -> None:
    assert LinkAccess("127.0.0.1").is_same_origin(origin, "localhost:8787") == same


def test_without_the_cookie_nothing_is_seen(system: TrainingSystem, cookie: str) -> None:
    name = cookie.split("=")[0]
    for path in ("/", "/perfetto.json", "/?key=wrong", system.link.split(system.address)[1]):
        for headers in ({}, {"cookie": f"{name}=wrong"}):
            status, answer, text = get(system.address, path, **headers)
            assert status == 403, path
            assert "set-cookie" not in answer
            assert "canvas" not in text
            assert answer["content-security-policy"] == FRAMES
    assert get(system.address, "/", cookie=cookie)[0] == 200


def test_the_cookie_is_for_this_site_only(system: TrainingSystem) -> None:
    process = system.start("-m", "gt.dashboard", "-p", str(system.port), "--listen", "0")
    link = process.expect("dashboard:").split()[-1]
    address, path = link.removeprefix("http://").split("/", 1)
    _, headers, text = get(address, f"/{path}")
    assert {"HttpOnly", "SameSite=Strict"} <= set(headers["set-cookie"].split("; "))
    assert "access-control-allow-origin" not in headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["content-security-policy"].endswith(FRAMES)
    assert "<canvas" in text
    process.tell()  # Enter prints another link
    wait_until(lambda: process.output.count("dashboard:") == 2, what="another link")
    another = process.lines[-1].split()[-1]
    assert another != link
    assert sign_in(another)


def test_other_hosts_and_origins_are_refused(system: TrainingSystem, cookie: str) -> None:
    from tornado.httpclient import HTTPClientError

    for path in ("/", "/perfetto.json"):
        assert get(system.address, path, cookie=cookie, host="evil.example")[0] == 403
    refused: list[dict[str, str]] = [
        {},
        {"cookie": cookie.split("=")[0] + "=wrong"},
        {"cookie": cookie, "origin": "http://evil.example"},
        {"cookie": cookie, "origin": f"http://localhost:{free_port()}"},
        {"cookie": cookie, "host": "evil.example", "origin": "http://evil.example"},
    ]
    for headers in refused:
        with pytest.raises(HTTPClientError, match="403"), Messages(system.address, **headers):
            pass
    with Messages(system.address, cookie=cookie, origin=f"http://{system.address}") as messages:
        assert messages.first("hello")["server"].endswith(str(system.port))


def test_the_page_loads_nothing_from_outside() -> None:
    text, policy = build_page()
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(""", text)
    assert "<!-- script" not in text
    assert "<!-- style" not in text
    assert policy.count("sha256-") == 2
    assert "unsafe" not in policy


def test_colours_are_those_of_pictures() -> None:
    script = (ROOT / "gt" / "dashboard" / "page" / "format.js").read_text()
    colours = dict(re.findall(r'(\w+): "(#[0-9A-F]{6})"', script))
    assert colours == {family: colour for family, colour in COLOURS.items() if family in colours}
    assert len(colours) == 14


# -- what a page is told -------------------------------------------------------------------


def batch(
    rows: list[tuple[int, int, int]], names: list[EventName] = (), worker: int = 0, offset: int = 0
) -> EventBatch:
    """Events of client 1, each in a stretch of its own: (index of the name, started, ended)."""
    heads = [(1, start, 0, 0, start, end, row, 1) for row, (_, start, end) in enumerate(rows)]
    stretches = np.array(heads, dtype=np.int64).tobytes()
    events = np.array([(what, 7, 1.0) for what, _, _ in rows], dtype=EVENT_FIELDS).tobytes()
    ended = max((end for *_, end in rows), default=0)
    sites = [(7, "a.py:1: x")]
    return EventBatch(worker, 1, offset, 0, 0, 0, ended, list(names), sites, stretches, events, [], 0, {}, 0)


def bars_of(recent: RecentEvents, new: EventBatch, resolution: int) -> list[tuple[int, ...]]:
    return list(recent.bars(new.source, new.client, recent.add(new), resolution))


def test_long_events_are_bars_of_their_own() -> None:
    recent = RecentEvents(base=1_000_000)
    new = batch([(0, 1_000_000, 3_000_000), (2, 2_000_000, 4_000_000)], NAMES)
    assert bars_of(recent, new, 1_000_000) == [
        (0, 0, 0, 2000, 0, 2000, 1, 0, 7, 1),
        (0, 1, 1000, 3000, 2, 2000, 1, 2, 7, 1),
    ]
    assert recent.families == ["matmul", "elementwise", "moves"]
    assert recent.sites == {1: {7: "a.py:1: x"}}


def test_short_events_are_joined() -> None:
    recent = RecentEvents(base=0)
    rows = [(0, 10_000, 20_000), (1, 30_000, 90_000), (0, 100_000, 130_000), (1, 1_200_000, 1_300_000)]
    bars = bars_of(recent, batch(rows, NAMES), 1_000_000)
    # worker, lane, start, end, family, busy, count, label, site, client
    assert bars == [(0, 0, 10, 131, 1, 100, 3, -1, -1, 1), (0, 0, 1200, 1301, 1, 100, 1, -1, -1, 1)]


def test_bars_keep_the_time_of_random_events() -> None:
    random = np.random.default_rng(0)
    recent, busy, count = RecentEvents(base=0), 0.0, 0
    for k in range(20):
        starts = np.sort(random.integers(k * 10**8, (k + 1) * 10**8, 500))
        rows = [(int(random.integers(3)), int(s), int(s + random.integers(1, 3_000_000))) for s in starts]
        bars = bars_of(recent, batch(rows, NAMES if k == 0 else (), worker=k % 2, offset=0 if k else 5), 1_000_000)
        busy += sum(bar[5] for bar in bars)
        count += sum(bar[6] for bar in bars)
        if k == 0:
            recent._names[1, 1], recent._columns[1, 1] = recent._names[0, 1], recent._columns[0, 1]
        expected = sum(end - start for _, start, end in rows) / 1000
        assert sum(bar[5] for bar in bars) == pytest.approx(expected, abs=len(bars) + 500)
    assert count == 10_000
    window = recent.window(500_000, 700_000, 100)
    assert window
    assert all(bar[3] >= 500_000 - 2_000 and bar[2] <= 700_000 + 2_000 for bar in window)


def test_old_events_are_forgotten() -> None:
    recent = RecentEvents(base=0)
    recent.add(batch([(0, 0, 10)], NAMES))
    recent.add(batch([(0, KEPT_NS // 2, KEPT_NS // 2 + 10)]))
    recent.add(batch([(0, KEPT_NS + 20, KEPT_NS + 30)]))
    assert [event.started for event in recent.table(1000).events()] == [KEPT_NS // 2, KEPT_NS + 20]
    assert [event.name.op for event in recent.table(1).events()] == ["linear"]


def test_a_page_gets_everything(system: TrainingSystem, cookie: str) -> None:
    with Messages(system.address, cookie=cookie) as messages:
        load = messages.first(
            "load",
            lambda m: (
                sum(sum(worker["families"].values()) > 0 for worker in m["workers"]) == 2
                and m["clients"]
                and m["clients"][0]["share"]
            ),
        )
        assert load["operator"]
        tick = messages.first("tick", lambda m: any(bar[6] == 1 and bar[8] > 0 for bar in m["bars"]))
        assert {bar[0] for bar in tick["bars"]} <= {0, 1}
        assert "matmul" in tick["families"]
        assert all(bar[2] <= bar[3] <= tick["now"] + 1_000_000 for bar in tick["bars"])
        inspection = messages.first("inspection", lambda m: m["hot"] and m["tensors"])
        assert {section["level"] for section in inspection["hot"]} == {"template"}
        largest = inspection["tensors"][0]
        assert largest["type"] == "float32[256,64]"
        assert largest["layout"] == "S(0) on workers 0,1"
        assert len(largest["blocks"]) == 2
        log = "\n".join(text for _, text in inspection["log"])
        assert "worker 1 connected (cpu, numpy" in log
        span = [tick["now"] - 1_000_000, tick["now"]]
        messages.send(json.dumps({"close": span}))
        close = messages.first("close")
        assert [close["begun"], close["ended"]] == span
        assert len(close["bars"]) >= len([bar for bar in tick["bars"] if bar[2] > span[0]])
    with Messages(system.address, cookie=cookie) as late, Messages(system.address, cookie=cookie) as other:
        assert late.first("hello")["labels"]
        assert other.first("tick")


def test_perfetto_file(system: TrainingSystem, cookie: str) -> None:
    with Messages(system.address, cookie=cookie) as messages:
        messages.first("tick", lambda m: m["bars"])
        messages.first("tick", lambda m: m["bars"])
        status, headers, text = get(system.address, "/perfetto.json?seconds=5", cookie=cookie)
    assert status == 200
    assert "attachment" in headers["content-disposition"]
    names = {event["name"] for event in json.loads(text)["traceEvents"]}
    assert {"linear", "sgd_step"} <= names
    assert get(system.address, "/perfetto.json?seconds=x", cookie=cookie)[0] == 400


def test_what_a_page_may_send(system: TrainingSystem, cookie: str) -> None:
    for text in ("no JSON", '{"close": "x"}', "[]"):
        with Messages(system.address, cookie=cookie) as messages:
            messages.send(text)
            wait_until(lambda: messages.raw() is None, what="the end of the connection")
    with Messages(system.address, cookie=cookie) as messages:
        messages.send("x" * 2000)
        wait_until(lambda: messages.raw() is None, what="the end of the connection")
    with Messages(system.address, cookie=cookie) as messages:  # a stretch that ends before it begins is ignored
        messages.send('{"close": [5, 1]}')
        assert messages.first("load")


def test_a_viewer_without_the_token_sees_shares(system: TrainingSystem, tmp_path: pathlib.Path) -> None:
    copy_server_key(tmp_path)
    options = {"GT_OPERATOR_TOKEN": "", "XDG_CONFIG_HOME": str(tmp_path)}
    process = system.start("-m", "gt.dashboard", "-p", str(system.port), "--listen", "0", **options)
    link = process.expect("dashboard:").split()[-1]
    address = link.split("/")[2]
    assert re.search(r"^gt_workers [1-9]", get(address, "/metrics")[2], re.M)  # in the first scrape
    with Messages(address, cookie=sign_in(link)) as messages:
        load = messages.first("load", lambda m: m["clients"] and m["clients"][0]["share"])
        assert not load["operator"]
        inspection = messages.first("inspection")
        assert not inspection["hot"]
        assert not inspection["tensors"]
        assert not inspection["log"]
        assert not messages.first("tick")["bars"]


# -- inspections in one thread ------------------------------------------------------------


class Inspector(ClusterViewer):
    inspections: list[Inspection]

    def handle(self, frames: list[bytes]) -> None:
        message = self._decode(frames[0])
        if isinstance(message, Inspection):
            self.__dict__.setdefault("inspections", []).append(message)
        else:
            super().handle(frames)


def test_inspection() -> None:
    cluster = Cluster(workers=2, backend="numpy")
    cluster.dispatcher._access = Access("the token")
    operator, stranger = Inspector(cluster, "the token"), Inspector(cluster)
    with cluster.client():
        step, matrix = training_step(), gt.ones(8, 100)
        for _ in range(6):
            step()
        with pytest.raises(gt.GtError):
            gt.ones(3).reshape(3)[gt.tensor([5])].sum().item()
        for viewer in (operator, stranger):
            viewer.send(Inspect(3))
        cluster.settle()
    answer = operator.inspections[0]
    assert answer.request == 3
    assert {section.level for section in answer.hot} == {"template"}
    assert {section.worker for section in answer.hot} == {0}
    assert [tensor.nbytes for tensor in answer.tensors] == sorted((t.nbytes for t in answer.tensors), reverse=True)
    largest = answer.tensors[0]
    assert (largest.client, largest.type, largest.shape) == (1, str(matrix._type), (8, 100))
    assert (largest.layout, largest.blocks) == ("worker 0", [(0, (0, 0), (8, 100))])
    assert largest.history
    log = "\n".join(text for _, text in answer.log)
    assert "worker 1 connected" in log
    assert "client 1, worker 0: " in log  # the failure
    assert stranger.inspections == [Inspection(3, [], [], [])]
    assert not len(cluster.dispatcher.inspections)


def test_inspections_end_with_their_workers_and_viewers() -> None:
    cluster = Cluster(workers=2, backend="numpy")
    cluster.dispatcher._access = Access(everybody=True)
    viewer, other = Inspector(cluster), Inspector(cluster)
    with cluster.client():
        gt.ones(3).sum().item()
        inspections = cluster.dispatcher.inspections
        viewer.send(Inspect(1))
        other.send(Inspect(2))
        while len(inspections) < 2:
            assert cluster.step()
        cluster.kill_worker(next(iter(cluster.workers)))
        other.leave()
        cluster.settle()
    assert not len(inspections)
    assert [answer.request for answer in viewer.inspections] == [1]
    assert not hasattr(other, "inspections")
    assert "worker 0 has ended" in [text for _, text in viewer.inspections[0].log]


def test_a_viewer_has_few_open_inspections() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    cluster.dispatcher._access = Access(everybody=True)
    viewer = Inspector(cluster)
    with cluster.client():
        gt.ones(3).sum().item()
        peer = cluster.dispatcher.by_peer[viewer.name]
        for number in range(MAX_OPEN):
            cluster.dispatcher.inspections.inspect(peer, Inspect(number), ())
        with pytest.raises(Violation, match="more than 4 open requests"):
            cluster.dispatcher.inspections.inspect(peer, Inspect(9), ())


# -- metrics -------------------------------------------------------------------------------


def metrics_with_values() -> Metrics:
    metrics = Metrics()
    shares = [("matmul", 3, 2_000_000_000, 24), ("transfer", 1, 5, 1000)]
    metrics.add(EventBatch(0, 1, 0, 0, 0, 0, 10, [], [], b"", b"", shares, 2, {}, 1500, 8))
    metrics.add(EventBatch(0, 0, 0, 0, 0, 0, 10, [], [], b"", b"", [], 0, {"used": 5, "peak": 6, "total": 7}, 1500))
    metrics.add(EventBatch(-1, 1, 0, 0, 4, 0, 10, [], [], b"", b"", [("dispatcher", 1, 500_000_000, 0)], 0, {}, 0))
    return metrics


def test_metrics() -> None:
    metrics = metrics_with_values()
    metrics.show(Listening(0, 0, 0, True, [WorkerInfo(0, "numpy", "cpu", "", 1)], [4, 5]))
    lines = metrics.text().decode().splitlines()
    assert {
        'gt_worker_seconds_total{family="matmul",worker="0"} 2.0',
        'gt_worker_instructions_total{worker="0"} 3.0',
        'gt_worker_hot_instructions_total{worker="0"} 2.0',
        'gt_worker_moved_bytes_total{worker="0"} 1000.0',
        'gt_worker_dropped_events_total{worker="0"} 8.0',
        'gt_worker_memory_bytes{kind="peak",worker="0"} 6.0',
        'gt_worker_queue_seconds{worker="0"} 0.0015',
        "gt_dispatcher_seconds_total 0.5",
        "gt_workers 1.0",
        "gt_clients 2.0",
        "gt_missed_batches 4.0",
    } <= set(lines)
    metrics.show(None)
    assert 'worker="0"' not in metrics.text().decode()


def test_scraping(system: TrainingSystem) -> None:
    address, path = system.metrics.removeprefix("http://").split("/", 1)

    def counted() -> float:
        status, headers, text = get(address, f"/{path}")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        assert "linear(" not in text
        return sum(float(n) for n in re.findall(r"^gt_worker_instructions_total.* (\S+)$", text, re.M))

    first = counted()
    wait_until(lambda: counted() > first, what="counting")
    assert get(address, "/healthz")[::2] == (200, "ok\n")
    assert get(system.address, "/healthz")[0] == get(system.address, "/metrics")[0] == 200
    assert get(address, "/")[0] == 404


def test_health_without_a_server() -> None:
    with contextlib.ExitStack() as stack:
        process = Process("-m", "gt.dashboard", "-p", str(free_port()), "--metrics", "0")
        stack.callback(process.close)
        address = process.expect("metrics:").split("/")[2]
        status, _, text = get(address, "/healthz")
        assert (status, text) == (503, "the server does not answer\n")
        assert "gt_up 0.0" in get(address, "/metrics")[2]


def test_the_grafana_dashboard_names_only_metrics_that_exist() -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    metrics = metrics_with_values()
    existing = set(re.findall(r"^(gt_\w+)", metrics.text().decode(), re.M))
    named = {name for query in queries for name in re.findall(r"\bgt_\w+", query)}
    assert len(queries) >= 8
    assert named <= existing, named - existing
    labels = {label for query in queries for label in re.findall(r"\bby \((\w+(?:, \w+)*)\)", query)}
    assert {name for label in labels for name in label.split(", ")} <= {"worker", "family", "kind"}


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x", "1.2.3.4:", "localhost:http", "-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a port, or an address and a port"):
        parse_address(text, "--dashboard")


def test_a_port_that_is_too_high() -> None:
    with pytest.raises(ConfigError, match=r"^port 99999: ports go from 0 to 65535$"):
        parse_address("0.0.0.0:99999", "--metrics")


def test_addresses() -> None:
    assert parse_address("8787", "") == ("127.0.0.1", 8787)
    assert parse_address("0.0.0.0:1", "") == ("0.0.0.0", 1)
    assert parse_address("[::1]:2", "") == ("::1", 2)


def one_line(process: Process) -> str:
    assert process.end() == 1
    assert len(process.lines) == 1, process.output
    process.close()
    return process.lines[0]


def error_line(capsys: pytest.CaptureFixture[str], *options: str, code: int = 1) -> str:
    """What `python -m gt.dashboard` prints if it cannot begin."""
    assert main(list(options)) == code
    output = capsys.readouterr()
    assert not output.out
    assert output.err.count("\n") == 1
    return output.err.strip()


def test_a_port_that_is_taken(system: TrainingSystem) -> None:
    port = system.address.split(":")[1]
    reason = f"port {port} is taken by another program; choose another one"
    process = Process("-m", "gt.dashboard", "-p", str(system.port), "--listen", port)
    assert one_line(process) == f"gt.dashboard: {reason}"
    assert one_line(Process("-m", "gt.server", "-p", str(free_port()), "--dashboard", port)) == f"gt.server: {reason}"


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(capsys, "-p", "1", "--listen", "x", code=2)
    assert line.startswith("gt.dashboard: --listen x: expected a port")
    text = one_line(Process("-m", "gt.dashboard", "-p", "1", "--metrics", "203.0.113.5:0"))
    assert text == "gt.dashboard: cannot listen on 203.0.113.5:0: Cannot assign requested address"


@pytest.mark.parametrize("library", ["tornado", "prometheus_client"])
def test_a_library_that_is_missing(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert error_line(capsys) == (
        f"gt.dashboard: {library} is not installed; the dashboard and metrics need it: "
        "pip install 'gt-tensor[dashboard]'"
    )


def test_no_server(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert error_line(capsys).startswith("gt.dashboard: no GT server of this user runs on this machine")


def test_the_dashboard_ends_with_its_server() -> None:
    with contextlib.ExitStack() as stack:
        system = System(stack, "--dashboard", "0")
        address = system.server.expect("dashboard:").split("/")[2]
        assert get(address, "/healthz")[0] in (200, 503)
        system.server.kill()

        def ended() -> bool:
            try:
                get(address, "/healthz")
            except OSError:
                return True
            return False

        wait_until(ended, what="the end of the dashboard")


def test_a_child_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ConfigError, match="the dashboard has ended"):
        DashboardProcess("unix:/nowhere")


def test_a_failing_feed_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second try ends it, so that the test ends too."""
    errors: list[BaseException] = [ValueError("a defect"), SystemExit()]

    def fail(*_: object, **__: object) -> None:
        raise errors.pop(0)

    published: list[bytes] = []
    monkeypatch.setattr(feed, "Viewer", fail)
    monkeypatch.setattr(feed, "RETRY_S", 0.0)
    failing = feed.Feed("nowhere", published.append, Metrics())
    failing.pages = 1
    with pytest.raises(SystemExit):
        failing.run()
    assert failing.lost.startswith("the dashboard failed: ValueError")
    assert b"the dashboard failed: ValueError" in published[0]
    assert "a defect" in capsys.readouterr().err
