"""Pictures of schedules: one line for each stage, with the time from left to right."""

from __future__ import annotations

import os
from typing import Any

from gt.errors import GtError
from gt.pipeline.actions import Action, Schedule
from gt.pipeline.timing import bubble, bubble_formula, peak_activations, timeline

#: kind -> the colour of its boxes
COLOURS = {"F": "#7aa6dc", "B": "#8fc98f", "I": "#8fc98f", "W": "#f2b66d"}


def draw(schedule: Schedule) -> str:
    """The schedule as text: one column for each unit of time, a dot where a stage is idle.

    Example::

        print(gt.pipeline.drawing.draw(gt.pipeline.make_schedule("gpipe", 2, 2)))
    """
    rows = timeline(schedule)
    width = 1 + max(len(_label(schedule, action)) for action in schedule.order)
    length = int(max(row[-1].end for row in rows if row))
    lines = []
    for number, row in enumerate(rows):
        cells = ["."] * length
        for action, start, end in row:
            cells[int(start) : int(end)] = [_label(schedule, action), *["-"] * (int(end - start) - 1)]
        lines.append(f"stage {number:<2} " + "".join(f"{cell:<{width}}" for cell in cells).rstrip())
    return "\n".join(lines)


def _label(schedule: Schedule, action: Action) -> str:
    """As short as possible: the part is left out where a stage has only one."""
    return f"{action.kind}{action.microbatch}" if schedule.parts == schedule.stages else str(action)


def summary(schedule: Schedule) -> str:
    """The bubble and the peak activations in words."""
    chunks = schedule.parts // schedule.stages
    formula = bubble_formula(schedule.name, schedule.stages, schedule.microbatches, chunks)
    by_formula = "no formula for these numbers" if formula is None else f"by formula {formula:.1%}"
    peaks = peak_activations(schedule)
    unit = "microbatches" if schedule.parts == schedule.stages else "microbatches of a part"
    return (
        f"{schedule.name}: {schedule.stages} stages, {schedule.parts} parts, {schedule.microbatches} microbatches\n"
        f"bubble: {by_formula}, simulated {bubble(schedule):.1%} (F = I = W = 1, B = 2)\n"
        f"peak activations, in {unit}: {', '.join(map(str, peaks))}"
    )


def draw_png(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write the picture into a PNG file. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise GtError("a PNG needs matplotlib: pip install matplotlib") from None
    rows = timeline(schedule)
    length = max(row[-1].end for row in rows if row)
    figure: Any = Figure(figsize=(min(40.0, 2 + length * 0.35), 1.4 + 0.6 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(rows):
        for action, start, end in row:
            # parts of one stage differ in their shade
            shade = 1.0 - 0.45 * (action.part // schedule.stages) / max(1, schedule.parts // schedule.stages)
            axes.barh(number, end - start, left=start, color=COLOURS[action.kind], alpha=shade, edgecolor="black")
            axes.text((start + end) / 2, number, _label(schedule, action), ha="center", va="center", fontsize=7)
    axes.set(
        yticks=range(len(rows)), yticklabels=[f"stage {n}" for n in range(len(rows))], xlabel="time, in units of F"
    )
    axes.set_title(summary(schedule), fontsize=9, loc="left")
    axes.invert_yaxis()
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise GtError(f"{os.fspath(path)}: the picture cannot be written: {error.strerror}") from None
