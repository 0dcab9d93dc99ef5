"""The data plane of simulated workers in one thread: a board where each pins up its part of a collective.

When the last member has, all results are computed at once, in the order of ranks. So the same program gives the same
bits, and what would hang between processes, or silently give nonsense, is an assertion here: members that do
not mean the same collective (each post is stamped with what all must agree on), or an array that is written into while
its flight is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import array_api_compat
import numpy as np

from gt.worker.collectives import Broken, Ended, Flight


@dataclass(slots=True, eq=False)
class Post:
    """One member's part of one collective, and its flight."""

    text: str
    kind: str
    array: Any
    how: dict[str, Any]
    bits: bytes
    ended: bool = False
    error: str = ""
    made: Any = None
    taken: bool = False
    told: Callable[[], None] | None = None

    def done(self) -> bool:
        return self.ended

    def result(self) -> Any:
        assert self.ended, f"{self.text}: the result of a flight that is not done"
        if self.error:
            raise Broken(f"{self.text}: {self.error}")
        assert not self.taken, f"{self.text}: its result was taken already"
        self.taken = True
        return self.made

    def end(self, made: Any, error: str = "") -> None:
        if self.told is not None:
            self.told()
        self.ended, self.made, self.error, self.array = True, made, error, None


@dataclass(slots=True)
class Meeting:
    """A group as the board knows it."""

    members: tuple[int, ...]
    #: by rank, all that was started and is not complete
    posts: list[list[Post]] = field(default_factory=list)
    broken: str = ""

    def break_(self, reason: str) -> None:
        self.broken = self.broken or reason
        for post in (post for row in self.posts for post in row):
            post.end(None, self.broken)
        self.posts = [[] for _ in self.members]

    def settle(self) -> None:
        while all(self.posts):
            posts = [row.pop(0) for row in self.posts]
            _agree(posts)
            results = KINDS[posts[0].kind]([p.array for p in posts], [p.how for p in posts])
            for post, made in zip(posts, results, strict=True):
                assert post.bits == _bits(post.array), f"{post.text}: the array was written into on its way"
                post.end(made)


class Board:
    """Shared by all planes of a simulation."""

    def __init__(self) -> None:
        self.groups: dict[int, Meeting] = {}

    def lose(self, worker: int) -> None:
        """A worker died: what its groups were doing breaks."""
        for meeting in self.groups.values():
            if worker in meeting.members:
                meeting.break_(f"worker {worker} is gone")


class LocalPlane:
    def __init__(self, board: Board, worker: int) -> None:
        self.address = f"local:{worker}"
        self._board, self._worker = board, worker
        self._ranks: dict[int, int] = {}

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None:
        assert members[rank] == self._worker, f"worker {self._worker} joins as rank {rank} of {members}"
        assert store == f"local:{members[0]}", f"group {group} of {members} meets at {store}"
        meeting = self._board.groups.setdefault(group, Meeting(members, [[] for _ in members]))
        assert meeting.members == members, f"group {group} is {meeting.members} for some and {members} for others"
        self._ranks[group] = rank

    def leave(self, group: int) -> None:
        if self._ranks.pop(group, None) is not None:
            self._board.groups[group].break_("the group was left")

    def start(self, group: int, kind: str, array: Any, how: dict[str, Any], ended: Ended | None = None) -> Flight:
        meeting, rank = self._board.groups[group], self._ranks[group]
        text = f"{kind} among workers {', '.join(map(str, meeting.members))}"
        post = Post(text, kind, array, how, _bits(array), told=ended)
        if meeting.broken:
            post.end(None, meeting.broken)
        else:
            meeting.posts[rank].append(post)
            meeting.settle()
        return post

    def reduce_all(
        self, group: int, arrays: list[Any], how: dict[str, Any], ended: Ended | None = None
    ) -> list[Flight]:
        last = len(arrays) - 1
        return [
            self.start(group, "all_reduce", _fresh(array), how, ended if k == last else None)
            for k, array in enumerate(arrays)
        ]

    def wake_fd(self) -> int:
        """There is none: whoever delivers messages asks the flights."""
        return -1

    def drain(self) -> None:
        pass

    def close(self) -> None:
        for group in list(self._ranks):
            self.leave(group)


# -- what all must agree on --------------------------------------------------------------------

#: what each member has of its own
OWN = ("own", "sends", "receives", "keeps")


def _agree(posts: list[Post]) -> None:
    stamps = [_stamp(post) for post in posts]
    for rank, stamp in enumerate(stamps):
        assert stamp == stamps[0], f"{posts[0].text}: rank 0 means {stamps[0]}, rank {rank} means {stamp}"
    dtypes = {str(post.array.dtype) for post in posts if post.array is not None}
    assert len(dtypes) < 2, f"{posts[0].text}: dtypes {sorted(dtypes)}"


