"""`gt.scripts.visualize`: what is in a trace is in the picture, texts do not overlap, and each error is one line."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gt
from gt.events.breakdown import break_down
from gt.events.lanes import ARROW_COLUMNS, MIN_BOX, timeline
from gt.events.log import write_log
from gt.events.moves import matched_moves
from gt.events.table import EventTable
from gt.events.trace_file import TraceFile, read_trace
from gt.scripts import visualize
from gt.scripts.timeline import columns, draw
from gt.scripts.timeline_panel import Panel, arrow_width
from gt.testing import Cluster
from gt.wire.structures import EventName
from tests.support.processes import ROOT, Process, environment
from tests.test_events import training_step

FAMILIES = ("matmul", "elementwise", "attention", "normalization", "reduction", "optimizer", "data", "compiled")


def move_name(text: str, members: tuple[int, ...], nbytes: int = 1_000_000) -> EventName:
    return EventName("move", "moves", text.split(" ")[0], text, "", nbytes, members)


def table_of(events: dict[int, list[tuple[EventName, int, int]]], submitted: tuple[int, ...] = ()) -> EventTable:
    """A table with these events of client 1: worker -> (name, started, ended), and submissions at these times."""
    table = EventTable()
    for worker, entries in events.items():
        names = list({name: None for name, *_ in entries})
        rows = [(names.index(name), 1, 0, start, start, end, 0, 1) for name, start, end in entries]
        table.add_rows((worker, 1), np.array(rows, dtype=np.int64), names)
    rows = [(-1, 0, k, at, at, at + 50_000) for k, at in enumerate(submitted, 1)]
    table.add_rows((-1, 1), np.array(rows, dtype=np.int64).reshape(-1, 6))
    return table


def random_table(workers: int, count: int, seed: int = 0) -> EventTable:
    """Instructions with gaps, waits, and moves between neighbours and among all."""
    rng = np.random.default_rng(seed)
    names = [EventName("op", family, f"{family}_op", f"{family}_op(…)", "", 64) for family in FAMILIES]
    wait = EventName("wait", "waiting", "wait", "wait for a move", "", 0)
    everybody = tuple(range(workers))
    events: dict[int, list[tuple[EventName, int, int]]] = {}
    for worker in everybody:
        at, entries = 0, events.setdefault(worker, [])
        for k in range(count):
            at += int(rng.exponential(2_000)) + (10_000_000 if rng.random() < 0.002 else 0)
            end = at + int(rng.exponential(40_000)) + (5_000_000 if rng.random() < 0.003 else 0)
            entries.append((wait if rng.random() < 0.05 else names[int(rng.integers(len(names)))], at, end))
            if k % 50 == 0 and workers > 1:
                entries.append(
                    (move_name("all_reduce among workers", everybody, 10 ** int(rng.integers(2, 9))), at, end)
                )
            at = end
    ended = max(end for entries in events.values() for *_, end in entries)
    return table_of(events, tuple(rng.integers(0, ended, 200).tolist()))


def panel_of(table: EventTable, width: float = 14.0, path: str = "traces/trace_20261117_010203_4567.log") -> Panel:
    devices = {worker: "cpu" for worker, _ in table.sources()}
    return Panel(TraceFile(path, table, devices), timeline(table, *table.span(), columns(width)))


# -- lanes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_all_time_is_in_the_picture(seed: int) -> None:
    table = random_table(3, 300, seed)
    lines = timeline(table, *table.span(), 500)
    column = (lines.ended - lines.begun) / 500
    spent: dict[tuple[int, str], int] = {}
    for event in table.events():
        if event.name.kind == "op":
            key = event.worker, event.name.family
            spent[key] = spent.get(key, 0) + event.ended - event.started
    for (worker, family), time in spent.items():
        lane = lines.workers[worker]
        boxes = [box for box in lane.boxes if box.family == family]
        assert all(box.ended - box.begun >= MIN_BOX * column for box in boxes)
        shown = sum(box.ended - box.begun for box in boxes) + lane.shares.get(family, np.zeros(1)).sum() * column
        assert shown == pytest.approx(time, rel=1e-6)
    for lane in lines.workers.values():
        assert sum(lane.shares.values()).max() <= 1 + 1e-9
    assert lines.events == len(list(table.events()))


def test_a_part_of_a_trace() -> None:
    op = EventName("op", "matmul", "matmul", "matmul(…)", "", 8)
    table = table_of({0: [(op, 0, 40), (op, 50, 60), (op, 90, 100)]})
    lines = timeline(table, 30, 70, 10)
    assert [(box.begun, box.ended) for box in lines.workers[0].boxes] == []
    assert lines.workers[0].shares["matmul"].tolist() == pytest.approx([1, 1, 0.5, 0, 0, 1, 1, 0.5, 0, 0], abs=0.51)
    assert lines.workers[0].shares["matmul"].sum() * 4 == pytest.approx(20)
    assert lines.events == 2
    large = timeline(table, 30, 70, 40)
    assert [(box.begun, box.ended) for box in large.workers[0].boxes] == [(30, 40), (50, 60)]


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_moves_are_matched(seed: int) -> None:
    """Whatever the first parts that a member lacks."""
    rng = np.random.default_rng(seed)
    members, count = tuple(range(int(rng.integers(2, 5)))), int(rng.integers(3, 60))
    ends = np.cumsum(rng.integers(50, 500, count)) * 1000
    events: dict[int, list[tuple[EventName, int, int]]] = {}
    for worker in members:
        first = int(rng.integers(0, 3))
        name = move_name(f"exchange among workers, {'sends' if worker == 0 else 'receives'}", members)
        starts = ends - rng.integers(1, 40, count) * 1000
        noted = ends + rng.integers(0, 10, count) * 1000
        events[worker] = [(name, int(starts[k]), int(noted[k])) for k in range(first, count)]
    for move in matched_moves(table_of(events).events()):
        assert max(part.ended for part in move) - min(part.ended for part in move) <= 10_000
        assert len({part.worker for part in move}) == len(move)
    full = [move for move in matched_moves(table_of(events).events()) if len(move) == len(members)]
    assert len(full) >= count - 2


def test_arrows() -> None:
    sends, receives = (
        move_name(f"exchange among workers 1, 0, {role}", (1, 0), 5000) for role in ("sends", "receives")
    )
    reduce = move_name("all_reduce among workers 0, 1", (0, 1), 700)
    op = EventName("op", "matmul", "matmul", "matmul(…)", "", 8)
    table = table_of(
        {
            0: [(receives, 5, 60), (receives, 70, 80), (reduce, 500, 520), (op, 0, 1000)],
            1: [(sends, 50, 58), (sends, 71, 79), (reduce, 510, 521)],
        }
    )
    exchange, collective = sorted(timeline(table, 0, 1000, ARROW_COLUMNS * 4).arrows, key=lambda a: -a.nbytes)
    assert exchange == ((1,), (0,), 50, 60, 10_000, 2)
    assert collective == ((0, 1), (0, 1), 510, 521, 700, 1)
    assert arrow_width(10**9) > arrow_width(10**6) > arrow_width(10**4) > 0


def test_a_wait_for_a_late_member_is_a_bubble() -> None:
    op, wait = EventName("op", "matmul", "matmul", "matmul(…)", "", 8), EventName("wait", "waiting", "wait", "w", "", 0)
    reduce = move_name("all_reduce among workers 0, 1", (0, 1))
    table = table_of(
        {0: [(op, 0, 10), (reduce, 10, 100), (wait, 10, 100)], 1: [(op, 0, 80), (reduce, 80, 100), (wait, 80, 100)]}
    )
    result = break_down(table, 0, 100)
    assert result.times["compute"] == (10 + 80) / 2
    assert result.times["bubble"] == 70 / 2
    assert result.times["exposed communication"] == 20
    assert result.bubbles[0].tolist() == [[10, 80]]


# -- files ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, EventTable]:
    """The trace of a training on two workers, and the table it was written from."""
    path = tmp_path_factory.mktemp("traces") / "trace_1.log"
    with Cluster(workers=2, backend="numpy").client() as session:
        gt.auto_shard()
        try:
            step = training_step()
            table = EventTable()
            listening = session.listen(table.add)
            for _ in range(8):
                step()
            session.stop_listening()
        finally:
            gt.auto_shard(False)
    with open(path, "w") as file:
        write_log(file, table, listening)
    return path, table


def described_name(name: EventName) -> tuple[Any, ...]:
    """Without the op: of an op that writes in place, the file has the name of its call, such as add_."""
    return name.kind, name.family, name.text, name.signal, name.nbytes, name.members


def test_a_file_explains_as_much_as_the_table(trace: tuple[pathlib.Path, EventTable]) -> None:
    path, table = trace
    read = read_trace(str(path))
    assert read.devices == {0: "cpu", 1: "cpu"}
    assert read.table.sources() == table.sources()

    def described(table: EventTable) -> list[Any]:
        return sorted(
            (e.worker, e.client, *described_name(e.name), e.execute, e.site, e.fragment, e.level)
            for e in table.events()
        )

    assert described(read.table) == described(table)
    live, from_file = (break_down(t, *t.span()) for t in (table, read.table))
    assert from_file.wall == pytest.approx(live.wall, abs=2000)
    for kind, time in live.times.items():
        assert from_file.times[kind] == pytest.approx(time, abs=1000 * table.count), kind
    assert from_file.instructions == live.instructions
    assert from_file.hot == live.hot
    assert [part.where for part in from_file.path][-1] == [part.where for part in live.path][-1]


@pytest.mark.parametrize(("name", "first"), [("a.png", b"\x89PNG"), ("b.SVG", b"<?xml"), ("c.pdf", b"%PDF")])
def test_formats(name: str, first: bytes, trace: tuple[pathlib.Path, EventTable], tmp_path: pathlib.Path) -> None:
    output = tmp_path / name
    assert visualize.main([str(trace[0]), "--output", str(output), "--dpi", "50", "--width", "9"]) == 0
    assert output.read_bytes().startswith(first)
    assert os.listdir(tmp_path) == [name]


def test_sizes_and_parts(trace: tuple[pathlib.Path, EventTable], tmp_path: pathlib.Path, capsys: Any) -> None:
    from matplotlib.image import imread

    output, path = str(tmp_path / "t.png"), str(trace[0])
    assert visualize.main([path, "-o", output, "--dpi", "40", "--width", "10", "--height", "5"]) == 0
    assert imread(output).shape[:2] == (200, 400)
    wall = (read_trace(path).table.span()[1] - read_trace(path).table.span()[0]) / 1e6
    assert (
        visualize.main([path, path, "-o", output, "--dpi", "40", "--from", str(wall / 4), "--to", str(wall / 2)]) == 0
    )
    words = capsys.readouterr().out.split()
    assert int(words[-5].replace(",", "")) < 2 * len(list(trace[1].events()))
    assert words[-2] == "4"


# -- the picture ---------------------------------------------------------------------------


def texts_of(figure: Any) -> list[tuple[str, Any]]:
    """All texts, with the boxes that they fill, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = []
    # matplotlib has labels of ticks beside the axes too, and does not draw them
    beside = [label for axes in figure.axes for label in axes.get_xticklabels() if is_outside(label, axes.get_xlim())]
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in beside:
            found.append((text.get_text(), text.get_window_extent(canvas.get_renderer())))
    return found


