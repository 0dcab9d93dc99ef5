"""What the documents say is so: their code runs, their commands exist, their tables are those of the code."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

import gt
from tests.support.pages import blocks
from tests.support.processes import ROOT, Process, environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# -- code ----------------------------------------------------------------------------------


@every_page
def test_python_runs(page, system, tmp_path):
    """On the CPU, whose words the pages quote; the README as a newcomer runs it, with torch."""
    log = tmp_path / "log"
    backend = "torch" if page.name == "README.md" else "numpy"
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
    lines = [line for block in blocks(text, "bash") for line in block.splitlines()]
    inline = re.findall(r"`((?:make|pip|python) [^`]+)`", text)
    return sorted({line.split("  #")[0].strip() for line in lines + inline})


@pytest.mark.parametrize("command", commands())
def test_a_command_is_there(command):
    words = shlex.split(command)
    while "=" in words[0]:
        assert words.pop(0).split("=")[0] in {*variables(), "CUDA_VISIBLE_DEVICES"}
    KNOWN[words[0]](words[1:])


def make(words: list[str]) -> None:
    assert words
    assert set(words) <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


def pip(words: list[str]) -> None:
    assert words[:2] == ["install", "-e"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*filter(None, words[2].removeprefix(".").strip("[]").split(","))} <= set(extras)


def python(words: list[str]) -> None:
    """The module or file exists; what options it is given, its help names."""
    count = 2 if words[0] == "-m" else 1
    start, options = words[:count], [word for word in words[count:] if word.startswith("-")]
    if count == 2:
        assert importlib.util.find_spec(words[1])
    else:
        assert (ROOT / words[0]).exists()
    if options:
        helped = subprocess.run(
            [sys.executable, *start, "--help"], capture_output=True, text=True, check=True, cwd=ROOT, env=environment()
        )
        assert set(options) <= set(re.findall(r"(?<![\w-])--?[\w-]+", helped.stdout))


KNOWN = {"make": make, "pip": pip, "python": python}


# -- names ---------------------------------------------------------------------------------


def variables() -> set[str]:
    """The settings the code reads."""
    source = "\n".join(path.read_text() for path in (ROOT / "gt").rglob("*.py"))
    return set(re.findall(r'"(GT_[A-Z_]*[A-Z])"', source))


def test_the_table_of_settings_is_complete():
    assert set(re.findall(r"^\| `(GT_\w+)` \|", README, re.M)) == variables()


def test_the_tree_names_what_is_there():
    tree = next(block for block in blocks(README, "text") if block.startswith("gt/ "))
    paths = [line.split()[0] for line in tree.splitlines()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    folders = {path.relative_to(ROOT).as_posix() + "/" for path in (ROOT / "gt").iterdir() if any(path.glob("*.py"))}
    assert folders <= set(paths)


@every_page
def test_paths_are_there(page):
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    named = re.findall(r"`((?:gt|tests|docs|benchmarks|examples|client|dispatcher|worker|wire|ops)/[\w./]+)", text)
    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "gt" / path).exists()] == []


@every_page
def test_tests_are_there(page):
    for path, name in re.findall(r"`(tests/\w+\.py)::(\w+)`", page.read_text()):
        assert f"\ndef {name}(" in (ROOT / path).read_text(), name


@every_page
def test_public_names_are_there(page):
    text = page.read_text()
    for name in re.findall(r"`gt\.((?:debug\.|testing\.)?\w+)\(?", text):
        assert name == "foo" or has(name), f"gt.{name}"
    for name in re.findall(r"`([A-Z][a-z]\w*(?:Error|Lost|Workers|Refused|Memory))`", text):
        assert hasattr(gt, name) or hasattr(builtins, name), name


def has(name):
    """``gt.name``, in the package or in one of its modules; some are loaded when they are first asked for."""
    place = gt
    for part in name.split("."):
        place = getattr(place, part, None) or _module(place, part)
    return place is not None


def _module(place, part):
    try:
        return importlib.import_module(f"{place.__name__}.{part}")
    except (ImportError, AttributeError):
        return None


@pytest.mark.parametrize("name", ["make_ops_page", "make_sharding_page"])
def test_the_tables_of_ops_are_up_to_date(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = maker.PAGE.read_text()
    assert maker.page(text) == text, f"run python -m docs.{name}"


def test_the_changelog_knows_this_version():
    assert f"\n## [{gt.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
