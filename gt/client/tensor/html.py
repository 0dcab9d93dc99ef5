"""Tensors and layouts in a notebook, as HTML."""

from __future__ import annotations

from gt.client.tensor.layout import TensorLayout, block_grid, layout
from gt.client.tensor.printing import format_tensor
from gt.client.tensor.tensor import Tensor

#: One colour for each worker, in turn; text on them is dark.
WORKER_COLOURS = ("#9cc3f0", "#f5cf80", "#8fd9bf", "#ebb7d3", "#c5b1ec", "#f0b08f", "#a9dbf4", "#c9d08a")
CELL = "border:1px solid #8886;padding:4px 12px;text-align:center"


def tensor_html(x: Tensor) -> str:
    """Type, size, layout and the same values as ``repr(x)``: of a large tensor only the corners are read."""
    from html import escape  # not needed before: its tables take time to import

    values = escape(format_tensor(x))
    facts = [f"<b>{escape(str(x._type))}</b>", _size(x._type.nbytes), escape(repr(layout(x)))]
    if x.requires_grad:
        facts.append("requires grad")
    return f"<div>{' · '.join(facts)}<pre style='margin:4px 0'>{values}</pre></div>"


def layout_html(placed: TensorLayout) -> str:
    """The blocks of the first two dims as a grid, each in the colour of the first worker that has it."""
    from html import escape

    head = f"<div><b>{escape(repr(placed))}</b></div>"
    if not placed.blocks:
        return head
    rows, columns, cells = block_grid(placed)
    names = "".join(f"<th style='{CELL}'>{start}:{stop}</th>" for start, stop in columns)
    lines = [f"<tr><th></th>{names}</tr>"]
    for (start, stop), holders in zip(rows, cells, strict=True):
        lines.append(f"<tr><th style='{CELL}'>{start}:{stop}</th>{''.join(map(_cell, holders))}</tr>")
    return f"{head}<table style='border-collapse:collapse;margin:4px 0'>{''.join(lines)}</table>"


def _cell(holders: list[int]) -> str:
    if not holders:
        return f"<td style='{CELL}'></td>"
    colour = WORKER_COLOURS[holders[0] % len(WORKER_COLOURS)]
    text = f"worker {holders[0]}" if len(holders) == 1 else f"workers {', '.join(map(str, holders))}"
    return f"<td style='{CELL};background:{colour};color:#222'>{text}</td>"


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
