"""Checks gradients against finite differences, for programs that define `Function`s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gt.client.grad.backward import grad
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["gradcheck", "gradgradcheck"]

Function = Callable[..., Any]


def gradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare gradients with finite differences; the inputs should be float64. See `torch.autograd.gradcheck`."""
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    positions = [i for i, x in enumerate(args) if isinstance(x, Tensor) and x._node is not None]
    if not positions:
        raise ValueError("gradcheck expects at least one input tensor to require gradient")
    problem = _difference(func, args, positions, eps, atol, rtol)
    if problem and raise_exception:
        raise GradError(problem)
    return not problem


def gradgradcheck(
    func: Function,
    inputs: Tensor | Sequence[Any],
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Compare second-order gradients with finite differences. See `torch.autograd.gradgradcheck`."""
    args = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = _outputs(func, args)
    if grad_outputs is None:
        cotangents = [y.detach().clone().normal_().requires_grad_() for y in outputs]
    else:
        cotangents = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    count = len(args)

    def gradients(*args_and_cotangents: Any) -> Any:
        args, cotangents = args_and_cotangents[:count], args_and_cotangents[count:]
        tracked = [x for x in args if isinstance(x, Tensor) and x._node is not None]
        grads = grad(_outputs(func, args), tracked, cotangents, create_graph=True, allow_unused=True)
        return tuple(g for g in grads if g is not None)

    tolerances = {"eps": eps, "atol": atol, "rtol": rtol}
    return gradcheck(gradients, (*args, *cotangents), **tolerances, raise_exception=raise_exception)


def _outputs(func: Function, args: Sequence[Any]) -> list[Tensor]:
    """The results that require a gradient."""
    returned = func(*args)
    results = [returned] if isinstance(returned, Tensor) else list(returned)
    return [y for y in results if isinstance(y, Tensor) and y._node is not None]


def _difference(
    func: Function, args: tuple[Any, ...], positions: list[int], eps: float, atol: float, rtol: float
) -> str:
    """The first difference between analytical and numerical gradients, as text; "" if there is none."""
    import numpy as np

    for j in range(len(_outputs(func, args))):
        analytical = _analytical(func, args, positions, j)
        for i, rows in zip(positions, analytical, strict=True):
            numerical = _numerical(func, args, i, j, eps, len(rows))
            if not np.allclose(rows, numerical, rtol=rtol, atol=atol, equal_nan=True):
                return (
                    f"Jacobian mismatch for output {j} with respect to input {i},\n"
                    f"numerical:{numerical}\nanalytical:{rows}"
                )
    return ""


def _analytical(func: Function, args: tuple[Any, ...], positions: list[int], j: int) -> list[np.ndarray[Any, Any]]:
    """The Jacobian of output j for each input, by gradients: (elements of the output, elements of the input)."""
    import numpy as np

    inputs = [args[i] for i in positions]
    y = _outputs(func, args)[j]
    jacobians = [np.zeros((y._type.numel, x._type.numel)) for x in inputs]
    for k in range(y._type.numel):
        one = np.zeros(y._type.numel)
        one[k] = 1
        cotangent = y.new_tensor(one.reshape(y._type.shape))
        grads = grad(y, inputs, cotangent, retain_graph=True, allow_unused=True)
        for rows, g in zip(jacobians, grads, strict=True):
            rows[k] = 0 if g is None else g.detach().numpy().reshape(-1)
    return jacobians


def _numerical(func: Function, args: tuple[Any, ...], i: int, j: int, eps: float, count: int) -> np.ndarray[Any, Any]:
    """The Jacobian of output j, which has ``count`` elements, for input i, by central differences."""
    import numpy as np

    x = args[i].detach().numpy()
    columns = []
    for k in range(x.size):
        ends = []
        for step in (eps, -eps):
            moved = np.array(x)
            moved.reshape(-1)[k] += step
            moved_args = [args[i].new_tensor(moved) if n == i else v for n, v in enumerate(args)]
            moved_args[i].requires_grad_()
            ends.append(_outputs(func, moved_args)[j].detach().numpy().reshape(-1).astype(np.float64))
        columns.append((ends[0] - ends[1]) / (2 * eps))
    return np.stack(columns, 1) if columns else np.zeros((count, 0))
