"""What a compiled function did, so that it can be done again without running it.

While a function is recorded, its words go out as they are, and are kept. What else it did to the client is noted where
it is done: the gradients it set (`Tensor.grad`), the modules it called and whether they train, the random numbers it
drew, the optimizers it stepped. Whatever cannot be done again by the words alone is a reason not to.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gt.types import TensorType
from gt.wire.fragments import NoFragment, Sorted, canonical, sort
from gt.wire.messages import FIRST_CODE, MAX_FRAGMENT

if TYPE_CHECKING:
    from gt.client.stream.session import Session

#: ops whose first two numbers are drawn: a seed and a stream
DRAWING = frozenset(("bernoulli", "dropout", "rand", "randint", "randn", "randperm"))

#: the one at work, if any
active: Recorder | None = None


class Irregular(Exception):
    """Why a function cannot be done again by its words alone."""


@dataclass(slots=True, eq=False)
class Recorder:
    """Notes what happens while a function runs."""

    session: Session
    base: int
    thread: int = field(default_factory=threading.get_ident)
    parts: list[list[Any]] = field(default_factory=list)
    #: tensors whose ``grad`` was set -> what it was before
    grads: dict[Any, Any] = field(default_factory=dict)
    modules: dict[Any, None] = field(default_factory=dict)
    #: how many seeds and streams were drawn
    draws: int = 0
    #: the optimizers that were stepped, and how many numbers they gave
    optimizers: list[Any] = field(default_factory=list)
    stepped: int = 0
    #: why it cannot be done again
    problem: str = ""

    def grad_set(self, tensor: Any) -> None:
        if tensor not in self.grads:
            self.grads[tensor] = tensor._grad

    def refuse(self, why: str) -> None:
        self.problem = self.problem or why


@dataclass(slots=True, eq=False)
class Recording:
    """A function's words in canonical form, and where its inputs and numbers come from."""

    words: list[Any]
    found: Sorted
    #: one an input: ("argument", k), ("cell", a reference to it) or ("grad", the tensor it belongs to)
    sources: list[tuple[str, Any]]
    numbers: list[Any]
    #: places among the numbers that are drawn anew, and those the optimizers give, in order
    drawn: list[int]
    stepped: list[int]
    optimizers: list[Any]
    #: what was to be seen of the modules it called
    modules: list[Seen]
    #: (tensor, had it a gradient before?, the made one that is its gradient now, or None if it is the same)
    grads: list[tuple[Any, bool, int | None]]
    types: dict[int, TensorType]
    #: (source, how often it was written in place)
    written: list[tuple[tuple[str, Any], int]]
    #: inputs that are freed in it
    freed: list[tuple[str, Any]]
    #: what it gave back: rebuilt from made tensors
    result: Callable[[Callable[[int], Any]], Any]
    shown: Any
    made: int
    #: the tensors it uses that are neither arguments nor gradients
    cells: list[Any]
    #: its inputs' ids, and the places of those that are others each time
    ids: list[int] = field(init=False)
    moving: list[tuple[int, tuple[str, Any]]] = field(init=False)
    #: the tensors whose gradients it sets without a look at those they had
    replaced: list[Any] = field(init=False)
    #: who of those with gradients gets one, and how many hooks there are
    hooked: list[int] = field(init=False)
    #: how many tensors each group of each optimizer has
    groups: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = [what().id if kind == "cell" else 0 for kind, what in self.sources]
        self.hooked = [_hooked(tensor) for tensor, _, _ in self.grads]
        self.groups = [groups_of(optimizer) for optimizer in self.optimizers]
        self.moving = [(k, source) for k, source in enumerate(self.sources) if source[0] != "cell"]
        used = {id(what) for kind, what in self.sources if kind == "grad"}
        self.replaced = [t for t, _, place in self.grads if place is not None and id(t) not in used]

    def holds(self) -> bool:
        """Is what it was recorded under still so: its tensors, its modules, who has a gradient and who gets one?"""
        for (tensor, had, _), hooked in zip(self.grads, self.hooked, strict=True):
            if (tensor._grad is not None) is not had or _hooked(tensor) != hooked:
                return False
        return (
            None not in [cell() for cell in self.cells]
            and all(module.holds() for module in self.modules)
            and self.groups == [groups_of(optimizer) for optimizer in self.optimizers]
        )

    def agrees(self, other: Recording) -> str:
        """Why the same call made twice did different things; "" if it did not."""
        if canonical(0, self.words, self.found) != canonical(0, other.words, other.found):
            return "it does not do the same every time"
        live = {*self.drawn, *self.stepped}
        for k, (a, b) in enumerate(zip(self.numbers, other.numbers, strict=True)):
            if k not in live and a != b:
                return f"a number in it changes from call to call ({a!r}, then {b!r}): let it be a tensor"
        mine, theirs = ([x for x in r.sources if x[0] != "grad"] for r in (self, other))
        if mine != theirs:
            return "it uses other tensors than the last time: let them be arguments"
        return "" if self.shown == other.shown else "it gives back something else than the last time"