def is_outside(label: Any, limits: tuple[float, float]) -> bool:
    return not limits[0] <= label.get_position()[0] <= limits[1]


def check_texts(figure: Any) -> list[str]:
    texts = texts_of(figure)
    for text, box in texts:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across < 1 or down < 1, f"{one!r} is over {other!r}"
    return [text for text, _ in texts]


@pytest.mark.parametrize(
    ("workers", "count", "width", "height"),
    [(1, 30, 14, None), (2, 500, 14, None), (8, 100, 6, None), (8, 100, 9, 5.2), (4, 100, 30, 12)],
)
def test_texts_do_not_overlap(workers: int, count: int, width: float, height: float | None) -> None:
    panel = panel_of(random_table(workers, count), width)
    texts = check_texts(draw([panel], width, height))
    for worker in range(workers):
        assert f"worker {worker}" in texts
    assert {"client 1", "dispatcher", "critical path", "200 submissions"} <= set(texts)
    share = panel.lines.breakdown.share("compute")
    assert f"compute {share:.1%}" in " ".join(texts)
    if workers > 1:
        assert f"bubble {panel.lines.breakdown.share('bubble'):.1%}" in " ".join(texts)


def test_several_traces_have_one_scale() -> None:
    panels = [panel_of(random_table(2, count, seed=count)) for count in (200, 400)]
    figure = draw(panels, 14, None)
    check_texts(figure)
    ranges = [axes.get_xlim()[1] - axes.get_xlim()[0] for axes in figure.axes]
    assert ranges[0] == ranges[1] == pytest.approx((panels[1].lines.ended - panels[1].lines.begun) / 1e6)


