"""A wrong name in a gradient rule is an error at import that says which op and which rule."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import gt
from gt.ops import OPS
from gt.ops.gradient_rules import chosen, differentiated, many, one
from gt.ops.infer import same
from gt.ops.op import Op
from gt.ops.rule_names import RuleError, check_rules


def entry(vjp: Any) -> dict[str, Op]:
    """The table, with one more op that has this gradient."""
    return {**OPS, "example": Op(name="example", infer=same, kernel=lambda xp, x: x, vjp=vjp)}


def in_ops(function: Any) -> Any:
    """The function, as if it were defined in gt.ops: only rules from there are checked."""
    function.__module__ = "gt.ops.math.example"
    return function


def _helper(g: Any) -> Any:
    return g._op("tanh_backwards", g)


in_ops(_helper)

BAD = {
    "a method that emits": lambda: (in_ops(lambda g, _y, _x: g._op("tanh_backwards", _x)),),
    "a method that emits several": lambda: (in_ops(lambda g, _y, _x: g._ops("tanh_backwards", _x)[0]),),
    "a method that emits in place": lambda: (in_ops(lambda g, _y, _x: g._op_("tanh_backwards", _x)),),
    "one": lambda: (in_ops(lambda g, _y, _x: one("tanh_backwards", g)),),
    "many": lambda: (in_ops(lambda g, _y, _x: many("tanh_backwards", g)),),
    "chosen": lambda: (in_ops(lambda g, _y, _x: chosen("tanh_backwards", (True,), g)),),
    "a function that the rule calls": lambda: (in_ops(lambda g, _y, _x: _helper(g)),),
    "a function inside the rule": lambda: (
        in_ops(lambda g, _y, _x: [(lambda: g._op("tanh_backwards"))() for _ in (1, 2)]),
    ),
    "a formula in a closure": lambda: differentiated(in_ops(lambda g, x: g._op("tanh_backwards", x))),
    "a name in a closure": lambda: (closing_over("tanh_backwards"),),
    "a keyword after attributes": lambda: (in_ops(lambda g, _y, _x, **attrs: g._op("tanh_backwards", **attrs, dim=1)),),
    "a partial": lambda: (in_ops(lambda g, _y, _x: partial(_helper)(g)),),
}


def closing_over(name: str) -> Any:
    return in_ops(lambda g, _y, _x: g._op(name))


@pytest.mark.parametrize("name", BAD)
def test_an_op_that_does_not_exist(name: str) -> None:
    with pytest.raises(RuleError, match=r"the gradient rule for .* of 'example' .* 'tanh_backwards', which does not"):
        check_rules(entry(BAD[name]()), gt.Tensor)


def test_a_method_that_does_not_exist() -> None:
    table = entry((None, in_ops(lambda g, _y, _x, z: g.masked_fil(z == 0, 0))))
    with pytest.raises(RuleError, match=r"for operand 1 of 'example' .*uses 'masked_fil'"):
        check_rules(table, gt.Tensor)


def test_rules_may_use_attributes_and_texts() -> None:
    def rule(g: Any, _y: Any, x: Any, *, dim: int, **attrs: Any) -> Any:
        """This is not the name of an op."""
        if dim > x.ndim:
            raise ValueError("neither is this")
        return g._op("softmax", dim=dim, **attrs, keepdim=True)

    check_rules(entry((in_ops(rule),)), gt.Tensor)


def test_the_table_is_right() -> None:
    check_rules(OPS, gt.Tensor)
