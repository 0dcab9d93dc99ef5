"""The data plane of simulated workers in one thread.

Each member adds its part of a collective to a shared network. When the last member has, all results are computed at
once, in the order of ranks, so the same program gives the same bits. Mistakes that would hang between processes, or
give wrong values silently, are assertions here: members that do not start the same collective, and an array that is
written while its collective is pending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np

from gt.worker.collectives.interface import NOTED, CollectiveHandle, GroupBroken, OnDone


@dataclass(slots=True, eq=False)
class LocalCollective:
    """One member's part of one collective, and its handle."""

    text: str
    kind: str
    array: Any
    options: dict[str, Any]
    #: the array's bytes at the start
    bits: bytes
    ended: bool = False
    error: str = ""
    value: Any = None
    taken: bool = False
    on_done: Callable[[], None] | None = None
    #: of this member until it is done, then the largest of all
    largest_note: int = 0

    def done(self) -> bool:
        return self.ended

    def result(self) -> Any:
        assert self.ended, f"{self.text}: its result was requested before it was done"
        if self.error:
            raise GroupBroken(f"{self.text}: {self.error}")
        assert not self.taken, f"{self.text}: its result was taken already"
        self.taken = True
        return self.value

    def wait_on_device(self) -> None:
        pass

    def note(self) -> int:
        assert self.kind in NOTED, f"{self.text}: it carries no note"
        return self.largest_note

    def end(self, value: Any, error: str = "") -> None:
        if self.on_done is not None:
            self.on_done()
        self.ended, self.value, self.error, self.array = True, value, error, None


@dataclass(slots=True)
class LocalGroup:
    """A group and its pending collectives."""

    members: tuple[int, ...]
    #: by rank, the collectives that were started and are not complete
    pending: list[list[LocalCollective]] = field(default_factory=list)
    broken: str = ""

    def break_(self, reason: str) -> None:
        """End all pending collectives, and every later one. The first reason stays."""
        self.broken = self.broken or reason
        for collective in (collective for row in self.pending for collective in row):
            collective.end(None, self.broken)
        self.pending = [[] for _ in self.members]

    def complete(self) -> None:
        """Compute every collective that all members have started."""
        while all(self.pending):
            parts = [row.pop(0) for row in self.pending]
            _check_agreement(parts)
            results = KINDS[parts[0].kind]([p.array for p in parts], [p.options for p in parts])
            note = max(part.largest_note for part in parts)
            for part, value in zip(parts, results, strict=True):
                part.largest_note = note
                assert part.bits == _bits(part.array), f"{part.text}: the array was written while it was pending"
                part.end(value)


class LocalNetwork:
    """The groups of a simulation, shared by all its planes."""

    def __init__(self) -> None:
        self.groups: dict[int, LocalGroup] = {}

    def lose(self, worker: int) -> None:
        """A worker died: its groups break."""
        for group in self.groups.values():
            if worker in group.members:
                group.break_(f"worker {worker} is gone")


