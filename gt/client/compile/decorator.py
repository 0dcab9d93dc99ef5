"""``@gt.compile``: a function that is run once more without running its Python.

The first calls with arguments of certain shapes run as ever, and are recorded. When two in a row did the same, the
next one sends "run fragment 17 with these inputs" and nothing else. What may change from call to call is looked at
before: the arguments' types, which gradients there are, whether modules train, and the tensors it uses besides. The
numbers an optimizer steps with and the seeds of random numbers are made anew each time.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gt.client.compile import recording
from gt.client.compile.recording import Irregular, Recorder, Recording, finish
from gt.client.signals import config
from gt.client.stream import scope
from gt.client.stream.connect import session as current_session
from gt.client.stream.session import Session
from gt.client.stream.templates import Template
from gt.client.tensor import emit, tape
from gt.client.tensor import random_state as drawing
from gt.client.tensor.emit import current
from gt.client.tensor.tensor import Cell, Tensor, fresh
from gt.say import warn
from gt.wire.fragments import run_words

__all__ = ["compile"]

#: Ways of calling a function that are remembered; and attempts at recording one before it is left alone.
WAYS, ATTEMPTS = 32, 6


class Unseen(Exception):
    """An argument that cannot be compared with what it was."""


#: a session that takes no notice of tensors that are freed: a fragment has freed them
_NOBODY: Any = SimpleNamespace(words=(), append=lambda _: None, fragments=SimpleNamespace(empty=False))


class Way:
    """One way of calling a function: arguments of certain types."""

    def __init__(self) -> None:
        self.last: Recording | None = None
        self.template: Template | None = None
        self.attempts = 0


def compile(function: Callable[..., Any] | None = None) -> Any:
    """See docs/hot_paths.md. Also without parentheses."""
    if function is None:
        return compile
    return functools.wraps(function)(Compiled(function))


class Compiled:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._ways: OrderedDict[Any, Way] = OrderedDict()
        self._session: Session | None = None
        self._told = False
        self._made = 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = current_session()
        if recording.active is not None or not session.fragments.enabled:
            return self._function(*args, **kwargs)
        if session is not self._session:
            self._ways.clear()
            self._session = session
        arguments: list[Tensor] = []
        try:
            key = self._key(args, kwargs, arguments)
        except Unseen as what:
            self._tell(f"an argument is a {what}, in which nobody sees what changed: let it be a tensor, or a tuple")
            return self._function(*args, **kwargs)
        way = self._ways.get(key)
        if way is None:
            way = self._way(key)
        self._ways.move_to_end(key)
        if way.template is not None and way.last is not None:
            if way.last.holds() and way.template.number in session.fragments.told:
                return _replay(session, way.template, way.last, arguments)
            way.last = way.template = None
            way.attempts = min(way.attempts, ATTEMPTS - 2)
        if way.attempts >= ATTEMPTS:
            return self._function(*args, **kwargs)
        return self._record(session, way, arguments, args, kwargs)

    def _way(self, key: Any) -> Way:
        way = self._ways[key] = Way()
        self._made += 1
        if len(self._ways) > WAYS:
            self._ways.popitem(last=False)
        if self._made == 4 * WAYS:
            warn(f"gt.compile: {self._name()} was called in {self._made} ways; numbers that change are best tensors")
        return way

    def _name(self) -> str:
        return getattr(self._function, "__name__", "a function")

    def _key(self, args: Any, kwargs: dict[str, Any], found: list[Tensor]) -> Any:
        """What the recording of a call depends on; the tensors among the arguments are put into ``found``."""
        shown = _shown((args, tuple(sorted(kwargs.items()))), found)
        same = tuple(next(i for i, y in enumerate(found) if y._cell is x._cell) for x in found)
        return shown, same, tape.mode.enabled, _precision(), scope.here.placing, scope.here.pulling, id(config.current)

    # -- recording -------------------------------------------------------------------------

    def _record(self, session: Session, way: Way, arguments: list[Tensor], args: Any, kwargs: Any) -> Any:
        way.attempts += 1
        views = [x._view for x in arguments]
        for x in arguments:
            current(x)
            x._view = None
        versions = {id: cell.version for id, cell in recording.cells_of(session).items()}
        session.cut()
        recorder = recording.active = session.recorder = Recorder(session, session.next_id())
        try:
            returned = _own(self._function(*args, **kwargs), arguments)
            session.flush()
        finally:
            recording.active = session.recorder = None
            session.fragments.begin(session.next_id() + 1)
            written = [x._cell.version != versions.get(x._cell.id) for x in arguments]
            for x, view in zip(arguments, views, strict=True):
                x._view = view
        if any(w and v is not None for w, v in zip(written, views, strict=True)):
            recorder.refuse("it writes into a view it was given")
        self._learn(session, way, recorder, arguments, versions, returned)
        return returned

    def _learn(
        self, session: Session, way: Way, recorder: Recorder, arguments: list[Tensor], versions: Any, returned: Any
    ) -> None:
        before, way.last = way.last, None
        try:
            way.last = finish(recorder, arguments, versions, returned)
            if before is not None and (different := before.agrees(way.last)):
                raise Irregular(different)
            if before is not None:
                live = {*way.last.drawn, *way.last.stepped}
                constant = [k for k in range(len(way.last.numbers)) if k not in live]
                way.template = session.fragments.keep(way.last.words, way.last.found, constant)
        except Irregular as problem:
            if way.attempts >= ATTEMPTS:
                self._tell(str(problem))

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            warn(f"gt.compile: {self._name()} runs as if it were not compiled: {why}")


def _own(returned: Any, arguments: list[Tensor]) -> Any:
    """What is given back are tensors of their own, and no views."""
    if isinstance(returned, Tensor):
        if returned._view is None or any(returned is x for x in arguments):
            return returned
        return returned.clone()
    if type(returned) in (tuple, list):
        return type(returned)(_own(x, arguments) for x in returned)
    if type(returned) is dict:
        return {key: _own(x, arguments) for key, x in returned.items()}
    return returned


def _shown(x: Any, found: list[Tensor]) -> Any:
    """An argument as a part of a key: of a tensor its type, of anything else itself."""
    if isinstance(x, Tensor):
        found.append(x)
        return Tensor, x._type, x._node is not None, isinstance(x._node, tape.Leaf)
    if isinstance(x, tuple | list):
        return type(x), *[_shown(y, found) for y in x]
    if isinstance(x, dict):
        return dict, *[(key, _shown(y, found)) for key, y in x.items()]
    if type(x) is float:
        return float, x.hex()  # 0.0 is -0.0, and NaN is not itself
    try:
        hash(x)
    except TypeError:
        raise Unseen(type(x).__name__) from None
    own = getattr(x, "__dict__", None)
    if not own or isinstance(x, type):
        return type(x), x
    return type(x), x, tuple([(name, value) for name, value in own.items() if type(value) in recording.PLAIN])


def _precision() -> Any:
    if emit.casting is None:
        return None
    from gt.amp import current_dtype

    return current_dtype()


# -- and again -----------------------------------------------------------------------------


def _replay(session: Session, template: Template, last: Recording, arguments: list[Tensor]) -> Any:
    for x in arguments:
        if x._view is not None:
            current(x)
    live: dict[int, Any] = {}
    if last.drawn or last.stepped:
        live = dict(zip(last.stepped, _stepped(last.optimizers), strict=True))
        for k in range(0, len(last.drawn), 2):
            live[last.drawn[k]], live[last.drawn[k + 1]] = drawing.key()
    numbers = [live[k] for k in sorted(live)]
    inputs = last.ids.copy()
    for k, source in last.moving:
        inputs[k] = _cell(source, arguments).id
    freed = [_cell(source, arguments) for source in last.freed]
    for source, bumps in last.written:
        _cell(source, arguments).version += bumps
    for tensor in last.replaced:
        tensor._grad = None  # so that a graph may write the new one where the old one was
    base = session.run(
        lambda first: run_words(template.number, 0, first, 0, inputs, numbers), last.made, template.length
    )
    for cell in freed:
        cell.session = _NOBODY
    made = {k: fresh(base + k, session, t) for k, t in last.types.items()}
    for tensor, _, place in last.grads:
        if place is not None:
            tensor._grad = made[place]
    return last.result(lambda k: made[k] if k >= 0 else arguments[~k])


def _cell(source: tuple[str, Any], arguments: list[Tensor]) -> Cell:
    kind, what = source
    if kind == "cell":
        return what()  # type: ignore[no-any-return]
    return arguments[what]._cell if kind == "argument" else what._grad._cell  # type: ignore[no-any-return]


def _stepped(optimizers: list[Any]) -> list[float]:
    numbers: list[float] = []
    for optimizer in optimizers:
        numbers += optimizer.numbers_of_a_step()
    return numbers
