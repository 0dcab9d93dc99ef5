"""The dashboard in headless Chromium, against a real training run. Skipped where there is no browser."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gt.debug import DashboardView
from gt.launch.dashboard import DashboardProcess
from tests.support.browser import Browser, find_browser
from tests.support.dashboards import TrainingSystem
from tests.support.processes import OPERATOR, TOKEN, wait_until

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)

BARS = "[...known.lanes.values()].reduce((n, lanes) => n + lanes[0].length, 0)"
#: A bar that is in view.
BAR = """[...known.lanes.values()].flatMap((lanes) => lanes[0])
    .find((bar) => bar[START] > stream.end - stream.span * 0.9 && bar[END] < stream.end)"""
OLD_BAR = "[...known.lanes.values()].some((lanes) => lanes[0].some((bar) => bar[END] < serverTime() - 2e6))"
PIXELS = """(() => {
    const canvas = document.getElementById('stream'), context = canvas.getContext('2d');
    const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
    let sum = 0;
    for (let i = 0; i < data.length; i += 4) sum = (sum * 31 + data[i] + 3 * data[i + 1] + 7 * data[i + 2]) % 1000003;
    return sum;
})()"""
#: What a page of another site tries: read the dashboard, its files and its messages, and show it in a frame.
INTRUDER = """
    async function attempts(address) {
        const results = {};
        for (const path of ["/", "/perfetto.json", "/metrics"]) {
            for (const credentials of ["include", "omit"]) {
                try {
                    const answer = await fetch(`http://${address}${path}`, {credentials});
                    results[path + credentials] = "read " + (await answer.text()).length;
                } catch (error) { results[path + credentials] = "refused"; }
            }
        }
        results.socket = await new Promise((done) => {
            const socket = new WebSocket(`ws://${address}/live`);
            socket.onmessage = (event) => done("read " + event.data.length);
            socket.onerror = () => done("refused");
        });
        return results;
    }
"""


@pytest.fixture(scope="module")
def system() -> Iterator[TrainingSystem]:
    with contextlib.ExitStack() as stack:
        system = TrainingSystem(stack)
        system.train()
        yield system


@pytest.fixture(scope="module")
def page(system: TrainingSystem) -> Iterator[Browser]:
    """A browser that has opened the link."""
    with Browser() as browser:
        browser.size(1440, 1100)
        browser.go(system.link)
        browser.until("known.load && known.load.workers.length === 2")
        yield browser


@pytest.fixture
def other_site() -> Iterator[str]:
    """The address of a web server of somebody else on this machine."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>another site</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text(browser: Browser, id: str) -> str:
    return str(browser.js(f"document.getElementById('{id}').innerText"))


def test_workers_and_moving_bars(page: Browser) -> None:
    assert page.js("document.getElementById('state').textContent") == "live"
    assert page.js("document.querySelectorAll('.worker').length") == 2
    page.until("document.querySelector('.worker .bar i')?.offsetWidth > 0")
    bars, pixels = page.js(BARS), page.js(PIXELS)
    page.until(f"{BARS} > {bars}")
    page.until(f"{PIXELS} !== {pixels}")
    page.until("document.getElementById('legend').innerText.includes('matmul')")  # while a worker is busy
    assert page.js("location.search") == ""  # the key of the link is not left in the address


def test_all_parts_show_something(page: Browser) -> None:
    page.until("document.querySelectorAll('#hot .level').length > 0")
    assert "template" in text(page, "hot")
    assert "client 1" in text(page, "clients")
    page.until("document.getElementById('tensors').innerText.includes('float32[256,64]')")
    assert "S(0) on workers 0,1" in text(page, "tensors")
    assert page.js("document.querySelectorAll('.tensor svg rect').length") >= 2
    assert "worker 0 connected" in text(page, "log")
    assert "worker 1" in text(page, "memory-legend")
    assert text(page, "sum-busy").endswith("%")


