"""Transforms of functions, built on the backward pass.

`vmap` calls the function once for each example and stacks the results: the values are torch's, but nothing is
vectorized. `jacfwd` and `jvp` use backward passes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

from gt.autograd import functional
from gt.client.grad.backward import grad as gradients
from gt.client.grad.grad_mode import enable_grad
from gt.client.grad.leaves import as_leaf
from gt.client.tensor.tape import LeafNode
from gt.client.tensor.tensor import Tensor
from gt.errors import GradError, ShapeError
from gt.functions.creation import zeros_like
from gt.functions.joining import stack

__all__ = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]

Function = Callable[..., Any]

# -- nested containers: tuples, lists and dicts of tensors ---------------------------------


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def _with_leaves(tree: Any, leaves: Iterator[Any]) -> Any:
    """A container like this one, with other leaves."""
    if isinstance(tree, dict):
        return type(tree)((key, _with_leaves(value, leaves)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        values = [_with_leaves(value, leaves) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return next(leaves)


def _mapped(function: Function, tree: Any) -> Any:
    return _with_leaves(tree, iter([function(leaf) for leaf in _leaves(tree)]))


# -- gradients ---------------------------------------------------------------------------


def grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """A function that computes the gradient of ``func`` by some of its arguments. See `torch.func.grad`."""
    both = grad_and_value(func, argnums, has_aux)

    @wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        grads, value = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def grad_and_value(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """A function that computes the gradient of ``func``, and its value. See `torch.func.grad_and_value`."""

    @wraps(func)
    def both(*args: Any, **kwargs: Any) -> Any:
        wanted = args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)
        with enable_grad():
            new = _mapped(_new_input, wanted)
            result = func(*_replaced(args, argnums, new), **kwargs)
            loss, aux = result if has_aux else (result, None)
            if not isinstance(loss, Tensor) or loss.ndim:
                raise GradError("grad: the function must return a tensor without dims")
            grads = _with_leaves(wanted, iter(_grads(loss, _leaves(new))))
        value = _settled(loss, _leaves(new))
        return grads, ((value, _mapped(lambda x: _settled(x, _leaves(new)), aux)) if has_aux else value)

    return both


def _replaced(args: tuple[Any, ...], argnums: int | tuple[int, ...], new: Any) -> list[Any]:
    result = list(args)
    for i, value in [(argnums, new)] if isinstance(argnums, int) else zip(argnums, new, strict=True):
        result[i] = value
    return result


def _new_input(x: Tensor) -> Tensor:
    """The same value, at which gradients of this transform end; those of an outer one go on."""
    return x.view_as(x) if x.requires_grad else as_leaf(x.detach())


def _grads(loss: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    if not loss.requires_grad:
        return [zeros_like(x).detach() for x in inputs]
    outer = _has_other_sources(loss, inputs)
    grads = gradients([loss], inputs, create_graph=outer, retain_graph=True, allow_unused=True)
    return [zeros_like(x).detach() if g is None else g for x, g in zip(inputs, grads, strict=True)]


def _settled(x: Any, inputs: list[Tensor]) -> Any:
    """A result without the history that only this transform needed."""
    if not isinstance(x, Tensor) or not x.requires_grad:
        return x
    return x if _has_other_sources(x, inputs) else x.detach()


def _has_other_sources(y: Tensor, inputs: list[Tensor]) -> bool:
    """Whether y has gradients for anything but new inputs: an outer transform's input, or a captured parameter."""
    own: set[Any] = {x._node for x in inputs}
    seen: set[Any] = set()
    stack_: list[Any] = [y._node]
    while stack_:
        node = stack_.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, LeafNode):
            if node not in own:
                return True
        else:
            stack_.extend(edge[0] for edge in node.edges if edge is not None)
    return False


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The result, and a function that multiplies a vector with the Jacobian. See `torch.func.vjp`."""
    with enable_grad():
        inputs = _mapped(_new_input, primals)
        result = func(*inputs)
    outputs, aux = result if has_aux else (result, None)
    xs = _leaves(inputs)

    def product(*cotangents: Any) -> Any:
        cotangent = cotangents[0] if len(cotangents) == 1 else cotangents
        pairs = [(y, v) for y, v in zip(_leaves(outputs), _leaves(cotangent), strict=True) if y.requires_grad]
        ys, vs = [y for y, _ in pairs], [v for _, v in pairs]
        graph = any(_has_other_sources(y, xs) for y in ys) or any(v.requires_grad for v in vs)
        grads: Sequence[Any] = [None] * len(xs)
        if ys:
            grads = gradients(ys, xs, vs, retain_graph=True, create_graph=graph, allow_unused=True)
        filled = iter([zeros_like(x).detach() if g is None else g for x, g in zip(xs, grads, strict=True)])
        return _with_leaves(primals, filled)

    value = _mapped(lambda y: _settled(y, xs), outputs)
    return (value, product, aux) if has_aux else (value, product)


def jvp(func: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """The result, and the product of the Jacobian with a vector. See `torch.func.jvp`."""
    result, product = functional.jvp(func, tuple(primals), tuple(tangents), create_graph=_records(primals))
    return result, product


def _records(arguments: Any) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in _leaves(arguments))


def jacrev(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """A function that computes the Jacobian of ``func``. See `torch.func.jacrev`."""
    if has_aux:
        raise GradError("jacrev(has_aux=True): not built; return the result alone")

    @wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        wanted = args[argnums] if isinstance(argnums, int) else tuple(args[i] for i in argnums)

        def of_wanted(*new: Any) -> Any:
            values = new[0] if isinstance(argnums, int) else new
            return func(*_replaced(args, argnums, values), **kwargs)

        return functional.jacobian(of_wanted, wanted, create_graph=_records(args))

    return jacobian


jacfwd = jacrev


def hessian(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """A function that computes the second derivatives of ``func``. See `torch.func.hessian`."""
    return jacrev(jacrev(func, argnums), argnums)


# -- examples ----------------------------------------------------------------------------


def vmap(
    func: Function, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Function:
    """A function that applies ``func`` to each example of its arguments, and stacks the results. See `torch.vmap`.

    It calls ``func`` once for each example, one after the other.
    """

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        dims = _dims(in_dims, args)
        leaves = _leaves(args) + _leaves(kwargs)
        dims += [0] * (len(leaves) - len(dims))
        counts = {x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None}
        if len(counts) != 1:
            raise ShapeError(f"vmap: the mapped dims must have one size, not {sorted(counts)}")
        parts = [[x] * max(counts) if d is None else x.unbind(d) for x, d in zip(leaves, dims, strict=True)]
        results = []
        for example in zip(*parts, strict=True):
            values = iter(example)
            results.append(func(*_with_leaves(args, values), **_with_leaves(kwargs, values)))
        columns = zip(*map(_leaves, results), strict=True)
        outs = _dims(out_dims, results[0])
        return _with_leaves(results[0], iter([stack(list(c), d) for c, d in zip(columns, outs, strict=True)]))

    return mapped


def _dims(dims: Any, tree: Any) -> list[Any]:
    """The dim of each leaf: ``dims`` has the form of the container, or of its outer part."""
    if isinstance(tree, dict):
        return [d for key, value in tree.items() for d in _dims(dims[key] if isinstance(dims, dict) else dims, value)]
    if isinstance(tree, tuple | list):
        parts: Sequence[Any] = dims if isinstance(dims, tuple | list) else [dims] * len(tree)
        if len(parts) != len(tree):
            raise ShapeError(f"vmap: {len(parts)} dims for {len(tree)} values")
        return [d for part, value in zip(parts, tree, strict=True) for d in _dims(part, value)]
    return [dims if isinstance(tree, Tensor) else None]
