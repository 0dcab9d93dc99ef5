"""Products, convolutions, pools, norms, embeddings, dropout and attention, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from gt.client.tensor import random_state
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call, call_into, call_many
from gt.client.tensor.tensor import Tensor
from gt.functions import creation, joining, sort
from gt.functions.matmul import matmul
from gt.ops import OPS, Attrs
from gt.torch_device.gradients import gradients, present, spread, vector
from gt.types import DType, float64

LINEAR, MATMUL, CONVOLUTION = OPS["linear"], OPS["matmul"], OPS["convolution"]
EMBEDDING, EMBEDDING_BACKWARD = OPS["embedding"], OPS["embedding_backward"]
LAYER_NORM, GROUP_NORM, BATCH_NORM = OPS["layer_norm"], OPS["group_norm"], OPS["batch_norm"]
TRACKED, INFERENCE, COPY = OPS["batch_norm_tracked"], OPS["batch_norm_inference"], OPS["copy"]
DROPOUT, DROPOUT_BACKWARD = OPS["dropout"], OPS["dropout_backward"]
ATTENTION, ATTENTION_BACKWARD = OPS["attention"], OPS["attention_backward"]

# -- products ------------------------------------------------------------------------------


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: Any) -> Any:
    operands = (x, weight, vector(weight._type.shape[0], weight))
    return tuple(gradients(LINEAR, mask, [grad], operands))


def _matmul_backward(grad: Tensor, a: Tensor, b: Tensor, mask: Any) -> Any:
    return tuple(gradients(MATMUL, mask, [grad], (a, b)))


# -- convolutions --------------------------------------------------------------------------


def _convolution_attrs(
    weight: Tensor, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Attrs:
    rank = weight._type.ndim - 2
    sizes = {"stride": stride, "padding": padding, "dilation": dilation, "output_padding": output_padding}
    full = {name: tuple(v) * rank if len(v) == 1 else tuple(v) for name, v in sizes.items()}
    names = ("stride", "padding", "dilation")
    attrs = tuple((name, full[name]) for name in names)
    return (*attrs, ("transposed", transposed), ("output_padding", full["output_padding"]), ("groups", groups))


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    return call(CONVOLUTION, (x, weight, *present(bias)), _convolution_attrs(weight, *how))


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *rest: Any) -> Any:
    *how, mask = rest
    attrs = _convolution_attrs(weight, *how)
    return tuple(gradients(CONVOLUTION, mask, [grad], (x, weight, vector(grad._type.shape[1], grad)), attrs))


# -- norms ---------------------------------------------------------------------------------


def _affine(weight: Tensor | None, bias: Tensor | None) -> tuple[tuple[str, bool], ...]:
    return ("weight", weight is not None), ("bias", bias is not None)


def _layer_norm(x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    attrs = (("normalized_shape", tuple(shape)), *_affine(weight, bias), ("eps", eps))
    return call_many(LAYER_NORM, (x, *present(weight, bias)), attrs)


def _layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Any, bias: Any, mask: Any
) -> Any:
    attrs = (("normalized_shape", tuple(shape)), *_affine(weight, bias), ("eps", 0.0))
    return _norm_backward(LAYER_NORM, attrs, grad, x, (mean, rstd), (weight, bias), mask)


def _norm_backward(
    op: Any, attrs: Attrs, grad: Tensor, x: Tensor, statistics: tuple[Any, ...], parameters: tuple[Any, ...], mask: Any
) -> Any:
    there = [True, *(p is not None for p in parameters)]
    needs = [wanted for wanted, exists in zip(mask, there, strict=True) if exists]
    results = (None, *statistics)
    grads = gradients(op, needs, [grad, None, None], (x, *present(*parameters)), attrs, results)
    return spread(grads, there)


def _group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    attrs = (("groups", groups), *_affine(weight, bias), ("eps", eps))
    y, *statistics = call_many(GROUP_NORM, (x, *present(weight, bias)), attrs)
    return (y, *(s.reshape(n, groups) for s in statistics))


def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Any, n: int, c: int, size: int, groups: int, mask: Any
) -> Any:
    attrs = (("groups", groups), *_affine(weight, weight), ("eps", 0.0))
    shape = call_shape(GROUP_NORM, (x,), (("groups", groups), *_affine(None, None), ("eps", 0.0)))
    statistics = (mean.reshape(shape), rstd.reshape(shape))
    return _norm_backward(GROUP_NORM, attrs, grad, x, statistics, (weight, weight), mask)


def call_shape(op: Any, operands: tuple[Tensor, ...], attrs: Attrs) -> tuple[int, ...]:
    """The shape of an op's second result."""
    shape: tuple[int, ...] = op.result_types(tuple(x._type for x in operands), attrs)[1].shape
    return shape


def batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    attrs = (*_affine(weight, bias), ("eps", eps))
    affine = present(weight, bias)
    if not training:
        return call(INFERENCE, (x, mean, var, *affine), attrs), *[nothing(x)] * 2
    if mean is None:
        return call_many(BATCH_NORM, (x, *affine), attrs)
    y, *statistics = call_many(TRACKED, (x, float(momentum), mean, var, *affine), attrs)
    for old, new in zip((mean, var), statistics[2:], strict=True):
        call_into(COPY, old, (new,))
    return y, *statistics[:2]


def nothing(x: Tensor) -> Tensor:
    """A tensor without elements."""
    return creation.zeros(0, dtype=x._type.dtype)