#: attributes of a module, or of an object, that are compared
PLAIN = frozenset((bool, int, float, str, type(None)))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Seen:
    """What decides about a module's words: whether it trains, its parameters, buffers and numbers, and its hooks."""

    __slots__ = ("_buffers", "_count", "_hooks", "_own", "_parameters", "_plain")

    def __init__(self, module: Any) -> None:
        self._own = own = module.__dict__
        self._count = len(own)
        self._plain = [(name, value) for name, value in own.items() if type(value) in PLAIN]
        self._hooks = [(own[name], len(own[name])) for name in HOOKS]
        self._parameters = [(p, None if p is None else p._node, _hooked(p)) for p in own["_parameters"].values()]
        self._buffers = list(own["_buffers"].values())

    def holds(self) -> bool:
        own = self._own
        parameters, buffers = own["_parameters"], own["_buffers"]
        if (len(own), len(parameters), len(buffers)) != (self._count, len(self._parameters), len(self._buffers)):
            return False
        for name, value in self._plain:
            if own.get(name) != value:
                return False
        for hooks, count in self._hooks:
            if len(hooks) != count:
                return False
        for p, (was, node, hooked) in zip(parameters.values(), self._parameters, strict=True):
            if p is not was or (
                p is not None and (p._node is not node or (node is not None and node.hooks and _hooked(p) != hooked))
            ):
                return False
        return all(b is was for b, was in zip(buffers.values(), self._buffers, strict=True)) if buffers else True


def _hooked(p: Any) -> int:
    """Does a gradient go to it, and how many hooks see that?"""
    return 0 if p is None or p._node is None else 1 + sum(map(len, p._node.hooks.values()))


def groups_of(optimizer: Any) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def cells_of(session: Session) -> dict[int, Any]:
    """All the session's tensors there are: looked for once a recording."""
    from gt.client.tensor.tensor import Cell

    return {cell.id: cell for cell in gc.get_objects() if type(cell) is Cell and cell.session is session}


def finish(recorder: Recorder, arguments: list[Any], versions: dict[int, int], returned: Any) -> Recording:
    """Raises Irregular."""
    if recorder.problem:
        raise Irregular(recorder.problem)
    words = [word for part in recorder.parts for word in part]
    if len(words) > MAX_FRAGMENT:
        raise Irregular(f"it is longer than {MAX_FRAGMENT} words")
    try:
        found = sort(words, recorder.session.shapes, recorder.base, fresh=True)
    except (NoFragment, IndexError, TypeError):
        raise Irregular("it does more than compute") from None
    return _Finishing(recorder, arguments, words, found, versions).made(returned)


def _call(place: int, make: Callable[[int], Any]) -> Any:
    return make(place)


