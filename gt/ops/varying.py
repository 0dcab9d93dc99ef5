"""How an op computes where numbers among its operands are 0-d tensors.

In a CUDA graph, and in compiled code, a Python number is a constant. A number that changes from run to run (a learning
rate, a step, the key of a random draw) must lie in memory that is written before each run. `vary` makes a call of such
an op: which numbers are put there, and what is computed with them. What it makes none of cannot have numbers that
change in a graph, for instance because the shape of its result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

from gt.ops.random import philox
from gt.ops.shape.index import fitting, max_starts, viewed
from gt.ops.signature import Signature
from gt.ops.system.optimizer_steps import _same_strides, alone
from gt.types import BYTES, FLOAT, Scalar, TensorType

Numbers = tuple[Any, ...]
#: (signature, device) -> (*operands) -> the result
Rule = Callable[..., Any]


class Varying(NamedTuple):
    #: (the call's numbers) -> those that are put into memory before a run; raises if they are none an op could take
    derive: Callable[[Numbers], Numbers]
    #: (*operands): tensors, and in the place of the numbers those of `derive` as 0-d tensors of float64 and int64
    run: Callable[..., Any]


def vary(
    signature: Signature, numbers: Numbers, changing: frozenset[int], device: Any, compiled: bool
) -> Varying | None:
    """The call with the ``changing`` ones of its numbers in memory, the others as they are; None if there is none."""
    if compiled and signature.into and signature.op.name in _FORMULAS:
        return _adam(signature, numbers) if _EPS not in changing else None
    where = [i for i, t in enumerate(signature.ins) if isinstance(t, Scalar)]
    rule: Rule | None = _RULES.get(signature.op.name, _meeting if signature.op.common is not None else None)
    if rule is None:
        return None
    if signature.op.name in _RANDOM:
        return Varying(_key, partial(_placed, rule(signature, device), where, numbers, range(len(where))))
    made = rule(signature, device)
    if changing - _able(signature) or (not compiled and _fused_in_double(signature)):
        return None
    derive = partial(_picked, tuple(sorted(changing)))
    if limits := _max_starts(signature):
        derive = partial(_checked_starts, limits, derive)
    return Varying(derive, partial(_placed, made, where, numbers, sorted(changing)))


def always(signature: Signature, compiled: bool) -> frozenset[int]:
    """Which of a call's numbers (the first is 0) are taken to change without waiting to see it."""
    count = sum(isinstance(t, Scalar) for t in signature.ins)
    if signature.op.name in _RANDOM:
        return frozenset(range(count))
    if compiled and signature.into and signature.op.name in _FORMULAS:
        return frozenset(range(count)) - {_EPS}
    return frozenset(_ALWAYS.get(signature.op.name, ()))


def unfit(signature: Signature, on_gpu: bool) -> str:
    """Why a call must not be part of a graph or of compiled code; empty if it may."""
    op = signature.op
    if op.effects or BYTES in signature.ins:
        return f"{op.name} has to do with more than the device's memory"
    if op.name in _DATA or (op.name in _DATA_ON_A_CPU and not on_gpu):
        return f"what {op.name} gives depends on values"
    divides = op.name in _DIVIDING or dict(signature.attrs).get("rounding_mode") is not None
    if divides and not on_gpu and all(t.dtype.kind in "iub" for t in signature.ins):
        return f"{op.name} of integers stops at a zero, and compiled code would not"
    return ""


#: a Python loop, a shape or a wait hangs on values
_DATA = {"nonzero", "masked_select", "masked_put", "masked_scatter_backward", "unique_ranks"}
#: the kernel reads values first, on a CPU only
_DATA_ON_A_CPU = {"svd"}
_DIVIDING = {"floor_divide", "remainder", "fmod"}
_RANDOM = {"rand", "randn", "randint", "dropout"}