def test_pause_and_zoom(page: Browser) -> None:
    page.until(OLD_BAR)
    page.js("document.getElementById('pause').click()")
    assert page.js("document.getElementById('state').textContent") == "paused"
    page.until("stream.held.length > 2")
    drawn = "new Promise((done) => requestAnimationFrame(() => { drawStream(); done(true); }))"
    page.js(drawn)
    pixels = page.js(PIXELS)
    page.js(drawn)
    assert page.js(PIXELS) == pixels
    span = page.js("stream.span")
    share = page.js(f"1 - (stream.end - {BAR}[END]) / stream.span")
    page.js(f"zoom(0.1, {share})")
    assert page.js("stream.span") == pytest.approx(span / 10)
    page.js(f"zoom(0.02, {share})")  # the bar stays under the cursor
    page.until("stream.closeView && stream.closeView.ended - stream.closeView.begun < 1e5")
    assert page.js("[...stream.closeView.lanes.values()].some((lanes) => lanes[0].some((bar) => bar[LABEL] >= 0))")
    page.js("document.getElementById('pause').click()")
    assert page.js("document.getElementById('state').textContent") == "live"
    assert page.js("stream.held.length") == 0


def test_a_bar_says_what_it_is(page: Browser) -> None:
    page.until(OLD_BAR)
    page.js("pause(true)")
    page.js(f"""(() => {{
        const bar = {BAR}, canvas = document.getElementById('stream'), box = canvas.getBoundingClientRect();
        const x = LEFT + (bar[START] + bar[END]) / 2 / 1 * 0 + ((bar[START] + bar[END]) / 2 - stream.end + stream.span)
            / stream.span * (canvas.clientWidth - LEFT);
        const y = workerNumbers().indexOf(bar[WORKER]) * (LANE_HEIGHT + MOVES_HEIGHT + GAP) + 5;
        canvas.dispatchEvent(new PointerEvent('pointermove', {{clientX: box.left + x, clientY: box.top + y}}));
    }})()""")
    tip = text(page, "tip")
    page.js("pause(false)")
    assert "client 1" in tip
    assert "worker" in tip


def test_phone_and_dark(page: Browser) -> None:
    light = page.js("getComputedStyle(document.body).backgroundColor")
    page.size(390, 844, dark=True, phone=True)
    page.until(f"getComputedStyle(document.body).backgroundColor !== '{light}'")
    assert page.js("document.documentElement.scrollWidth") <= 390
    tops = page.js(
        "[...document.querySelectorAll('section')].map((part) => Math.round(part.getBoundingClientRect().left))"
    )
    assert len(set(tops)) == 1  # one column
    page.size(1440, 1100)


def test_save_as_perfetto(page: Browser) -> None:
    page.until(f"{BARS} > 0")
    address = page.js("document.getElementById('save').href")
    trace = page.js(f"fetch('{address}').then((answer) => answer.text())")
    assert any(event.get("cat") == "matmul" for event in json.loads(trace)["traceEvents"])


def test_a_page_of_another_site_reads_nothing(page: Browser, system: TrainingSystem, other_site: str) -> None:
    """The browser is signed in; the other site is on the same machine, under another port or another name."""
    here, port = page.js("location.href"), system.address.split(":")[1]
    for site in (other_site, other_site.replace("127.0.0.1", "localhost")):
        page.go(f"http://{site}/")
        assert page.js("document.title") == "another site"
        results = page.js(f"(() => {{ {INTRUDER} return attempts('127.0.0.1:{port}'); }})()")
        assert set(results.values()) == {"refused"}, results
    page.go(here)
    page.until("known.load && known.load.workers.length === 2")