def test_long_gaps_are_written() -> None:
    op, wait = EventName("op", "matmul", "matmul", "matmul(…)", "", 8), EventName("wait", "waiting", "wait", "w", "", 0)
    millisecond = 1_000_000
    reduce = move_name("all_reduce among workers 0, 1", (0, 1))
    spans = {
        0: [(op, 0, 10), (reduce, 10, 41), (wait, 10, 41), (op, 80, 100)],
        1: [(op, 0, 40), (reduce, 40, 41), (wait, 40, 41), (op, 80, 100)],
    }
    events = {w: [(n, a * millisecond, b * millisecond) for n, a, b in parts] for w, parts in spans.items()}
    texts = check_texts(draw([panel_of(table_of(events, (70 * millisecond,)))], 14, None))
    assert "bubble 30.0 ms" in texts
    assert texts.count("idle 39.0 ms") == 2
    assert texts.count("matmul") == 4
    assert "busy 30%" in texts
    assert "bubble 30%, idle 39%" in texts


def test_the_largest_picture_has_every_lane() -> None:
    """8 workers and 10,000 events: few shapes, whatever the number of events."""
    panel = panel_of(random_table(8, 1250))
    assert panel.lines.events > 10_000
    figure = draw([panel], 14, None)
    check_texts(figure)
    (axes,) = figure.axes
    assert len(axes.collections) + len(axes.patches) + len(axes.texts) < 2000
    boxes = sum(len(lane.boxes) for lane in panel.lines.workers.values())
    assert 0 < boxes < 500
    pixels = pixels_of(figure)
    for worker in range(8):
        top = axes.transData.transform((0, axes.get_yticks()[worker + 2]))[1]
        row = pixels[int(pixels.shape[0] - top)]
        coloured = (row.max(axis=1) - row.min(axis=1) > 60).mean()
        assert coloured > 0.2, f"the lane of worker {worker} is empty"


