"""``gt.autograd.functional``: Jacobians, Hessians and their products with vectors, as in torch.

A Jacobian takes one backward pass for each element of the result. Products of a Jacobian with a vector from the right
take two: the product from the left is linear in its vector, and its own gradient by that vector is the product from
the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gt.client.grad.backward import grad as gradients
from gt.client.grad.grad_mode import enable_grad
from gt.client.grad.leaves import as_leaf
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError, ShapeError
from gt.functions.creation import ones_like, zeros_like
from gt.functions.joining import stack
from gt.missing import absent as _absent

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
_absent("autograd.functional")

Function = Callable[..., Any]


def jacobian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The derivatives of each element of the result by each element of the inputs.

    See `torch.autograd.functional.jacobian`. ``vectorize`` and ``strategy`` have no effect.
    """
    with enable_grad():
        xs, outputs = _called(func, inputs, create_graph, strict)
        rows = [tuple(_jacobian(y, xs, create_graph)) for y in _as_tuple(outputs)]
    shaped = [row if isinstance(inputs, tuple | list) else row[0] for row in rows]
    return tuple(shaped) if isinstance(outputs, tuple | list) else shaped[0]


def _jacobian(y: Tensor, xs: Sequence[Tensor], create_graph: bool) -> Iterable[Tensor]:
    """The Jacobian of one result by each input."""
    rows = [_grads([element], xs, None, create_graph) for element in y.reshape(-1)]
    for x, columns in zip(xs, zip(*rows, strict=True) if rows else [()] * len(xs), strict=True):
        shape = (*y.shape, *x.shape)
        yield stack(list(columns)).reshape(shape) if columns else x.new_zeros(shape)


def hessian(
    func: Function,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The second derivatives of a function with one number as its result. See `torch.autograd.functional.hessian`."""

    def gradient(*xs: Tensor) -> Any:
        used = [x if x.requires_grad else as_leaf(x.detach()) for x in xs]
        first = _grads([_number("hessian", func(*used))], used, None, True)
        return tuple(first) if isinstance(inputs, tuple | list) else first[0]

    return jacobian(gradient, inputs, create_graph, strict)


def vjp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The result, and the product of a vector with the Jacobian. See `torch.autograd.functional.vjp`."""
    with enable_grad():
        xs, outputs = _called(func, inputs, create_graph, strict)
        grads = _grads(_as_tuple(outputs), xs, _vectors("vjp", v, outputs), create_graph)
    return _returned(outputs, create_graph), _like(inputs, grads)


def jvp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The result, and the product of the Jacobian with a vector. See `torch.autograd.functional.jvp`."""
    with enable_grad():
        xs, outputs = _called(func, inputs, create_graph, strict)
        ys = _as_tuple(outputs)
        weights = [as_leaf(zeros_like(y)) for y in ys]
        grads = _grads(ys, xs, weights, True)
        products = _grads(grads, weights, _vectors("jvp", v, inputs), create_graph)
    return _returned(outputs, create_graph), _like(outputs, products)


def hvp(func: Function, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> Any:
    """The result, one number, and the product of the Hessian with a vector. See `torch.autograd.functional.hvp`.

    The Hessian is symmetric, so this is the same as `vhp`.
    """
    with enable_grad():
        xs, outputs = _called(func, inputs, create_graph, strict)
        first = _grads([_number("hvp", outputs)], xs, None, True)
        products = _grads(first, xs, _vectors("hvp", v, inputs), create_graph)
    return _returned(outputs, create_graph), _like(inputs, products)


vhp = hvp


# -- arguments and results ---------------------------------------------------------------


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def _like(shape: Any, tensors: Sequence[Tensor]) -> Any:
    """A tuple if the argument or result is one, otherwise the only tensor."""
    return tuple(tensors) if isinstance(shape, tuple | list) else tensors[0]


def _called(func: Function, inputs: Any, create_graph: bool, strict: bool) -> tuple[list[Tensor], Any]:
    """New tensors in place of the inputs, so that gradients end there, and the function's result for them."""
    xs = [x.view_as(x) if create_graph and x.requires_grad else as_leaf(x.detach()) for x in _as_tuple(inputs)]
    outputs = func(*xs)
    if strict and not all(y.requires_grad for y in _as_tuple(outputs)):
        raise GradError("an output of the function does not depend on the inputs, which strict=True does not allow")
    return xs, outputs


def _returned(outputs: Any, create_graph: bool) -> Any:
    return outputs if create_graph else _like(outputs, [y.detach() for y in _as_tuple(outputs)])


def _vectors(name: str, v: Any, beside: Any) -> list[Tensor]:
    """The vectors of a product, each of the shape of the tensor beside it."""
    tensors = _as_tuple(beside)
    if v is None:
        if len(tensors) != 1 or tensors[0].numel() != 1:
            raise GradError(f"{name}: the vector v can only be None if there is one element")
        return [ones_like(tensors[0])]
    vectors = _as_tuple(v)
    if [x.shape for x in vectors] != [x.shape for x in tensors]:
        raise ShapeError(f"{name}: v has the shapes {[*map(_shape, vectors)]}, needed are {[*map(_shape, tensors)]}")
    return list(vectors)


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _number(name: str, y: Any) -> Tensor:
    if not isinstance(y, Tensor) or y.numel() != 1:
        raise GradError(f"{name}: the function must return a tensor with one element")
    return y.reshape(())


def _grads(ys: Sequence[Tensor], xs: Sequence[Tensor], vs: Sequence[Tensor] | None, create_graph: bool) -> list[Tensor]:
    """The gradients by all of ``xs``: zeros where nothing depends on one."""
    pairs = [(y, None if vs is None else vs[i]) for i, y in enumerate(ys) if y.requires_grad]
    if not pairs:
        return [zeros_like(x).detach() for x in xs]
    outputs, vectors = [y for y, _ in pairs], [v for _, v in pairs]
    grads = gradients(outputs, xs, vectors, retain_graph=True, create_graph=create_graph, allow_unused=True)
    return [zeros_like(x).detach() if g is None else g for x, g in zip(xs, grads, strict=True)]