#: the learning rate, and what counts
_ALWAYS = {
    "sgd_step": (0,),
    "adam_step": (0, 5),
    "adagrad_step": (0,),
    "rmsprop_step": (0,),
    "lion_step": (0,),
    "amp_unscale": (0,),
}


def _able(signature: Signature) -> frozenset[int]:
    """Which numbers can change at all."""
    count = sum(isinstance(t, Scalar) for t in signature.ins)
    return frozenset(_ABLE.get(signature.op.name, range(count)))


def _fused_in_double(signature: Signature) -> bool:
    """torch's fused kernels take a learning rate that is in memory in single precision only."""
    return signature.op.name in _FORMULAS and signature.ins[0].dtype.name == "float64"


#: others are factors that torch's kernels take as constants
_ABLE = {"adam_step": (0, 5), "adagrad_step": (0, 1), "rmsprop_step": (0, 3, 4), "lion_step": (0, 3)}


def _picked(which: tuple[int, ...], numbers: Numbers) -> Numbers:
    return tuple(numbers[i] for i in which)


def _max_starts(signature: Signature) -> tuple[int, ...]:
    attrs, base = dict(signature.attrs), next(iter(signature.ins), None)
    if not isinstance(base, TensorType) or not attrs.keys() & {"items", "chain"}:
        return ()
    if "items" in attrs:
        return max_starts(base, ((signature.op.name, signature.attrs),))
    return max_starts(TensorType(attrs.get("shape", base.shape), base.dtype), attrs["chain"])


def _checked_starts(limits: tuple[int, ...], pick: Callable[[Numbers], Numbers], numbers: Numbers) -> Numbers:
    """Kernels that read starts from memory do not check them."""
    for start, limit in zip(numbers[len(numbers) - len(limits) :], limits, strict=True):
        if not 0 <= start <= limit:
            raise IndexError(f"a slice starts at {start}; valid starts are 0 to {limit}")
    return pick(numbers)


def _placed(run: Any, where: list[int], numbers: Numbers, changing: Any, *operands: Any) -> Any:
    """Call with the constants where they belong; ``operands`` are the tensors, then the numbers that change."""
    tensors = len(operands) - len(changing)
    given = dict(zip(where, numbers, strict=True))
    given.update(zip((where[i] for i in changing), operands[tensors:], strict=True))
    rest = iter(operands[:tensors])
    count = tensors + len(where)
    return run(*(given[i] if i in given else next(rest) for i in range(count)))


# -- the rules -----------------------------------------------------------------------------


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _written(signature: Signature, run: Any) -> Any:
    """In place: computed, then copied over the first operand."""
    return (lambda x, *rest: x.copy_(run(x, *rest))) if signature.into else run


def _bare(signature: Signature, formula: bool = False) -> Any:
    """The op's own function of torch."""
    import array_api_compat.torch as xp
    import torch

    op, given = signature.op, dict(signature.attrs)
    if op.wants_out:
        given["out"] = signature.outs
    if formula:
        return partial(op.kernel, torch, **given)
    return partial(op.torch, torch, **given) if op.torch is not None else partial(op.kernel, xp, **given)


def _meeting(signature: Signature, device: Any, formula: bool = False) -> Any:
    """All operands in their common dtype, as a Python number would be; half precision is computed in float32."""
    import torch

    op, attrs = signature.op, dict(signature.attrs)
    assert op.common is not None
    common, out = op.common(*signature.ins, **attrs).name, _dtype(signature.outs[0].dtype.name)
    wide = torch.float32 if common in ("float16", "bfloat16") and out.is_floating_point else _dtype(common)
    bare = _bare(signature, formula)

    def run(*operands: Any) -> Any:
        made = bare(*(x.to(wide) if isinstance(x, torch.Tensor) else x for x in operands))
        return made.to(out)

    return _written(signature, run)


