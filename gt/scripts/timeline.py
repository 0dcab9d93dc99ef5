"""Draw timelines with matplotlib: one panel for each trace, on one scale of time, and a legend below."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from gt.errors import ConfigError
from gt.events.lanes import PYTHON
from gt.scripts import timeline_panel as style
from gt.scripts.timeline_panel import CHARACTER, LEFT, RIGHT, Panel, PanelDrawing, lanes_height
from gt.wire.event_messages import WAITING

#: inches: the title, a line of the subtitle, the time axis, a line of the legend, an entry of the legend
TITLE, LINE, AXIS, LEGEND_LINE, LEGEND_ENTRY = 0.5, 0.24, 0.55, 0.21, 2.0
#: sizes of texts, in points; the average width of a bold character, in units of its size
TITLE_SIZE, SUBTITLE_SIZE, NAME_SIZE, BOLD_CHARACTER = 14, 10.5, 8.5, 0.7
#: the least that lanes may be reduced to; columns for each inch of width
MIN_SCALE, COLUMNS_PER_INCH = 0.3, 60


def columns(width: float) -> int:
    """How many columns a picture of this width has."""
    return int((width - LEFT - RIGHT) * COLUMNS_PER_INCH)


def draw(panels: list[Panel], width: float, height: float | None) -> Any:
    """The figure with all panels, one above the other, on one scale of time."""
    from matplotlib.figure import Figure

    heads, legend = [_subtitle(panel, width) for panel in panels], _legend_entries(panels)
    per_line = max(1, int((width - 0.4) / LEGEND_ENTRY))
    fixed = sum(TITLE + LINE * len(head) + AXIS for head in heads) + LEGEND_LINE * -(-len(legend) // per_line) + 0.1
    lanes = sum(lanes_height(panel) for panel in panels)
    scale = 1.0 if height is None else (height - fixed) / lanes
    if scale < MIN_SCALE:
        raise ConfigError(f"--height {height:g}: these lanes need at least {fixed + MIN_SCALE * lanes:.1f} inches")
    height = fixed + scale * lanes
    figure: Any = Figure(figsize=(width, height), facecolor="white")
    longest = max(panel.lines.ended - panel.lines.begun for panel in panels)
    top = height
    for panel, head in zip(panels, heads, strict=True):
        _write_head(figure, panel, head, top)
        tall = scale * lanes_height(panel)
        top -= TITLE + LINE * len(head) + tall
        inches = width - LEFT - RIGHT
        axes = figure.add_axes((LEFT / width, top / height, inches / width, tall / height))
        PanelDrawing(axes, panel, scale, inches, longest).draw()
        top -= AXIS
    handles, labels = zip(*legend, strict=True)
    place = {"loc": "lower left", "bbox_to_anchor": (0.2 / width, 0.0), "ncols": per_line, "columnspacing": 1.5}
    figure.legend(handles, labels, fontsize=9.5, frameon=False, handlelength=1.8, **place)
    return figure


def _write_head(figure: Any, panel: Panel, head: list[str], top: float) -> None:
    """The title, the lines below it, and the name of the file at the right."""
    width, height = figure.get_size_inches()
    x, middle = LEFT / width, "center_baseline"
    title = figure.text(x, (top - 0.3) / height, _title(panel), fontsize=TITLE_SIZE, fontweight="bold", va=middle)
    for number, text in enumerate(head):
        y = (top - TITLE - LINE * (number + 0.3)) / height
        figure.text(x, y, text, fontsize=SUBTITLE_SIZE, va=middle)
    name = os.path.basename(panel.trace.path)
    room = width - LEFT - 0.2 - (len(title.get_text()) + 4) * TITLE_SIZE / 72 * BOLD_CHARACTER
    if len(name) * NAME_SIZE / 72 * CHARACTER < room:
        look = {"fontsize": NAME_SIZE, "color": "#666666", "ha": "right", "va": middle}
        figure.text((width - 0.2) / width, (top - 0.3) / height, name, **look)


def _title(panel: Panel) -> str:
    trace, lines = panel
    devices = sorted({trace.devices.get(worker, "") for worker in lines.workers} - {""})
    count = f"{len(lines.workers)} worker{'s' * (len(lines.workers) != 1)}"
    wall = style.milliseconds(lines.ended - lines.begun)
    return f"{count} ({', '.join(devices)}): {lines.events:,} events in {wall}"


def _subtitle(panel: Panel, width: float) -> list[str]:
    """Where the time went, the largest first."""
    breakdown = panel.lines.breakdown
    kinds = sorted(breakdown.times, key=lambda kind: -breakdown.times[kind])
    text = ", ".join(f"{kind} {breakdown.share(kind):.1%}" for kind in kinds if breakdown.share(kind) >= 0.0005)
    text += "" if breakdown.waits_known else ", exposed communication not known"
    return textwrap.wrap(f"Where the time went: {text}", int((width - LEFT - 0.2) * 72 / SUBTITLE_SIZE / CHARACTER))


# -- the legend ----------------------------------------------------------------------------


def _legend_entries(panels: list[Panel]) -> list[tuple[Any, str]]:
    """(what is drawn, what it means), for what is in the picture."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    spent: dict[str, int] = {}
    for panel in panels:
        for family, time in panel.lines.breakdown.families:
            spent[family] = spent.get(family, 0) + time
    total = max(1, sum(spent.values()))
    entries: list[tuple[Any, str]] = [
        (Patch(color=style.COLOURS.get(family, style.OTHER_COLOUR)), f"{family} {spent[family] / total:.0%}")
        for family in sorted(spent, key=lambda family: -spent[family])
        if spent[family] >= 0.005 * total
    ]
    entries.append((Patch(color=style.COLOURS[PYTHON]), "only the program runs"))
    entries.append((Line2D([], [], color="black", marker="|", linestyle=""), "submission"))
    if any(len(panel.lines.workers) > 1 for panel in panels):
        entries.append((Patch(color=style.COLOURS["moves"]), "starts a move"))
        entries.append((Patch(color=style.COLOURS[WAITING]), "waits for data"))
        entries.append((Patch(facecolor="white", edgecolor=style.BUBBLE_COLOUR, hatch="/////"), "waits for a worker"))
    sizes = [arrow.nbytes for panel in panels for arrow in panel.lines.arrows]
    if sizes:
        entries.append((Patch(color=style.MOVE_COLOUR, alpha=style.MOVING_ALPHA), "a move is under way"))
    for size in sorted({min(sizes), max(sizes)}) if sizes else ():
        entries.append(
            (
                Line2D([], [], color=style.MOVE_COLOUR, linewidth=style.arrow_width(size)),
                f"move of {style.bytes_text(size)}",
            )
        )
    return [*entries, (Line2D([], [], color=style.PATH_COLOUR, linewidth=style.PATH_WIDTH), "critical path")]
