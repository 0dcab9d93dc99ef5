"""``python -m docs.make_sharding_page``: writes the tables of docs/sharding_ops.md from the declarations of the ops."""

from __future__ import annotations

import pathlib
from typing import Any

from gt.ops import OPS
from gt.ops.split import Apart, Split
from gt.types import TensorType
from tests.support.samples import Sample, samples, type_of

PAGE = pathlib.Path(__file__).with_name("sharding_ops.md")
BEGIN, END = "<!-- begin: made by docs/make_sharding_page.py -->\n", "<!-- end -->\n"


def page(text: str) -> str:
    """The page with new tables."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END)[1]


def tables() -> str:
    by_op: dict[str, list[Sample]] = {}
    for sample in samples():
        by_op.setdefault(sample.op, []).append(sample)
    split_rows = [_row(name, by_op[name]) for name in sorted(OPS) if not OPS[name].whole]
    gathered_rows = [f"| `{name}` | {OPS[name].whole} |" for name in sorted(OPS) if OPS[name].whole]
    return "\n".join([
        f"{len(split_rows)} of {len(OPS)} ops can be split.", "",
        "| op | for these tensors | split | a partial sum passes through |", "| --- | --- | --- | --- |",
        *split_rows, "",
        f"{len(gathered_rows)} gather their operands.", "", "| op | because |", "| --- | --- |", *gathered_rows, "",
    ])  # fmt: skip


def _row(name: str, op_samples: list[Sample]) -> str:
    """The row of an op, for the sample that can be split in the most ways."""
    splits = [(s, types := tuple(map(type_of, s.make())), OPS[name].split(*types, **s.attrs)) for s in op_samples]
    _, types, split = max(splits, key=lambda candidate: _rank(candidate[1], candidate[2]))
    tensors, rest = [t for t in types if isinstance(t, TensorType)], ""
    if isinstance(split, Apart):
        ins, _, split = split.parts[0]
        tensors, rest = [tensors[i] for i in ins], ", …"
    cells = f"`{name}`", _format_types(tensors) + rest, _format_split(split) + rest, _format_linear(split)
    return f"| {' | '.join(cells)} |"


def _format_types(types: list[TensorType]) -> str:
    return f"`{', '.join(map(str, types))}`" if types else ""


def _rank(types: Any, split: Split | Apart | None) -> tuple[int, ...]:
    """Tensors with more than one element rank first; then the number of letters, then of operands."""
    if split is None:
        return (-1,)
    part = split.parts[0][2] if isinstance(split, Apart) else split
    tensors = [t for t in types if isinstance(t, TensorType)]
    full = all(t.numel > 1 for t in tensors[:1])
    return full, len(set(part.indices) - set(",.->")), len(part.linear), len(tensors), -len(part.indices)


def _format_split(split: Any) -> str:
    marks = [] if split.reduce == "sum" else [split.reduce]
    marks += [f"added: {', '.join(map(str, split.added))}"] if split.added else []
    return f"`{split.indices}`" + "".join(f", {mark}" for mark in marks)


def _format_linear(split: Any) -> str:
    return ", ".join("+".join(map(str, group)) for group in split.linear)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
