"""``gt.special``: torch.special's names for the functions that GT has.

Functions that are just an op are here if torch.special has their name, or an alias of it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gt.client.tensor.arguments import operands, require_tensor
from gt.client.tensor.tensor import Tensor
from gt.functions import derive, pointwise
from gt.functions.composite import mvlgamma as multigammaln
from gt.functions.derived import FUNCTIONS, eq, erfc, log1p, xlogy
from gt.functions.pointwise import logit, polygamma, round
from gt.functions.scan import log_softmax, logsumexp, softmax

if TYPE_CHECKING:  # a type checker cannot see what is derived
    from gt.functions.derived import (
        digamma,
        erf,
        erfinv,
        exp2,
        expit,
        expm1,
        gammainc,
        gammaln,
        i0,
        i1,
        psi,
        sinc,
    )

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaln", "i0", "i1", "log1p",
    "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "polygamma", "psi", "round", "sinc", "softmax",
    "xlog1py", "xlogy",
]  # fmt: skip
globals().update(derive.published(FUNCTIONS, "special"))


def entr(input: Tensor) -> Tensor:
    """-x log x of each element x; -inf where x is negative."""
    x = require_tensor("entr", input)
    result: Tensor = pointwise.where(x < 0, -math.inf, -xlogy(x, pointwise.where(x < 0, 1, x)))
    return result


def ndtr(input: Tensor) -> Tensor:
    """The area under the normal distribution to the left of each element."""
    return 0.5 * erfc(require_tensor("ndtr", input) * -(0.5**0.5))


def xlog1py(input: Tensor, other: Tensor) -> Tensor:
    """The first operand times `log1p` of the second; 0 where the first is 0."""
    x, y = operands("xlog1py", input, other)
    logarithm = log1p(y if isinstance(y, Tensor) else x * 0 + y)
    result: Tensor = xlogy(x, 1) + pointwise.where(eq(x, 0), 0, x * logarithm)
    return result