def _batch_norm_functional(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    """`native_batch_norm` in the graphs of `torch.compile`: it returns the new statistics instead of writing them."""
    if not training:
        return *batch_norm(x, weight, bias, mean, var, False, momentum, eps), mean, var
    attrs = (*_affine(weight, bias), ("eps", eps))
    return call_many(TRACKED, (x, float(momentum), mean, var, *present(weight, bias)), attrs)


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_rstd: Any, training: bool,
    eps: float, mask: Any,
) -> Any:  # fmt: skip
    attrs = (*_affine(weight, weight), ("eps", eps))
    if training:
        return _norm_backward(BATCH_NORM, attrs, grad, x, (saved_mean, saved_rstd), (weight, weight), mask)
    there = [True, weight is not None, weight is not None]
    needs = [wanted for wanted, exists in zip(mask, there, strict=True) if exists]
    operands = (x, mean, var, *present(weight, weight))
    dx, _, _, *rest = gradients(INFERENCE, [needs[0], False, False, *needs[1:]], [grad], operands, attrs)
    return spread([dx, *rest], there)


# -- embeddings, dropout, attention --------------------------------------------------------


def _padding(index: int) -> int:
    return max(index, -1)


def _embedding(
    weight: Tensor, index: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    return call(EMBEDDING, (weight, index), (("padding_idx", _padding(padding_idx)), ("by_freq", scale_grad_by_freq)))


def _embedding_backward(grad: Tensor, index: Tensor, rows: int, padding_idx: int, by_freq: bool) -> Tensor:
    attrs = (("rows", rows), ("padding_idx", _padding(padding_idx)), ("by_freq", by_freq))
    return call(EMBEDDING_BACKWARD, (grad, index), attrs)


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, ...]:
    if train is False:
        return x, creation.ones_like(x, dtype="bool")
    return call_many(DROPOUT, (x, *random_state.key()), (("p", float(p)),))


def _dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    p = 1 - 1 / scale if scale else 1.0
    is_exact = not scale or 1 / (1 - p) == scale  # or the op's own factor would be rounded differently
    if not is_exact or grad._type.dtype.kind != "f":
        return grad * mask * scale
    return call(DROPOUT_BACKWARD, (grad, mask), (("p", p),))


def _scale(query: Tensor, scale: float | None) -> float:
    return float(max(query._type.shape[-1], 1) ** -0.5) if scale is None else float(scale)


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    attrs = (("is_causal", is_causal), ("scale", _scale(q, scale)))
    out, lse = call_many(ATTENTION, (q, k, v, *present(bias)), attrs)
    # the other results are for kernels that drop elements, or that take sequences of different lengths
    return out, lse, None, None, q._type.shape[-2], k._type.shape[-2], None, None, None


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Any, mask: Any, out: Tensor, lse: Tensor, *rest: Any,
    scale: float | None = None,
) -> Any:  # fmt: skip
    is_causal = rest[5]
    attrs = (("is_causal", is_causal), ("scale", _scale(q, scale)))
    biases = [] if bias is None or not bias._type.numel else [bias]
    return *call_many(ATTENTION_BACKWARD, (grad, q, k, v, out, lse, *biases), attrs), None


# -- mixtures of experts -------------------------------------------------------------------


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Of integers too, as on a GPU; programs expect that of every device but the CPU."""
    if x._type.dtype.kind not in "iu":
        return sort.histc(x, bins, min, max)
    return cast(sort.histc(cast(x, float64), bins, min, max), x._type.dtype)


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: DType | None = None
) -> Tensor:
    """One product for each group; ``offs`` are the ends of the groups in the dim that has no dim for groups."""
    if offs is None:
        result = matmul(a, b)
    else:
        groups = [slice(*ends) for ends in pairwise([0, *_ends(offs)])]
        result = _products(a, b, groups)
    if bias is not None:
        result = result + bias
    return result if out_dtype is None else cast(result, out_dtype)


def _products(a: Tensor, b: Tensor, groups: list[slice]) -> Tensor:
    if a._type.ndim == b._type.ndim == 2:  # the gradient of the experts' weights: groups of the inner dim
        return joining.stack([matmul(a[:, group], b[group]) for group in groups])
    if a._type.ndim == 2:
        products, dim, size = [matmul(a[group], b[i]) for i, group in enumerate(groups)], 0, a._type.shape[0]
    else:
        products, dim, size = [matmul(a[i], b[:, group]) for i, group in enumerate(groups)], 1, b._type.shape[1]
    if (rest := size - groups[-1].stop) > 0:  # torch leaves what belongs to no group unwritten
        shape = [*products[0]._type.shape]
        shape[dim] = rest
        products.append(creation.zeros(shape, dtype=products[0]._type.dtype))
    return joining.cat(products, dim)


def _ends(offs: Tensor) -> list[int]:
    """The ends of the groups. They are read once: all products of a layer, and their gradients, use the same tensor."""
    known: tuple[int, list[int]] | None = offs.__dict__.get("_ends")
    if known is None or known[0] != offs._cell.version:
        known = offs.__dict__["_ends"] = (offs._cell.version, offs.tolist())
    return known[1]


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    "_grouped_mm": _grouped_mm,
    "histc": _histc,
    "_native_batch_norm_legit_functional": _batch_norm_functional,
    "batch_norm_backward": lambda *arguments: _batch_norm_backward(*arguments[:-1]),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "linear_backward": _linear_backward,
    "matmul_backward": _matmul_backward,
    "native_batch_norm": batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
}
