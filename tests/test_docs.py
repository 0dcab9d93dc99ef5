"""Checks the documents against the code: Python blocks run, commands exist, names, paths, tables and figures agree."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

import gt
from gt.__main__ import COMMANDS
from tests.support.pages import blocks
from tests.support.processes import ROOT, Process, environment

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BENCHMARK_PAGES = sorted((ROOT / "benchmarks").rglob("README.md"))
README, CONTRIBUTING = (page.read_text() for page in PAGES[:2])


def path_id(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=path_id)
every_page_and_suite = pytest.mark.parametrize("page", [*PAGES, *BENCHMARK_PAGES], ids=path_id)


# -- code ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text()], ids=path_id)
def test_python_runs(page, system, tmp_path):
    """On the CPU, because the pages quote its error texts. The pages a new user reads first run with torch."""
    log = tmp_path / "log"
    backend = "torch" if page.name in ("README.md", "failures.md") else "numpy"
    settings = {"GT_BACKEND": backend, "CUDA_VISIBLE_DEVICES": "", "GT_INSTRUCTION_LOG": str(log)}
    process = Process("-m", "tests.support.pages", str(page), str(system.port), **settings)
    try:
        assert process.end() == 0, process.output
    finally:
        process.close()
    quoted = re.findall(r"<!-- log -->\n```text\n(.*?)```", page.read_text(), re.S)
    if quoted:
        written = {without_time(line) for line in log.read_text().splitlines()}
        assert {without_time(line) for line in quoted[0].splitlines()} <= written


def without_time(line: str) -> str:
    return line.split(" | ", 2)[2].strip()


def test_the_demo():
    process = Process(str(ROOT / "examples" / "demo.py"))
    try:
        assert process.end() == 0, process.output
    finally:
        process.close()
    assert max(map(len, process.lines)) <= 80
    for word in ("worker 0", "@@@@", "additions a second", "ShapeError", "OutOfMemory", "grid = column * row", "MiB"):
        assert word in process.output
    assert process.lines[-1].startswith("The system has ended")


# -- commands ------------------------------------------------------------------------------


def commands() -> list[str]:
    text = "\n".join(page.read_text() for page in PAGES)
    lines = [line for block in blocks(text, "bash") for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`((?:make|pip|python|gt) [^`]+)`", text)
    return sorted({line.split("  #")[0].strip() for line in lines + inline})


@pytest.mark.parametrize("command", commands())
def test_a_command_is_there(command):
    words = shlex.split(command)
    while "=" in words[0]:
        assert words.pop(0).split("=")[0] in {*variables(), *OTHER_VARIABLES}
    name = words[0].rpartition("/")[2]
    CHECKS["python" if name == "python3" else name](words[1:])


def check_make(words: list[str]) -> None:
    targets = {word for word in words if "=" not in word}
    assert targets
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def check_pip(words: list[str]) -> None:
    if words[0] == "download":
        return
    assert words[:2] == ["install", "-e"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*filter(None, words[2].removeprefix(".").strip("[]").split(","))} <= set(extras)


def check_python(words: list[str]) -> None:
    """The module or file exists, and its help names the options."""
    if words[:2] == ["-m", "pdb"]:
        words = words[2:]
    count = 2 if words[0] == "-m" else 1
    start, options = words[:count], [word for word in words[count:] if word.startswith("-")]
    if count == 2:
        assert importlib.util.find_spec(words[1])
    else:
        assert (ROOT / words[0]).exists()
    assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    if words[count:] and not words[count].startswith("-"):
        start.append(words[count])  # it may be a command with options of its own
    if options and words[1] != "pytest":
        shown = subprocess.run(
            [sys.executable, *start, "--help"], capture_output=True, text=True, check=True, cwd=ROOT, env=environment()
        )
        assert set(options) <= set(re.findall(r"(?<![\w-])--?[\w-]+", shown.stdout))


def check_gt(words: list[str]) -> None:
    assert words[0] in COMMANDS or words[0].startswith("-")
    check_python(["-m", "gt", *words])


def check_torchrun(words: list[str]) -> None:
    """Torch knows the options before the module, and the module those after it."""
    from torch.distributed.run import get_args_parser

    at = words.index("-m")
    get_args_parser().parse_args([*words[:at], words[at + 1]])
    check_python(words[at:])


def check_srun(words: list[str]) -> None:
    """What it starts is there."""
    options = [word for word in words if word.startswith("-")]
    assert words[len(options)] == "gt"
    check_gt(words[len(options) + 1 :])


def check_sbatch(words: list[str]) -> None:
    assert (ROOT / words[-1]).exists()


def skip_check(words: list[str]) -> None:
    """A word of the shell, or another program."""


def check_source(words: list[str]) -> None:
    """The environment that the Makefile creates."""
    folder = re.search(r"^BIN := (.+)$", (ROOT / "Makefile").read_text(), re.M)
    assert folder is not None
    assert words == [f"{folder[1]}/activate"]


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "gt": check_gt,
    "source": check_source,
    "torchrun": check_torchrun,
    "srun": check_srun,
    "sbatch": check_sbatch,
    "salloc": skip_check,
    "for": skip_check,
    "export": skip_check,
    "kubectl": skip_check,
    "openssl": skip_check,
}
#: variables of other programs that commands may set
OTHER_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTHONPATH", "GLIBC_TUNABLES")


# -- names and paths -----------------------------------------------------------------------


def variables() -> set[str]:
    """The settings the code reads."""
    source = "\n".join(path.read_text() for path in [*(ROOT / "gt").rglob("*.py"), ROOT / "gt_autoload.py"])
    return set(re.findall(r'"(GT_[A-Z_]*[A-Z])"', source))


def test_the_table_of_settings_is_complete():
    text = (ROOT / "docs/settings.md").read_text()
    assert set(re.findall(r"^\| `(GT_\w+)` \|", text, re.M)) == variables()


def test_the_map_names_every_folder():
    repository_map = next(block for block in blocks(CONTRIBUTING, "text") if block.startswith("gt/ "))
    named = {line.split()[0].rstrip("/") for line in repository_map.splitlines()}
    assert [path for path in named if not (ROOT / path).is_dir()] == []
    assert set(folders()) <= named


def folders() -> Iterator[str]:
    """The folders with source files; records of benchmarks are listed as one."""
    for root in ("gt", "docs", "examples", "benchmarks", "tests"):
        for path, names, files in os.walk(ROOT / root):
            names[:] = [name for name in names if not name.startswith((".", "_"))]
            if any(file.endswith((".py", ".md", ".yaml")) for file in files):
                yield pathlib.Path(path).relative_to(ROOT).as_posix()


#: a path in backticks: a folder of the repository, or of gt, and what is below it
PATH = r"((?:gt|tests|docs|benchmarks|examples|client|dispatcher|worker|wire|ops)/[\w./*]*\w\*?/?)"


@every_page_and_suite
def test_paths_are_there(page):
    text = page.read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [path for path in re.findall(f"`{PATH}", text) if not find_path(path, page)] == []


def find_path(path: str, page: pathlib.Path) -> pathlib.Path | None:
    matches = (match for root in (ROOT, ROOT / "gt", page.parent) for match in root.glob(path))
    return next(matches, None)


@every_page_and_suite
def test_anchors_are_there(page):
    for path, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        titles = re.findall(r"^#+ (.+)$", (page.parent / path if path else page).read_text(), re.M)
        assert anchor in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}, anchor


@every_page_and_suite
def test_names_are_defined_in_their_files(page):
    """Every "`name` in `path`" is true."""
    for name, path in re.findall(rf"`([A-Za-z_][\w.]*)(?:\(\))?` in\s+`{PATH}`", page.read_text()):
        file = find_path(path, page)
        assert file is not None, path
        missing = [part for part in name.split(".") if part not in definitions(file)]
        assert not missing, f"{path} does not define {missing}"


@cache
def definitions(path: pathlib.Path) -> frozenset[str]:
    """The functions, classes, variables, attributes and ops that a file defines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            names.add(str(node.args[0].value))  # op("relu", …)
    return frozenset(names)