class LocalPlane:
    """The data plane of one simulated worker."""

    def __init__(self, network: LocalNetwork, worker: int) -> None:
        self.address = f"local:{worker}"
        self._network, self._worker = network, worker
        self._ranks: dict[int, int] = {}

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None:
        assert members[rank] == self._worker, f"worker {self._worker} joins as rank {rank} of {members}"
        assert store == f"local:{members[0]}", f"group {group} of {members} meets at {store}"
        joined = self._network.groups.setdefault(group, LocalGroup(members, [[] for _ in members]))
        assert joined.members == members, f"group {group} is {joined.members} for some and {members} for others"
        self._ranks[group] = rank

    def leave(self, group: int) -> None:
        if self._ranks.pop(group, None) is not None:
            self._network.groups[group].break_("the group was left")

    def start(
        self, group: int, kind: str, array: Any, options: dict[str, Any], on_done: OnDone | None = None, note: int = 0
    ) -> CollectiveHandle:
        joined, rank = self._network.groups[group], self._ranks[group]
        text = f"{kind} among workers {', '.join(map(str, joined.members))}"
        part = LocalCollective(text, kind, array, options, _bits(array), on_done=on_done, largest_note=note)
        if joined.broken:
            part.end(None, joined.broken)
        else:
            joined.pending[rank].append(part)
            joined.complete()
        return part

    def reduce_all(
        self, group: int, arrays: list[Any], options: dict[str, Any], on_done: OnDone | None = None
    ) -> list[CollectiveHandle]:
        last = len(arrays) - 1
        return [
            self.start(group, "all_reduce", _contiguous_copy(array), options, on_done if k == last else None)
            for k, array in enumerate(arrays)
        ]

    def ends_on_device(self, group: int) -> bool:
        return False

    def wake_fd(self) -> int:
        """There is none: the simulation checks the handles after each message."""
        return -1

    def drain(self) -> None:
        pass

    def close(self) -> None:
        for group in list(self._ranks):
            self.leave(group)


# -- options that all members must agree on ------------------------------------------------------

#: options that differ from member to member
MEMBER_OPTIONS = ("overwrite", "sends", "receives", "keeps")


def _check_agreement(parts: list[LocalCollective]) -> None:
    shared = [_shared_options(part) for part in parts]
    for rank, options in enumerate(shared):
        assert options == shared[0], f"{parts[0].text}: rank 0 started {shared[0]}, rank {rank} started {options}"
    dtypes = {str(part.array.dtype) for part in parts if part.array is not None}
    assert len(dtypes) < 2, f"{parts[0].text}: dtypes {sorted(dtypes)}"


def _shared_options(part: LocalCollective) -> tuple[Any, ...]:
    exchange = "sends" in part.options  # the shape differs from member to member too
    shared = {} if exchange else {k: v for k, v in part.options.items() if k not in MEMBER_OPTIONS}
    return part.kind, *sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in shared.items())


# -- the kinds: arrays and options by rank -> results by rank -------------------------------------

Arrays = list[Any]
OptionsByRank = list[dict[str, Any]]


def _all_reduce(arrays: Arrays, options: OptionsByRank) -> Arrays:
    assert len({tuple(x.shape) for x in arrays}) == 1, f"shapes {[tuple(x.shape) for x in arrays]}"
    whole = combine(arrays, options[0]["op"])
    return [_contiguous_copy(whole) for _ in arrays]


def _all_gather(arrays: Arrays, options: OptionsByRank) -> Arrays:
    dim, sizes = options[0]["dim"], options[0]["sizes"]
    whole = _swap_pieces(_join(arrays, dim, sizes), dim, len(arrays), options[0].get("interleave", 1))
    return [_contiguous_copy(whole) for _ in arrays]


def _reduce_scatter(arrays: Arrays, options: OptionsByRank) -> Arrays:
    dim, pieces = options[0]["dim"], options[0].get("interleave", 1)
    whole = _swap_pieces(combine(arrays, options[0]["op"]), dim, pieces, len(arrays))
    return _cut(whole, dim, options[0]["sizes"])


def _all_to_all(arrays: Arrays, options: OptionsByRank) -> Arrays:
    shared = options[0]
    return _cut(_join(arrays, shared["join"], shared["join_sizes"]), shared["cut"], shared["cut_sizes"])


def _broadcast(arrays: Arrays, options: OptionsByRank) -> Arrays:
    root = arrays[options[0]["root"]]
    assert tuple(root.shape) == tuple(options[0]["shape"]), f"shapes {tuple(root.shape)} and {options[0]['shape']}"
    return [_contiguous_copy(root) for _ in arrays]


