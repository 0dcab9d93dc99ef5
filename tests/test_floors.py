"""The floors of the house: imports only go down. All imports count: lazy and type-checking ones too, transitively."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

from tests.support.sizes import ROOT

#: From the ground up. A module may import its own floor and those below it. A longer prefix goes before a shorter one.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("gt.errors", "gt.types", "gt.say", "gt.version", "gt.missing"),
    ("gt.ops", "gt.wire", "gt.launch", "gt.events"),
    ("gt.client.stream",),
    ("gt.launch.clusters",),
    ("gt.client.signals",),
    ("gt.client.tensor",),
    ("gt.client.grad",),
    ("gt.functions", "gt.fft", "gt.linalg", "gt.special", "gt.sparse", "gt.random", "gt.signal", "gt.autograd"),
    ("gt.nn", "gt.optim", "gt.distributions", "gt.func"),
    ("gt.client.compile", "gt.amp", "gt.saving", "gt.data", "gt.debug", "gt.cuda", "gt.utils", "gt.interop"),
    ("gt.accelerator", "gt.array_api", "gt.backends", "gt.distributed", "gt.fx", "gt.hub", "gt.jit", "gt.onnx"),
    ("gt.ao", "gt.compiler", "gt.library", "gt.multiprocessing"),
    ("gt._dynamo",),
    ("gt.serialization",),
    ("gt.pipeline", "gt.scripts", "gt.doctor", "gt.dashboard"),
    ("gt.torch_device",),
    ("gt.run",),
)
#: roles of their own, which see only the ground floors
SIDES = ("gt.dispatcher", "gt.worker", "gt.server", "gt.testing", "gt.__main__")
MAX_CIRCLE = 2
MAX_FILES = 25


def name_of(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted((ROOT / "gt").rglob("*.py"))}
PACKAGES = {name for name, path in FILES.items() if path.name == "__init__.py"}


def imported(name: str) -> Iterator[str]:
    """The modules of GT that a module imports anywhere in its text."""
    package = name if name in PACKAGES else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in FILES or base in FILES:
                    yield full if full in FILES else base


GRAPH = {name: {other for other in imported(name) if other != name} for name in FILES}


def reached(name: str) -> set[str]:
    """All modules that a module imports, directly or through others."""
    modules: set[str] = set()
    stack = [name]
    while stack:
        for other in GRAPH[stack.pop()] - modules:
            modules.add(other)
            stack.append(other)
    return modules


def floor_of(name: str) -> int | None:
    prefixes = [(prefix, i) for i, floor in enumerate(FLOORS) for prefix in floor]
    fitting = [(len(prefix), i) for prefix, i in prefixes if name == prefix or name.startswith(f"{prefix}.")]
    return max(fitting)[1] if fitting else None


ON_A_FLOOR = [name for name in FILES if floor_of(name) is not None]


def test_every_module_has_its_place() -> None:
    for name in FILES:
        aside = name in ("gt", "gt.client") or any(name == s or name.startswith(f"{s}.") for s in SIDES)
        assert aside or floor_of(name) is not None, f"{name} is on no floor: add it to FLOORS"


@pytest.mark.parametrize("name", ON_A_FLOOR)
def test_imports_go_down(name: str) -> None:
    floor = floor_of(name)
    assert floor is not None
    for other in sorted(reached(name)):
        above = floor_of(other)
        assert above is None or above <= floor, f"{name} reaches {other}, which is above it"
        assert not other.startswith(SIDES), f"{name} reaches {other}, another role"


def circles() -> list[list[str]]:
    """Sets of modules that all reach each other. A package's ``__init__`` only gathers its own modules, and is left
    out."""
    graph = {name: {other for other in GRAPH[name] if other not in PACKAGES} for name in FILES if name not in PACKAGES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    rings: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            ring, stack[at:] = stack[at:], []
            if len(ring) > 1:
                rings.append(sorted(ring))

    for name in graph:
        if name not in index:
            visit(name)
    return rings


def test_no_import_circle_is_longer_than_two_files() -> None:
    assert [ring for ring in circles() if len(ring) > MAX_CIRCLE] == []


def test_a_folder_has_few_files_and_a_docstring() -> None:
    for folder in sorted({path.parent for path in FILES.values()}):
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MAX_FILES, f"{folder.relative_to(ROOT)}: {len(files)} files"
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert docstring, f"{folder.relative_to(ROOT)}/__init__.py says nothing of what belongs there"


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
