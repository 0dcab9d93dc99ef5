"""Turns a YAML file into signals. A mistake raises a `ConfigError` with its place in the file and what is allowed.

    {file}: {path} is {value}; allowed: …          pp.yaml: stage0.shard.axis is 'one'; allowed: a dim, …

The grammar is the table `KEYS`: for each key of a signal, the function that reads its value. See docs/signals.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import msgspec

from gt.client.stream.configuration import DimAxes, Signal
from gt.errors import ConfigError
from gt.types import MAX_DIMS
from gt.wire.structures import MAX_WEIGHT

Mesh = tuple[tuple[str, int], ...]
Weights = tuple[tuple[str, tuple[int, ...]], ...]

#: The most characters of a signal's name (see `gt.wire.structures.SignalName`).
MAX_NAME_LENGTH = 200
#: Keys at the top of a file that are not signals. They apply to all signals. (``weights`` does too, but a mapping of
#: that name is a signal.)
DEFAULTS = ("mesh", "workers")
# What a key may have as its value, for error texts.
DIM = f"a dim, an integer from {-MAX_DIMS} to {MAX_DIMS - 1} (negative ones count from the end)"
WORKERS = "a list of different workers, such as [0, 1]"
MESH = "axes and their sizes, such as {dp: 2, tp: 4}"
WEIGHTS = "speed, the weights of the workers, such as [2, 1], or those of axes of a mesh, such as {dp: [2, 1]}"
SHARD = "{axis: DIM, workers: […]}, or dims and axes of a mesh, such as {0: dp, 1: tp}"
OUTPUT = "replicate, {axis: DIM}, or dims and axes of a mesh, such as {0: dp}"


class At(msgspec.Struct, frozen=True):
    """A place in a file, for error messages."""

    source: str
    path: str = ""

    def __truediv__(self, key: Any) -> At:
        return At(self.source, f"{self.path}.{key}" if self.path else str(key))

    def refuse(self, value: Any, allowed: str) -> NoReturn:
        """Raise ConfigError: the value here is not one of those allowed."""
        raise ConfigError(f"{self.source}: {self.path or 'the file'} is {_short(value)}; allowed: {allowed}")

    def fail(self, problem: str) -> NoReturn:
        """Raise ConfigError with this problem."""
        raise ConfigError(f"{self.source}: {self.path or 'the file'}: {problem}")

    def check_keys(self, value: dict[Any, Any], allowed: tuple[str, ...]) -> None:
        for key in value:
            if key not in allowed:
                from difflib import get_close_matches

                matches = get_close_matches(str(key), allowed, 1)
                hint = f"did you mean {matches[0]}? " if matches else ""
                (self / key).fail(f"there is no such key; {hint}allowed: {', '.join(allowed)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class WorkerMesh(msgspec.Struct, frozen=True):
    """The workers and the mesh of a signal, as far as the file names them."""

    workers: tuple[int, ...] = ()
    mesh: Mesh = ()
    weights: Weights = ()
    by_speed: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.mesh)


# -- the whole file --------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> dict[str, Signal]:
    """The signals of a file, by name."""
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{source}: the configuration cannot be read: {reason}") from None
    from gt.client.signals.yamltree import parse

    return signals_from(parse(text, At(source)), At(source))


def signals_from(tree: Any, at: At) -> dict[str, Signal]:
    """The signals of a parsed file, by name."""
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        at.refuse(tree, "names of signals, each with its configuration")
    default = _read_worker_mesh(tree, at, WorkerMesh())
    signals = {}
    for name, entries in tree.items():
        if name not in DEFAULTS and not (name == "weights" and not isinstance(entries, dict)):
            signals[name] = _signal(_name(name, at), entries, at / name, default)
    uploads = [name for name, signal in signals.items() if signal.uploads]
    for name in uploads[1:]:
        (at / name / "uploads").fail(f"{uploads[0]} places the uploaded tensors already")
    return signals


def signal_from(name: str, entries: dict[str, Any]) -> Signal:
    """One signal, configured by `gt.register_config`."""
    at = At("register_config")
    return _signal(_name(name, at), entries, at / name, WorkerMesh())


def _name(name: Any, at: At) -> str:
    if not isinstance(name, str):
        (at / name).fail(f"a signal's name is a string, not {name!r}; put it in quotes")
    if not name or len(name) > MAX_NAME_LENGTH or name.startswith("@"):
        at.fail(f"{_short(name)} is not a valid signal name: use 1 to {MAX_NAME_LENGTH} characters, the first not @")
    if name in DEFAULTS:
        (at / name).fail(f"a signal cannot be called {name}: at the top of a file this key applies to all signals")
    return str(name)


# -- one signal ------------------------------------------------------------------------------


def _signal(name: str, entries: Any, at: At, default: WorkerMesh) -> Signal:
    if not isinstance(entries, dict):
        at.refuse(entries, f"a mapping with any of {', '.join(KEYS)}")
    at.check_keys(entries, tuple(KEYS))
    worker_mesh = _read_worker_mesh(entries, at, default)
    fields = {
        key: KEYS[key](value, at / key, worker_mesh)
        for key, value in entries.items()
        if KEYS[key] is not _read_with_mesh
    }
    shard, replicate = fields.get("shard"), fields.get("replicate", False)
    if replicate and shard:
        at.fail("shard and replicate: true contradict each other; remove one of them")
    if "match" in fields and not (shard or replicate):
        (at / "match").fail("the matching parameters have no placement; add shard or replicate: true")
    if fields.get("uploads") and not (shard or replicate):
        (at / "uploads").fail("the uploaded tensors have no placement; add shard or replicate: true")
    places = bool(shard or replicate or {"workers", "mesh", "output"} & set(entries))
    return Signal(name=name, places=places, **msgspec.structs.asdict(worker_mesh), **fields)


def _read_worker_mesh(entries: dict[Any, Any], at: At, default: WorkerMesh) -> WorkerMesh:
    """The mesh of the signal; else its workers, without a mesh; else the default of the file. With their weights."""
    own = _read_mesh(entries, at, default)
    if "weights" in entries and (at.path or not isinstance(entries["weights"], dict)):
        return _weighted(own, entries["weights"], at / "weights")
    return msgspec.structs.replace(own, by_speed=default.by_speed)


def _read_mesh(entries: dict[Any, Any], at: At, default: WorkerMesh) -> WorkerMesh:
    workers_at = at / "workers"
    workers = _workers(entries["workers"], workers_at) if "workers" in entries else ()
    shard = entries.get("shard") if at.path else None  # at the top of the file `shard` is the name of a signal
    if isinstance(shard, dict) and "workers" in shard:
        if workers:
            (at / "shard.workers").fail(f"{workers_at.path} names workers as well; name them once")
        workers_at = at / "shard.workers"
        workers = _workers(shard["workers"], workers_at)
    if "mesh" not in entries:
        return WorkerMesh(workers) if workers else default
    mesh = _mesh(entries["mesh"], at / "mesh")
    count = prod(size for _, size in mesh)
    if workers and count != len(workers):
        sizes = " x ".join(str(size) for _, size in mesh)
        (at / "mesh").fail(f"a mesh of {sizes} has {count} workers, and {workers_at.path} names {len(workers)}")
    return WorkerMesh(workers, mesh)


def _workers(value: Any, at: At) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        at.refuse(value, WORKERS)
    for i, worker in enumerate(value):
        if type(worker) is not int or worker < 0:
            (at / i).refuse(worker, "the number of a worker, 0 or more")
        if worker in value[:i]:
            (at / i).fail(f"worker {worker} is named twice")
    return tuple(value)


def _mesh(value: Any, at: At) -> Mesh:
    if not isinstance(value, dict) or not value:
        at.refuse(value, MESH)
    for axis, size in value.items():
        if not isinstance(axis, str) or not axis:
            (at / axis).fail(f"the name of an axis is a string, not {axis!r}; put it in quotes")
        if type(size) is not int or size < 1:
            (at / axis).refuse(size, "the size of an axis, 1 or more")
    return tuple(value.items())


def _weighted(worker_mesh: WorkerMesh, value: Any, at: At) -> WorkerMesh:
    """The same workers with the weights that the file gives them."""
    if value == "speed":
        return msgspec.structs.replace(worker_mesh, weights=(), by_speed=True)
    sizes = dict(worker_mesh.mesh or ((("", len(worker_mesh.workers)),) if worker_mesh.workers else ()))
    if isinstance(value, list):
        if not sizes:
            at.fail("the workers are not known; add workers: […], or a mesh")
        if len(sizes) > 1:
            at.fail(f"the mesh has several axes: {', '.join(sizes)}; use {{AXIS: […]}}")
        value = {next(iter(sizes)): value}
    elif not isinstance(value, dict) or not value:
        at.refuse(value, WEIGHTS)
    for axis, weights in value.items():
        if axis not in sizes:
            at.refuse(value, f"weights of axes of the mesh: {', '.join(sizes)}" if worker_mesh.mesh else WEIGHTS)
        if not isinstance(weights, list) or any(type(w) is not int or not 1 <= w <= MAX_WEIGHT for w in weights):
            at.refuse(weights, f"weights, integers from 1 to {MAX_WEIGHT}, such as [2, 1]")
        if len(weights) != sizes[axis]:
            at.fail(f"{len(weights)} weights for {sizes[axis]} workers")
    pairs = tuple((axis, tuple(weights)) for axis, weights in value.items())
    return msgspec.structs.replace(worker_mesh, weights=pairs, by_speed=False)


# -- the keys of a signal ----------------------------------------------------------------------


def _shard(value: Any, at: At, worker_mesh: WorkerMesh) -> DimAxes:
    if not isinstance(value, dict) or not value:
        at.refuse(value, SHARD)
    return _dim_axes(value, at, worker_mesh, ("axis", "workers"))


def _output(value: Any, at: At, worker_mesh: WorkerMesh) -> DimAxes:
    if value == "replicate":
        return ()
    if not isinstance(value, dict) or not value:
        at.refuse(value, OUTPUT)
    return _dim_axes(value, at, worker_mesh, ("axis",))


def _dim_axes(value: dict[Any, Any], at: At, worker_mesh: WorkerMesh, keys: tuple[str, ...]) -> DimAxes:
    """Which axes of the mesh shard which dims."""
    if not any(type(key) is int for key in value):
        at.check_keys(value, keys)
        if "axis" not in value:
            at.fail("axis is missing: the dim to shard")
        if len(worker_mesh.mesh) > 1:
            (at / "axis").fail(
                f"the mesh has several axes: {', '.join(worker_mesh.axes)}; use {{{value['axis']}: AXIS}}"
            )
        return ((_dim(value["axis"], at / "axis"), ""),)
    pairs: list[tuple[int, str]] = []
    for dim, axes in value.items():
        _dim(dim, at / dim)
        for axis in axes if isinstance(axes, list) and axes else [axes]:
            pairs.append((dim, _axis(axis, at / dim, worker_mesh, [used for _, used in pairs])))
    return tuple(pairs)


def _dim(value: Any, at: At) -> int:
    if type(value) is not int or not -MAX_DIMS <= value < MAX_DIMS:
        at.refuse(value, DIM)
    return value


def _axis(value: Any, at: At, worker_mesh: WorkerMesh, used: list[str]) -> str:
    if not worker_mesh.mesh:
        axis = value if isinstance(value, str) else "dp"
        at.fail(f"there is no mesh with an axis {_short(value)}; add mesh: {{{axis}: 2}}")
    if value not in worker_mesh.axes:
        at.refuse(value, f"an axis of the mesh: {', '.join(worker_mesh.axes)}")
    if value in used:
        at.fail(f"axis {value} already shards another dim; an axis shards one dim")
    return str(value)


def _flag(value: Any, at: At, worker_mesh: WorkerMesh) -> bool:
    if not isinstance(value, bool):
        at.refuse(value, "true or false")
    return value


def _match(value: Any, at: At, worker_mesh: WorkerMesh) -> tuple[str, ...]:
    return _patterns(value, at, "a pattern for names of parameters, such as layers.*.weight, or a list of them")


def _modules(value: Any, at: At, worker_mesh: WorkerMesh) -> tuple[str, ...]:
    return _patterns(value, at, "a pattern for names of modules, such as layers.0, or a list of them")


def _patterns(value: Any, at: At, allowed: str) -> tuple[str, ...]:
    patterns = value if isinstance(value, list) else [value]
    if not patterns or not all(isinstance(p, str) and p for p in patterns):
        at.refuse(value, allowed)
    return tuple(patterns)


def _backward(value: Any, at: At, worker_mesh: WorkerMesh) -> str:
    if not isinstance(value, str) or not value or value.startswith("@"):
        at.refuse(value, "the name of a signal")
    return value


def _read_with_mesh(value: Any, at: At, worker_mesh: WorkerMesh) -> None:
    """A mark in `KEYS`, never called: `_read_worker_mesh` reads these keys, before the others."""


KEYS: dict[str, Callable[[Any, At, WorkerMesh], Any]] = {
    "shard": _shard,
    "workers": _read_with_mesh,
    "mesh": _read_with_mesh,
    "weights": _read_with_mesh,
    "replicate": _flag,
    "output": _output,
    "match": _match,
    "modules": _modules,
    "uploads": _flag,
    "backward": _backward,
    "compile": _flag,
}
