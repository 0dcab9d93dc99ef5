"""What a compiled function did, so that it can be replayed without running its Python.

While a function is recorded, a `gt.client.stream.recorder.Recorder` notes its words and everything else it changes in
the client. `finish` turns the notes into a `Recording`: the words, and where the inputs and numbers of a replay come
from. Anything that the words alone cannot repeat raises `Irregular` with the reason.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from msgspec import Struct, field

from gt.client.compile.module_states import ModuleStates, hooks_on
from gt.client.compile.optimizer_states import OptimizerState
from gt.client.stream.recorder import Recorder
from gt.client.stream.session import Session
from gt.client.tensor.tensor import Tensor
from gt.types import TensorType
from gt.wire.fragments import NoFragment, SortedWords, make_fragment, sort_words
from gt.wire.words import FIRST_CODE, MAX_FRAGMENT_WORDS

#: where an input comes from: ("argument", position), ("cell", weak reference) or ("grad", the tensor it belongs to)
Source = tuple[str, Any]


class Irregular(Exception):
    """Why a function cannot be replayed."""


class NeedsGradients(Irregular):
    """A result needs gradients, so the tape has to be built in every call."""


class Recording(Struct, eq=False):
    """A function's words, and where the inputs and numbers of a replay come from."""

    words: list[Any]
    kinds: SortedWords
    #: one for each input
    sources: list[Source]
    numbers: list[Any]
    #: positions among the numbers: of random keys, which are drawn for each call, and of what optimizers provide
    drawn: list[int]
    #: for each random key: its generator, and the first key that was equal to it, as in a checkpoint's second run
    draws: list[tuple[Any, int]]
    stepped: list[int]
    #: each optimizer that is stepped, and the parameters of each of its groups that the step updates
    optimizers: list[tuple[Any, list[list[Any]]]]
    #: the state of the modules it called
    modules: ModuleStates
    #: (tensor, had it a gradient before?, which result is its gradient after; None if that is the same tensor)
    grads: list[tuple[Any, bool, int | None]]
    #: result -> its type, for the results that the caller keeps: returned ones and gradients
    types: dict[int, TensorType]
    #: (input, how often it is written in place)
    written: list[tuple[Source, int]]
    #: inputs that are freed in it
    freed: list[Source]
    #: builds what the function returns. Its argument is a function that gives the tensor for a number: k is result k,
    #: and ~k is argument k
    rebuild: Callable[[Callable[[int], Any]], Any]
    #: what the function returned, in a form that can be compared
    returned: Any
    #: how many ids it uses for results
    results: int
    #: not empty once a tensor is gone that it uses and that is neither an argument nor a gradient
    lost: list[Any]
    #: which arguments it returns
    returned_arguments: list[int]
    #: the ids of its inputs; 0 for those that differ from call to call: (input, argument) and (input, tensor) of those
    ids: list[int] = field(default_factory=list)
    from_arguments: list[tuple[int, int]] = field(default_factory=list)
    from_grads: list[tuple[int, Any]] = field(default_factory=list)
    #: the tensors whose gradients it sets without using the gradients before
    replaced: list[Any] = field(default_factory=list)
    #: whether a replay only creates tensors, so that one that is not needed may run as well
    only_creates: bool = False
    #: for each tensor in ``grads``: `hooks_on` of it
    hooked: list[int] = field(default_factory=list)
    #: the state of each optimizer that is stepped
    optimizer_states: list[OptimizerState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = [what().id if kind == "cell" else 0 for kind, what in self.sources]
        self.hooked = [hooks_on(tensor) for tensor, _, _ in self.grads]
        self.optimizer_states = [OptimizerState(optimizer, stepped) for optimizer, stepped in self.optimizers]
        self.from_arguments = [(k, what) for k, (kind, what) in enumerate(self.sources) if kind == "argument"]
        self.from_grads = [(k, what) for k, (kind, what) in enumerate(self.sources) if kind == "grad"]
        used = {id(what) for kind, what in self.sources if kind == "grad"}
        self.replaced = [t for t, _, result in self.grads if result is not None and id(t) not in used]
        changes = self.drawn, self.stepped, self.optimizers, self.grads, self.written, self.freed
        self.only_creates = not any(changes)

    def holds(self) -> bool:
        """Is the state that it was recorded under unchanged: modules, gradients, hooks, optimizers? Whether its
        tensors still exist is in `lost`."""
        for (tensor, had_grad, _), hooked in zip(self.grads, self.hooked, strict=True):
            if (tensor._grad is not None) is not had_grad or hooks_on(tensor) != hooked:
                return False
        return self.modules.hold() and all(state.holds() for state in self.optimizer_states)

    def difference(self, other: Recording) -> str:
        """How another recording of the same call differs; "" if it does not."""
        if make_fragment(0, self.words, self.kinds) != make_fragment(0, other.words, other.kinds):
            return "it does not do the same every time"
        if self.draws != other.draws:
            return "it draws from another generator than the last time: make it an argument"
        live = {*self.drawn, *self.stepped}
        for k, (a, b) in enumerate(zip(self.numbers, other.numbers, strict=True)):
            if k not in live and a != b:
                return f"a number in it changes from call to call ({a!r}, then {b!r}): make it a tensor"
        tensors, other_tensors = ([x for x in r.sources if x[0] != "grad"] for r in (self, other))
        if tensors != other_tensors:
            return "it uses other tensors than the last time: make them arguments"
        return "" if self.returned == other.returned else "it returns something else than the last time"


def finish(recorder: Recorder, session: Session, arguments: list[Any], returned: Any) -> Recording:
    """The recording of a function that was run once. Raises Irregular if it cannot be replayed."""
    if recorder.problem:
        raise Irregular(recorder.problem)
    words = [word for submission in recorder.submissions for word in submission]
    if len(words) > MAX_FRAGMENT_WORDS:
        raise Irregular(f"it is longer than {MAX_FRAGMENT_WORDS} words")
    try:
        kinds = sort_words(words, session.signatures.by_code, recorder.base, fresh=True)
    except (NoFragment, IndexError, TypeError):
        raise Irregular("it does more than compute") from None
    return _RecordingBuilder(recorder, session, arguments, words, kinds).recording(returned)


def _is_spent(node: Any) -> bool:
    """Has a backward pass freed values that another pass through this node would need?"""
    pending, seen = [node], {node}
    while pending:
        node = pending.pop()
        if getattr(node, "freed", False):
            return True
        sources = {edge[0] for edge in getattr(node, "edges", ()) if edge is not None} - seen
        seen |= sources
        pending += sources
    return False


class _RecordingBuilder:
    """Turns the notes of a recorder into a `Recording`. Each method finds one part of it, or raises Irregular."""

    def __init__(
        self, recorder: Recorder, session: Session, arguments: list[Any], words: list[Any], kinds: SortedWords
    ) -> None:
        self.recorder, self.session, self.arguments, self.words, self.kinds = recorder, session, arguments, words, kinds
        self.returned_arguments: list[int] = []
        self.lost: list[Any] = []

    def recording(self, returned: Any) -> Recording:
        recorder, kinds = self.recorder, self.kinds
        grads, types = self._grads()
        comparable, rebuild = self._result(returned, types)
        sources = [self._source(id) for id in kinds.inputs]
        freed = {k for _, k in kinds.input_frees}
        drawn, stepped = self._numbers()
        self._check_leaks(set(types))
        written = [
            (source, count) for id, source in zip(kinds.inputs, sources, strict=True) if (count := self._writes(id))
        ]
        return Recording(
            self.words, kinds, sources, [self.words[p] for p in kinds.numbers], drawn, self._draws(), stepped,
            recorder.optimizers, ModuleStates([*recorder.modules], kinds.inputs), grads, types, written,
            [sources[k] for k in sorted(freed)], rebuild, comparable,
            1 + max((k for _, k in kinds.created_uses + kinds.created_frees), default=-1),
            self.lost,
            self.returned_arguments,
        )  # fmt: skip

    def _grads(self) -> tuple[list[tuple[Any, bool, int | None]], dict[int, TensorType]]:
        grads: list[tuple[Any, bool, int | None]] = []
        types: dict[int, TensorType] = {}
        for tensor, before in self.recorder.grads.items():
            now, result = tensor._grad, None
            if now is not before and any(tensor is x for x in self.arguments):
                raise Irregular("it sets an argument's gradient: compute that by gt.autograd.grad, and return it")
            if now is None and before is not None:
                raise Irregular("it removes gradients")
            if now is not before and now is not None:
                result = now._cell.id - self.recorder.base
                if not 0 <= result < MAX_FRAGMENT_WORDS or now._view is not None:
                    raise Irregular("it sets gradients that it did not compute")
                types[result] = now._type
            grads.append((tensor, before is not None, result))
        return grads, types

    def _source(self, id: int) -> Source:
        for k, argument in enumerate(self.arguments):
            if argument._cell.id == id:
                return "argument", k
        for tensor, before in self.recorder.grads.items():
            if before is not None and before._cell.id == id:
                return "grad", tensor
        cell = self.recorder.cells.get(id)
        if cell is None:
            raise Irregular("a tensor that it uses is freed by the end of the call: make it an argument")
        return "cell", weakref.ref(cell, self.lost.append)

    def _writes(self, id: int) -> int:
        """How often the function wrote an input in place."""
        cell = self.recorder.cells.get(id)
        return 0 if cell is None else cell.version - self.recorder.versions[id]

    def _result(self, returned: Any, types: dict[int, TensorType]) -> tuple[Any, Callable[[Callable[[int], Any]], Any]]:
        """What it returned in comparable form, and how to build the same from other tensors."""
        if isinstance(returned, Tensor):
            return self._tensor_result(returned, types)
        if isinstance(returned, tuple | list):
            items = [self._result(x, types) for x in returned]
            kind = type(returned)
            if kind not in (tuple, list):
                raise Irregular(f"it returns a {kind.__name__}")
            return (kind, [item for item, _ in items]), lambda make: kind([build(make) for _, build in items])
        if isinstance(returned, dict):
            rows = {key: self._result(x, types) for key, x in returned.items()}
            return {key: item for key, (item, _) in rows.items()}, lambda make: {
                key: build(make) for key, (_, build) in rows.items()
            }
        return returned, lambda make: returned

    def _tensor_result(self, returned: Tensor, types: dict[int, TensorType]) -> tuple[Any, Any]:
        if returned._node is not None and not _is_spent(returned._node):
            raise NeedsGradients
        result = returned._cell.id - self.recorder.base
        if 0 <= result < MAX_FRAGMENT_WORDS:
            types[result] = returned._type
            return ("result", result), methodcaller("__call__", result)
        for k, argument in enumerate(self.arguments):
            if argument is returned or argument._cell is returned._cell:
                self.returned_arguments.append(k)
                return ("argument", k), methodcaller("__call__", ~k)
        raise Irregular("it returns a tensor that it did not compute and that is not an argument")

    def _numbers(self) -> tuple[list[int], list[int]]:
        """Which numbers are drawn, and which an optimizer provides."""
        drawn: list[int] = []
        stepped: list[int] = []
        index_at = {position: k for k, position in enumerate(self.kinds.numbers)}
        by_code, i = self.session.signatures.by_code, 0
        while i < len(self.words):
            if self.words[i] < FIRST_CODE:
                i += 1
                continue
            signature = by_code[self.words[i]]
            numbers = [index_at[i + o] for o in range(signature.start, signature.width) if o not in signature.offsets]
            if signature.op.draws:
                drawn += numbers[:2]
            elif signature.op.steps:
                stepped += numbers
            i += signature.width
        if len(drawn) != 2 * len(self.recorder.draws):
            raise Irregular("it draws random numbers that its words do not show")
        if len(stepped) != self.recorder.step_numbers:
            raise Irregular("it steps an optimizer whose numbers its words do not show")
        return drawn, stepped

    def _draws(self) -> list[tuple[Any, int]]:
        draws = self.recorder.draws
        return [(generator, draws.index((generator, key))) for generator, key in draws]

    def _check_leaks(self, expected: set[int]) -> None:
        """Refuse a function whose results live on elsewhere: a replay would not update them there."""
        outbox, base = self.session.outbox, self.recorder.base
        freed_since = {*outbox.freed_between, *outbox.freed_late}
        freed_since |= {-word for word in outbox.words if type(word) is int and word < 0}
        alive = {k for _, k in self.kinds.created_uses} - {k for _, k in self.kinds.created_frees}
        leaked = [k for k in alive - expected if base + k not in freed_since]
        if leaked:
            raise Irregular(f"{len(leaked)} tensor(s) it makes live on without being returned")