def _exchange(arrays: Arrays, options: OptionsByRank) -> Arrays:
    like = next((x for x in arrays if x is not None), None)
    out: Arrays = [None if o["shape"] is None else _empty(like, o["shape"]) for o in options]
    for rank, o in enumerate(options):
        for source, target, n in o["keeps"]:
            out[rank][_region(target, n)] = arrays[rank][_region(source, n)]
    for a in range(len(options)):
        for b in range(len(options)):
            sends = [(starts, n) for to, starts, n in options[a]["sends"] if to == b]
            receives = [(starts, n) for source, starts, n in options[b]["receives"] if source == a]
            assert [tuple(n) for _, n in sends] == [tuple(n) for _, n in receives], (
                f"rank {a} sends {sends} to rank {b}, which expects {receives}"
            )
            for (source, n), (target, _) in zip(sends, receives, strict=True):
                out[b][_region(target, n)] = arrays[a][_region(source, n)]
    return out


KINDS: dict[str, Callable[[Arrays, OptionsByRank], Arrays]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "exchange": _exchange,
}

#: xp, terms along dim 0 -> their combination
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda xp, t: xp.sum(t, axis=0, dtype=t.dtype),
    "prod": lambda xp, t: xp.prod(t, axis=0, dtype=t.dtype),
    "max": lambda xp, t: xp.max(t, axis=0),
    "min": lambda xp, t: xp.min(t, axis=0),
}
#: the same for bool
LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda xp, t: xp.any(t, axis=0),
    "prod": lambda xp, t: xp.all(t, axis=0),
    "max": lambda xp, t: xp.any(t, axis=0),
    "min": lambda xp, t: xp.all(t, axis=0),
}


def combine(arrays: Arrays, op: str) -> Any:
    """The terms of a partial tensor as one array."""
    xp = array_api_compat.array_namespace(arrays[0])
    terms, dtype = xp.stack(arrays), arrays[0].dtype
    if dtype == xp.bool:
        return LOGIC[op](xp, terms)
    if xp.isdtype(dtype, "real floating") and dtype.itemsize == 2:  # add in float32 and round once
        return xp.astype(COMBINE[op](xp, xp.astype(terms, xp.float32)), dtype)
    return COMBINE[op](xp, terms)


def _join(arrays: Arrays, dim: int, sizes: Any) -> Any:
    assert [x.shape[dim] for x in arrays] == list(sizes), f"blocks {[tuple(x.shape) for x in arrays]}, sizes {sizes}"
    return array_api_compat.array_namespace(arrays[0]).concat(arrays, axis=dim)


def _cut(whole: Any, dim: int, sizes: Any) -> Arrays:
    assert whole.shape[dim] == sum(sizes), f"{tuple(whole.shape)} cut along {dim} into {sizes}"
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    return [
        _contiguous_copy(whole[(*[slice(None)] * dim, slice(start, start + n))])
        for start, n in zip(starts, sizes, strict=True)
    ]


def _swap_pieces(x: Any, dim: int, outer: int, inner: int) -> Any:
    """The dim, seen as ``outer`` blocks of ``inner`` pieces, as ``inner`` blocks of ``outer`` pieces."""
    if outer == 1 or inner == 1:
        return x
    blocks = x.reshape(*x.shape[:dim], outer, inner, x.shape[dim] // (outer * inner), *x.shape[dim + 1 :])
    return blocks.swapaxes(dim, dim + 1).reshape(x.shape)


def _region(starts: Any, sizes: Any) -> tuple[slice, ...]:
    return tuple(slice(start, start + n) for start, n in zip(starts, sizes, strict=True))


def _empty(like: Any, shape: Any) -> Any:
    return array_api_compat.array_namespace(like).zeros(tuple(shape), dtype=like.dtype)


def _contiguous_copy(x: Any) -> Any:
    """A copy in row-major order."""
    if array_api_compat.is_torch_array(x):
        return x.contiguous().clone()
    return np.array(x, order="C")  # a 0-d array stays an array


def _bits(x: Any) -> bytes:
    if x is None or 0 in x.shape:
        return b""
    if not array_api_compat.is_torch_array(x):
        return bytes(x.tobytes())
    import torch

    return bytes(x.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).cpu().numpy().tobytes())
