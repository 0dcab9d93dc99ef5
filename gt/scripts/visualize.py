"""``python -m gt.scripts.visualize FILES --output timeline.png``: a picture of what `gt.scripts.trace` wrote.

A lane for each client, the dispatcher and each worker; colours are families of ops; arrows are moves between workers.
The extension of the output chooses PNG, SVG or PDF. Several traces are drawn one above the other, on one scale of time.
"""

from __future__ import annotations

import argparse
import io
import os
import sys

import numpy as np

from gt.errors import ConfigError, GtError
from gt.events.lanes import timeline
from gt.events.trace_file import TraceFile, read_trace
from gt.launch.command_name import command_name, make_parser
from gt.scripts.command import run, written
from gt.scripts.timeline import columns, draw
from gt.scripts.timeline_panel import ALL_COLOURS, Panel

FORMATS = ("png", "svg", "pdf")
MAX_FILES = 8
#: option -> the least and the most that it may be
LIMITS = {"dpi": (20, 1200), "width": (6, 100), "height": (2, 100)}
#: matplotlib draws no picture with more pixels on a side
MAX_PIXELS = 1 << 16


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.visualize", __doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="files that gt trace wrote")
    parser.add_argument("-o", "--output", default="timeline.png", help="the picture: .png, .svg or .pdf (timeline.png)")
    parser.add_argument("--dpi", type=int, default=130, help="pixels of an inch (default 130)")
    parser.add_argument("--width", type=float, default=14, help="inches (default 14)")
    parser.add_argument("--height", type=float, help="inches (default: as the lanes need)")
    parser.add_argument(
        "--from", dest="begin", type=float, default=0.0, help="begin at this ms of the trace (default 0)"
    )
    parser.add_argument("--to", dest="end", type=float, help="end at this ms of the trace (default: its end)")
    options = parser.parse_args(argv)
    return run(command_name("gt.scripts.visualize"), lambda: _visualize(options))


def _visualize(options: argparse.Namespace) -> int:
    kind = _check(options)
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise GtError("this needs matplotlib: pip install matplotlib") from None
    panels = [_panel(read_trace(path), options) for path in options.files]
    # texts stay texts in a PDF, and look the same everywhere
    with matplotlib.rc_context({"font.family": "DejaVu Sans", "pdf.fonttype": 42, "hatch.linewidth": 0.6}):
        figure = draw(panels, options.width, options.height)
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, dpi=options.dpi)
    data = _reduced(picture) if kind == "png" else picture.getvalue()
    with written(options.output, "wb") as file:
        file.write(data)
    events = sum(panel.lines.events for panel in panels)
    print(f"{options.output}: {events:,} events of {sum(len(panel.lines.workers) for panel in panels)} worker(s)")
    return 0


def _reduced(picture: io.BytesIO) -> bytes:
    """A PNG with 256 colours: those of the lanes, and the best for the edges of texts. It is half as large."""
    from PIL import Image, ImageColor

    image = Image.open(picture).convert("RGB")
    exact = np.array([ImageColor.getrgb(colour) for colour in ALL_COLOURS])
    rest = np.array(image.quantize(256 - len(exact)).getpalette()).reshape(-1, 3)
    distances = np.abs(rest[:, None] - exact).max(axis=2)
    near = distances.min(axis=1) <= 8  # the exact colour instead of one that nobody can tell from it
    rest[near] = exact[distances[near].argmin(axis=1)]
    palette, small = Image.new("P", (1, 1)), io.BytesIO()
    palette.putpalette(np.concatenate([exact, rest]).reshape(-1).tolist())
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def _check(options: argparse.Namespace) -> str:
    """The format of the picture. Raises ConfigError if the options are wrong."""
    kind: str = os.path.splitext(options.output)[1].lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"--output {options.output}: the extension must be .png, .svg or .pdf")
    if len(options.files) > MAX_FILES:
        raise ConfigError(f"{len(options.files)} traces: at most {MAX_FILES} fit into one picture")
    for name, (least, most) in LIMITS.items():
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"--{name} must be from {least} to {most}")
    if max(options.width, options.height or 0) * options.dpi >= MAX_PIXELS:
        raise ConfigError(f"--dpi {options.dpi}: the picture would have {MAX_PIXELS:,} pixels on a side, or more")
    if not options.begin >= 0:
        raise ConfigError("--from must be 0 or more")
    if options.end is not None and not options.end > options.begin:
        raise ConfigError(f"--to {options.end:g} must be later than --from {options.begin:g}")
    return kind


def _panel(trace: TraceFile, options: argparse.Namespace) -> Panel:
    first, last = trace.table.span()
    begun = first + int(options.begin * 1e6)
    ended = last if options.end is None else min(last, first + int(options.end * 1e6))
    if begun >= ended:
        raise ConfigError(f"--from {options.begin:g}: {trace.path} has {(last - first) / 1e6:.3f} ms")
    return Panel(trace, timeline(trace.table, begun, ended, columns(options.width)))


if __name__ == "__main__":
    sys.exit(main())
