"""``gt.special``: torch.special's names for what GT has."""

from __future__ import annotations

import math

from gt.client.tensor.arguments import a_tensor, operands
from gt.client.tensor.tensor import Tensor
from gt.functions import composite, pointwise, reduce
from gt.functions.pointwise import digamma, erf, erfc, erfinv, exp2, expm1, log1p, logit, polygamma, round, sinc, xlogy
from gt.functions.reduce import logsumexp

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfinv", "exp2", "expit", "expm1", "gammaln", "log1p", "log_softmax", "logit",
    "logsumexp", "multigammaln", "ndtr", "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy",
]  # fmt: skip

psi, expit, gammaln, multigammaln = digamma, pointwise.sigmoid, pointwise.lgamma, composite.mvlgamma
softmax, log_softmax = reduce.softmax, reduce.log_softmax


def entr(input: Tensor) -> Tensor:
    """-x log x; -inf where x is negative."""
    x = a_tensor("entr", input)
    made: Tensor = pointwise.where(x < 0, -math.inf, -xlogy(x, pointwise.where(x < 0, 1, x)))
    return made


def ndtr(input: Tensor) -> Tensor:
    """The area under the normal distribution to the left."""
    return 0.5 * erfc(a_tensor("ndtr", input) * -(0.5**0.5))


def xlog1py(input: Tensor, other: Tensor) -> Tensor:
    x, y = operands("xlog1py", input, other)
    raised = log1p(y if isinstance(y, Tensor) else x * 0 + y)
    made: Tensor = xlogy(x, 1) + pointwise.where(pointwise.eq(x, 0), 0, x * raised)
    return made
