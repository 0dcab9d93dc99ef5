"""The form of a backward pass: what it emitted, without the ids of tensors. `repeated_pass` emits it again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from gt.client.stream.session import Session
from gt.client.tensor.grad_plan import GradPlan, needed_values
from gt.client.tensor.tape import Edge, LeafNode, Node, SavedTensor
from gt.client.tensor.tensor import Tensor
from gt.ops import OPS
from gt.types import NUMBER_OF, TensorType

#: Where the site and the id of the root's gradient are among the values that words are picked from; then the constants.
SITE, ROOT, FIRST_CONSTANT = 0, 1, 2
#: A pass with more instructions than this is not kept.
MAX_INSTRUCTIONS = 1 << 16


#: stands for a tensor that a node has saved
SAVED = object()


class Unused(NamedTuple):
    """Stands for a number that the rules do not use, such as the seed of a dropout: it may be another one each time."""

    type: type


class InstructionForm(NamedTuple):
    """An instruction that a pass emits."""

    #: how many tensors it creates
    created: int
    #: where its words are among the values, and those that free what the rule created for itself
    words: tuple[int, ...]
    freed: tuple[int, ...]


class NodeForm(NamedTuple):
    """A node of a kept pass, without ids; and what the pass emits when it comes to it."""

    #: its op, attributes and types, and which values it has saved
    plan: GradPlan
    #: for each edge the place of its node in the pass, and which of its results; (-1, 0) if no gradient goes there
    edges: tuple[tuple[int, int] | None, ...]
    #: its values: `SAVED`, a number, or `Unused`
    values: tuple[Any, ...]
    #: pairs of saved values that are the same tensor, by their places among the ids
    same: tuple[tuple[int, int], ...]
    instructions: tuple[InstructionForm, ...] = ()
    #: where the words are that free gradients after that
    freed: tuple[int, ...] = ()
    kind: type = Node


class LeafForm(NamedTuple):
    """A leaf of a kept pass."""

    leaf_type: TensorType
    #: which of the created tensors becomes its gradient; -1 if it has one already, to which the pass adds
    result: int
    instructions: tuple[InstructionForm, ...] = ()
    freed: tuple[int, ...] = ()
    kind: type = LeafNode


class PassForm(NamedTuple):
    """A whole pass, without ids."""

    root: tuple[int, TensorType]
    nodes: tuple[NodeForm | LeafForm, ...]
    #: codes and numbers; with the type, because 1 equals True and 1.0, and as text, because 0.0 equals -0.0
    constants: tuple[tuple[type, str, Any], ...]
    #: how many ids of saved values and gradients there are
    ids: int
    #: for each created tensor the places of the nodes between which it exists
    lifetimes: tuple[tuple[int, int], ...]


class NoForm(Exception):
    """What a pass did cannot be repeated by its words alone."""


class _NodeNote(NamedTuple):
    """A node as it was when the pass came to it. No reference to its values: they are freed as always."""

    #: the instructions that were emitted before
    start: int
    number: int
    form: Any
    #: the numbers of the nodes that its edges lead to
    sources: tuple[int, ...]
    #: the ids of what it saved; of a leaf, that of its gradient
    ids: tuple[int, ...]
    leaf: ref[Tensor] | None


class PassRecording:
    """What a pass does, noted while it runs."""

    def __init__(self, session: Session, edge: Edge, g: Tensor) -> None:
        self._session, self._root, self._root_id = session, (edge[1], g._type), g._cell.id
        self._instructions: list[tuple[Any, ...]] = []
        self._notes: list[_NodeNote] = []
        self._reads = session.replies.waits
        self._possible = True

    def run(self, run_pass: Callable[[Any], None]) -> PassForm | None:
        """Run the pass, and return its form; None if it has none."""
        outbox = self._session.outbox
        extend, instructions, thread = outbox.extend, self._instructions, threading.get_ident()

        def note_and_extend(words: Any) -> None:
            if threading.get_ident() == thread and len(instructions) < MAX_INSTRUCTIONS:
                instructions.append(tuple(words))
            extend(words)

        try:
            outbox.extend = note_and_extend
            run_pass(self._note)
        finally:
            outbox.extend = extend
        return self._form()

    def _note(self, node: Any) -> None:
        """The pass has come to this node, and the gradients of its results are complete."""
        if self._possible:
            try:
                self._notes.append(self._described(node))
            except NoForm:
                self._possible = False

    def _described(self, node: Any) -> _NodeNote:
        start = len(self._instructions)
        if node.hooks:
            raise NoForm
        if type(node) is LeafNode:
            tensor = node.tensor()
            if tensor is None or tensor._node is None or (tensor._grad is not None and tensor._grad._view is not None):
                raise NoForm
            grads = () if tensor._grad is None else (tensor._grad._cell.id,)
            return _NodeNote(start, node.number, LeafForm(tensor._type, -1), (), grads, node.tensor)
        if type(node) is not Node or node.signal or node.saved is None or OPS.get(node.op.name) is not node.op:
            raise NoForm
        edges = tuple([None if edge is None else (0, edge[1]) for edge in node.edges])
        sources = tuple([-1 if edge is None else edge[0].number for edge in node.edges])
        plan = node.plan
        used = needed_values(node.op, tuple([edge is not None for edge in node.edges]), len(node.out_types))[1]
        used_places = {place for k, place in enumerate(plan.operands) if k in used}
        values = tuple([_without_id(x, place in used_places) for place, x in enumerate(node.saved)])
        ids = tuple([x.cell.id for x in node.saved if type(x) is SavedTensor])
        form = NodeForm(plan, edges, values, ())
        return _NodeNote(start, node.number, form, sources, ids, None)

    def _form(self) -> PassForm | None:
        read = self._session.replies.waits != self._reads
        if not self._possible or read or len(self._instructions) >= MAX_INSTRUCTIONS:
            return None
        try:
            return _FormMaker(self._session, self._notes, self._instructions, self._root, self._root_id).make()
        except (NoForm, KeyError):
            return None


def _without_id(x: Any, used: bool) -> Any:
    if type(x) is SavedTensor:
        return SAVED
    if type(x) not in NUMBER_OF:
        raise NoForm
    return x if used else Unused(type(x))


class _FormMaker:
    """Puts places among the values in place of ids."""

    def __init__(self, session: Session, notes: list[_NodeNote], instructions: Any, root: Any, root_id: int) -> None:
        self._by_code = session.signatures.by_code
        self._notes, self._instructions, self._root, self._root_id = notes, instructions, root, root_id
        self._ids = sum(len(note.ids) for note in notes)
        #: created id -> its number; for each the places of the nodes that create it and that use it last, and the
        #: number of the last instruction that uses it
        self._created: dict[int, int] = {}
        self._lifetimes: list[list[int]] = []
        self._constants: dict[tuple[type, str, Any], int] = {}

    def make(self) -> PassForm:
        places = {note.number: k for k, note in enumerate(self._notes)}
        ends = [*[note.start for note in self._notes[1:]], len(self._instructions)]
        drafts, first_id = [], 0
        for k, (note, end) in enumerate(zip(self._notes, ends, strict=True)):
            own = {id: ("id", first_id + i) for i, id in reversed(list(enumerate(note.ids)))}
            words = [self._words(i, own, k) for i in range(note.start, end)]
            form = self._leaf(note, k) if note.leaf is not None else self._node(note, places, own, first_id)
            drafts.append((form, note.start, words))
            first_id += len(note.ids)
        return self._placed(drafts)

    def _node(self, note: _NodeNote, places: dict[int, int], own: dict[int, Any], first_id: int) -> NodeForm:
        form: NodeForm = note.form
        edges: list[tuple[int, int] | None] = []
        for edge, source in zip(form.edges, note.sources, strict=True):
            if edge is None:
                edges.append(None)
            else:
                edges.append((places[source], edge[1]) if source in places else (-1, 0))
        same = [(own[id][1], first_id + i) for i, id in enumerate(note.ids) if own[id][1] != first_id + i]
        return form._replace(edges=tuple(edges), same=tuple(same))

    def _leaf(self, note: _NodeNote, place: int) -> LeafForm:
        """The form of a leaf: a created tensor is its gradient now, or the pass has added to the one it had."""
        form: LeafForm = note.form
        tensor = note.leaf() if note.leaf is not None else None
        if tensor is None or tensor._grad is None or tensor._grad._view is not None:
            raise NoForm
        if note.ids:
            if tensor._grad._cell.id != note.ids[0]:
                raise NoForm
            return form
        result = self._created[tensor._grad._cell.id]  # KeyError: it is the root's
        self._lifetimes[result][1] = max(place, self._lifetimes[result][1])
        return form._replace(result=result)

    def _words(self, instruction: int, own: dict[int, Any], place: int) -> tuple[int, list[Any]]:
        """How many tensors an instruction creates, and its words, each as a kind and a number."""
        words = self._instructions[instruction]
        signature = self._by_code[words[0]]
        if len(words) != signature.width or signature.op.draws:
            raise NoForm
        kinds: list[Any] = [self._constant(words[0]), ("site", 0)]
        for offset in range(2, signature.width):
            word = words[offset]
            if offset < signature.start and not signature.into:
                self._created[word] = len(self._lifetimes)
                self._lifetimes.append([place, place, instruction])
            if offset < signature.start or offset in signature.offsets:
                kinds.append(self._tensor(word, own, place, instruction))
            else:
                kinds.append(self._constant(word))
        return 0 if signature.into else signature.start - 2, kinds

    def _tensor(self, id: int, own: dict[int, Any], place: int, instruction: int) -> Any:
        if (number := self._created.get(id)) is not None:
            self._lifetimes[number][1:] = place, instruction
            return "created", number
        if id in own:
            if id == self._root_id:
                raise NoForm
            return own[id]
        if id != self._root_id:
            raise NoForm
        return "root", 0

    def _constant(self, word: Any) -> Any:
        if type(word) not in NUMBER_OF:
            raise NoForm
        key = type(word), repr(word), word
        return "constant", self._constants.setdefault(key, len(self._constants))

    def _placed(self, drafts: list[tuple[Any, int, list[Any]]]) -> PassForm:
        first_id = FIRST_CONSTANT + len(self._constants)
        first_created = first_id + self._ids
        first = {"site": SITE, "root": ROOT, "constant": FIRST_CONSTANT, "id": first_id}
        kept = {form.result for form, *_ in drafts if type(form) is LeafForm}
        #: what a rule creates for itself is freed after its last use, and a gradient after the node
        freed_after: dict[int, list[int]] = {}
        freed_at: dict[int, list[int]] = {}
        for number, (begin, end, last) in enumerate(self._lifetimes):
            if number not in kept:
                free, key = (freed_after, last) if begin == end else (freed_at, end)
                free.setdefault(key, []).append(first_created + 2 * number + 1)
        nodes = []
        for k, (form, start, drafted) in enumerate(drafts):
            instructions = []
            for i, (created, words) in enumerate(drafted):
                places = [first_created + 2 * n if kind == "created" else first[kind] + n for kind, n in words]
                instructions.append(InstructionForm(created, tuple(places), tuple(freed_after.get(start + i, ()))))
            nodes.append(form._replace(instructions=tuple(instructions), freed=tuple(freed_at.get(k, ()))))
        lifetimes = tuple([(begin, end) for begin, end, _ in self._lifetimes])
        return PassForm(self._root, tuple(nodes), tuple(self._constants), self._ids, lifetimes)
