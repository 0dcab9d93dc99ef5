"""From a YAML file to signals. Every mistake is a `ConfigError` that says where it stands and what is allowed.

    {file}: {path} is {value}; allowed: …          pp.yaml: stage0.shard.axis is 'one'; allowed: a dim, …

The grammar is a table, `KEYS`: for each key of a signal the function that reads it. See docs/signals.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import Any, NoReturn

import msgspec

from gt.client.stream.configuration import Cuts, Signal
from gt.errors import ConfigError
from gt.types import MAX_DIMS

Mesh = tuple[tuple[str, int], ...]

#: The longest name of a signal (see `gt.wire.messages.SignalName`).
LONGEST = 200
#: What may stand at the top of a file besides signals.
DEFAULTS = ("mesh", "workers")
DIM = f"a dim, an integer from {-MAX_DIMS} to {MAX_DIMS - 1} (negative ones count from the end)"
WORKERS = "a list of different workers, such as [0, 1]"
MESH = "axes and their sizes, such as {dp: 2, tp: 4}"
SHARD = "{axis: DIM, workers: […]}, or dims and axes of a mesh, such as {0: dp, 1: tp}"
OUTPUT = "replicate, {axis: DIM}, or dims and axes of a mesh, such as {0: dp}"


class At(msgspec.Struct, frozen=True):
    """A place in a file, for errors."""

    source: str
    path: str = ""

    def __truediv__(self, key: Any) -> At:
        return At(self.source, f"{self.path}.{key}" if self.path else str(key))

    def refuse(self, value: Any, allowed: str) -> NoReturn:
        raise ConfigError(f"{self.source}: {self.path or 'the file'} is {_short(value)}; allowed: {allowed}")

    def wrong(self, what: str) -> NoReturn:
        raise ConfigError(f"{self.source}: {self.path or 'the file'}: {what}")

    def check_keys(self, value: dict[Any, Any], allowed: tuple[str, ...]) -> None:
        for key in value:
            if key not in allowed:
                from difflib import get_close_matches

                near = get_close_matches(str(key), allowed, 1)
                meant = f"did you mean {near[0]}? " if near else ""
                (self / key).wrong(f"there is no such key; {meant}allowed: {', '.join(allowed)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class WorkerMesh(msgspec.Struct, frozen=True):
    """What a signal's workers are, as far as the file says: cuts are along the axes of its mesh."""

    workers: tuple[int, ...] = ()
    mesh: Mesh = ()

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.mesh)


# -- the whole file --------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> dict[str, Signal]:
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{source}: the configuration cannot be read: {reason}") from None
    from gt.client.signals.yamltree import parsed

    return signals_from(parsed(text, At(source)), At(source))


def signals_from(tree: Any, at: At) -> dict[str, Signal]:
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        at.refuse(tree, "names of signals, each with what it means")
    around = _place(tree, at, WorkerMesh())
    made = {}
    for name, said in tree.items():
        if name not in DEFAULTS:
            made[name] = _signal(_name(name, at), said, at / name, around)
    return made


def signal_from(name: str, said: dict[str, Any]) -> Signal:
    """One signal, as `gt.register_config` describes it."""
    at = At("register_config")
    return _signal(_name(name, at), said, at / name, WorkerMesh())


def _name(name: Any, at: At) -> str:
    if not isinstance(name, str):
        (at / name).wrong(f"a signal's name is a text, not {name!r}; put it in quotes")
    if not name or len(name) > LONGEST or name.startswith("@"):
        at.wrong(f"{_short(name)} is no signal's name: 1 to {LONGEST} characters, of which the first is not @")
    if name in DEFAULTS:
        (at / name).wrong(f"no signal can be called {name}: at the top of a file that is the mesh of all signals")
    return str(name)


# -- one signal ------------------------------------------------------------------------------


def _signal(name: str, said: Any, at: At, around: WorkerMesh) -> Signal:
    if not isinstance(said, dict):
        at.refuse(said, f"a mapping with any of {', '.join(KEYS)}")
    at.check_keys(said, tuple(KEYS))
    place = _place(said, at, around)
    fields = {key: KEYS[key](value, at / key, place) for key, value in said.items() if KEYS[key] is not _apart}
    shard, replicate = fields.get("shard"), fields.get("replicate", False)
    if replicate and shard:
        at.wrong("shard and replicate: true contradict each other; say one of them")
    if "match" in fields and not (shard or replicate):
        (at / "match").wrong("there is nothing to lay parameters out by; say shard or replicate: true besides")
    places = bool(shard or replicate or {"workers", "mesh", "output"} & set(said))
    return Signal(name=name, workers=place.workers, mesh=place.mesh, places=places, **fields)