def _stamp(post: Post) -> tuple[Any, ...]:
    regions = "sends" in post.how  # its results have a shape each
    shared = {} if regions else {k: v for k, v in post.how.items() if k not in OWN}
    return post.kind, *sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in shared.items())


# -- the kinds: arrays and hows by rank -> results by rank ----------------------------------------

Arrays = list[Any]
Hows = list[dict[str, Any]]


def _all_reduce(arrays: Arrays, hows: Hows) -> Arrays:
    assert len({tuple(x.shape) for x in arrays}) == 1, f"shapes {[tuple(x.shape) for x in arrays]}"
    whole = _combined(arrays, hows[0]["op"])
    return [_fresh(whole) for _ in arrays]


def _all_gather(arrays: Arrays, hows: Hows) -> Arrays:
    dim, sizes = hows[0]["dim"], hows[0]["sizes"]
    whole = _joined(arrays, dim, sizes)
    return [_fresh(whole) for _ in arrays]


def _reduce_scatter(arrays: Arrays, hows: Hows) -> Arrays:
    return _cut(_combined(arrays, hows[0]["op"]), hows[0]["dim"], hows[0]["sizes"])


def _all_to_all(arrays: Arrays, hows: Hows) -> Arrays:
    how = hows[0]
    return _cut(_joined(arrays, how["join"], how["join_sizes"]), how["cut"], how["cut_sizes"])


def _broadcast(arrays: Arrays, hows: Hows) -> Arrays:
    root = arrays[hows[0]["root"]]
    assert tuple(root.shape) == tuple(hows[0]["shape"]), f"shapes {tuple(root.shape)} and {hows[0]['shape']}"
    return [_fresh(root) for _ in arrays]


def _exchange(arrays: Arrays, hows: Hows) -> Arrays:
    like = next((x for x in arrays if x is not None), None)
    out: Arrays = [None if how["shape"] is None else _empty(like, how["shape"]) for how in hows]
    for rank, how in enumerate(hows):
        for source, target, n in how["keeps"]:
            out[rank][_region(target, n)] = arrays[rank][_region(source, n)]
    for a in range(len(hows)):
        for b in range(len(hows)):
            sends = [(starts, n) for to, starts, n in hows[a]["sends"] if to == b]
            receives = [(starts, n) for source, starts, n in hows[b]["receives"] if source == a]
            assert [tuple(n) for _, n in sends] == [tuple(n) for _, n in receives], (
                f"rank {a} sends {sends} to rank {b}, which expects {receives}"
            )
            for (source, n), (target, _) in zip(sends, receives, strict=True):
                out[b][_region(target, n)] = arrays[a][_region(source, n)]
    return out


KINDS: dict[str, Callable[[Arrays, Hows], Arrays]] = {
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
#: and of truth values
LOGIC: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda xp, t: xp.any(t, axis=0),
    "prod": lambda xp, t: xp.all(t, axis=0),
    "max": lambda xp, t: xp.any(t, axis=0),
    "min": lambda xp, t: xp.all(t, axis=0),
}


def _combined(arrays: Arrays, op: str) -> Any:
    xp = array_api_compat.array_namespace(arrays[0])
    terms, dtype = xp.stack(arrays), arrays[0].dtype
    if dtype == xp.bool:
        return LOGIC[op](xp, terms)
    if xp.isdtype(dtype, "real floating") and dtype.itemsize == 2:  # halves are added in float32 and rounded once
        return xp.astype(COMBINE[op](xp, xp.astype(terms, xp.float32)), dtype)
    return COMBINE[op](xp, terms)


def _joined(arrays: Arrays, dim: int, sizes: Any) -> Any:
    assert [x.shape[dim] for x in arrays] == list(sizes), f"blocks {[tuple(x.shape) for x in arrays]}, sizes {sizes}"
    return array_api_compat.array_namespace(arrays[0]).concat(arrays, axis=dim)


def _cut(whole: Any, dim: int, sizes: Any) -> Arrays:
    assert whole.shape[dim] == sum(sizes), f"{tuple(whole.shape)} cut along {dim} into {sizes}"
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    return [
        _fresh(whole[(*[slice(None)] * dim, slice(start, start + n))]) for start, n in zip(starts, sizes, strict=True)
    ]


def _region(starts: Any, sizes: Any) -> tuple[slice, ...]:
    return tuple(slice(start, start + n) for start, n in zip(starts, sizes, strict=True))


def _empty(like: Any, shape: Any) -> Any:
    return array_api_compat.array_namespace(like).zeros(tuple(shape), dtype=like.dtype)


def _fresh(x: Any) -> Any:
    """A copy in row-major order."""
    if array_api_compat.is_torch_array(x):
        return x.contiguous().clone()
    return np.array(x, order="C")  # numpy gives a scalar where an array without dims is meant


def _bits(x: Any) -> bytes:
    if x is None or 0 in x.shape:
        return b""
    if not array_api_compat.is_torch_array(x):
        return bytes(x.tobytes())
    import torch

    return bytes(x.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).cpu().numpy().tobytes())
