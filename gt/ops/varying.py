"""Numbers in memory: how an op computes where some of its numbers are 0-d tensors.

In a CUDA graph, and in compiled code, a Python number is a constant. A number that changes from run to run (a learning
rate, a step count, the key of a random draw) must be in memory that is written before each run. `vary` builds a call of
such an op: which numbers are written there, and what is computed with them. For some ops there is no such call, for
instance because the shape of the result depends on a number.

An op's own rule is in its entry (`Op.varying`). This file has the mechanism, and the rules that several ops share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gt.ops.op import NumberRule
from gt.ops.signature import Signature
from gt.types import BYTES, FLOAT, Scalar

Numbers = tuple[Any, ...]


class Varying(NamedTuple):
    #: (the call's numbers) -> those that are written into memory before a run; raises if the op cannot take them
    derive: Callable[[Numbers], Numbers]
    #: (*operands): the tensors, then the numbers of `derive` as 0-d tensors of float64 and int64
    run: Callable[..., Any]


def vary(
    signature: Signature, numbers: Numbers, changing: frozenset[int], device: Any, compiled: bool
) -> Varying | None:
    """The call with its ``changing`` numbers in memory and the others as constants; None if there is no such call."""
    rule = _rule(signature)
    if rule is None:
        return None
    if _uses_formula(rule, signature, compiled):
        assert rule.formula is not None
        assert rule.formula_numbers is not None
        if changing & rule.formula_constants:
            return None
        return Varying(rule.formula_numbers, rule.formula(signature, numbers))
    where = [i for i, t in enumerate(signature.ins) if isinstance(t, Scalar)]
    if rule.derive is not None:
        run = rule.run(signature, device)
        return Varying(rule.derive, partial(_call_with_constants, run, where, numbers, range(len(where))))
    may_change = range(len(where)) if rule.may_change is None else rule.may_change
    if changing - frozenset(may_change) or (not compiled and _fused_in_double(rule, signature)):
        return None
    derive = partial(_pick, tuple(sorted(changing)))
    if rule.check is not None:
        derive = partial(_check_and_pick, rule.check(signature), derive)
    run = rule.run(signature, device)
    return Varying(derive, partial(_call_with_constants, run, where, numbers, sorted(changing)))


def always(signature: Signature, compiled: bool) -> frozenset[int]:
    """Which of a call's numbers (the first is 0) are treated as changing from the first run on."""
    rule = _rule(signature)
    if rule is None:
        return frozenset()
    count = sum(isinstance(t, Scalar) for t in signature.ins)
    if rule.derive is not None:
        return frozenset(range(count))
    if _uses_formula(rule, signature, compiled):
        return frozenset(range(count)) - rule.formula_constants
    return frozenset(rule.always)


def unfit(signature: Signature, on_gpu: bool, compiled: bool = False) -> str:
    """Why a call must not be part of a graph, or of ``compiled`` code; empty if it may be."""
    op = signature.op
    if any(t.dtype.kind == "c" for t in (*signature.ins, *signature.outs)):
        return f"{op.name} computes with complex numbers, for which there is no compiled code"
    if op.effects or BYTES in signature.ins:
        return f"{op.name} uses more than the device's memory"
    reads = op.reads_values if isinstance(op.reads_values, str) else op.reads_values(*signature.ins)
    if reads == "always" or (reads == "cpu" and not on_gpu):
        return f"the result of {op.name} depends on values"
    if compiled and op.opaque:
        return f"{op.name} is a kernel that the compiler cannot look into"
    divides = op.stops_at_zero or dict(signature.attrs).get("rounding_mode") is not None
    if divides and not on_gpu and all(t.dtype.kind in "iub" for t in signature.ins):
        return f"{op.name} of integers stops at a division by zero, and compiled code would not"
    return ""


def _rule(signature: Signature) -> NumberRule | None:
    op = signature.op
    return op.varying or (IN_COMMON_DTYPE if op.common is not None else None)


def _uses_formula(rule: NumberRule, signature: Signature, compiled: bool) -> bool:
    return compiled and signature.into and rule.formula is not None


def _fused_in_double(rule: NumberRule, signature: Signature) -> bool:
    """torch's fused kernels read a learning rate in memory in single precision only."""
    return rule.formula is not None and signature.ins[0].dtype.name == "float64"


