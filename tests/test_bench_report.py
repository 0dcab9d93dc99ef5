"""gt bench report: the page of a machine from records of the repository, interrupted ones, and what is no record."""

from __future__ import annotations

import html.parser
import json
import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks import compare
from benchmarks import report as program
from benchmarks.core import peaks, plots, tables
from benchmarks.reports import durations, figures, pictures, reading, svg
from benchmarks.reports.expected import CEILING, expectations
from benchmarks.reports.report import report
from tests.support.browser import Browser, find_browser

RESULTS = pathlib.Path(__file__).parent.parent / "benchmarks" / "results"
COMMUNICATION = RESULTS / "2cpu" / "benchmark_2cpu_20261115T155837Z.json"
TRANSFORMER = sorted((RESULTS / "h200").glob("bench_*.json"))[0]
VOID = {"meta", "br", "use", "path"}
needs_plots = pytest.mark.skipif(not plots.available(), reason="no matplotlib")


class Page(html.parser.HTMLParser):
    """What a page holds: its texts, its headings, whatever it refers to, and whether its tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.references += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action", "data") and v]
        self.ids += [v for k, v in attributes if k == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def read(*paths):
    return reading.gather([pathlib.Path(path) for path in paths])[0]


def changed(tmp_path, source, change):
    data = json.loads(source.read_text())
    change(data)
    path = tmp_path / source.name
    path.write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def text():
    return report(read(COMMUNICATION))


def test_the_page_loads_nothing_and_its_parts_are_there(text):
    page = Page(text)
    assert all(reference.startswith(("#", "data:image/")) for reference in page.references), page.references
    assert not re.search(r"@import|url\((?!#)|<script|<link|<iframe", text)
    assert len(page.ids) == len(set(page.ids))
    assert page.headings == [
        *("aarch64, 2 cores, 24 GiB", "What was measured", "Verdict and reasons", "Expected and measured"),
        *("Where the time went", "Measurements", "Health", "The machine"),
    ]
    assert "not drawn" not in page.text


def test_the_figures_are_those_of_the_record(text):
    page = Page(text)
    record = json.loads(COMMUNICATION.read_text())
    row = record["results"]["communication"]["allreduce"]["rows"][-1]
    assert figures.text(row["timing"]["p50_s"], "s") in page.text
    assert f"{row['busbw_gb_per_s']:.4g} GB/s" in page.text
    assert record["verdict"]["reasons"][0]["message"] in page.text
    assert COMMUNICATION.name in page.text


@needs_plots
def test_the_pair_matrix_has_ticks_values_and_a_colour_bar(text):
    matrix = text[text.index("Bandwidth of each pair") :]
    matrix = matrix[: matrix.index("</figure>")]
    words = re.findall(r"<text[^>]*>\s*([^<]+?)\s*</text>", matrix)
    values = json.loads(COMMUNICATION.read_text())["results"]["communication"]["pairs"]["gb_per_s"]
    assert {"0", "1", "from rank", "to rank", "GB/s", "–"} <= set(words)
    assert {f"{value:.3g}" for row in values for value in row if value is not None} <= set(words)
    assert "data:image/png" in matrix  # the colours of the bar


@needs_plots
def test_error_bars_start_at_zero_on_one_axis():
    shown = []
    svg.plot("x", lambda axes: (svg.dots(axes, [("a", 2.0, (1.5, 3.0)), ("b", 1.0, None)]), shown.append(axes)))
    assert shown[0].get_xlim() == pytest.approx((0, 3.15))
    assert [label.get_text() for label in shown[0].get_yticklabels()] == ["a", "b"]


RECORDS = [path for path in sorted(RESULTS.glob("*/*.json")) if "schema_version" in path.read_text()[:40]]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_record_of_the_repository_has_figures(path):
    """Without plots, which take most of the time."""
    (record,) = read(path)
    assert [figure for figure in record.figures if figure.main]
    for figure in record.figures:
        assert figure.interval is None or figure.interval[0] <= figure.value <= figure.interval[1], figure
    wall = durations.wall_seconds(record)
    assert sum(durations.parts(record).values()) <= wall * 1.1 + 1
    list(expectations(record))


def test_the_times_of_a_run_agree(tmp_path):
    def part(data):
        data |= {"timestamp": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:09.950Z"}
        data["results"] = {"training": {"processor": {"seconds": 9.89}}}

    (record,) = read(changed(tmp_path, COMMUNICATION, part))
    assert durations.parts(record) == {"training": 9.89, durations.REST: pytest.approx(0.06)}
    text = report([record])
    assert {"9.95 s", "9.89 s", "0.06 s"} <= {*re.findall(r">([\d.]+ s)</td>", text)}
    assert durations.words(1234) == "1,234 s"


def test_the_parts_of_a_product_take_their_time_beside_all_of_it_together():
    (record,) = read(*(RESULTS / "h200").glob("quick_benchmark_*.json"))
    parts = durations.parts(record)
    assert sum(parts.values()) == pytest.approx(durations.wall_seconds(record))
    row = record.results["square"]["16384x16384"]["1"]
    assert parts["square"] > sum(sum(row[key]["timing"]["samples_s"]) for key in ("create", "compute", "together"))


def test_expected_against_measured_for_one_gpu():
    (record,) = read(TRANSFORMER)
    (row,) = [row for row in expectations(record) if row.kind == CEILING]
    assert row.expected == peaks.peak("NVIDIA H200", "bf16")[0] / 1e12 == 989.4
    assert row.ratio == pytest.approx(record.data["results"]["summary"]["mfu"]["mfu"])
    assert "data sheet" in row.source


def test_products_beside_the_peak_and_the_band():
    def run(seconds):
        time = {"timing": {"samples_s": [seconds], "p50_s": seconds}}
        return {"flops": 2 * 8192**3, "compute": time, "together": time}

    environment = {"gpus": [{"name": "NVIDIA H200", "uuid": "a"}], "cpu": {"model": "x", "cores": 1}}
    data = {
        "config": {"device": "NVIDIA H200", "dtype": "float32"},
        "environment": environment,
        "results": {"batch": {"large": {"1": run(0.024), "8": run(0.006)}}},
        "world_size": 8,
    }
    one, eight, band = expectations(reading.Read(pathlib.Path("x.json"), data))
    assert one.measured == pytest.approx(45.8, abs=0.1)
    assert (one.expected, eight.ratio) == (66.9, pytest.approx(one.ratio / 2))
    assert (band.expected, band.measured, band.missed) == (7.0, pytest.approx(4.0), True)


def test_goals_of_rows_are_reached_or_missed(tmp_path):
    path = RESULTS / "2cpu" / "sharding_20261115T230623Z.json"
    rows = {row.what: row for row in expectations(read(path)[0])}
    assert not rows["dispatcher for 64 workers"].missed

    def slower(data):
        data["results"]["workers"]["0"]["value"] = 1.6

    rows = {row.what: row for row in expectations(read(changed(tmp_path, path, slower))[0])}
    assert rows["dispatcher for 64 workers"].missed


def test_an_interrupted_run_is_shown_as_far_as_it_went(tmp_path):
    def cut(data):
        """As the record was on disk in the middle: one operation swept, no verdict of the part yet."""
        swept = {key: data["results"]["communication"][key] for key in ("backend", "dtype", "allreduce")}
        reason = {"code": "running", "message": "the run is running", "where": "run"}
        data.update(status="running", ended=None, results={"communication": swept})
        data["verdict"] = {"valid": False, "reasons": [reason], "unchecked": []}

    page = Page(report(read(changed(tmp_path, COMMUNICATION, cut))))
    assert "running, not valid" in page.text
    assert "the run is running" in page.text
    assert "allreduce / 16 MiB: bus bandwidth" in page.text
    assert "not drawn" not in page.text


def test_a_run_that_has_only_begun(tmp_path):
    path = changed(tmp_path, TRANSFORMER, lambda data: data.update(status="interrupted", ended=None, results={}))
    assert "interrupted, not valid" in Page(report(read(path))).text


def test_a_damaged_record_is_named_and_the_rest_is_shown(tmp_path):
    def damage(data):
        data["results"] = {"communication": data["results"]["communication"]}
        data["results"]["communication"]["pairs"]["gb_per_s"] = "gone"
        data["results"]["communication"]["allreduce"]["rows"][0]["timing"]["p50_s"] *= 2

    page = Page(report(read(changed(tmp_path, COMMUNICATION, damage))))
    assert "does not follow from its samples: results.communication.allreduce.rows[0].timing.p50_s" in page.text
    if plots.available():
        assert "pairs: not drawn" in page.text


@pytest.mark.parametrize("value", [None, "x", {}])
def test_a_figure_that_is_no_number_costs_its_record_only(tmp_path, value, capsys):
    def damage(data):
        data["results"]["outage"]["seconds"][0] = value

    good = RESULTS / "2cpu" / "recovery_20261117T114530Z.json"
    records = read(changed(tmp_path, RESULTS / "2cpu" / "journal_20261117T194356Z.json", damage), good)
    assert "a part of the record is not as expected" in records[-1].wrong[0]
    assert "a part of the record is not as expected" in Page(report(records)).text
    assert compare.main([str(record.path.parent) for record in records]) == 0
    assert f"left out: {records[-1].path}" in capsys.readouterr().out


def test_an_expectation_that_is_no_number_is_named(tmp_path):
    def damage(data):
        data["results"]["vit"]["goals"][0]["bound"] = None

    page = Page(report(read(changed(tmp_path, RESULTS / "h200" / "compilation_vit_plain.json", damage))))
    assert "Not shown: compilation_benchmark, vit, 2026-11-18 14:10: not as expected (TypeError" in page.text


def test_a_goal_between_rows_that_are_not_valid_is_not_reached():
    """The ratio of two rows says nothing if the samples of one of them vary too much."""
    (record,) = read(RESULTS / "h200" / "compilation_mlp.json")
    rows = {row.what: row.valid for row in expectations(record)}
    assert rows["mlp: compiled against torch"] is False
    (record,) = read(RESULTS / "h200" / "compilation_vit_plain.json")
    assert {row.valid for row in expectations(record)} == {True}


def test_a_name_that_is_cut_says_so():
    assert pictures.wrapped("compilation_benchmark, a, b, c") == "compilation_benchmark, a, b, c"
    assert pictures.wrapped(", ".join(["resnet18-forward"] * 9)).endswith(" …")


def test_a_reason_about_the_whole_run_is_at_no_place(tmp_path):
    (record,) = read(RESULTS / "h200" / "compilation_mini_gpt.json")
    assert "cannot be repeated at run" not in report([record])
    assert tables.verdict_lines(record.data["verdict"])[1].endswith("so the run cannot be repeated")


@pytest.mark.parametrize("value", ["x", -1])
def test_a_damaged_health_costs_its_section_only(tmp_path, value):
    def damage(data):
        data["results"]["summary"]["gpu"][0]["health"] = {"power_limit_w": value, "xids": value, "nvlinks": value}

    page = Page(report(read(changed(tmp_path, TRANSFORMER, damage))))
    assert "Not shown: a part of a record is not as expected" in page.text
    assert "The machine" in page.headings


def test_a_value_that_is_no_number_is_shown():
    assert figures.text(float("nan"), "s") == "nan s"


def test_text_of_a_record_is_escaped(tmp_path):
    def rename(data):
        data["environment"]["cpu"]["model"] = "<script>alert(1)</script>"
        data["environment"]["argv"] = ["<b>&amp;"]

    text = report(read(changed(tmp_path, RESULTS / "2cpu" / "recovery_20261117T114530Z.json", rename)))
    assert "<script" not in text
    assert "&lt;b&gt;&amp;amp;" in text


def test_records_in_folders_of_a_folder_are_counted(tmp_path, capsys):
    (inner := tmp_path / "machine" / "again").mkdir(parents=True)
    changed(tmp_path, COMMUNICATION, lambda data: None)
    changed(inner, TRANSFORMER, lambda data: None)
    (inner / "trace.json").write_text("{}")
    assert program.main([str(tmp_path), "--output-dir", str(tmp_path / "pages")]) == 0
    said = capsys.readouterr()
    assert "(1 record)" in said.out
    assert said.err == f"left out: 1 record in folders of {tmp_path}: name these folders too\n"
    assert program.main([str(tmp_path), str(inner), "--output-dir", str(tmp_path / "pages")]) == 0
    assert "name these folders" not in capsys.readouterr().err


def test_one_page_a_machine_and_other_files_are_left_out(tmp_path, capsys):
    folder = tmp_path / "records"
    folder.mkdir()
    for name in ("recovery_20261117T114530Z", "journal_20261117T194356Z"):  # two machines
        (folder / f"{name}.json").write_bytes((RESULTS / "2cpu" / f"{name}.json").read_bytes())
    (folder / "other.json").write_text("{}")
    for _ in range(2):  # made again, the page is replaced
        assert program.main([str(folder), "--output-dir", str(tmp_path / "pages")]) == 0
        assert len(list((tmp_path / "pages").glob("*.html"))) == 2
    assert "other.json: no result of these suites" in capsys.readouterr().err
    assert "other.json" in next((tmp_path / "pages").glob("*.html")).read_text()


def test_bad_input(tmp_path, capsys):
    broken = tmp_path / "broken.json"
    broken.write_text('{"schema_version": "1.0",')
    for words, message in (
        ([tmp_path / "none"], "no such file"),
        ([broken], "not JSON"),
        ([tmp_path], "no record in"),
        ([COMMUNICATION, "--output-dir", broken], "cannot write to"),
    ):
        assert program.main([str(word) for word in words]) == 2
        assert message in capsys.readouterr().err


def test_cards_are_machines_of_their_own_if_asked(capsys):
    records = read(RESULTS / "h200")
    assert len(reading.by_machine(records)) == 1
    assert len(reading.by_machine(records, "card")) == len({record.cards for record in records}) > 1


def test_without_matplotlib_there_are_tables(monkeypatch):
    monkeypatch.setattr(plots, "available", lambda: False)
    page = Page(report(read(COMMUNICATION)))
    assert "No plots: matplotlib is not installed." in page.text
    assert "svg" not in page.counts
    assert "allreduce / 16 MiB: bus bandwidth" in page.text


def test_gt_bench_knows_it():
    done = subprocess.run([sys.executable, "-m", "gt", "bench"], capture_output=True, text=True, check=True)
    assert re.search(r"^report +A page for each machine from records of any suite$", done.stdout, re.MULTILINE)


@pytest.mark.long
@needs_plots
@pytest.mark.skipif(find_browser() is None, reason="no Chromium")
def test_in_a_browser_nothing_is_wider_than_the_screen(text, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(text)
    with Browser() as browser:
        for width, phone in ((1280, False), (390, True)):
            for dark in (False, True):
                browser.size(width, 900, dark=dark, phone=phone)
                browser.go(path.as_uri())
                assert browser.js("document.documentElement.scrollWidth") <= width
                boxes = "[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width)"
                widths = browser.js(boxes)
                assert len(widths) >= 5
                assert min(widths) > 250
                assert (
                    browser.js(
                        "performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length"
                    )
                    == 0
                )
                back = browser.js("getComputedStyle(document.body).backgroundColor")
                ink = browser.js("getComputedStyle(document.querySelector('figure svg text')).fill")
                assert (back == "rgb(255, 255, 255)") is not dark
                assert ink == browser.js("getComputedStyle(document.body).color") != back


@pytest.mark.parametrize(("page", "folders"), [("h200", [".", "captured", "replay"]), ("h200/machine", ["."])])
def test_a_kept_page_has_the_records_that_are_kept(page, folders):
    text = (RESULTS / page / "report.html").read_text()
    records = read(*(RESULTS / page / folder for folder in folders))
    assert {*re.findall(r"\b[\w-]+\.json\b", text)} >= {record.path.name for record in records}
    assert f"{len(records)} records, {sum(record.valid for record in records)} valid" in text


@needs_plots
def test_records_with_one_name_are_a_bar_each():
    names = dict.fromkeys(["x", pictures.unused("x", ["x"]), pictures.unused("x", ["x", "x (2)"])])
    assert [*names] == ["x", "x (2)", "x (3)"]
    record = read(TRANSFORMER)[0]
    same = [reading.Read(pathlib.Path(f"{number}.json"), record.data) for number in range(3)]
    drawn = dict(pictures.time_spent(same, lambda _: "one run"))
    assert "one run (3)" in re.sub(r"<[^>]+>", "", "".join(drawn.values()))


@needs_plots
def test_parts_of_one_colour_have_another_pattern():
    rows = {"run": {str(number): 1.0 for number in range(2 * svg.COLOURS)}}
    bars = []
    svg.plot("parts", lambda axes: (svg.stacked(axes, rows), bars.extend(axes.patches)))
    assert len({bar.get_facecolor() for bar in bars}) == svg.COLOURS
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(bars)


def test_expected_bandwidths_are_those_of_the_rows(tmp_path):
    """Neither a list that was edited, nor links between ranks that share a GPU."""
    source = sorted((RESULTS / "h200").glob("benchmark_2gpu_*.json"))[0]

    def apart(data):
        data["config"]["ranks_per_gpu"] = 1
        for row in data["results"]["communication"]["expected"]:
            row["measured_gb_per_s"] = 449.0

    (shared,), (edited,) = read(source), read(changed(tmp_path, source, apart))
    bandwidths = lambda record: [row.measured for row in expectations(record) if row.unit == "GB/s"]
    assert bandwidths(shared) == []
    assert 1 < max(bandwidths(edited)) < 3


def test_goals_of_one_pair_name_their_figure():
    (record,) = read(RESULTS / "h200/compilation_resnet18_forward.json")
    names = [row.what for row in expectations(record)]
    assert "resnet18-forward: decorated against torch-best, p99" in names
    assert len(names) == len(set(names))
