"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import tests.support.sizes
from gt.ops import OPS
from tests.support import op_names

ROOT = pathlib.Path(tests.support.sizes.ROOT)
SOURCES = sorted((ROOT / "gt").rglob("*.py"))
IMPURE = {"zmq", "torch", "numpy", "time", "random", "threading", "socket", "asyncio", "select", "subprocess"}
#: Folders whose files decide and do nothing: time, ids and randomness reach them as data. Each with its exceptions.
PURE = {
    "gt/dispatcher": (
        "server.py",
        "tenants/audit_log.py",
        "journal/journal.py",
        "journal/journal_file.py",
        "journal/restart.py",
        "recovery/snapshot_folder.py",
    ),
    "gt/worker": (
        "__main__.py",
        "event_packing.py",
        "recording.py",
        "shell.py",
        "recovery/snapshots.py",
        "torchrun.py",
        "tracing.py",
        "engines/",
        "collectives/",
        "hot/",
    ),
    "gt/wire": (
        *("auth.py", "interrupts.py", "leases/", "server_keys.py", "sockets.py"),
        *("addresses.py", "copying.py", "transport.py", "unix.py"),
    ),
    "gt/ops": ("nn/cross_entropy_gpu.py", "random/philox_compiled.py", "random/philox_gpu.py"),
}
#: The cores call these through narrow interfaces, so what they import in turn is not the core's.
INTERFACES = (
    *("gt/worker/event_packing.py", "gt/worker/recording.py", "gt/worker/tracing.py"),
    *("gt/worker/engines/", "gt/worker/collectives/", "gt/worker/hot/", "gt/wire/copying.py"),
)
ROLES = ("client", "dispatcher", "worker")


def imports(path: pathlib.Path, lazy: bool = True) -> Iterator[str]:
    """The names a file imports; ``lazy`` are those inside functions and those for type checkers only."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif lazy or not (isinstance(node, ast.FunctionDef) or _is_for_type_checkers(node)):
            pending += ast.iter_child_nodes(node)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


FILE_OF = {name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in SOURCES}


@functools.cache
def direct_imports(path: pathlib.Path) -> frozenset[str]:
    """Kernels of ops import their tensor library lazily."""
    return frozenset(imports(path, lazy="gt/ops/" not in name_of(path)))


def impure_import(path: pathlib.Path) -> str:
    """The chain of imports from this file to an impure module; empty if there is none."""
    chains = {path: name_of(path)}
    pending = [path]
    while pending:
        file = pending.pop()
        for name in direct_imports(file):
            if name.split(".")[0] in IMPURE:
                return f"{chains[file]} -> {name}"
            imported = FILE_OF.get(name)
            if imported is not None and imported not in chains and not name_of(imported).startswith(INTERFACES):
                chains[imported] = f"{chains[file]} -> {name_of(imported)}"
                pending.append(imported)
    return ""


def pure_files() -> Iterator[pathlib.Path]:
    for folder, exceptions in PURE.items():
        excepted = tuple(f"{folder}/{name}" for name in exceptions)
        yield from (
            path for path in SOURCES if (ROOT / folder) in path.parents and not name_of(path).startswith(excepted)
        )


@pytest.mark.parametrize("path", list(pure_files()), ids=name_of)
def test_a_core_imports_nothing_impure(path: pathlib.Path) -> None:
    assert impure_import(path) == ""


def test_every_exception_to_purity_is_still_needed() -> None:
    for folder, exceptions in PURE.items():
        for name in exceptions:
            files = [path for path in SOURCES if name_of(path).startswith(f"{folder}/{name}")]
            assert any(impure_import(path) for path in files), f"{folder}/{name}"


@pytest.mark.parametrize("role", ROLES)
def test_the_roles_do_not_import_each_other(role: str) -> None:
    others = tuple(f"gt.{other}" for other in ROLES if other != role)
    for path in (ROOT / "gt" / role).rglob("*.py"):
        for name in imports(path):
            assert not (name.startswith(others) and name.split(".")[1] in ROLES), f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("folder", ["ops", "wire"])
def test_ops_and_wire_import_no_role(folder: str) -> None:
    for path in (ROOT / "gt" / folder).rglob("*.py"):
        taken = {name.split(".")[1] for name in imports(path) if name.startswith("gt.")}
        assert not taken & {*ROLES, "launch", "testing", "debug"}, name_of(path)


def test_op_names_stand_only_in_the_op_table() -> None:
    literals = [place for path in SOURCES for place in op_names.literals(path, OPS)]
    assert not literals, "facts about an op belong in its entry:\n" + "\n".join(literals)


def test_every_exception_for_op_names_is_still_needed() -> None:
    assert op_names.unused_words(SOURCES, OPS) == []


def test_nothing_on_the_wire_can_run_code() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert not {"pickle", "marshal", "shelve", "cloudpickle", "dill"} & {n.split(".")[0] for n in imports(path)}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), f"{name_of(path)}:{node.lineno}"


def test_importing_gt_is_light() -> None:
    heavy = "{'torch', 'numpy', 'zmq', 'triton', 'yaml', 'asyncio', 'multiprocessing'}"
    script = f"import gt, sys; print(sorted({heavy} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_a_dispatcher_imports_no_tensor_library() -> None:
    script = "import gt.server, gt.dispatcher.server, sys; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_files_fit_in_a_head_and_functions_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert tests.support.sizes.main() == 0, capsys.readouterr().err


def test_every_exception_to_the_sizes_is_still_needed() -> None:
    for name in tests.support.sizes.EXCEPTIONS:
        file, _, function = name.partition(":")
        text = (ROOT / file).read_text()
        if not function:
            assert text.count("\n") > tests.support.sizes.FILE_LINES, name
            continue
        lengths = [
            node.end_lineno - node.lineno + 1
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == function and node.end_lineno
        ]
        assert max(lengths) > tests.support.sizes.FUNCTION_LINES, name
