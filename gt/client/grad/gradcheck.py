"""Gradients against differences: for those who write gradients of their own."""

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
    """Compare gradients with numerical ones. See `torch.autograd.gradcheck`."""
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    places = [i for i, x in enumerate(given) if isinstance(x, Tensor) and x._node is not None]
    if not places:
        raise ValueError("gradcheck expects at least one input tensor to require gradient")
    problem = _difference(func, given, places, eps, atol, rtol)
    if problem and raise_exception:
        raise GradError(problem)
    return not problem


def gradgradcheck(func: Function, inputs: Tensor | Sequence[Any], grad_outputs: Any = None, **options: Any) -> bool:
    """The same for the gradients themselves."""
    given = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    outputs = _outputs(func, given)
    if grad_outputs is None:
        cotangents = [y.detach().clone().normal_().requires_grad_() for y in outputs]
    else:
        cotangents = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
    count = len(given)

    def gradients(*args: Any) -> Any:
        inner = [x for x in args[:count] if isinstance(x, Tensor) and x._node is not None]
        made = grad(_outputs(func, args[:count]), inner, args[count:], create_graph=True, allow_unused=True)
        return tuple(g for g in made if g is not None)

    return gradcheck(gradients, (*given, *cotangents), **options)


def _outputs(func: Function, given: Sequence[Any]) -> list[Tensor]:
    made = func(*given)
    made = [made] if isinstance(made, Tensor) else list(made)
    return [y for y in made if isinstance(y, Tensor) and y._node is not None]


def _difference(func: Function, given: tuple[Any, ...], places: list[int], eps: float, atol: float, rtol: float) -> str:
    import numpy as np

    for j in range(len(_outputs(func, given))):
        analytical = _rows(func, given, places, j)
        for i, rows in zip(places, analytical, strict=True):
            numerical = _columns(func, given, i, j, eps, len(rows))
            if not np.allclose(rows, numerical, rtol=rtol, atol=atol, equal_nan=True):
                return (
                    f"Jacobian mismatch for output {j} with respect to input {i},\n"
                    f"numerical:{numerical}\nanalytical:{rows}"
                )
    return ""


def _rows(func: Function, given: tuple[Any, ...], places: list[int], j: int) -> list[np.ndarray[Any, Any]]:
    """The gradients of each element of output j: (its elements, the input's elements)."""
    import numpy as np

    wanted = [given[i] for i in places]
    y = _outputs(func, given)[j]
    made = [np.zeros((y._type.numel, x._type.numel)) for x in wanted]
    for k in range(y._type.numel):
        one = np.zeros(y._type.numel)
        one[k] = 1
        cotangent = y.new_tensor(one.reshape(y._type.shape))
        for rows, g in zip(made, grad(y, wanted, cotangent, retain_graph=True, allow_unused=True), strict=True):
            rows[k] = 0 if g is None else g.detach().numpy().reshape(-1)
    return made


def _columns(func: Function, given: tuple[Any, ...], i: int, j: int, eps: float, count: int) -> np.ndarray[Any, Any]:
    import numpy as np

    x = given[i].detach().numpy()
    columns = []
    for k in range(x.size):
        ends = []
        for step in (eps, -eps):
            moved = np.array(x)
            moved.reshape(-1)[k] += step
            args = [given[i].new_tensor(moved) if n == i else v for n, v in enumerate(given)]
            args[i].requires_grad_()
            ends.append(_outputs(func, args)[j].detach().numpy().reshape(-1).astype(np.float64))
        columns.append((ends[0] - ends[1]) / (2 * eps))
    return np.stack(columns, 1) if columns else np.zeros((count, 0))