def _place(said: dict[Any, Any], at: At, around: WorkerMesh) -> WorkerMesh:
    """Its own mesh; or else its own workers, in a row; or else what holds for the whole file."""
    where, workers = at / "workers", _workers(said["workers"], at / "workers") if "workers" in said else ()
    shard = said.get("shard") if at.path else None  # at the top that is a signal's name
    if isinstance(shard, dict) and "workers" in shard:
        if workers:
            (at / "shard.workers").wrong(f"the workers stand in {where.path} as well; say them once")
        where = at / "shard.workers"
        workers = _workers(shard["workers"], where)
    if "mesh" not in said:
        return WorkerMesh(workers) if workers else around
    mesh = _mesh(said["mesh"], at / "mesh")
    count = prod(size for _, size in mesh)
    if workers and count != len(workers):
        sizes = " x ".join(str(size) for _, size in mesh)
        (at / "mesh").wrong(f"a mesh of {sizes} has {count} workers, and {where.path} names {len(workers)}")
    return WorkerMesh(workers, mesh)


def _workers(value: Any, at: At) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        at.refuse(value, WORKERS)
    for i, worker in enumerate(value):
        if type(worker) is not int or worker < 0:
            (at / i).refuse(worker, "the number of a worker, 0 or more")
        if worker in value[:i]:
            (at / i).wrong(f"worker {worker} is named twice")
    return tuple(value)


def _mesh(value: Any, at: At) -> Mesh:
    if not isinstance(value, dict) or not value:
        at.refuse(value, MESH)
    for axis, size in value.items():
        if not isinstance(axis, str) or not axis:
            (at / axis).wrong(f"the name of an axis is a text, not {axis!r}; put it in quotes")
        if type(size) is not int or size < 1:
            (at / axis).refuse(size, "the size of an axis, 1 or more")
    return tuple(value.items())


# -- the keys of a signal ----------------------------------------------------------------------


def _shard(value: Any, at: At, place: WorkerMesh) -> Cuts:
    if not isinstance(value, dict) or not value:
        at.refuse(value, SHARD)
    return _cuts(value, at, place, ("axis", "workers"))


def _output(value: Any, at: At, place: WorkerMesh) -> Cuts:
    if value == "replicate":
        return ()
    if not isinstance(value, dict) or not value:
        at.refuse(value, OUTPUT)
    return _cuts(value, at, place, ("axis",))


def _cuts(value: dict[Any, Any], at: At, place: WorkerMesh, keys: tuple[str, ...]) -> Cuts:
    """Which dims are cut along which axes."""
    if not any(type(key) is int for key in value):
        at.check_keys(value, keys)
        if "axis" not in value:
            at.wrong("axis is missing: the dim that is cut")
        if len(place.mesh) > 1:
            (at / "axis").wrong(f"there are several axes: {', '.join(place.axes)}; say {{{value['axis']}: AXIS}}")
        return ((_dim(value["axis"], at / "axis"), ""),)
    made: list[tuple[int, str]] = []
    for dim, axes in value.items():
        _dim(dim, at / dim)
        for axis in axes if isinstance(axes, list) and axes else [axes]:
            made.append((dim, _axis(axis, at / dim, place, [used for _, used in made])))
    return tuple(made)


def _dim(value: Any, at: At) -> int:
    if type(value) is not int or not -MAX_DIMS <= value < MAX_DIMS:
        at.refuse(value, DIM)
    return value


def _axis(value: Any, at: At, place: WorkerMesh, used: list[str]) -> str:
    if not place.mesh:
        at.wrong(f"{_short(value)} is an axis of no mesh; say mesh: {{{value if isinstance(value, str) else 'dp'}: 2}}")
    if value not in place.axes:
        at.refuse(value, f"an axis of the mesh: {', '.join(place.axes)}")
    if value in used:
        at.wrong(f"axis {value} cuts another dim already; an axis cuts one dim")
    return str(value)


def _flag(value: Any, at: At, place: WorkerMesh) -> bool:
    if not isinstance(value, bool):
        at.refuse(value, "true or false")
    return value


def _match(value: Any, at: At, place: WorkerMesh) -> tuple[str, ...]:
    patterns = value if isinstance(value, list) else [value]
    if not patterns or not all(isinstance(p, str) and p for p in patterns):
        at.refuse(value, "a pattern for names of parameters, such as layers.*.weight, or a list of them")
    return tuple(patterns)


def _backward(value: Any, at: At, place: WorkerMesh) -> str:
    if not isinstance(value, str) or not value or value.startswith("@"):
        at.refuse(value, "the name of a signal")
    return value


def _apart(value: Any, at: At, place: WorkerMesh) -> None:
    """Read by `_place`, before the others."""


KEYS: dict[str, Callable[[Any, At, WorkerMesh], Any]] = {
    "shard": _shard,
    "workers": _apart,
    "mesh": _apart,
    "replicate": _flag,
    "output": _output,
    "match": _match,
    "backward": _backward,
    "compile": _flag,
}