def test_another_name_for_this_machine_sees_nothing(system: TrainingSystem) -> None:
    """DNS rebinding: the name of another site points to this machine."""
    with Browser("--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        port = system.address.split(":")[1]
        browser.go(f"http://evil.example:{port}/")
        assert "this host name is not known here" in browser.js("document.body.innerText")
        assert browser.js(f"fetch('http://evil.example:{port}/perfetto.json').then((answer) => answer.status)") == 403


def test_a_used_link_and_a_wrong_key_open_nothing(system: TrainingSystem, page: Browser) -> None:
    with Browser() as browser:
        for address in (system.link, f"http://{system.address}/?key=wrong", f"http://{system.address}/"):
            browser.go(address)
            assert browser.js("document.title") == "GT: sign in with a link"
            assert browser.js("document.querySelectorAll('canvas').length") == 0


def framed(browser: Browser, expression: str) -> object:
    """The value of an expression in the first frame of a page; None while the frame is being loaded."""
    tree = browser.command("Page.getFrameTree")["frameTree"]
    if not (frames := tree.get("childFrames")):
        return None
    try:
        world = browser.command("Page.createIsolatedWorld", frameId=frames[0]["frame"]["id"])
        options = {"contextId": world["executionContextId"], "returnByValue": True}
        return browser.command("Runtime.evaluate", expression=expression, **options)["result"].get("value")
    except AssertionError as error:
        if "Cannot find context" not in str(error) and "No frame for given id" not in str(error):
            raise
        return None


def show_frame(browser: Browser, site: str, html: str) -> None:
    """Open a page of another site that contains this, as a notebook shows the HTML of a result."""
    browser.go(f"http://{site}/")
    browser.js(f"""(() => {{
        const cell = document.createRange().createContextualFragment({json.dumps(html)});
        document.body.replaceChildren(cell);
    }})()""")


@pytest.fixture
def dashboard(system: TrainingSystem, monkeypatch: pytest.MonkeyPatch) -> Iterator[DashboardProcess]:
    """Another dashboard of the system, as `gt.debug.dashboard` starts it."""
    monkeypatch.setenv("GT_TOKEN", TOKEN)
    monkeypatch.setenv("GT_OPERATOR_TOKEN", OPERATOR)
    dashboard = DashboardProcess(f"tcp://localhost:{system.port}", "--listen", "0")
    try:
        yield dashboard
    finally:
        dashboard.stop()


def test_a_notebook_on_this_machine_shows_the_page(dashboard: DashboardProcess, other_site: str) -> None:
    """A notebook is a page on another port, under either name of this machine."""
    with Browser() as browser:
        for site in (other_site, other_site.replace("127.0.0.1", "localhost")):
            show_frame(browser, site, DashboardView(dashboard, height=600)._repr_html_())
            wait_until(
                lambda: framed(browser, "document.querySelectorAll('.worker').length") == 2,
                60,
                what="the workers in the frame",
            )
            assert browser.js("document.querySelector('iframe').contentDocument") is None  # the notebook reads nothing


def test_a_page_of_another_name_cannot_frame_it(dashboard: DashboardProcess, other_site: str) -> None:
    """Not even with a link that works: the browser shows nothing in the frame."""
    # the frame in the process of its page, so that the test can look into it; and no other check than the page's own
    process = "--disable-site-isolation-trials"
    checks = "--disable-features=IsolateOrigins,site-per-process,LocalNetworkAccessChecks"
    with Browser("--host-resolver-rules=MAP evil.example 127.0.0.1", process, checks) as browser:
        show_frame(browser, other_site.replace("127.0.0.1", "evil.example"), f"<iframe src='{dashboard.new_link()}'>")
        refused = "chrome-error://chromewebdata/"
        wait_until(lambda: framed(browser, "location.href") == refused, 60, what="the refusal")


def test_the_note_beside_the_stream(page: Browser) -> None:
    """What was dropped or missed is said; so is the end of the connection."""
    note = """((changes) => {
        const before = Object.fromEntries(Object.keys(changes).map((name) => [name, known[name]]));
        Object.assign(known, changes);
        const text = streamNote();
        Object.assign(known, before);
        return text;
    })"""
    assert page.js(note + "({ dropped: 0, missed: 0 })") == "drag to move, wheel to zoom"
    assert page.js(note + "({ dropped: 1200, missed: 3 })") == "1,200 events were dropped: a GPU is too far behind"
    assert page.js(note + "({ dropped: 0, missed: 3 })") == "3 batches of events were missed"
    assert page.js(note + "({ lost: 'the server ended' })") == "the server ended"