def _cast(signature: Signature, device: Any) -> Any:
    """Numbers in the result's dtype, tensors as they are."""
    bare, out = _bare(signature), _dtype(signature.outs[0].dtype.name)
    at = [i for i, t in enumerate(signature.ins) if isinstance(t, Scalar)]

    def run(*operands: Any) -> Any:
        return bare(*(x.to(out) if i in at and hasattr(x, "to") else x for i, x in enumerate(operands)))

    return _written(signature, run)


def _as_is(signature: Signature, device: Any) -> Any:
    """The kernel takes tensors: in the parameters' precision, but not in half."""
    import torch

    op, attrs = signature.op, dict(signature.attrs)
    wide = torch.float64 if signature.ins[0].dtype.name == "float64" else torch.float32
    at = [i for i, t in enumerate(signature.ins) if t is FLOAT or (isinstance(t, Scalar) and not signature.into)]
    bare = partial(op.inplace, torch, **attrs) if signature.into and op.inplace is not None else _bare(signature)

    def run(*operands: Any) -> Any:
        return bare(*(x.to(wide) if i in at and hasattr(x, "to") else x for i, x in enumerate(operands)))

    return run if not signature.into or op.inplace is not None else _written(signature, run)


def _full(signature: Signature, device: Any) -> Any:
    out = signature.outs[0]
    # the value is the last operand; a copy, for what is made is fresh memory
    return lambda *operands: operands[-1].to(_dtype(out.dtype.name)).expand(out.shape).clone()


def _counted(signature: Signature, device: Any) -> Any:
    import torch

    attrs = dict(signature.attrs)
    first, n, out = attrs.get("first", 0), attrs["n"], _dtype(attrs["dtype"])
    kind = torch.float64 if out.is_floating_point else torch.int64

    def run(start: Any, step: Any) -> Any:
        start, step = (x.to(kind) if isinstance(x, torch.Tensor) else x for x in (start, step))
        return (torch.arange(first, first + n, dtype=kind, device=device) * step + start).to(out)

    return run


def _sliced(signature: Signature, device: Any) -> Any:
    items = dict(signature.attrs)["items"]
    return lambda x, *starts: _picked_at(x, starts, items)


def _picked_at(x: Any, starts: Numbers, items: tuple[Any, ...]) -> Any:
    """What lies at a place that changes is picked, not viewed."""
    import torch

    at, dim, sizes = iter(starts), 0, []
    for kind, *rest in items:
        if kind == "n":
            sizes.append(1)
            continue
        (length, step), start = rest or (1, 1), next(at)
        if isinstance(start, torch.Tensor):
            x = torch.index_select(x, dim, torch.arange(0, length * step, step, device=x.device) + start)
        else:
            x = x[(slice(None),) * dim + (slice(start, start + length * step, step),)]
        dim += 1
        sizes += [length] if kind == "s" else []
    return x.reshape(sizes)


def _put(signature: Signature, device: Any) -> Any:
    """Written element by element, where the views of the base's own positions say."""
    chain = dict(signature.attrs)["chain"]

    def run(base: Any, value: Any, *starts: Any) -> Any:
        whole = (
            base if signature.into and base.is_contiguous() else base.clone(memory_format=_dtype("contiguous_format"))
        )
        _write(whole, value, starts, chain)
        return whole if whole is base or not signature.into else base.copy_(whole)

    return run


def _put_back(signature: Signature, device: Any) -> Any:
    chain, shape = (dict(signature.attrs)[k] for k in ("chain", "shape"))
    return lambda g, *starts: _write(g.new_zeros(shape), g, starts, chain)


def _write(whole: Any, value: Any, starts: Numbers, chain: Any) -> Any:
    import torch

    def step(via: Any, x: Any, at: Numbers, attrs: dict[str, Any]) -> Any:
        return _picked_at(x, at, **attrs) if at else (via.torch or via.kernel)(torch, x, **attrs)

    places = viewed(torch.arange(whole.numel(), device=whole.device).view(whole.shape), starts, chain, step)
    if isinstance(value, torch.Tensor):
        value = fitting(value.to(whole.dtype), places.ndim).expand(places.shape).reshape(-1)
    else:
        value = whole.new_full((), value)
    torch.ops.aten.index_put_(whole.view(-1), [places.reshape(-1)], value)
    return whole