@every_page
def test_tests_are_there(page):
    for path, name in re.findall(r"`(tests/\w+\.py)::(\w+)`", page.read_text()):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), name


@every_page
def test_public_names_are_there(page):
    text = page.read_text().partition("## torch\n")[0]  # that page lists torch's names, missing ones too
    for name in re.findall(r"`gt\.((?:debug\.|testing\.)?\w+)\(?", text):
        assert name == "foo" or has(name), f"gt.{name}"
    for name in re.findall(r"`([A-Z][a-z]\w*(?:Error|Lost|Workers|Refused|Memory))`", text):
        assert hasattr(gt, name) or hasattr(builtins, name), name


def has(name):
    """Does ``gt.name`` exist, in the package or in one of its modules? Some modules are loaded at first use."""
    value = gt
    for part in name.split("."):
        value = getattr(value, part, None) or _module(value, part)
    return value is not None


def _module(parent, part):
    try:
        return importlib.import_module(f"{parent.__name__}.{part}")
    except (ImportError, AttributeError):
        return None


def test_the_glossary_is_sorted_and_has_each_term_once():
    text = (ROOT / "docs/glossary.md").read_text()
    terms = [term.lower() for term in re.findall(r"^\| \*\*(.+?)\*\*", text, re.M)]
    assert terms == sorted(set(terms))


# -- generated tables and figures ----------------------------------------------------------


@pytest.mark.parametrize("name", ["make_ops_page", "make_sharding_page"])
def test_the_tables_of_ops_are_up_to_date(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text()
    assert module.page(text) == text, f"run python -m docs.{name}"


def _row(record: Any, name: str) -> Any:
    return next(row for row in record["rows"] if row["name"] == name)


def _value(row: Any) -> float:
    """The figure of a row, which records before 17 November 2026 call its ratio."""
    return float(row["value"] if "value" in row else row["ratio"])


#: a record the README quotes -> the figure in it
FIGURES: dict[str, Callable[[Any], str]] = {
    "training_h200.json": lambda record: f"{_value(_row(record, 'mini-gpt')):.2f}× torch",
    "h200/compilation_benchmark_20261119T012458Z.json": lambda record: (
        f"{record['results']['mini-gpt']['torch']['ratio']['compiled']:.2f}× torch"
    ),
    "h200/compilation_mlp.json": lambda record: f"{record['results']['mlp']['torch']['ratio']['decorated']:.1f}× torch",
    "2cpu/sharding_20261115T230623Z.json": lambda record: (
        f"{record['results']['scaling']['1']['value']:.2f}× the speed"
    ),
    "control_plane_h200.json": lambda record: _client_share(record),
}


def _client_share(record: Any) -> str:
    row = next(row for row in record["rows"] if row["unit"] == "us an op")
    return f"{row['value']:.1f} µs"


def test_the_readme_quotes_its_records():
    lines = [line for line in README.splitlines() if "[record](" in line]
    assert len(lines) == len(FIGURES)
    for line, (name, figure) in zip(lines, FIGURES.items(), strict=True):
        assert f"(benchmarks/results/{name})" in line
        assert f"| {figure(json.loads((ROOT / 'benchmarks/results' / name).read_text()))}" in line


def test_the_changelog_knows_this_version():
    assert f"\n## [{gt.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
