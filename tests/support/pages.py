"""Runs the Python of a page: ``python -m tests.support.pages README.md [PORT]``.

The blocks of a page share one namespace. A block followed by ``<!-- output -->`` and a text block must end its output
with that text. ``localhost:9000`` stands for the server at PORT.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import pathlib
import re
import sys
from collections.abc import Iterator

BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.S | re.M)
RUN = re.compile(r"^```python\n(.*?)^```$(?:\n\n<!-- output -->\n```text\n(.*?)^```$)?", re.S | re.M)
#: the name of the file in the pages' error texts
NAME = "example.py"


def blocks(text: str, language: str) -> Iterator[str]:
    return (body for _, tag, body in BLOCK.findall(text) if tag == language)


def run(text: str) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    for code, wanted in RUN.findall(text):
        linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, NAME, "exec"), namespace)
        print(out.getvalue(), end="")
        assert out.getvalue().endswith(wanted), f"the page says:\n{wanted}"


if __name__ == "__main__":
    page, *port = sys.argv[1:]
    text = pathlib.Path(page).read_text()
    run(text.replace("localhost:9000", f"localhost:{port[0]}") if port else text)
