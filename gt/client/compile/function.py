"""A compiled function: a function whose repeated calls do not run its Python.

The first calls with arguments of certain types run as usual and are recorded. When two in a row did the same, the next
call sends "run fragment 17 with these inputs" and nothing else. Before that, everything that may change from call to
call is checked: the arguments' types, the variables around the function, which tensors have gradients, the state of
the modules it calls, and the other tensors it uses. The numbers of optimizer steps and the keys of random numbers are
new for each call. A call that only creates tensors, such as a forward pass, is sent before the modules are checked, and
runs meanwhile. If they have changed, its results are freed, and the function runs as usual.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from gt.client.compile.module_states import PLAIN
from gt.client.compile.recording import Irregular, NeedsGradients, Recording, Source, finish
from gt.client.compile.surroundings import Surroundings
from gt.client.stream import configuration, recorder, scope
from gt.client.stream.connect import session as current_session
from gt.client.stream.recorder import Recorder
from gt.client.stream.session import Session
from gt.client.stream.templates import Template
from gt.client.tensor import emit, random_state, tape
from gt.client.tensor.emit import current
from gt.client.tensor.tensor import Cell, Tensor, fresh
from gt.say import warn
from gt.wire.fragments import run_words

#: The most variants of a function that are kept, and the most attempts at recording one.
MAX_VARIANTS, MAX_ATTEMPTS = 32, 6


class Incomparable(Exception):
    """An argument that cannot be compared with the one of the last call."""


#: a session in which freeing a tensor has no effect: a fragment has freed it already
_NO_SESSION: Any = SimpleNamespace(outbox=SimpleNamespace(words=(), templates=SimpleNamespace(empty=False)))

#: the rules of ops, unless anomaly detection is on, which reads every gradient
_backward = tape.Node.backward

#: in place of the result of a replay: the recording does not hold
_INVALID: Any = object()


class Variant:
    """A function for arguments of certain types: its last recording, and once two agreed, the template to replay."""

    def __init__(self) -> None:
        self.last: Recording | None = None
        self.template: Template | None = None
        self.attempts = 0


class CompiledFunction:
    """What `compile` returns: records the function, and replays it."""

    def __init__(self, function: Callable[..., Any], fullgraph: bool = False) -> None:
        self._function, self.fullgraph = function, fullgraph
        self._variants: OrderedDict[Any, Variant] = OrderedDict()
        self._session: Session | None = None
        self._warned = False
        self._variant_count = 0
        self._surroundings: Surroundings | None = None
        #: those of a method, for each object
        self._surroundings_of: WeakKeyDictionary[Any, Surroundings] = WeakKeyDictionary()
        #: what `call_tensors` was last called with and replayed: the types of the tensors, the state, the variant
        self._repeated: tuple[list[Any], tuple[Any, ...], Variant] | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)[0]

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Variant | None]:
        """What the function returns, and the variant for these arguments, if they have one."""
        session = current_session()
        templates = session.outbox.templates
        if recorder.active is not None or not templates.enabled or tape.Node.backward is not _backward:
            return self._function(*args, **kwargs), None
        if session is not self._session:
            self._variants.clear()
            self._session = session
        arguments: list[Tensor] = []
        around = self._around(args)
        try:
            key = self._key(args, kwargs, arguments, around)
        except Incomparable as argument_type:
            self._warn_once(
                f"an argument is a {argument_type}, whose changes cannot be seen: pass a tensor, or a tuple"
            )
            return self._function(*args, **kwargs), None
        variant = self._variants.get(key)
        if variant is None:
            variant = self._new_variant(key)
        self._variants.move_to_end(key)
        if variant.template is not None and variant.last is not None:
            if (returned := _replay_if_valid(session, variant, arguments)) is not _INVALID:
                return returned, variant
            variant.last = variant.template = None
            # Its state has changed. Allow at least two attempts: two recordings must agree.
            variant.attempts = min(variant.attempts, MAX_ATTEMPTS - 2)
        if variant.attempts >= MAX_ATTEMPTS:
            return self._function(*args, **kwargs), variant
        returned = self._record(session, variant, arguments, args, kwargs)
        self._compare_variables(key, around)
        return returned, variant

    def call_tensors(self, tensors: list[Any]) -> Any:
        """``self(*tensors)``. Most calls are like the one before, and then only the types are compared: hundreds of
        tensors make a large key."""
        session = self._session
        if self._repeated is not None and session is current_session() and recorder.active is None:
            types, state, variant = self._repeated
            assert session is not None
            templates = session.outbox.templates
            if (
                _plain_types(tensors) == types and self._state(self._around()) == state
                and templates.enabled and tape.Node.backward is _backward
                and (returned := _replay_if_valid(session, variant, tensors)) is not _INVALID
            ):  # fmt: skip
                return returned
        returned, called = self._call((*tensors,), {})
        self._repeated, plain = None, _plain_types(tensors)
        if plain is not None and called is not None and called.template is not None:
            self._repeated = plain, self._state(self._around()), called
        return returned

    def _compare_variables(self, key: Any, around: Surroundings) -> None:
        """After a recording: leave out variables that the function changes, and move its variant to the new key."""
        around.skip_changed(key[-1], around.state())
        new_key = *key[:-1], around.state()
        if new_key != key and key in self._variants:
            self._variants[new_key] = self._variants.pop(key)

    def _new_variant(self, key: Any) -> Variant:
        variant = self._variants[key] = Variant()
        self._variant_count += 1
        if len(self._variants) > MAX_VARIANTS:
            self._variants.popitem(last=False)
        if self._variant_count == 4 * MAX_VARIANTS:
            warn(
                f"gt.compile: {self._name()} was called in {self._variant_count} variants; "
                "pass numbers that change as tensors, and tensors that change as arguments"
            )
        return variant

    def _name(self) -> str:
        return getattr(self._function, "__name__", None) or f"a {type(self._function).__name__}"

    def _key(self, args: Any, kwargs: dict[str, Any], tensors: list[Tensor], around: Surroundings) -> Any:
        """What the recording of a call depends on. The tensors among the arguments are appended to ``tensors``."""
        comparable = _comparable((args, tuple(sorted(kwargs.items()))), tensors, around)
        first: dict[int, int] = {}
        same = tuple([first.setdefault(id(x._cell), k) for k, x in enumerate(tensors)])
        return comparable, same, *self._state(around)

    def _state(self, around: Surroundings) -> tuple[Any, ...]:
        """What a recording depends on besides the arguments. The variables around the function come last."""
        signals = scope.thread.signal, scope.thread.backward, id(configuration.current)
        return tape.mode.enabled, _autocast_dtype(), signals, around.state()

    def _around(self, args: tuple[Any, ...] = ()) -> Surroundings:
        """The variables around the function; of a method, also the attributes of its object. They are found at the
        first call: they may be defined after the function."""
        if args and getattr(type(args[0]), getattr(self._function, "__name__", ""), None) is self:
            owner = args[0]
            equals: Any = type(owner).__eq__
            # the dictionary compares keys: no object that equals another one, or has no weak references
            if equals is object.__eq__ and hasattr(owner, "__weakref__"):
                around: Surroundings | None = self._surroundings_of.get(owner)
                if around is None:
                    around = self._surroundings_of[owner] = Surroundings(owner)
                    around.include([MethodType(self._function, owner)])
                return around
        if self._surroundings is None:
            self._surroundings = Surroundings()
            self._surroundings.include([self._function])
        return self._surroundings

    # -- recording -------------------------------------------------------------------------

    def _record(self, session: Session, variant: Variant, arguments: list[Tensor], args: Any, kwargs: Any) -> Any:
        variant.attempts += 1
        outbox = session.outbox
        views = [x._view for x in arguments]
        for x in arguments:
            current(x)
            x._view = None
        before = [(x._cell, x._cell.version) for x in arguments]
        outbox.cut()
        notes = recorder.active = outbox.recorder = Recorder(outbox.next_id(), self.fullgraph)
        try:
            returned = _without_views(self._function(*args, **kwargs), arguments)
            outbox.flush()
        finally:
            recorder.active = outbox.recorder = None
            outbox.begin_stretch()
            written = [(x._cell, x._cell.version) != was for x, was in zip(arguments, before, strict=True)]
            for x, view in zip(arguments, views, strict=True):
                x._view = view
        if any(w and v is not None for w, v in zip(written, views, strict=True)):
            notes.refuse("it writes into a view that is an argument")
        self._around(args).include_modules(notes.modules)
        self._learn(session, variant, notes, arguments, returned)
        return returned

    def _learn(
        self, session: Session, variant: Variant, notes: Recorder, arguments: list[Tensor], returned: Any
    ) -> None:
        before, variant.last = variant.last, None
        try:
            last = variant.last = finish(notes, session, arguments, returned)
            if before is not None and (difference := before.difference(last)):
                raise Irregular(difference)
            if before is not None:
                live = {*last.drawn, *last.stepped}
                constant = [k for k in range(len(last.numbers)) if k not in live]
                variant.template = session.outbox.templates.add_recorded(last.words, last.kinds, constant)
        except NeedsGradients:
            variant.attempts = MAX_ATTEMPTS  # its Python builds the tape, so it runs as usual from now on
        except Irregular as problem:
            if variant.attempts >= MAX_ATTEMPTS:
                self._warn_once(str(problem))

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            warn(f"gt.compile: {self._name()} runs without being compiled: {reason}")


def _without_views(returned: Any, arguments: list[Tensor]) -> Any:
    """What the function returned, with copies in place of views."""
    if isinstance(returned, Tensor):
        if returned._view is None or any(returned is x for x in arguments):
            return returned
        return returned.clone()
    if type(returned) in (tuple, list):
        return type(returned)(_without_views(x, arguments) for x in returned)
    if type(returned) is dict:
        return {key: _without_views(x, arguments) for key, x in returned.items()}
    return returned


def _comparable(x: Any, tensors: list[Tensor], around: Surroundings) -> Any:
    """An argument as part of a key: the type of a tensor, anything else itself."""
    if isinstance(x, Tensor):
        tensors.append(x)
        return Tensor, x._type, x._node is not None, isinstance(x._node, tape.LeafNode)
    if isinstance(x, tuple | list):
        return type(x), *[_comparable(y, tensors, around) for y in x]
    if isinstance(x, dict):
        return dict, *[(key, _comparable(y, tensors, around)) for key, y in x.items()]
    if type(x) is float:
        return float, x.hex()  # 0.0 equals -0.0, and NaN does not equal itself
    try:
        hash(x)
    except TypeError:
        raise Incomparable(type(x).__name__) from None
    attributes = {} if isinstance(x, type) else getattr(x, "__dict__", {})
    plain = tuple([(name, value) for name, value in attributes.items() if type(value) in PLAIN])
    kind: Any = type(x)
    # an object that says itself which others it equals is compared by that
    return kind, x, plain, around.of_argument(x) if kind.__eq__ is object.__eq__ else None


def _plain_types(xs: list[Any]) -> list[Any] | None:
    """The types of tensors that share no value and have no history; None if that is not what they are."""
    try:
        if len({x._cell.id for x in xs}) == len(xs) and {x._node for x in xs} <= {None}:
            return [x._type for x in xs]
    except AttributeError:  # no tensor
        pass
    return None


def _autocast_dtype() -> Any:
    """The dtype of `gt.autocast`; None outside of it."""
    if emit.casting is None:
        return None
    from gt.amp.autocast_mode import current_dtype

    return current_dtype()


# -- replaying -----------------------------------------------------------------------------


def _replay_if_valid(session: Session, variant: Variant, arguments: list[Tensor]) -> Any:
    """`_replay`, if the recording still holds; else `_INVALID`.

    A replay that only creates tensors is sent before that is known, so the worker computes during the comparison. If
    the recording does not hold, its results are freed and the function runs.
    """
    template, last = variant.template, variant.last
    if template is None or last is None or last.lost or template.number not in session.outbox.templates.announced:
        return _INVALID
    if not last.only_creates:
        return _replay(session, template, last, arguments) if last.holds() else _INVALID
    returned = _replay(session, template, last, arguments)
    if last.holds():
        return returned
    session.outbox.predictions.drop(template)
    return _INVALID


def _replay(session: Session, template: Template, last: Recording, arguments: list[Tensor]) -> Any:
    """Run the recorded fragment with these arguments, and return what the function would return."""
    for x in arguments:
        if x._view is not None:
            current(x)
    session.outbox.before_fragment()
    live: dict[int, Any] = {}
    if last.drawn or last.stepped:
        live = dict(zip(last.stepped, _step_numbers(last.optimizers), strict=True))
        keys: list[tuple[int, int]] = []
        for k, (generator, first) in enumerate(last.draws):
            keys.append(random_state.key(generator) if first == k else keys[first])
            live[last.drawn[2 * k]], live[last.drawn[2 * k + 1]] = keys[-1]
    numbers = [live[k] for k in sorted(live)]
    inputs = last.ids.copy()
    for k, position in last.from_arguments:
        inputs[k] = arguments[position]._cell.id
    for k, tensor in last.from_grads:
        inputs[k] = tensor._grad._cell.id
    freed = [_cell(source, arguments) for source in last.freed]
    for source, count in last.written:
        _cell(source, arguments).version += count
    for tensor in last.replaced:
        tensor._grad = None  # so that a graph may write the new gradient where the old one was
    base = session.outbox.run_fragment(
        template, lambda first: run_words(template.number, 0, first, 0, inputs, numbers), last.results
    )
    for cell in freed:
        cell.session = _NO_SESSION
    results = {k: fresh(base + k, session, t) for k, t in last.types.items()}
    for tensor, _, result in last.grads:
        if result is not None:
            tensor._grad = results[result]
    results |= {~k: arguments[k] for k in last.returned_arguments}
    return last.rebuild(results.__getitem__)


def _cell(source: Source, arguments: list[Tensor]) -> Cell:
    """The cell that an input has in this call."""
    kind, what = source
    if kind == "cell":
        return what()  # type: ignore[no-any-return]
    return arguments[what]._cell if kind == "argument" else what._grad._cell


def _step_numbers(optimizers: list[tuple[Any, list[list[Tensor]]]]) -> list[float]:
    numbers: list[float] = []
    for optimizer, stepped in optimizers:
        numbers += optimizer.numbers_of_step(stepped)
    return numbers
