"""The rules of the house that a machine can check: who may import what, and who may know an op by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from gt.ops import OPS
from tests.processes import ROOT

#: What a core must be given from outside: sockets, clocks, threads, randomness, tensor libraries.
IMPURE = {"asyncio", "random", "secrets", "select", "socket", "subprocess", "threading", "time", "torch", "zmq"}
#: the dispatcher's shell is its server, and its log has the time
SHELLS = {"gt/dispatcher/server.py", "gt/dispatcher/trail.py"}
ROLES = ("client", "dispatcher", "worker")


def imports(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def files(folder: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", [*sorted({*files("gt/dispatcher")} - SHELLS), "gt/worker/core.py", *files("gt/ops")])
def test_a_core_is_given_the_world(path: str) -> None:
    found = {name.split(".")[0] for name in imports(path)} & IMPURE
    # kernels are torch's and numpy's business, and so are random numbers on a GPU
    assert found <= ({"torch"} if "philox" in path else set())


@pytest.mark.parametrize("role", ROLES)
def test_roles_do_not_import_each_other(role: str) -> None:
    others = {f"gt.{other}" for other in ROLES if other != role}
    for path in files(f"gt/{role}"):
        assert not {name for name in imports(path) if ".".join(name.split(".")[:2]) in others}, path


def test_the_dispatcher_knows_no_torch_and_no_numpy() -> None:
    for path in [*files("gt/dispatcher"), *files("gt/wire")]:
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "numpy"}, path


def test_nobody_compares_with_an_ops_name() -> None:
    """An op's rules stand in its entry; a branch on its name elsewhere would be a rule in a second place."""
    for path in files("gt"):
        if path.startswith("gt/ops/"):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.Compare) and _is_a_name(node.left):
                named = {c.value for c in node.comparators if isinstance(c, ast.Constant)}
                assert not named & set(OPS), f"{path}:{node.lineno}"


def _is_a_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("name", "op")
