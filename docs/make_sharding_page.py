"""``python -m docs.make_sharding_page``: writes docs/sharding_ops.md, how each op is cut, from the declarations."""

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
    """The page with its tables made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + tables() + END + rest.split(END)[1]


def tables() -> str:
    by_op: dict[str, list[Sample]] = {}
    for sample in samples():
        by_op.setdefault(sample.op, []).append(sample)
    cut = [_row(name, by_op[name]) for name in sorted(OPS) if not OPS[name].whole]
    whole = [f"| `{name}` | {OPS[name].whole} |" for name in sorted(OPS) if OPS[name].whole]
    return "\n".join([
        f"{len(cut)} of {len(OPS)} ops can be cut.", "",
        "| op | for these tensors | split | a sum passes through |", "| --- | --- | --- | --- |", *cut, "",
        f"{len(whole)} gather their operands.", "", "| op | because |", "| --- | --- |", *whole, "",
    ])  # fmt: skip


def _row(name: str, chosen: list[Sample]) -> str:
    """The sample that can be cut in most ways speaks for its op."""
    splits = [(s, types := tuple(map(type_of, s.make())), OPS[name].split(*types, **s.attrs)) for s in chosen]
    _, types, split = max(splits, key=lambda found: _ways(found[1], found[2]))
    given = [t for t in types if isinstance(t, TensorType)]
    if isinstance(split, Apart):
        ins, _, part = split.parts[0]
        return f"| `{name}` | {_listed([given[i] for i in ins])}, … | {_shown(part)}, … | {_sums(part)} |"
    return f"| `{name}` | {_listed(given)} | {_shown(split)} | {_sums(split)} |"


def _listed(types: list[TensorType]) -> str:
    return f"`{', '.join(map(str, types))}`" if types else ""


def _ways(types: Any, split: Split | Apart | None) -> tuple[int, ...]:
    """Tensors with something in them first; then as many letters as can be, and as many operands."""
    if split is None:
        return (-1,)
    part = split.parts[0][2] if isinstance(split, Apart) else split
    given = [t for t in types if isinstance(t, TensorType)]
    full = all(t.numel > 1 for t in given[:1])
    return full, len(set(part.indices) - set(",.->")), len(part.linear), len(given), -len(part.indices)


def _shown(split: Any) -> str:
    marks = [] if split.reduce == "sum" else [split.reduce]
    marks += [f"added: {', '.join(map(str, split.added))}"] if split.added else []
    return f"`{split.indices}`" + "".join(f", {mark}" for mark in marks)


def _sums(split: Any) -> str:
    return ", ".join("+".join(map(str, group)) for group in split.linear)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
