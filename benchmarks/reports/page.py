"""HTML without anything from outside: tables, plots, and one style for light and dark pages and small screens."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.core.tables import cell

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#667;--line:#d8dce2;--box:#f5f7f9;
--good:#14733a;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--back:#14171b;--text:#e4e7eb;--soft:#9aa3ad;--line:#343a42;--box:#1d2228;
--good:#5fd38d;--bad:#ff8a80}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;background:var(--back);color:var(--text);max-width:1180px;margin:0 auto;
padding:1.2em;overflow-wrap:anywhere}
h1{font-size:1.6em;margin:.2em 0}
h2{font-size:1.2em;margin:2em 0 .5em;border-bottom:1px solid var(--line);padding-bottom:.2em}
h3{font-size:1.02em;margin:1.4em 0 .4em}p{margin:.4em 0}.soft{color:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9em;margin:.4em 0}
td,th{padding:.25em .7em;white-space:nowrap;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;
font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:600}
td.words,th.words{text-align:left;white-space:normal}td.words{min-width:min(13em,30vw)}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));gap:1em}
figure{margin:0;background:var(--box);border-radius:8px;padding:.7em;min-width:0}
figcaption{font-weight:600;font-size:.92em;margin-bottom:.3em}
figure svg{width:100%;height:auto;max-width:560px;display:block}
figure svg text{font-family:system-ui,sans-serif!important}
details{margin:.6em 0}summary{cursor:pointer;color:var(--soft)}ul{padding-left:1.2em;margin:.3em 0}
""".strip()

VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


class Mark(str):
    """Text that is HTML already."""

    def __add__(self, other: str) -> Mark:
        return Mark(f"{self}{escaped(other)}")


def escaped(text: Any) -> str:
    return text if isinstance(text, Mark) else html.escape(str(text))


def verdict_mark(valid: bool, words: str | None = None) -> Mark:
    return Mark(
        f'<span class="{"good" if valid else "bad"}">{html.escape(words or ("valid" if valid else "not valid"))}</span>'
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], words: Sequence[int] = (0,)) -> Mark:
    """A table; ``words`` are the columns of text, on the left. Empty without rows."""
    kinds = ['class="words"' if number in words else "" for number in range(len(columns))]
    line = lambda tag, cells: "".join(f"<{tag} {k}>{text}</{tag}>" for k, text in zip(kinds, cells, strict=True))
    body = "".join(f"<tr>{line('td', [_cell(value) for value in row])}</tr>" for row in rows)
    if not body:
        return Mark("")
    head = line("th", [html.escape(column) for column in columns])
    return Mark(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def _cell(value: Any) -> str:
    return escaped(value if isinstance(value, Mark) else cell(value))


def figure(title: str, svg: str) -> Mark:
    return Mark(f"<figure><figcaption>{html.escape(title)}</figcaption>{svg}</figure>" if svg else "")


def plots(figures: Iterable[Mark]) -> Mark:
    inner = "".join(figures)
    return Mark(f'<div class="plots">{inner}</div>' if inner else "")


def section(title: str, *parts: str, level: int = 2) -> Mark:
    """Empty without content."""
    inner = "".join(escaped(part) for part in parts)
    return Mark(f"<section><h{level}>{html.escape(title)}</h{level}>{inner}</section>" if inner else "")


def paragraph(text: str, soft: bool = False) -> Mark:
    return Mark(f"<p{' class=soft' if soft else ''}>{escaped(text)}</p>")


def items(lines: Iterable[str]) -> Mark:
    inner = "".join(f"<li>{escaped(line)}</li>" for line in lines)
    return Mark(f"<ul>{inner}</ul>" if inner else "")


def folded(title: str, content: str) -> Mark:
    return Mark(f"<details><summary>{html.escape(title)}</summary>{content}</details>" if content else "")


def document(title: str, *parts: str) -> str:
    head = f'<meta charset="utf-8">{VIEWPORT}<title>{html.escape(title)}</title>'
    body = "".join(escaped(part) for part in parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>{body}</body></html>\n'