def _pick(which: tuple[int, ...], numbers: Numbers) -> Numbers:
    return tuple(numbers[i] for i in which)


def _check_and_pick(check: Callable[[Numbers], None], pick: Callable[[Numbers], Numbers], numbers: Numbers) -> Numbers:
    check(numbers)
    return pick(numbers)


def _call_with_constants(run: Any, where: list[int], numbers: Numbers, changing: Any, *operands: Any) -> Any:
    """Call with the constants in their places; ``operands`` are the tensors, then the numbers that change."""
    tensors = len(operands) - len(changing)
    scalars = dict(zip(where, numbers, strict=True))
    scalars.update(zip((where[i] for i in changing), operands[tensors:], strict=True))
    rest = iter(operands[:tensors])
    count = tensors + len(where)
    return run(*(scalars[i] if i in scalars else next(rest) for i in range(count)))


# -- rules that several ops share ----------------------------------------------------------


def torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _copied_into(signature: Signature, run: Any) -> Any:
    """In place: computed, then copied over the first operand."""
    return (lambda x, *rest: x.copy_(run(x, *rest))) if signature.into else run


def _torch_function(signature: Signature, formula: bool = False) -> Any:
    """The op's own kernel for torch; or, with ``formula``, its common kernel."""
    import array_api_compat.torch as xp
    import torch

    op, attrs = signature.op, dict(signature.attrs)
    if op.wants_out:
        attrs["out"] = signature.outs
    if formula:
        return partial(op.kernel, torch, **attrs)
    return partial(op.torch, torch, **attrs) if op.torch is not None else partial(op.kernel, xp, **attrs)


def _in_common_dtype(signature: Signature, device: Any, formula: bool = False) -> Any:
    """All operands in their common dtype, as a Python number would be; half precision is computed in float32."""
    import torch

    op, attrs = signature.op, dict(signature.attrs)
    assert op.common is not None
    common, out = op.common(*signature.ins, **attrs).name, torch_dtype(signature.outs[0].dtype.name)
    wide = torch.float32 if common in ("float16", "bfloat16") and out.is_floating_point else torch_dtype(common)
    function = _torch_function(signature, formula)

    def run(*operands: Any) -> Any:
        return function(*(x.to(wide) if isinstance(x, torch.Tensor) else x for x in operands)).to(out)

    return _copied_into(signature, run)


def _cast_to_result(signature: Signature, device: Any) -> Any:
    function, out = _torch_function(signature), torch_dtype(signature.outs[0].dtype.name)
    at = [i for i, t in enumerate(signature.ins) if isinstance(t, Scalar)]

    def run(*operands: Any) -> Any:
        return function(*(x.to(out) if i in at and hasattr(x, "to") else x for i, x in enumerate(operands)))

    return _copied_into(signature, run)


def _by_kernel(signature: Signature, device: Any) -> Any:
    import torch

    op, attrs = signature.op, dict(signature.attrs)
    wide = torch.float64 if signature.ins[0].dtype.name == "float64" else torch.float32
    at = [i for i, t in enumerate(signature.ins) if t is FLOAT or (isinstance(t, Scalar) and not signature.into)]
    in_place = op.inplace if signature.into else None
    function = _torch_function(signature) if in_place is None else partial(in_place, torch, **attrs)

    def run(*operands: Any) -> Any:
        return function(*(x.to(wide) if i in at and hasattr(x, "to") else x for i, x in enumerate(operands)))

    return run if in_place is not None else _copied_into(signature, run)


#: All operands are cast to the op's common dtype. This is the rule of ops with a ``common`` dtype and no other rule.
IN_COMMON_DTYPE = NumberRule(run=_in_common_dtype)
#: The same, computed by the op's common kernel, a formula: torch's function takes no number in memory.
FORMULA_IN_COMMON_DTYPE = NumberRule(run=partial(_in_common_dtype, formula=True))
#: Numbers are cast to the result's dtype, tensors stay as they are.
CAST_TO_RESULT = NumberRule(run=_cast_to_result)


def by_kernel(always: tuple[int, ...] = (), may_change: tuple[int, ...] | None = None, **more: Any) -> NumberRule:
    """The kernel takes 0-d tensors, in the precision of the first operand but not in half precision."""
    return NumberRule(run=_by_kernel, always=always, may_change=may_change, **more)
