"""``gt bench NAME [options]``: a benchmark of the repository. ``gt bench`` lists the names.

``gt bench NAME --help`` shows the options of that benchmark.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import sys

from gt.errors import ConfigError
from gt.launch.command_name import command_name, make_parser, unknown
from gt.scripts.checkout import programs, replace_process
from gt.scripts.command import run


def main(argv: list[str] | None = None) -> int:
    parser = make_parser("gt.scripts.bench", __doc__)
    parser.add_argument("name", nargs="?", help="the benchmark")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="its own options")
    options = parser.parse_args(argv)
    return run(command_name("gt.scripts.bench"), lambda: _bench(options.name, options.options))


def _bench(name: str | None, options: list[str]) -> int:
    benchmarks = programs("benchmarks")
    if name is None:
        width = max(map(len, benchmarks))
        print("\n".join(f"{name:<{width}}  {_summary(file)}" for name, file in benchmarks.items()))
        return 0
    if name not in benchmarks:
        raise ConfigError(f"{unknown('benchmark', name, benchmarks)} (gt bench)")
    return replace_process(benchmarks[name], options, BENCH_COMMAND=f"gt bench {name}")


def _summary(program: pathlib.Path) -> str:
    """The first line of a program's docstring, without the command that it ends with."""
    doc = ast.get_docstring(ast.parse(program.read_text())) or ""
    return doc.partition("\n")[0].partition(": ``")[0]


if __name__ == "__main__":
    sys.exit(main())
