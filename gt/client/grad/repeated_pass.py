"""Backward passes that repeat: their instructions are emitted again, without running the rules of the ops.

The rules decide what to emit from the ops on the tape, their attributes, types and numbers. So two passes over equal
tapes emit the same instructions, up to the ids of tensors. When two passes did so, the pass is kept. From then on the
tape is compared with the kept one, node by node, and if they are equal the instructions are emitted with the ids of the
new tape. That takes about a quarter of the time.

A kept pass holds codes, so it is forgotten with the signatures (`gt.client.stream.signatures`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from gt.client.grad.pass_form import SAVED, PassForm, PassRecording, Unused
from gt.client.stream import configuration, recorder, scope, sites
from gt.client.stream.outbox import Outbox
from gt.client.stream.session import Session
from gt.client.tensor import emit
from gt.client.tensor.tape import Edge, LeafNode, Node, SavedTensor, mode
from gt.client.tensor.tensor import Tensor, fresh
from gt.wire.interrupts import deferred

#: The key of what is known, by source line, among the plans of a session.
KEY = ("repeated backward passes",)
#: The most places that are remembered; passes that are kept for one; passes that are recorded there in search of them.
MAX_PLACES, MAX_KEPT, MAX_RECORDED = 64, 4, 12
#: After so many passes in a row that equal none of the kept ones, these are forgotten.
MAX_MISSES = 8

#: the rules of ops, unless anomaly detection is on
_backward = Node.backward


class KeptPass:
    """A form that was seen twice, and how it is emitted."""

    def __init__(self, form: PassForm) -> None:
        self._form = form
        self._constants = [value for _, _, value in form.constants]
        self._steps = [_step(node) for node in form.nodes]
        self._expected = [_expected(node) for node in form.nodes]

    def bind(self, edge: Edge, g: Tensor) -> tuple[list[Any], list[int], list[Tensor]] | None:
        """The nodes of a tape that equals the kept one, the ids of what they saved, and the leaves; None otherwise."""
        if (edge[1], g._type) != self._form.root:
            return None
        nodes: list[Any] = [None] * len(self._form.nodes)
        nodes[0], last = edge[0], edge[0].number + 1
        ids: list[int] = []
        leaves: list[Tensor] = []
        for node, (plan, values, same, edges, form) in zip(nodes, self._expected, strict=True):
            # descending numbers: so the pass would take the nodes in this order too
            if node is None or node.number >= last or node.hooks:
                return None
            last = node.number
            if plan is None:
                if type(node) is not LeafNode or not _bind_leaf(node, form, ids, leaves, g._cell.session):
                    return None
                continue
            # equal plans: equal ops, attributes and types, and edges and values in the same places
            if type(node) is not Node or node.plan is not plan or node.signal or node.saved is None:
                return None
            for x, y in zip(node.saved, values, strict=True):
                if y is SAVED:
                    if type(x) is not SavedTensor or x.versioned.version != x.version:
                        return None
                    ids.append(x.cell.id)
                elif not _is_equal_number(x, y):
                    return None
            if same and any(ids[a] != ids[b] for a, b in same):
                return None
            for k, place, index in edges:
                source: Any = node.edges[k]
                before, nodes[place] = nodes[place], source[0]
                if source[1] != index or (before is not None and before is not source[0]):
                    return None
        return None if _depend_on_writes(nodes, leaves) else (nodes, ids, leaves)

    @deferred
    def emit(self, session: Session, root: int, nodes: list[Any], ids: list[int], leaves: list[Tensor]) -> None:
        """Emit the instructions with these ids, and set the gradients of the leaves."""
        outbox = session.outbox
        extend, next_id, freed_late, words = outbox.extend, outbox.next_id, outbox.freed_late, outbox.words
        #: what words are picked from; each created tensor has two values: its id, and the word that frees it
        values = [sites.here(), root, *self._constants, *ids]
        first, done, leaf = len(values), 0, iter(leaves)
        freed: set[int] = set()
        try:
            for node, step in zip(nodes, self._steps, strict=True):
                created, length, pick, only_freed, pick_freed, result, frees, form = step
                tensor = None if result is None else next(leaf)
                is_write = tensor is not None and result < 0
                if freed_late or is_write:
                    outbox.free()
                if is_write:
                    tensor._grad._cell.version += 1  # type: ignore[union-attr]
                if len(words) + length >= outbox.limit:
                    _emit_singly(form, outbox, values, freed)
                elif pick is not None:
                    for _ in range(created):
                        id = next_id()
                        values += (id, -id)
                    extend(pick(values))
                done += 1
                if frees:
                    node.saved = None
                elif tensor is not None and not is_write:
                    tensor._grad = fresh(values[first + 2 * result], session, form.leaf_type)
                if only_freed and words:
                    extend((values[only_freed],))
                elif pick_freed is not None:
                    _free(outbox, pick_freed(values))
        except BaseException:
            for place, (_, end) in zip(range(first, len(values), 2), self._form.lifetimes, strict=False):
                if end >= done and place + 1 not in freed:
                    freed_late.append(values[place])
            raise


def _emit_singly(form: Any, outbox: Outbox, values: list[Any], freed: set[int]) -> None:
    """Emit the instructions of a node one by one: a stretch that repeats may end after each. Adds to ``freed``."""
    for created, words, places in form.instructions:
        for _ in range(created):
            id = outbox.next_id()
            values += (id, -id)
        outbox.extend([values[place] for place in words])
        if len(outbox.words) >= outbox.limit:
            outbox.full()
        _free(outbox, [values[place] for place in places])
        freed.update(places)


def _free(outbox: Outbox, words: Any) -> None:
    """Emit words that free tensors. Between two stretches they belong to neither, as in `Cell.__del__`."""
    if outbox.words or not outbox.templates.empty:
        outbox.extend(words)
    else:
        outbox.freed_between += [-word for word in words]


def _step(form: Any) -> tuple[int, int, Any, int, Any, Any, bool, Any]:
    """How a node is emitted: tensors it creates, its words, how they are picked; the same for words that free gradients
    (the place of the only one, or 0); of a leaf, which tensor becomes its gradient; whether it frees what it has saved;
    and its form."""
    words = [place for _, words, freed in form.instructions for place in (*words, *freed)]
    is_leaf = form.kind is LeafNode
    result, frees = (form.result, False) if is_leaf else (None, form.plan.frees)
    created = sum(created for created, *_ in form.instructions)
    only_freed = form.freed[0] if len(form.freed) == 1 else 0
    return created, len(words), _pick(tuple(words)), only_freed, _pick(form.freed), result, frees, form


def _expected(form: Any) -> tuple[Any, tuple[Any, ...], Any, list[tuple[int, int, int]], Any]:
    """What a node of an equal tape is compared with: the plan (None: it is a leaf), its values, which of them are the
    same tensor, (edge, place of the node it leads to, which of its results); and the form."""
    if form.kind is LeafNode:
        return None, (), (), [], form
    edges = [(k, *edge) for k, edge in enumerate(form.edges) if edge is not None and edge[0] >= 0]
    return form.plan, form.values, form.same, edges, form


def _pick(words: tuple[int, ...]) -> Any:
    if len(words) == 1:
        return lambda values: (values[words[0]],)
    return itemgetter(*words) if words else None


def _bind_leaf(node: LeafNode, form: Any, ids: list[int], leaves: list[Tensor], session: Session) -> bool:
    tensor = node.tensor()
    if tensor is None or tensor._type is not form.leaf_type:
        return False
    current: Any = tensor._node
    if current is None or (current is not node and current.hooks):
        return False  # it needs no gradient now; or it became a leaf again, and its hooks are with the new node
    grad = tensor._grad
    if (grad is None) is not (form.result >= 0):
        return False
    if grad is not None:
        if grad._view is not None or grad._type is not form.leaf_type or grad._cell.session is not session:
            return False
        ids.append(grad._cell.id)
    leaves.append(tensor)
    return True


def _depend_on_writes(nodes: list[Any], leaves: list[Tensor]) -> bool:
    """Does what the pass writes matter to the rest of it: is a tensor two of the leaves, or a gradient a saved value?

    Then the second leaf adds to the gradient of the first, and a rule that needs the saved value raises.
    """
    if len({*map(id, leaves)}) < len(leaves):
        return True
    written = {id(tensor._grad._cell) for tensor in leaves if tensor._grad is not None}
    if not written:
        return False
    saved = [x for node in nodes if type(node) is Node and node.saved for x in node.saved]
    return any(type(x) is SavedTensor and id(x.versioned) in written for x in saved)


def _is_equal_number(x: Any, y: Any) -> bool:
    if type(y) is Unused:
        return type(x) is y.type
    return x is y or (type(x) is type(y) and repr(x) == repr(y))


# -- where a program calls backward ------------------------------------------------------


class Place:
    """What is known of the passes that begin at one line of the program."""

    def __init__(self) -> None:
        #: the number of the last root, and the distances between roots so far: a program that repeats itself has few
        self._root = 0
        self._distances: set[int] = set()
        self._kept: list[KeptPass] = []
        self._forms: list[PassForm] = []
        self._recorded = self._misses = 0

    def repeat(self, session: Session, edge: Edge, g: Tensor) -> bool:
        """Emit the pass, if it equals one that is kept."""
        for kept in self._kept:
            bound = kept.bind(edge, g)
            if bound is not None:
                if kept is not self._kept[0]:
                    self._kept = [kept, *[other for other in self._kept if other is not kept]]
                self._root, self._misses = edge[0].number, 0
                kept.emit(session, g._cell.id, *bound)
                return True
        self._misses += 1
        if self._misses > MAX_MISSES:
            self._kept = []
        return False

    def is_worth_recording(self, root: int) -> bool:
        """Did the program come here from as far away before?"""
        distance, self._root = root - self._root, root
        repeats = distance in self._distances
        if len(self._distances) < MAX_RECORDED:
            self._distances.add(distance)
        return repeats and self._recorded < MAX_RECORDED and len(self._kept) < MAX_KEPT

    def learn(self, form: PassForm | None) -> None:
        self._recorded += 1
        if form is not None and form in self._forms:
            self._kept = [KeptPass(form), *self._kept]
            self._forms = [other for other in self._forms if other != form]
            self._recorded = self._misses = 0
        elif form is not None:
            self._forms = [*self._forms[1 - MAX_KEPT :], form]


#: only one thread records at a time
_recording = threading.Lock()
#: runs the pass; its argument is called with each node
RunPass = Callable[[Any], None]


def run(session: Session, edge: Edge, g: Tensor, run_pass: RunPass) -> None:
    """Run a backward pass from one root, without `retain_graph`, which adds to the gradients of all leaves."""
    outbox = session.outbox
    if (
        scope.active
        or configuration.current.rules
        or emit.casting is not None
        or outbox.recorder is not None
        or recorder.active is not None
        or mode.save is not None
        or not outbox.templates.enabled
        or Node.backward is not _backward
        or type(edge[0]) is not Node
        or g._view is not None
        or g._cell.session is not session
    ):
        run_pass(None)
        return
    places: dict[int, Place] = session.signatures.plans.setdefault(KEY, {})
    if len(places) > MAX_PLACES:
        places.clear()
    place = places.setdefault(sites.here(), Place())
    if place.repeat(session, edge, g):
        return
    if not place.is_worth_recording(edge[0].number) or not _recording.acquire(blocking=False):
        run_pass(None)
        return
    try:
        place.learn(PassRecording(session, edge, g).run(run_pass))
    finally:
        _recording.release()
