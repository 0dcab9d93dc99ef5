"""`gt.library`: functions under a name, with gradients of their own."""

from __future__ import annotations

from typing import Any

import pytest

import gt
from tests.support.worlds import session

__all__ = ["session"]


def test_a_custom_op_has_its_own_gradient(session: Any) -> None:
    @gt.library.custom_op("testing_library::cube", mutates_args=())
    def cube(x: gt.Tensor) -> gt.Tensor:
        return x**3

    x = gt.tensor([2.0], requires_grad=True)
    cube(x).backward()
    assert x.grad.tolist() == [12]  # the gradient of what it calls

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: gt.Tensor) -> gt.Tensor:
        return grad * ctx.saved_tensors[0] * 100

    assert gt.library.register_fake("testing_library::cube", gt.empty_like) is gt.empty_like
    assert cube.register_fake(gt.empty_like) is cube.register_kernel("cuda")(gt.empty_like) is gt.empty_like
    gt.library.register_autograd("testing_library::cube", backward, setup_context=keep)
    y = gt.tensor([2.0], requires_grad=True)
    result = gt.ops.testing_library.cube(y)
    result.backward()
    assert (result.tolist(), y.grad.tolist()) == ([8], [200])


def test_mistakes(session: Any) -> None:
    with pytest.raises(gt.ConfigError, match="a name such as 'mylib::scale' is needed"):
        gt.library.custom_op("scale", len)
    with pytest.raises(gt.ConfigError, match=r"gt\.ops\.math is a part of GT"):
        gt.library.custom_op("math::scale", len)
    with pytest.raises(gt.ConfigError, match="'mylib::none' is not a custom op"):
        gt.library.register_autograd("mylib::none", len)