def _drawing(signature: Signature, device: Any) -> Any:
    import torch

    given = dict(signature.attrs) | ({"device": device} if signature.op.creates else {})
    assert signature.op.torch is not None
    return partial(signature.op.torch, torch, **given)


def _key(numbers: Numbers) -> Numbers:
    """In 64 bits; of limits, the lower one and how many values there are."""
    seed, stream, *limits = numbers
    taken = (seed, stream, limits[0], philox.span(*limits)) if limits else (seed, stream)
    return tuple((n & philox.MASK) - ((n & philox.MASK) >> 63 << 64) for n in taken)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("where", "masked_fill"), _cast),
    **dict.fromkeys(("full", "full_like"), _full),
    **dict.fromkeys(("addcmul", "addcdiv"), partial(_meeting, formula=True)),
    **dict.fromkeys(_ALWAYS, _as_is),
    **dict.fromkeys(_RANDOM, _drawing),
    "index_put": _as_is,
    "arange": _counted,
    "slice": _sliced,
    "put_view": _put,
    "view_backward": _put_back,
}


# -- Adam, in compiled code: no fused kernel, but a formula that fuses with what is around it -----


_FORMULAS = {"adam_step"}
#: which of its numbers is added, and so has to be a constant: torch adds none to many tensors that is in memory
_EPS = 3


def _adam(signature: Signature, constants: Numbers) -> Varying:
    import torch

    attrs = dict(signature.attrs)
    n, amsgrad, maximize, decoupled = (attrs[k] for k in ("n", "amsgrad", "maximize", "decoupled"))
    wide = torch.float64 if signature.ins[0].dtype.name == "float64" else torch.float32

    def run(*operands: Any) -> Any:
        tensors, numbers = operands[:-7], [x.to(wide) for x in operands[-7:]]
        params, *states, grads = (list(tensors[k * n : k * n + n]) for k in range(4 + amsgrad))
        (grads,) = _same_strides(torch, params, grads)
        grads = list(torch._foreach_neg(grads)) if maximize else grads
        _adam_formula(torch, params, states, grads, [*numbers, constants[_EPS]], decoupled)
        return alone(tensors[: n * (3 + amsgrad)])

    return Varying(_adam_numbers, run)


def _adam_numbers(numbers: Numbers) -> Numbers:
    """What a step needs of them, in double precision, once and not for each element."""
    lr, beta1, beta2, _, decay, step = numbers
    size, root = lr / (1 - beta1**step), sqrt(1 - beta2**step)
    return tuple(map(float, (size, root, 1 - lr * decay, 1 - beta1, beta2, 1 - beta2, decay)))


def _adam_formula(
    torch: Any, params: list[Any], states: list[list[Any]], grads: list[Any], numbers: list[Any], decoupled: bool
) -> None:
    size, root, shrink, fresh, keep2, fresh2, decay, eps = numbers
    means, squares = states[:2]
    if decoupled:
        torch._foreach_mul_(params, shrink)
    else:
        grads = torch._foreach_add(grads, torch._foreach_mul(params, decay))
    torch._foreach_add_(means, torch._foreach_mul(torch._foreach_sub(grads, means), fresh))
    torch._foreach_mul_(squares, keep2)
    torch._foreach_add_(squares, torch._foreach_mul(torch._foreach_mul(grads, grads), fresh2))
    if len(states) > 2:
        torch._foreach_maximum_(states[2], squares)
    roots = torch._foreach_div(torch._foreach_sqrt(states[-1] if len(states) > 2 else squares), root)
    updates = torch._foreach_div(torch._foreach_mul(means, size), torch._foreach_add(roots, eps))
    torch._foreach_sub_(params, updates)
