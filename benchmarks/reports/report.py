"""One page per machine from its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.core import health, plots, tables
from benchmarks.core.audit import MALFORMED
from benchmarks.core.formulas import GIB
from benchmarks.reports import durations, page, pictures, svg, works
from benchmarks.reports.expected import CEILING, GOALS, Expectation, expectations
from benchmarks.reports.figures import interval_text, number, text
from benchmarks.reports.reading import Read, machine_name

#: bars of expected figures in one plot
MOST_BARS = 30
VERSIONS = ("torch", "cuda", "nccl", "driver", "python", "platform")


def report(records: Sequence[Read], left_out: Sequence[str] = ()) -> str:
    """The page of one machine, from its records by time."""
    name = machine_name(records[-1])
    return page.document(
        f"Benchmarks: {name}",
        page.Mark(f"<h1>{page.escaped(name)}</h1>"),
        page.paragraph(_summary(records), soft=True),
        *([] if plots.available() else [page.paragraph("No plots: matplotlib is not installed.")]),
        page.section("What was measured", _records(records), page.items(f"left out: {line}" for line in left_out)),
        page.section("Verdict and reasons", *_verdicts(records)),
        page.section("Expected and measured", *_expected(records)),
        page.section("Where the time went", *_time(records)),
        page.section("The same work again", *_repeated(records)),
        page.section("Measurements", *(_measured(record) for record in records)),
        page.section("Health", *_sound(lambda: _health(records))),
        page.section("The machine", _machine(records)),
    )


def _sound(draw: Callable[[], Iterator[page.Mark]]) -> list[page.Mark]:
    """What a section holds; a record whose part has not the shape of its suite costs this section only."""
    try:
        return list(draw())
    except MALFORMED as error:
        return [page.paragraph(f"Not shown: a part of a record is not as expected ({type(error).__name__}: {error}).")]


def _summary(records: Sequence[Read]) -> str:
    valid = sum(record.valid for record in records)
    days = sorted({record.timestamp[:10] for record in records})
    suites = sorted({record.suite for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{len(records)} record{'s' if len(records) != 1 else ''}, {valid} valid, {when}: {', '.join(suites)}"


def _records(records: Sequence[Read]) -> page.Mark:
    rows = []
    for record in records:
        seconds = durations.wall_seconds(record)
        valid, status = record.valid, record.data["status"]
        judged = page.verdict_mark(valid, None if status == "complete" else f"{status}, not valid")
        began = record.timestamp.replace("T", " ").removesuffix("Z")
        took = None if seconds is None else durations.words(seconds) if seconds else "< 1 s"
        rows.append([works.title(record), began, took, judged, record.path.name])
    commands = [[record.path.name, " ".join(record.environment["argv"])] for record in records]
    return page.table(["what", "began (UTC)", "took", "verdict", "file"], rows, (0, 4)) + page.folded(
        "commands", page.table(["file", "command"], commands, (0, 1))
    )


# -- verdict -------------------------------------------------------------------------------


def _verdicts(records: Sequence[Read]) -> Iterator[page.Mark]:
    """What is not valid, then what is."""
    judged = [_verdict(record) for record in records]
    yield from (mark for valid, mark in judged if not valid)
    yield from (mark for valid, mark in judged if valid)


def _verdict(record: Read) -> tuple[bool, page.Mark]:
    """The reasons of one kind are counted; figures that do not follow from the samples are named."""
    judged = record.data["verdict"]
    kinds: dict[str, list[dict[str, str]]] = {}
    for reason in judged["reasons"]:
        kinds.setdefault(reason["code"], []).append(reason)
    lines = [tables.reasons_text(reasons) for reasons in kinds.values()]
    wrong = [f"does not follow from its samples: {line}" for line in record.wrong]
    if judged["unchecked"]:
        lines.append(f"not checked, for want of data: {', '.join(judged['unchecked'])}")
    mark = page.verdict_mark(record.valid)
    head = page.Mark(f"<p>{mark}: ") + _run(record) + page.Mark("</p>")
    return record.valid, head + page.items([*wrong[:5], *lines])


def _run(record: Read) -> str:
    """What a record is, and when it was made: two runs of one thing differ in the time."""
    return f"{works.title(record)}, {record.timestamp[:16].replace('T', ' ')}"


# -- expected ------------------------------------------------------------------------------


def _expected(records: Sequence[Read]) -> Iterator[page.Mark]:
    """Peaks and documented figures first, then the goals of the suites."""
    rows: list[tuple[Expectation, str]] = []
    for record in records:
        try:
            rows += [(row, _run(record)) for row in expectations(record)]
        except MALFORMED as error:
            yield page.paragraph(f"Not shown: {_run(record)}: not as expected ({type(error).__name__}: {error}).")
    if not rows:
        yield page.paragraph("Nothing is known of what this machine should reach in these records.", soft=True)
        return
    known = [(row, run) for row, run in rows if row.kind == CEILING]
    bars = [
        (pictures.wrapped(f"{row.what}, {run}", 44), 100 * (row.ratio or 0), None) for row, run in known if row.valid
    ]
    if bars:
        newest = bars[-MOST_BARS:]
        draw = lambda axes: svg.dots(axes, newest, 100.0)
        plot = svg.plot("expected", draw, svg.bars_height(n for n, _, _ in newest), "%")
        yield page.plots([page.figure("Share of the peak or the documented figure", plot)])
    columns = ["figure", "expected", "measured", "unit", "ratio", "", "run", "source of the expected"]
    others = [(row, run) for row, run in rows if row.kind != CEILING]
    yield page.table(columns, [_expected_row(row, run) for row, run in known], (0, 3, 6, 7))
    yield page.table(columns, [_expected_row(row, run) for row, run in others], (0, 3, 6, 7))


def _expected_row(row: Expectation, run: str) -> list[Any]:
    goal = page.verdict_mark(not row.missed, "missed" if row.missed else "reached") if row.kind in GOALS else ""
    mark = goal if row.valid else page.verdict_mark(False, "not valid")
    ratio = f"{row.ratio:.1%}" if row.ratio is not None else None
    expected = f"{row.kind} {number(row.expected)}"
    return [row.what, expected, number(row.measured), row.unit, ratio, mark, run, row.source]


# -- time and measurements -----------------------------------------------------------------


def _time(records: Sequence[Read]) -> list[page.Mark]:
    sections = [section for section in _time_by_suite(records) if section]
    note = "From the beginning of a record to its end; its processes start before that."
    return [page.paragraph(note, soft=True), *sections] if sections else []


def _time_by_suite(records: Sequence[Read]) -> Iterator[page.Mark]:
    for suite in dict.fromkeys(record.suite for record in records):
        own = [record for record in records if record.suite == suite]
        try:
            drawn = [page.figure(title, plot) for title, plot in pictures.time_spent(own, _run)]
            rows = [
                [_run(record), name, durations.words(s)]
                for record in own
                for name, s in durations.parts(record).items()
            ]
        except MALFORMED:
            continue
        table = page.table(["run", "part", "took"], rows, (0, 1))
        yield page.section(suite, page.plots(drawn), page.folded("seconds", table), level=3) if rows else page.Mark("")


def _repeated(records: Sequence[Read]) -> Iterator[page.Mark]:
    """Records of the same work on one axis, each with its interval."""
    for group in (group for group in works.by_work(records) if len(group) > 1):
        keys = [key for key in works.differing(group) if key not in works.MACHINE]
        kinds: dict[tuple[str, str], list[svg.Bar]] = {}
        for record in group:
            for figure in record.figures:
                if figure.main and figure.what not in pictures.DERIVED and figure.where[:1] != ("communication",):
                    label = f"{works.description(record, keys, False)} {record.timestamp[5:16].replace('T', ' ')}"
                    row = (pictures.wrapped(label.strip()), figure.value, figure.interval)
                    kinds.setdefault((figure.name, figure.unit), []).append(row)
        drawn = []
        for (name, unit), rows in kinds.items():
            if 1 < len(rows) <= pictures.MOST_LINES:
                factor, shown = _scaled(rows, unit)
                draw = lambda axes, rows=factor: svg.dots(axes, rows)
                plot = svg.plot(f"{group[0].name} {name} again", draw, svg.bars_height(n for n, _, _ in rows), shown)
                drawn.append(page.figure(f"{name}, {shown}", plot))
        yield page.section(works.common_title(group), page.plots(drawn[:8]), level=3)


def _scaled(rows: Sequence[svg.Bar], unit: str) -> tuple[list[svg.Bar], str]:
    factor, shown = pictures.scale([value for _, value, _ in rows], unit)
    return [(n, v * factor, i and [bound * factor for bound in i]) for n, v, i in rows], shown


def _measured(record: Read) -> page.Mark:
    own = record.figures
    row = lambda f: [
        f.name,
        text(f.value, f.unit),
        interval_text(f.interval, f.value, f.unit),
        page.verdict_mark(f.valid),
    ]
    columns = ["figure", "value", "95 % within the run", "verdict"]
    details = [row(figure) for figure in own if not figure.main]
    return page.section(
        _run(record),
        page.table(columns, [row(figure) for figure in own if figure.main]),
        page.folded(f"{len(details)} more figures", page.table(columns, details)) if details else page.Mark(""),
        page.plots(pictures.pictures(record)),
        level=3,
    )


# -- health --------------------------------------------------------------------------------


def _cards(value: Any) -> Iterator[dict[str, Any]]:
    """What was seen of each card, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "gpu" and isinstance(inner, list):
                yield from (card for card in inner if isinstance(card, dict) and "uuid" in card)
            else:
                yield from _cards(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _cards(inner)


def _health(records: Sequence[Read]) -> Iterator[page.Mark]:
    seen: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for card in _cards(record.results):
            seen.setdefault(card["uuid"], []).append(card)
    if not seen:
        yield page.paragraph("These records hold nothing about the health of a GPU.", soft=True)
    columns = [
        "card",
        "in order",
        "power limit",
        "power, mean",
        "hottest",
        "SM clock",
        "clocks lowered",
        "ECC errors",
        "Xid",
        "PCIe",
        "NVLinks",
    ]
    yield page.table(columns, [_card(uuid, cards) for uuid, cards in seen.items()])
    loads = [part for record in records for part in _processors(record.results)]
    if loads:
        others, steal = (max(part[key] or 0 for part in loads) for key in ("others", "steal"))
        yield page.paragraph(
            f"Processors: other programs used up to {others:.1%}, the hypervisor took up to {steal:.1%}."
        )


def _card(uuid: str, cards: Sequence[dict[str, Any]]) -> list[Any]:
    """The worst of all that was seen."""
    states = [card["health"] for card in cards if card.get("health")]
    wrong = sorted({line for state in states for line in health.problems(state)})
    last = states[-1] if states else {}
    known = lambda key: [card[key] for card in cards if card.get(key) is not None]
    clocks = known("sm_clock_mhz")
    lowered = {reason for reasons in known("throttle_reasons") for reason in reasons}
    power, hot, limit = known("mean_power_w"), known("temperature_c"), known("power_limit_w")
    links = last.get("nvlinks")
    order = page.verdict_mark(not wrong, "; ".join(wrong) or "yes") if states else "not recorded"
    return [
        uuid[:12],
        order,
        (limit and f"{min(limit):.0f} W") or None,
        (power and f"{min(power):.0f} – {max(power):.0f} W") or None,
        (hot and f"{max(hot)} °C") or None,
        (clocks and f"{min(c['min'] for c in clocks)} – {max(c['max'] for c in clocks)} MHz") or None,
        ", ".join(sorted(lowered)) or "no",
        last.get("uncorrected_ecc_errors"),
        ", ".join(str(xid) for state in states for xid in state.get("xids") or ()) or ("none" if states else None),
        f"{last['pcie_width']} of {last['pcie_width_max']}" if last.get("pcie_width") else None,
        f"{links['active']} of {links['all']}" if links else None,
    ]


def _processors(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if {"others", "steal"} <= set(value):
            yield value
        for inner in value.values():
            yield from _processors(inner)


def _machine(records: Sequence[Read]) -> page.Mark:
    """Hardware and versions; several values where the records differ."""
    environments = [record.environment for record in records]
    cpus = dict.fromkeys(
        f"{e['cpu']['model']}, {e['cpu']['cores']} cores, {e['cpu']['memory_bytes'] / GIB:.0f} GiB"
        for e in environments
    )
    cards = dict.fromkeys(
        f"{g['name']}, {g['memory_bytes'] / GIB:.0f} GiB, {g['uuid']}" for e in environments for g in e["gpus"]
    )
    commits = dict.fromkeys(
        f"{e['git']['commit'][:10]}{' and changes' if e['git']['dirty'] else ''}" for e in environments if e["git"]
    )
    values = lambda key: dict.fromkeys(str(e[key]) for e in environments if e[key] is not None)
    rows = [["processor", cpus], ["GPUs", cards], *([key, values(key)] for key in VERSIONS), ["commit", commits]]
    lines = lambda values: page.Mark("<br>".join(page.escaped(value) for value in values))
    return page.table(["", ""], [[name, lines(values)] for name, values in rows if values], (0, 1))
