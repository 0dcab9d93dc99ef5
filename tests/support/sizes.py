"""``make check``: the size of the code, and its limits: lines of a file and of a function."""

from __future__ import annotations

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
FILE_LINES, FUNCTION_LINES = 400, 40
#: What may be longer, and why.
EXCEPTIONS: dict[str, str] = {
    "gt/dispatcher/forward.py:_loop": "a call would cost more than the step it named",
}


def main() -> int:
    broken, rows = [], []
    for folder in sorted(p for p in ROOT.glob("gt/**/") if any(p.glob("*.py"))):
        lines = 0
        for path in sorted(folder.glob("*.py")):
            text = path.read_text()
            lines += text.count("\n")
            broken += list(_too_long(path.relative_to(ROOT).as_posix(), text))
        rows.append((lines, folder.relative_to(ROOT).as_posix()))
    for lines, name in [*rows, (sum(n for n, _ in rows), "in all")]:
        print(f"{lines:6}  {name}")
    for problem in broken:
        print(problem, file=sys.stderr)
    return bool(broken)


def _too_long(name, text):
    if text.count("\n") > FILE_LINES and name not in EXCEPTIONS:
        yield f"{name}: {text.count(chr(10))} lines; at most {FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES and f"{name}:{node.name}" not in EXCEPTIONS:
                yield f"{name}:{node.lineno}: {node.name} has {length} lines; at most {FUNCTION_LINES}"


if __name__ == "__main__":
    sys.exit(main())