class _Finishing:
    def __init__(
        self, recorder: Recorder, arguments: list[Any], words: list[Any], found: Sorted, versions: dict[int, int]
    ) -> None:
        self.recorder, self.arguments, self.words, self.found = recorder, arguments, words, found
        self.versions = versions
        self.cells = cells_of(recorder.session)

    def made(self, returned: Any) -> Recording:
        recorder, found = self.recorder, self.found
        grads, types = self._grads()
        shown, rebuild = self._result(returned, types)
        sources = [self._source(id) for id in found.inputs]
        freed = {k for _, k in found.given_freed}
        drawn, stepped = self._numbers()
        self._nothing_else_lives(set(types))
        written = [
            (source, bumps) for id, source in zip(found.inputs, sources, strict=True) if (bumps := self._bumps(id))
        ]
        return Recording(
            self.words, found, sources, [self.words[p] for p in found.numbers], drawn, stepped,
            recorder.optimizers, [Seen(module) for module in recorder.modules], grads, types, written,
            [sources[k] for k in sorted(freed)], rebuild, shown,
            1 + max((k for _, k in found.made + found.made_freed), default=-1),
            [source[1] for source in sources if source[0] == "cell"],
        )  # fmt: skip

    def _grads(self) -> tuple[list[tuple[Any, bool, int | None]], dict[int, TensorType]]:
        grads: list[tuple[Any, bool, int | None]] = []
        types: dict[int, TensorType] = {}
        for tensor, before in self.recorder.grads.items():
            now, made = tensor._grad, None
            if now is not before and any(tensor is x for x in self.arguments):
                raise Irregular("it sets an argument's gradient: take that by gt.autograd.grad, and give it back")
            if now is None and before is not None:
                raise Irregular("it takes gradients away")
            if now is not before and now is not None:
                made = now._cell.id - self.recorder.base
                if not 0 <= made < MAX_FRAGMENT or now._view is not None:
                    raise Irregular("it sets gradients that come from elsewhere")
                types[made] = now._type
            grads.append((tensor, before is not None, made))
        return grads, types

    def _source(self, id: int) -> tuple[str, Any]:
        for k, argument in enumerate(self.arguments):
            if argument._cell.id == id:
                return "argument", k
        for tensor, before in self.recorder.grads.items():
            if before is not None and before._cell.id == id:
                return "grad", tensor
        cell = self.cells.get(id)
        if cell is None:
            raise Irregular("a tensor that it uses is gone after it: let it be an argument")
        return "cell", weakref.ref(cell)

    def _bumps(self, id: int) -> int:
        cell = self.cells.get(id)
        return 0 if cell is None else cell.version - self.versions.get(id, 0)

    def _result(self, returned: Any, types: dict[int, TensorType]) -> tuple[Any, Callable[[Callable[[int], Any]], Any]]:
        """What it gave back in comparable form, and how to make it of other tensors."""
        from gt.client.tensor.tensor import Tensor

        if isinstance(returned, Tensor):
            if returned._node is not None and getattr(returned._node, "alive", True):
                raise Irregular("its result needs gradients: call backward inside, or use no_grad")
            made = returned._cell.id - self.recorder.base
            if 0 <= made < MAX_FRAGMENT:
                types[made] = returned._type
                return ("made", made), lambda make: make(made)
            for k, argument in enumerate(self.arguments):
                if argument is returned or argument._cell is returned._cell:
                    return ("argument", k), partial(_call, ~k)
            raise Irregular("it gives back a tensor it did not make")
        if isinstance(returned, tuple | list):
            parts = [self._result(x, types) for x in returned]
            kind = type(returned)
            if kind not in (tuple, list):
                raise Irregular(f"it gives back a {kind.__name__}")
            return (kind, [shown for shown, _ in parts]), lambda make: kind(build(make) for _, build in parts)
        if isinstance(returned, dict):
            rows = {key: self._result(x, types) for key, x in returned.items()}
            return {key: shown for key, (shown, _) in rows.items()}, lambda make: {
                key: build(make) for key, (_, build) in rows.items()
            }
        return returned, lambda make: returned

    def _numbers(self) -> tuple[list[int], list[int]]:
        """Which numbers are drawn, and which an optimizer gives."""
        drawn: list[int] = []
        stepped: list[int] = []
        at = {place: k for k, place in enumerate(self.found.numbers)}
        shapes, i = self.recorder.session.shapes, 0
        while i < len(self.words):
            if self.words[i] < FIRST_CODE:
                i += 1
                continue
            signature = shapes[self.words[i]]
            mine = [at[i + o] for o in range(signature.start, signature.width) if o not in signature.offsets]
            if signature.op.name in DRAWING:
                drawn += mine[:2]
            elif signature.op.name.endswith("_step"):
                stepped += mine
            i += signature.width
        if len(drawn) != 2 * self.recorder.draws:
            raise Irregular("it draws random numbers in a way that is not known")
        if len(stepped) != self.recorder.stepped:
            raise Irregular("it steps an optimizer in a way that is not known")
        return drawn, stepped

    def _nothing_else_lives(self, expected: set[int]) -> None:
        base = self.recorder.base
        made = {k for _, k in self.found.made} - {k for _, k in self.found.made_freed}
        if more := sorted(k for k in made - expected if base + k in self.cells):
            raise Irregular(f"{len(more)} tensor(s) it makes live on without being given back")