def pixels_of(figure: Any) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].astype(int)


def test_the_critical_path_is_drawn_over_its_lanes() -> None:
    op, wait = EventName("op", "matmul", "matmul", "matmul(…)", "", 8), EventName("wait", "waiting", "wait", "w", "", 0)
    reduce = move_name("all_reduce among workers 0, 1", (0, 1))
    spans = {
        0: [(op, 0, 20), (reduce, 20, 62), (wait, 21, 62), (op, 63, 80)],
        1: [(op, 0, 60), (reduce, 60, 61), (wait, 60, 61), (op, 61, 70)],
    }
    table = table_of({w: [(n, a * 10**6, b * 10**6) for n, a, b in parts] for w, parts in spans.items()})
    (axes,) = draw([panel_of(table)], 14, None).axes
    line = axes.lines[-1]
    assert line.get_xdata() == pytest.approx([0, 60, 63, 80])
    (first, _, third, _), places = line.get_ydata(), axes.get_yticks()
    assert places[1] < third < places[2] < first < places[3]  # dispatcher, worker 0, worker 1


# -- errors --------------------------------------------------------------------------------

HEAD = '# gt-trace 1 {"wall": 0, "now": 0, "workers": []}\n'
BAD_FILES = {
    "no file": (None, "No such file or directory"),
    "empty": ("", "the file is empty"),
    "another file": ("hello\n", "this is not a trace; python -m gt.scripts.trace writes one"),
    "another version": (
        '# gt-trace 99 {"wall": 0}\n# end 0\n',
        "a trace of format 99; this version of GT reads format 1",
    ),
    "truncated": (HEAD + "12:00:00.000000 | #1 | RECV | cli", "the trace is not complete: its last line is missing"),
    "damaged": (HEAD + "00:00:00.000000 | #1 | WORKER_DONE | worker:x | f | 0B | client:1\n# end 1\n", "is damaged"),
    "nothing ran": (HEAD + "# end 0\n", "no instruction ran while this was recorded"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(case: str, tmp_path: pathlib.Path, capsys: Any) -> None:
    text, message = BAD_FILES[case]
    path = tmp_path / "trace.log"
    if text is not None:
        path.write_text(text)
    check_error([str(path), "-o", str(tmp_path / "t.png")], message, capsys)
    assert not (tmp_path / "t.png").exists()


def check_error(arguments: list[str], message: str, capsys: Any, code: int = 2) -> None:
    assert visualize.main(arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gt.scripts.visualize: ")
    assert message in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "timeline.gif"], "--output timeline.gif: the extension must be .png, .svg or .pdf"),
        (["-o", "timeline"], "the extension must be .png, .svg or .pdf"),
        (["--from", "5", "--to", "4"], "--to 4 must be later than --from 5"),
        (["--from", "-1"], "--from must be 0 or more"),
        (["--from", "nan"], "--from must be 0 or more"),
        (["--from", "1e7"], "ms"),
        (["--dpi", "0"], "--dpi must be from 20 to 1200"),
        (["--width", "1"], "--width must be from 6 to 100"),
        (["--height", "2"], "--height 2: these lanes need at least"),
        (["--width", "100", "--dpi", "1200"], "pixels on a side"),
        (["-o", "no_folder/t.png"], "no_folder/t.png: cannot be written: No such file or directory"),
    ],
)
def test_bad_options(
    options: list[str],
    message: str,
    trace: tuple[pathlib.Path, EventTable],
    capsys: Any,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check_error([str(trace[0]), *options], message, capsys, code=1 if "cannot be written" in message else 2)
    assert os.listdir(tmp_path) == []


def test_too_many_files(trace: tuple[pathlib.Path, EventTable], capsys: Any) -> None:
    check_error([str(trace[0])] * 9, "9 traces: at most 8 fit into one picture", capsys)


def test_without_matplotlib(
    trace: tuple[pathlib.Path, EventTable], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    check_error([str(trace[0])], "this needs matplotlib: pip install matplotlib", capsys, code=1)


def test_a_full_disk(trace: tuple[pathlib.Path, EventTable], tmp_path: pathlib.Path, capsys: Any) -> None:
    (tmp_path / "t.png.part").symlink_to("/dev/full")
    message = "cannot be written: No space left on device"
    check_error([str(trace[0]), "-o", str(tmp_path / "t.png")], message, capsys, code=1)
    assert os.listdir(tmp_path) == []


def test_errors_of_the_command() -> None:
    command = [sys.executable, "-m", "gt.scripts.visualize", "none.log"]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "gt.scripts.visualize: none.log: No such file or directory\n"


# -- the example ---------------------------------------------------------------------------


def test_the_example(tmp_path: pathlib.Path) -> None:
    settings = {"GT_BACKEND": "numpy", "CUDA_VISIBLE_DEVICES": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    output = tmp_path / "timeline.png"
    process = Process(
        str(ROOT / "examples" / "visualize_demo.py"), "--output", str(output), "--seconds", "0.5", **settings
    )
    try:
        assert process.end() == 0, process.output
    finally:
        process.close()
    assert "compute" in process.output
    assert output.read_bytes().startswith(b"\x89PNG")
