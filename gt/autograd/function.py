"""``gt.autograd.function``."""

from gt.client.grad.function import Function, FunctionCtx, once_differentiable

__all__ = ["Function", "FunctionCtx", "once_differentiable"]
