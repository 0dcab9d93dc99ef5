"""``gt.autograd.function``: the base of user-defined functions, as in torch."""

from gt.client.grad.function import Function, FunctionCtx, once_differentiable

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
