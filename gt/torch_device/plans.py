"""Plans: the words that a kernel emits for arguments of the same types, so that its function need not run again.

A function of GT decides what to emit from the types of its tensors and the values of its other arguments. When it
emitted the same words twice for the same of these, the words become a plan: with the ids of new arguments and results
in their places, it stands for the function. A function that draws random numbers, or reads a value, has no plan.

Plans hold codes, so they are forgotten with the signatures (`gt.client.stream.signatures`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from gt.client.stream import scope, sites
from gt.client.stream.session import Session
from gt.client.tensor import emit
from gt.client.tensor.tensor import Tensor, fresh
from gt.torch_device.backend import Kernel, like_sample, new_tensor, with_strides
from gt.torch_device.handles import TORCH_DTYPES
from gt.types import TensorType
from gt.wire.fragments import NoFragment, SortedWords, sort_words
from gt.wire.interrupts import deferred

Function = Callable[..., Any]
#: (function, arguments) -> what the function returns, for arguments of a kernel
Run = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]

#: At this many plans of a session all are forgotten: numbers that change in each call would fill the memory.
MAX_PLANS = 8192
#: A call that emitted other words this often gets no plan.
MAX_ATTEMPTS = 4
#: Arguments of these types are compared by value. So are floats.
_PLAIN = frozenset((int, bool, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format))


_TorchTensor = torch.Tensor
#: Lists of one of these types are compared as a whole.
_NUMBERS = frozenset((int, bool))


class Form(NamedTuple):
    """What a call emitted, without the ids."""

    #: codes and numbers, in the order they are picked
    constants: tuple[Any, ...]
    #: for each word, its position among the site, the constants, the arguments, the results, and the freed results
    order: tuple[int, ...]
    #: the types of what is created; the positions of those that are freed again
    created: int
    freed: tuple[int, ...]
    #: what the function returned: the position, the type and the strides of a created tensor, or another value
    returned: tuple[tuple[int, TensorType, Any] | Any, ...]
    #: did it return one tensor, and not a tuple?
    is_single: bool
    instructions: int


class KernelPlan:
    """A form that was seen, and, once it was seen twice, how it is emitted."""

    __slots__ = ("attempts", "constants", "created", "form", "freed", "length", "pick", "results", "single")

    def __init__(self) -> None:
        self.attempts = 0
        self.form: Form | None = None
        #: takes the words from [site, constants…, arguments…, results…, freed results…]; None until confirmed
        self.pick: Any = None

    def note(self, form: Form | None) -> None:
        """The call emitted this form once more; None if it has none."""
        self.attempts += 1
        if form is not None and form == self.form:
            self.constants, self.created, self.freed = form.constants, form.created, form.freed
            self.results = tuple([_result(x) for x in form.returned])
            self.single = self.results[0] if form.is_single else None
            #: Words that must fit before the limit: a section of a template may end inside several instructions, and
            #: then the function itself runs. 0 for a single instruction.
            self.length = len(form.order) if form.instructions > 1 or form.freed else 0
            self.pick = itemgetter(*form.order)
        self.form = form

    @deferred
    def emit(self, ids: list[int], session: Session) -> Any:
        """Emit the words for arguments with these ids; what the kernel returns."""
        outbox = session.outbox
        if outbox.freed_late:
            outbox.free()
        first = len(ids)
        for _ in range(self.created):
            ids.append(outbox.next_id())
        if self.freed:
            outbox.extend(self.pick((sites.here(), *self.constants, *ids, *[-ids[first + k] for k in self.freed])))
        else:
            outbox.extend(self.pick((sites.here(), *self.constants, *ids)))
        if self.single is not None:
            k, type_, shape, dtype = self.single
            result = new_tensor(shape, dtype)
            result.untyped_storage()._gt = fresh(ids[first + k], session, type_)  # type: ignore[attr-defined]
            if len(outbox.words) >= outbox.limit:
                outbox.full()
            return result
        outputs = []
        for x in self.results:
            if type(x) is _Result:
                k, type_, shape, dtype = x
                y = new_tensor(shape, dtype)
                y.untyped_storage()._gt = fresh(ids[first + k], session, type_)  # type: ignore[attr-defined]
                outputs.append(y)
            elif type(x) is _StridedResult:
                k, type_, sample, dtype = x
                y = like_sample(sample, dtype)
                handle = fresh(ids[first + k], session, type_)
                handle._strides = sample.stride()
                y.untyped_storage()._gt = handle  # type: ignore[attr-defined]
                outputs.append(y)
            else:
                outputs.append(x)
        if len(outbox.words) >= outbox.limit:
            outbox.full()
        return tuple(outputs)


class _Result(tuple[Any, ...]):
    """(position among the created tensors, type, shape, torch's dtype)"""

    __slots__ = ()


class _StridedResult(tuple[Any, ...]):
    """The same of a tensor that is not contiguous, with a sample of its strides instead of a shape."""

    __slots__ = ()


def _result(x: Any) -> Any:
    if type(x) is not tuple:
        return x
    k, type_, strides = x
    shape, dtype = type_.shape, TORCH_DTYPES[type_.dtype]
    if strides is None:
        return _Result((k, type_, shape, dtype))
    with torch.inference_mode(False):
        return _StridedResult((k, type_, with_strides(new_tensor(shape, dtype), shape, strides), dtype))


def planned(function: Function, run: Run, finish: Callable[[Any], Any]) -> Kernel:
    """The kernel of a function that writes nothing. ``run`` runs the function, ``finish`` wraps what it returns."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        key: list[Any] = [function]
        ids: list[int] = []
        session: Any = None
        try:
            for x in args:
                if isinstance(x, _TorchTensor):  # as in `_describe`, without a call: this is the path of every op
                    try:
                        handle = x.untyped_storage()._gt  # type: ignore[attr-defined]
                    except (AttributeError, NotImplementedError):
                        raise _NoKey from None
                    if handle._view is not None:
                        handle._view.refresh(handle)
                    cell = handle._cell
                    session = session or cell.session
                    if cell.session is not session:
                        raise _NoKey
                    ids.append(cell.id)
                    key.append(handle._type)
                elif type(x) in _PLAIN:
                    key += (type(x), x)
                else:
                    session = _describe(x, key, ids, session)
            if kwargs:
                session = _describe([*kwargs, *kwargs.values()], key, ids, session)
            if session is None or emit.casting is not None or session.outbox.recorder is not None:
                raise _NoKey
        except _NoKey:
            return finish(run(function, args, kwargs))
        if scope.active:
            key.append(scope.signal())
        plan, outbox = session.signatures.plans.get(tuple(key)), session.outbox
        if plan is not None and plan.pick is not None and plan.length + len(outbox.words) < outbox.limit:
            return plan.emit(ids, session)
        return finish(_learn(plan, tuple(key), ids, session, function, run, args, kwargs))

    return kernel


class _NoKey(Exception):
    """The arguments of a call cannot be the key of a plan: one has no value yet, or cannot be compared."""


def _describe(x: Any, key: list[Any], ids: list[int], session: Any) -> Any:
    """Add an argument to the key, and the ids of its tensors; the session."""
    kind = type(x)
    if kind in _PLAIN:
        key += (kind, x)
    elif kind is float:
        key += (kind, x or repr(x))  # 0.0 equals -0.0
    elif (kind is list or kind is tuple) and len(kinds := {*map(type, x)}) == 1 and kinds <= _NUMBERS:
        key += (*kinds, tuple(x))
    elif kind is list or kind is tuple:
        key += (list, len(x))
        for item in x:
            session = _describe(item, key, ids, session)
    elif isinstance(x, torch.Tensor):
        try:
            handle = x.untyped_storage()._gt  # type: ignore[attr-defined]
        except (AttributeError, NotImplementedError):
            raise _NoKey from None
        emit.current(handle)
        session = session or handle._cell.session
        if handle._cell.session is not session:
            raise _NoKey
        ids.append(handle._cell.id)
        key.append(handle._type)
    else:
        raise _NoKey
    return session


def _learn(
    plan: KernelPlan | None, key: tuple[Any, ...], ids: list[int], session: Session, function: Function, run: Run,
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """Run the function, and note what it emitted."""
    if any(type(t) is TensorType and t.dtype.kind == "c" for t in key):
        return run(function, args, kwargs)  # torch may keep a conjugation as a flag, which the key does not show
    if plan is None:
        plans = session.signatures.plans
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plan = plans[key] = KernelPlan()
    outbox = session.outbox
    start, serial = len(outbox.words), outbox.serial
    results = run(function, args, kwargs)
    if plan.attempts < MAX_ATTEMPTS and len(set(ids)) == len(ids):
        words = outbox.words[start:]
        if outbox.serial == serial and words:  # else part of the words is sent already
            plan.note(_form(words, ids, results, session))
    return results


def _form(words: list[Any], ids: list[int], results: Any, session: Session) -> Form | None:
    """The form of a call; None if it has none."""
    by_code = session.signatures.by_code
    base = words[2] if words[0] >= 0 and len(words) > 2 else 0
    try:
        kinds = sort_words(words, by_code, base, fresh=True)
    except (NoFragment, IndexError, TypeError, KeyError):
        return None
    is_single = isinstance(results, Tensor)
    if not is_single and type(results) is not tuple:
        return None
    if is_single and results._strides is not None:
        return None
    returned = tuple([_position(y, base) for y in ((results,) if is_single else results)])
    created = {k for _, k in kinds.created_uses}
    tensors = [x[0] for x in returned if type(x) is tuple]
    kept = {*tensors}
    freed = tuple([k for _, k in kinds.created_frees])
    if created != {*range(len(created))} or kept & {*freed} or kept | {*freed} != created:
        return None
    if len(kept) != len(tensors):  # one tensor is returned twice
        return None
    if kinds.input_frees or not {*kinds.inputs} <= {*ids} or _is_irregular(words, kinds, by_code):
        return None
    codes = kinds.fixed[::2]
    at = {p: 1 + n for n, p in enumerate((*codes, *kinds.numbers))} | dict.fromkeys(kinds.fixed[1::2], 0)
    first = 1 + len(codes) + len(kinds.numbers)
    at |= {p: first + ids.index(kinds.inputs[k]) for p, k in kinds.input_uses}
    at |= {p: first + len(ids) + k for p, k in kinds.created_uses}
    at |= {p: first + len(ids) + len(created) + n for n, (p, _) in enumerate(kinds.created_frees)}
    constants = tuple([words[p] for p in (*codes, *kinds.numbers)])
    order = tuple([at[p] for p in range(len(words))])
    return Form(constants, order, len(created), freed, returned, is_single, len(codes))


def _position(y: Any, base: int) -> Any:
    if isinstance(y, Tensor):
        return (y._cell.id - base, y._type, y._strides)
    return [y] if type(y) is tuple else y  # a tuple stands for a tensor


def _is_irregular(words: list[Any], kinds: SortedWords, by_code: Any) -> bool:
    """Random numbers, bytes and writes into arguments are not repeated by the words alone."""
    written = {p for p, _ in kinds.input_uses} - _operand_positions(words, kinds, by_code)
    if written or any(type(words[p]) is bytes for p in kinds.numbers):
        return True
    return any(by_code[words[p]].op.draws for p in kinds.fixed[::2])


def _operand_positions(words: list[Any], kinds: SortedWords, by_code: Any) -> set[int]:
    return {p + offset for p in kinds.fixed[::2] for offset in by_code[words[p]].offsets}
