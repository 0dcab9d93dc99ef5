"""One panel of a timeline: lanes, moves between them, and the critical path.

Vertical places are in inches from the top of the panel, so texts and lanes fit each other at any size of the picture.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gt.events.intervals import length, union
from gt.events.lanes import PYTHON, Lane, MoveArrow, Timeline
from gt.events.trace_file import TraceFile
from gt.ops.families import FAMILIES
from gt.wire.event_messages import DISPATCHING, WAITING

#: family -> its colour: those of Okabe and Ito and of Tol, which people with any colour vision can tell apart
_OF_OPS = "#0072B2 #D55E00 #882255 #999933 #F0E442 #009E73 #CC79A7 #DDCC77 #44AA99 #56B4E9 #E69F00"
COLOURS = dict(zip(FAMILIES, _OF_OPS.split(), strict=True)) | {
    "moves": "#7B5E3B",
    "compiled": "#332288",
    "compiling": "#661100",
    WAITING: "#A8A8A8",
    DISPATCHING: "#5D5D5D",
    PYTHON: "#AA4499",
}
OTHER_COLOUR, BUBBLE_COLOUR, MOVE_COLOUR, PATH_COLOUR, GROUND = "#777777", "#C9C9C9", "#222222", "#C40D1E", "#F4F4F4"
ALL_COLOURS = ("white", "black", GROUND, BUBBLE_COLOUR, MOVE_COLOUR, PATH_COLOUR, OTHER_COLOUR, *COLOURS.values())
#: families on which dark text is legible
LIGHT = {"elementwise", "normalization", "data", "random", WAITING, "optimizer"}
#: inches: the margins, a lane of a worker and of another role, and the space between lanes
LEFT, RIGHT, WORKER, OTHER, SPACE = 1.15, 1.85, 0.55, 0.3, 0.12
#: the share of a worker's lane below its instructions, where moves are shown
STRIP = 0.2
#: the average width of a character, in units of its size
CHARACTER = 0.62
PATH_WIDTH, MOVING_ALPHA = 2.0, 0.55
MAX_CLIENTS = 4


class Panel(NamedTuple):
    """A trace and its lanes."""

    trace: TraceFile
    lines: Timeline


def shown_clients(lines: Timeline) -> list[int]:
    """The clients that submitted most."""
    return sorted(sorted(lines.clients, key=lambda c: -len(lines.submissions[c]))[:MAX_CLIENTS])


def lanes_height(panel: Panel) -> float:
    others = len(shown_clients(panel.lines)) + 1
    return others * (OTHER + SPACE) + len(panel.lines.workers) * (WORKER + SPACE) + SPACE


def milliseconds(nanoseconds: float) -> str:
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"


def bytes_text(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def arrow_width(nbytes: int) -> float:
    """The width of an arrow in points: half a point more for each factor of ten above a kilobyte."""
    return float(np.clip(0.6 + 0.5 * np.log10(max(nbytes, 1) / 1e3), 0.6, 4.0))


class PanelDrawing:
    def __init__(self, axes: Any, panel: Panel, scale: float, inches: float, longest: int) -> None:
        self._axes, self._lines, self._scale = axes, panel.lines, scale
        self._origin = panel.trace.table.span()[0]
        self._inches, self._inch_per_ms = inches, inches / (longest / 1e6)
        self._longest = longest / 1e6
        #: worker -> top of its lane, in inches
        self._tops: dict[int, float] = {}

    def _ms(self, time: Any) -> Any:
        return (time - self._origin) / 1e6

    def draw(self) -> None:
        lines, top = self._lines, SPACE * self._scale
        labels: list[tuple[float, str]] = []
        for client in shown_clients(lines):
            top = self._role(lines.clients[client], top, f"client {client}", labels, self._count(client))
            self._ticks(client, top)
        top = self._role(lines.dispatcher, top, "dispatcher", labels, self._share(lines.dispatcher))
        for worker, lane in lines.workers.items():
            self._tops[worker] = top
            labels.append((top + WORKER * self._scale / 2, f"worker {worker}"))
            self._worker(worker, lane, top)
            top += (WORKER + SPACE) * self._scale
        self._moves()
        self._critical_path()
        self._axis(top, labels)

    def _axis(self, height: float, labels: list[tuple[float, str]]) -> None:
        axes = self._axes
        first = self._ms(self._lines.begun)
        axes.set(xlim=(first, first + self._longest), ylim=(height, 0))
        axes.set_yticks([place for place, _ in labels], [text for _, text in labels], fontsize=10.5)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=10)
        axes.set_xlabel("time since the beginning of the trace (ms)", fontsize=10.5)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.grid(axis="x", color="#DDDDDD", linewidth=0.6, zorder=0)
        axes.set_axisbelow(True)

    # -- lanes ---------------------------------------------------------------------------

    def _role(self, lane: Lane, top: float, name: str, labels: list[tuple[float, str]], note: str) -> float:
        tall = OTHER * self._scale
        labels.append((top + tall / 2, name))
        self._note(top + tall / 2, note)
        self._background(top, tall)
        self._fill(lane, top, tall)
        return top + tall + SPACE * self._scale

    def _worker(self, worker: int, lane: Lane, top: float) -> None:
        whole = WORKER * self._scale
        tall = whole * (1 - STRIP)
        self._background(top, whole)
        self._gaps(worker, top, tall)
        self._fill(lane, top, tall)
        low = np.full(self._lines.columns, top + whole)
        self._columns(low, lane.moving * whole * STRIP * 0.8, MOVE_COLOUR, MOVING_ALPHA)
        self._shares(worker, top, whole)

    def _shares(self, worker: int, top: float, tall: float) -> None:
        """How the worker spent its time, at the right of its lane."""
        breakdown = self._lines.breakdown
        spent = [breakdown.computing[worker], length(breakdown.waiting[worker]), length(breakdown.bubbles[worker])]
        busy, waits, bubble = (time / breakdown.wall for time in spent)
        self._note(top + tall * 0.3, f"busy {busy:.0%}", weight="bold")
        rest = f"bubble {bubble:.0%}, " if len(self._lines.workers) > 1 else ""
        idle = max(0.0, 1 - busy - waits - bubble)
        self._note(top + tall * 0.75, f"{rest}idle {idle:.0%}")
        if len(self._lines.workers) > 1:
            waited = f"{waits:.0%}" if breakdown.waits_known else "–"
            self._note(top + tall * 0.3, f"waits {waited}", indent=0.9)

    def _background(self, top: float, tall: float) -> None:
        begun, ended = self._ms(self._lines.begun), self._ms(self._lines.ended)
        self._axes.broken_barh([(begun, ended - begun)], (top, tall), color=GROUND, linewidth=0, zorder=0.5)

    def _note(self, y: float, text: str, weight: str = "normal", indent: float = 0.0) -> None:
        """A text at the right of a lane, this many inches further to the right."""
        size = min(9.5, 9.5 * self._scale + 1.5)
        place = self._axes.get_yaxis_transform()
        x = 1 + (0.1 + indent) / self._inches
        self._axes.text(x, y, text, transform=place, fontsize=size, fontweight=weight, va="center")

    def _fill(self, lane: Lane, top: float, tall: float) -> None:
        """Boxes, and shares stacked from the bottom."""
        bottom = np.full(self._lines.columns, top + tall)
        for family in sorted(lane.shares, key=lambda f: (f == WAITING, -lane.shares[f].sum())):
            self._columns(bottom, lane.shares[family] * tall, COLOURS.get(family, OTHER_COLOUR))
            bottom = bottom - lane.shares[family] * tall
        for family in sorted({box.family for box in lane.boxes}):
            boxes = [box for box in lane.boxes if box.family == family]
            spans = [(self._ms(box.begun), (box.ended - box.begun) / 1e6) for box in boxes]
            style = {
                "facecolor": COLOURS.get(family, OTHER_COLOUR),
                "edgecolor": "white",
                "linewidth": 0.4,
                "zorder": 1.2,
            }
            self._axes.broken_barh(spans, (top, tall), **style)
            for box in boxes:
                label = box.label or milliseconds(box.ended - box.begun)
                self._inside(label, box.begun, box.ended, top + tall / 2, "black" if family in LIGHT else "white")

    def _columns(self, bottom: Any, heights: Any, colour: str, alpha: float = 1.0) -> None:
        """Columns of these heights. Thousands of them would make a large SVG or PDF file: there they are a picture."""
        lines = self._lines
        edges = self._ms(np.linspace(lines.begun, lines.ended, lines.columns + 1))
        low, high = (np.append(place, place[-1:]) for place in (bottom, bottom - heights))
        style = {"color": colour, "alpha": alpha, "linewidth": 0, "rasterized": True, "zorder": 1.1}
        self._axes.fill_between(edges, low, high, step="post", **style)

    def _inside(self, text: str, begun: int, ended: int, y: float, colour: str, ground: str = "") -> None:
        """A text in the middle of a span, if it fits."""
        size = min(8.0, 8 * self._scale + 1)
        if (len(text) + 1) * CHARACTER * size / 72 < (ended - begun) / 1e6 * self._inch_per_ms:
            style = {"ha": "center", "va": "center", "clip_on": True, "zorder": 6}
            if ground:
                style["bbox"] = {"facecolor": ground, "linewidth": 0, "boxstyle": "square,pad=0.2"}
            self._axes.text(self._ms((begun + ended) / 2), y, text, fontsize=size, color=colour, **style)

    def _gaps(self, worker: int, top: float, tall: float) -> None:
        """Bubbles are hatched. Long gaps have their length."""
        breakdown = self._lines.breakdown
        bubbles = breakdown.bubbles[worker].tolist()
        style = {"facecolor": "white", "edgecolor": BUBBLE_COLOUR, "hatch": "/////", "linewidth": 0}
        seen = [(self._ms(a), (b - a) / 1e6) for a, b in bubbles if (b - a) / 1e6 * self._inch_per_ms > 0.03]
        self._axes.broken_barh(seen, (top, tall), zorder=0.6, **style)
        for start, end in bubbles:
            self._inside(f"bubble {milliseconds(end - start)}", start, end, top + tall / 2, "#333333", "white")
        for start, end in union(*breakdown.gaps.values()).tolist():
            self._inside(f"idle {milliseconds(end - start)}", start, end, top + tall / 2, "#555555", GROUND)

    # -- clients and the dispatcher ------------------------------------------------------

    def _count(self, client: int) -> str:
        return f"{len(self._lines.submissions[client]):,} submissions"

    def _share(self, lane: Lane) -> str:
        spent = sum(box.ended - box.begun for box in lane.boxes)
        wall = self._lines.ended - self._lines.begun
        return f"busy {spent / wall + sum(s.mean() for s in lane.shares.values()):.1%}"

    def _ticks(self, client: int, below: float) -> None:
        """A tick for each submission, at most one in a column."""
        times = self._lines.submissions[client]
        column = (self._lines.ended - self._lines.begun) / self._lines.columns
        _, first = np.unique((times - self._lines.begun) // column, return_index=True)
        bottom = below - SPACE * self._scale
        style = {"color": "black", "linewidth": 0.8}
        self._axes.vlines(self._ms(times[first]), bottom - OTHER * self._scale * 0.45, bottom, **style)

    # -- moves and the critical path -----------------------------------------------------

    def _strip(self, worker: int) -> float:
        return self._tops[worker] + WORKER * self._scale * (1 - STRIP / 2)

    def _moves(self) -> None:
        for arrow in self._lines.arrows:
            workers = {*arrow.senders, *arrow.receivers}
            if workers <= self._tops.keys() and len(workers) > 1:
                self._collective(arrow) if arrow.senders == arrow.receivers else self._between(arrow)

    def _collective(self, arrow: MoveArrow) -> None:
        """A line over all members, with a dot at each."""
        places = [self._strip(worker) for worker in arrow.senders]
        x, width = self._ms(arrow.ended), arrow_width(arrow.nbytes)
        self._axes.vlines(x, min(places), max(places), color=MOVE_COLOUR, linewidth=width, alpha=0.6, zorder=4)
        self._axes.scatter([x] * len(places), places, s=(width + 2.2) ** 2, color=MOVE_COLOUR, zorder=4.1, linewidth=0)

    def _between(self, arrow: MoveArrow) -> None:
        """Arrows from senders to receivers."""
        count, width = max(len(arrow.senders), len(arrow.receivers)), arrow_width(arrow.nbytes)
        for k in range(count):
            sender, receiver = arrow.senders[k % len(arrow.senders)], arrow.receivers[k % len(arrow.receivers)]
            head = f"-|>,head_width={0.1 + 0.04 * width:.2f},head_length={0.2 + 0.07 * width:.2f}"
            style = {"arrowstyle": head, "color": MOVE_COLOUR, "linewidth": width, "alpha": 0.6}
            style |= {"shrinkA": 0, "shrinkB": 0}
            ends = [(self._ms(arrow.ended), self._strip(receiver)), (self._ms(arrow.begun), self._strip(sender))]
            self._axes.annotate("", *ends, arrowprops=style, zorder=4, annotation_clip=True)

    def _critical_path(self) -> None:
        points: list[tuple[float, float]] = []
        shortest = (self._lines.ended - self._lines.begun) / self._lines.columns
        for part in self._lines.breakdown.path:
            begun, ended = max(part.begun, self._lines.begun), min(part.ended, self._lines.ended)
            if ended - begun >= shortest and part.where.startswith("worker "):
                y = self._tops[int(part.where.removeprefix("worker "))] - SPACE * self._scale * 0.3
                points += [(self._ms(begun), y), (self._ms(ended), y)]
        if points:
            for colour, width in (("white", 4.0), (PATH_COLOUR, PATH_WIDTH)):
                self._axes.plot(*zip(*points, strict=True), color=colour, linewidth=width, zorder=5)
