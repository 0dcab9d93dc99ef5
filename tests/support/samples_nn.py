"""Samples of the network ops; the expected results come from torch's functions, or its kernels for gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch

from tests.support.samples import FLOATS, Sample, T, V
from tests.support.samples_recurrent import MODES, recurrent

F = torch.nn.functional
aten = torch.ops.aten
#: dtypes that all engines round alike: on a CPU torch keeps some sums of float16 in float16
ROUNDED = ("float64", "float32", "bfloat16")
REDUCTIONS = ("none", "mean", "sum")


def row(op: str, like: Callable[..., Any], *operands: Any, **attrs: Any) -> Sample:
    return Sample(op, operands, attrs, like)


#: Gradients of these are checked as second gradients of their forward op: alone they receive arbitrary statistics,
#: which are then not a function of the input.
WITH_STATISTICS = (
    "attention_backward",
    "batch_norm_backward",
    "group_norm_backward",
    "layer_norm_backward",
    "nll_loss_backward",
    "rms_norm_backward",
    *(f"{mode}{kind}_backward" for mode in MODES for kind in ("", "_cell")),
)


def nn() -> list[Sample]:
    families = (
        linear,
        embedding,
        dropout,
        gates,
        layers,
        channels,
        attention,
        classes,
        losses,
        convolutions,
        pools,
        sizes,
        grids,
        alignments,
        recurrent,
    )
    return [s for family in families for s in family()]


def linear() -> list[Sample]:
    shapes = [((5, 4), (3, 4)), ((4,), (3, 4)), ((2, 5, 4), (3, 4)), ((0, 4), (3, 4)), ((5, 0), (3, 0)), ((5, 4), (4,))]
    return [
        *(row("linear", F.linear, T(x), T(w)) for x, w in shapes),
        *(row("linear", F.linear, T(x), T(w), T((3,))) for x, w in shapes[:5]),
        *(row("linear", F.linear, T((5, 4), d), T((3, 4), d), T((3,), d)) for d in FLOATS),
        *(
            row("linear_weight", _linear_weight, T((*n, 3), d), T((*n, 4), d))
            for n in ((5,), (2, 5), ())
            for d in FLOATS
        ),
        row("linear_weight", _linear_weight, T((0, 3)), T((0, 4))),
    ]


def _linear_weight(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return g.reshape(-1, g.shape[-1]).T @ x.reshape(-1, x.shape[-1])


def embedding() -> list[Sample]:
    samples = []
    for index in (V([[0, 2], [2, 1]]), V(3), V([], "int64"), V([3, 3, 1], "int32")):
        for pad in (-1, 2):
            samples.append(row("embedding", _looked_up(pad), T((4, 3)), index, padding_idx=pad, by_freq=False))
    for d in FLOATS:
        samples.append(row("embedding", _looked_up(-1), T((4, 3), d), V([0, 3, 3]), padding_idx=-1, by_freq=False))
        for pad, freq in ((-1, False), (3, False), (-1, True)):
            attrs = {"rows": 4, "padding_idx": pad, "by_freq": freq}
            samples.append(row("embedding_backward", _spread(**attrs), T((3, 2), d), V([0, 3, 3]), **attrs))
    return samples


def _looked_up(pad: int) -> Callable[..., Any]:
    return lambda w, i: F.embedding(i, w, padding_idx=pad if pad >= 0 else None)


def _spread(rows: int, padding_idx: int, by_freq: bool) -> Callable[..., Any]:
    return lambda g, i: aten.embedding_dense_backward(g, i, rows, padding_idx, by_freq)


def dropout() -> list[Sample]:
    samples = []
    for p in (0.0, 0.25, 1.0):
        for x in (T((5, 3)), T(()), T((0, 2)), *(T((7,), d) for d in FLOATS)):
            samples.append(row("dropout", _dropped(p), x, 3, -5, p=p))
        for d in FLOATS:
            samples.append(row("dropout_backward", _kept(p), T((7,), d), T((7,), "bool"), p=p))
    return samples


def _dropped(p: float) -> Callable[..., Any]:
    def drop(x: torch.Tensor, seed: int, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        mask = 2**64 - 1
        words = np.random.Philox(key=(seed & mask) | (stream & mask) << 64).random_raw(x.numel() + 1)
        halves = [int(h) for w in words for h in (int(w) & 0xFFFFFFFF, int(w) >> 32)]
        keep = torch.tensor([(halves[i] >> 8) / 2**24 >= p for i in range(x.numel())], dtype=torch.bool)
        return _kept(p)(x, keep.reshape(x.shape)), keep.reshape(x.shape)

    return drop


def _kept(p: float) -> Callable[..., Any]:
    return lambda x, mask: x * mask * (0 if p == 1 else 1 / (1 - p))


# -- normalisation -------------------------------------------------------------------------


def _stats(results: Any) -> Any:
    y, *stats = results
    return (y, *(still(s.float() if s.itemsize < 4 else s, y) for s in stats))


def still(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x, a function of the tensor that y belongs to, but without a gradient through it."""
    return x.detach() + (y.sum() * 0).to(x.dtype)


def _two(tensors: Any, weight: bool, bias: bool) -> tuple[Any, Any]:
    return (tensors[0] if weight else None), (tensors[-1] if bias else None)


AFFINE = ((False, False), (True, True), (True, False))


def gates() -> list[Sample]:
    samples = []
    for x, dim in ((T((4, 6)), 1), (T((2, 4, 3)), 1), (T((0, 4)), 1), *((T((4, 3), d), 0) for d in FLOATS)):
        half = tuple(n // 2 if d == dim else n for d, n in enumerate(x.shape))
        samples.append(row("glu", lambda x, dim=dim: F.glu(x, dim), x, dim=dim))
        back = lambda g, x, dim=dim: aten.glu_backward(g, x, dim)
        samples.append(row("glu_backward", back, T(half, x.dtype), x, dim=dim))
    return samples


def layers() -> list[Sample]:
    samples = []
    for weight, bias in AFFINE:
        for x, shape in ((T((5, 4)), (4,)), (T((2, 5, 4)), (5, 4)), (T((4,)), (4,)), (T((0, 4)), (4,))):
            params = [T(shape)] * (weight + bias)
            attrs = {"normalized_shape": shape, "weight": weight, "bias": bias, "eps": 1e-5}
            samples.append(row("layer_norm", _layer(**attrs), x, *params, **attrs))
    for d in ROUNDED:
        attrs = {"normalized_shape": (4,), "weight": True, "bias": True, "eps": 1e-5}
        samples.append(row("layer_norm", _layer(**attrs), T((5, 4), d), T((4,), d), T((4,), d), **attrs))
        for weight in (True, False):
            how = {"normalized_shape": (4,), "eps": 1e-5, "weight": weight}
            for mask in (
                ((True, True, True), (True, False, False), (False, True, True)) if weight else ((True, False, False),)
            ):
                w = [T((4,), d)] * weight
                wide = "float64" if d == "float64" else "float32"
                stats = T((5, 1), wide), T((5, 1), wide, "positive")
                samples.append(
                    row(
                        "layer_norm_backward",
                        _layer_back(weight, mask),
                        T((5, 4), d),
                        T((5, 4), d),
                        *stats,
                        *w,
                        **how,
                        mask=mask,
                    )
                )
    for x, shape in (
        (T((5, 4)), (4,)),
        (T((2, 5, 4)), (5, 4)),
        (T((4,)), (4,)),
        *((T((5, 4), d), (4,)) for d in ROUNDED),
    ):
        for weight in (True, False):
            how = {"normalized_shape": shape, "eps": 1e-3}
            samples.append(row("rms_norm", _root(**how), x, *[T(shape, x.dtype)] * weight, **how))
            wide = "float64" if x.dtype == "float64" else "float32"
            stats = T((*x.shape[: len(x.shape) - len(shape)], *(1,) * len(shape)), wide, "positive")
            for mask in ((True, True), (False, True)) if weight else ((True, False),):
                samples.append(
                    row(
                        "rms_norm_backward",
                        _root_back(shape, mask),
                        x,
                        x,
                        stats,
                        *[T(shape, x.dtype)] * weight,
                        **how,
                        mask=mask,
                    )
                )
    return samples


def _layer(normalized_shape: Any, weight: bool, bias: bool, eps: float) -> Callable[..., Any]:
    def layer(x: torch.Tensor, *affine: torch.Tensor) -> Any:
        w, b = _two(affine, weight, bias)
        return _stats(torch.native_layer_norm(x, normalized_shape, w, b, eps))

    return layer


def _chosen(results: Any, mask: Any) -> Any:
    return tuple(m for m, wanted in zip(results, mask, strict=True) if wanted)


def _layer_back(weight: bool, mask: Any) -> Callable[..., Any]:
    """By hand: here the statistics are arbitrary numbers."""

    def back(g: Any, x: Any, mean: Any, rstd: Any, *w: Any) -> Any:
        wide = torch.promote_types(g.dtype, torch.float32)
        dtype = g.dtype
        g, x, *w = (t.to(wide) for t in (g, x, *w))
        if dtype.itemsize < 4:
            mean, rstd = mean.to(dtype).to(wide), rstd.to(dtype).to(wide)
        normal = (x - mean) * rstd
        s = g * w[0] if weight else g
        dx = (s - s.mean(-1, keepdim=True) - normal * (s * normal).mean(-1, keepdim=True)) * rstd
        return _chosen([m.to(dtype) for m in (dx, (g * normal).sum(0), g.sum(0))], mask)

    return back


def _root(normalized_shape: Any, eps: float) -> Callable[..., Any]:
    def root(x: torch.Tensor, *w: torch.Tensor) -> Any:
        wide = x.float() if x.itemsize < 4 else x
        dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
        rstd = (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
        y = F.rms_norm(x, normalized_shape, *w, eps=eps)
        return y, still(rstd, y)

    return root


def _root_back(shape: Any, mask: Any) -> Callable[..., Any]:
    def back(g: Any, x: Any, rstd: Any, *w: Any) -> Any:
        dims, rows = tuple(range(x.ndim - len(shape), x.ndim)), tuple(range(x.ndim - len(shape)))
        dtype, wide = g.dtype, rstd.dtype
        g, x, *w = (t.to(wide) for t in (g, x, *w))
        normal, s = x * rstd, g * w[0] if w else g
        dx = (s - normal * (s * normal).mean(dims, keepdim=True)) * rstd
        return _chosen([m.to(dtype) for m in (dx, (g * normal).sum(rows) if rows else g * normal)], mask)

    return back


def channels() -> list[Sample]:
    samples = []
    for weight, bias in AFFINE:
        for x, groups in (
            (T((2, 6, 3)), 2),
            (T((2, 6)), 3),
            (T((2, 6, 3, 2)), 1),
            (T((2, 6, 3)), 6),
            (T((0, 4, 3)), 2),
        ):
            attrs = {"groups": groups, "weight": weight, "bias": bias, "eps": 1e-5}
            samples.append(row("group_norm", _group(**attrs), x, *[T((x.shape[1],))] * (weight + bias), **attrs))
        for x in (T((4, 3)), T((4, 3, 2)), T((2, 3, 2, 2))):
            params = [T((3,))] * (weight + bias)
            attrs = {"weight": weight, "bias": bias, "eps": 1e-5}
            running = T((3,)), T((3,), of="positive")
            samples.append(row("batch_norm", _batch(**attrs), x, *params, **attrs))
            samples.append(row("batch_norm_tracked", _tracked(**attrs), x, 0.3, *running, *params, **attrs))
            samples.append(row("batch_norm_inference", _settled(**attrs), x, *running, *params, **attrs))
    for d in ROUNDED:
        wide = "float64" if d == "float64" else "float32"
        affine = {"weight": True, "bias": True, "eps": 1e-5}
        params = [T((4,), d)] * 2
        samples.append(row("group_norm", _group(2, **affine), T((2, 4, 3), d), *params, groups=2, **affine))
        running = [T((4,), d), T((4,), d, "positive")]
        samples.append(row("batch_norm", _batch(**affine), T((5, 4, 3), d), *params, **affine))
        wanted = _tracked(**affine)
        samples.append(row("batch_norm_tracked", wanted, T((5, 4, 3), d), 0.25, *running, *params, **affine))
        samples.append(row("batch_norm_inference", _settled(**affine), T((5, 4, 3), d), *running, *params, **affine))
        for weight in (True, False):
            masks = (
                ((True, True, True), (True, False, False), (False, True, True)) if weight else ((True, False, False),)
            )
            for mask in masks:
                x, w = T((2, 4, 3), d), [T((4,), d)] * weight
                how = {"eps": 1e-5, "weight": weight, "mask": mask}
                stats = T((2, 2), wide), T((2, 2), wide, "positive")
                operands = (x, x, *stats, *w)
                like, fit = _group_back(mask), _fit(lambda x: x.reshape(2, 2, 6), -1)
                samples.append(Sample("group_norm_backward", operands, {"groups": 2, **how}, like, fit=fit))
                stats = T((4,), wide), T((4,), wide, "positive")
                like, fit = _batch_back(mask), _fit(lambda x: x, (0, 2))
                samples.append(Sample("batch_norm_backward", (x, x, *stats, *w), how, like, fit=fit))
    return samples


def _fit(seen: Callable[[Any], Any], over: Any) -> Callable[[list[Any]], list[Any]]:
    """The statistics are those of x: with others the sums cancel, and in bfloat16 nothing remains."""

    def fit(operands: list[Any]) -> list[Any]:
        g, x, mean, _, *w = operands
        wide = seen(x.to(mean.dtype))
        return [g, x, wide.mean(over), (wide.var(over, correction=0) + 1e-5).rsqrt(), *w]

    return fit


def _group(groups: int, weight: bool, bias: bool, eps: float) -> Callable[..., Any]:
    def group(x: torch.Tensor, *affine: torch.Tensor) -> Any:
        w, b = _two(affine, weight, bias)
        n, c, rest = x.shape[0], x.shape[1], int(np.prod(x.shape[2:]))
        return _stats(torch.native_group_norm(x.contiguous(), w, b, n, c, rest, groups, eps))

    return group


def _batch(weight: bool, bias: bool, eps: float) -> Callable[..., Any]:
    def batch(x: torch.Tensor, *affine: torch.Tensor) -> Any:
        return _stats(torch.native_batch_norm(x, *_two(affine, weight, bias), None, None, True, 0.0, eps))

    return batch


def _tracked(weight: bool, bias: bool, eps: float) -> Callable[..., Any]:
    def track(x: torch.Tensor, momentum: float, mean: Any, var: Any, *affine: torch.Tensor) -> Any:
        running = [r.detach().clone() for r in (mean, var)]
        results = torch.native_batch_norm(x, *_two(affine, weight, bias), *running, True, momentum, eps)
        return *_stats(results), *(still(r, results[0]) for r in running)

    return track


def _settled(weight: bool, bias: bool, eps: float) -> Callable[..., Any]:
    def settle(x: torch.Tensor, mean: Any, var: Any, *affine: torch.Tensor) -> Any:
        w, b = _two(affine, weight, bias)
        return F.batch_norm(x, mean.detach(), var.detach(), w, b, False, 0.0, eps)

    return settle


def _by_hand(g: Any, x: Any, mean: Any, rstd: Any, w: Any, over: Any, mask: Any) -> Any:
    dtype, wide = g.dtype, torch.promote_types(g.dtype, torch.float32)
    if dtype.itemsize < 4:
        mean, rstd = mean.to(dtype).to(wide), rstd.to(dtype).to(wide)
    g, x = g.to(wide), x.to(wide)
    normal = (x - mean) * rstd
    s = g * w[0].to(wide).reshape(1, *(g.shape[1:-1] if len(over) == 2 and over[0] else (-1,)), 1) if w else g
    dx = (s - s.mean(over, keepdim=True) - normal * (s * normal).mean(over, keepdim=True)) * rstd
    return dx.to(dtype), (g * normal), g


def _group_back(mask: Any) -> Callable[..., Any]:
    def back(g: Any, x: Any, mean: Any, rstd: Any, *w: Any) -> Any:
        shape, dtype = (x.shape[0], 2, x.shape[1] // 2, x.shape[2]), g.dtype
        view = [t.reshape(shape) for t in (g, x)]
        dx, dw, db = _by_hand(*view, mean[..., None, None], rstd[..., None, None], w, (2, 3), mask)
        sums = [m.reshape(x.shape).sum((0, 2)).to(dtype) for m in (dw, db)]
        return _chosen((dx.reshape(x.shape), *sums), mask)

    return back


def _batch_back(mask: Any) -> Callable[..., Any]:
    def back(g: Any, x: Any, mean: Any, rstd: Any, *w: Any) -> Any:
        dx, dw, db = _by_hand(g, x, mean[:, None], rstd[:, None], w, (0, 2), mask)
        return _chosen((dx, dw.sum((0, 2)).to(g.dtype), db.sum((0, 2)).to(g.dtype)), mask)

    return back


# -- attention -----------------------------------------------------------------------------


VISIBLE = [[(i * j + j) % 3 != 1 for j in range(6)] for i in range(5)]


def attention() -> list[Sample]:
    samples = []
    shapes = [
        *[((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 8)), ((2, 5, 4), (2, 6, 4), (2, 6, 4)), ((5, 4), (6, 4), (6, 3))],
        *[((1, 2, 1, 5, 4), (1, 2, 1, 6, 4), (1, 2, 1, 6, 4)), ((0, 2, 5, 4), (0, 2, 6, 4), (0, 2, 6, 4))],
    ]
    for q, k, v in shapes:
        for causal in (False, True):
            samples += _attended([T(q), T(k), T(v)], (), is_causal=causal, scale=0.5)
        for mask in (T((5, 6)), V(VISIBLE, "bool"), T((*q[:-2], 1, 6))):
            samples += _attended([T(q), T(k), T(v)], (mask,), is_causal=False, scale=0.3)
    for d in ("float64", "float32"):
        samples += _attended([T((2, 3, n, 8), d) for n in (5, 6, 6)], (), is_causal=True, scale=0.25)
        samples += _attended([T((2, 3, n, 8), d) for n in (5, 6, 6)], (T((5, 6), d),), is_causal=False, scale=0.25)
    return samples


def _attended(qkv: list[T], mask: tuple[T, ...], is_causal: bool, scale: float) -> list[Sample]:
    attrs = {"is_causal": is_causal, "scale": scale}
    return [row("attention", _attend(**attrs), *qkv, *mask, **attrs), *_attend_back(qkv, mask, attrs)]


def _weights(q: Any, k: Any, mask: Any, is_causal: bool, scale: float) -> torch.Tensor:
    scores = (q @ k.mT) * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    for m in mask:
        scores = scores.masked_fill(~m, -torch.inf) if m.dtype is torch.bool else scores + m.to(scores.dtype)
    return scores


def _attend(is_causal: bool, scale: float) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        wide = torch.promote_types(q.dtype, torch.float32)
        lse = _weights(q.to(wide), k.to(wide), mask, is_causal, scale).logsumexp(-1).detach()
        masks = (m.detach() for m in mask)
        out = F.scaled_dot_product_attention(q, k, v, *masks, is_causal=is_causal, scale=scale)
        return out, still(lse, out)

    return attend


@torch.no_grad()
def _attend_back(qkv: list[T], mask: tuple[T, ...], attrs: dict[str, Any]) -> list[Sample]:
    q, _, v = qkv
    wide = "float64" if q.dtype == "float64" else "float32"
    out, lse = T((*q.shape[:-1], v.shape[-1]), q.dtype), T(q.shape[:-1], wide, "positive")

    def back(g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *mask: Any) -> Any:
        dtype = q.dtype
        g, q, k, v, out = (t.to(lse.dtype) for t in (g, q, k, v, out))
        scores = _weights(q, k, mask, **attrs)
        p = (scores - lse[..., None]).exp()
        ds = p * (g @ v.mT - (g * out).sum(-1, keepdim=True)) * attrs["scale"]
        return tuple(m.to(dtype) for m in (ds @ k, ds.mT @ q, p.mT @ g))

    def fit(operands: list[Any]) -> list[Any]:
        g, q, k, v, _, _, *masks = operands
        if not q.numel():  # torch divides by the number of heads, which may be 0
            return operands
        return [g, q, k, v, *_attend(**attrs)(q, k, v, *masks), *masks]

    return [Sample("attention_backward", (out, *qkv, out, lse, *mask), attrs, back, fit=fit)]


# -- losses --------------------------------------------------------------------------------


def classes() -> list[Sample]:
    samples = []
    cases = [
        *[(T((4, 3)), V([0, 2, 1, 1])), (T((3,)), V(2)), (T((2, 3, 2)), V([[0, 1], [2, 2]]))],
        *[(T((1, 3, 2, 2)), V([[[0, 1], [2, 0]]])), *((T((4, 3), d), V([0, 2, 1, 1])) for d in FLOATS)],
    ]
    for x, target in cases:
        for reduction in ("none", "sum"):
            for weight in ([], [T((3,), x.dtype, "positive")]):
                attrs = {"reduction": reduction, "ignore_index": 1}
                samples.append(row("nll_loss", _nll(**attrs), x, target, *weight, **attrs))
                wide = "float64" if x.dtype == "float64" else "float32"
                g = T((), wide) if reduction == "sum" else T(tuple(np.shape(target.values)), x.dtype)
                samples.append(row("nll_loss_backward", _nll_back(**attrs), g, x, target, *weight, **attrs))
    return samples + entropies()


def entropies() -> list[Sample]:
    samples = []
    target = V([0, 2, 1, 0])
    cases: list[tuple[str, str | None]] = [*((d, None) for d in FLOATS), ("bfloat16", "float32")]
    for (dtype, wide), reduction in product(cases, ("none", "sum")):
        attrs = {"reduction": reduction, "ignore_index": 1, "dtype": wide}
        x, summed = T((4, 3), dtype), "float64" if dtype == "float64" else "float32"
        samples.append(row("cross_entropy", _entropy(**attrs), x, target, **attrs))
        g = T((), summed) if reduction == "sum" else T((4,), wide or dtype)
        samples.append(row("cross_entropy_backward", _entropy_back(**attrs), g, x, target, **attrs))
    return samples


def _entropy(reduction: str, ignore_index: int, dtype: str | None) -> Callable[..., Any]:
    def entropy(x: torch.Tensor, target: torch.Tensor) -> Any:
        logs = x.log_softmax(1)
        return _nll(reduction, ignore_index)(logs.to(getattr(torch, dtype)) if dtype else logs, target)

    return entropy


def _entropy_back(reduction: str, ignore_index: int, dtype: str | None) -> Callable[..., Any]:
    def back(g: Any, x: Any, target: Any) -> Any:
        logs = x.log_softmax(1)
        wide = logs.to(getattr(torch, dtype)) if dtype else logs
        slopes = _nll_back(reduction, ignore_index)(g, wide, target).to(x.dtype)
        return slopes - logs.exp() * slopes.sum(1, keepdim=True)

    return back


def _nll(reduction: str, ignore_index: int) -> Callable[..., Any]:
    def nll(x: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> Any:
        w = weight[0].detach() if weight else None
        wide = x.to(torch.promote_types(x.dtype, torch.float32)) if reduction == "sum" else x
        y = F.nll_loss(
            wide, target, None if w is None else w.to(wide.dtype), ignore_index=ignore_index, reduction=reduction
        )
        if reduction == "none":
            return y
        counts = torch.ones(x.shape[min(x.ndim - 1, 1)], dtype=x.dtype) if w is None else w
        return y, still((counts[target] * (target != ignore_index)).sum().to(y.dtype), y)

    return nll


def _nll_back(reduction: str, ignore_index: int) -> Callable[..., Any]:
    def back(g: Any, x: Any, target: Any, *weight: Any) -> Any:
        axis = min(x.ndim - 1, 1)
        counts = (weight[0].detach() if weight else torch.ones(x.shape[axis], dtype=x.dtype))[target]
        each = -(counts * (target != ignore_index)) * g.to(x.dtype)
        at = target.unsqueeze(axis)
        return torch.zeros_like(x.detach()).scatter(axis, at, each.to(x.dtype).unsqueeze(axis))

    return back


LOSSES: dict[str, list[dict[str, Any]]] = {
    "mse_loss": [{}],
    "smooth_l1_loss": [{"beta": 1.0}, {"beta": 0.25}],
    "huber_loss": [{"delta": 1.0}, {"delta": 0.3}],
    "soft_margin_loss": [{}],
}


def losses() -> list[Sample]:
    samples = []
    for reduction in REDUCTIONS:
        xs = [T((5, 3)), T(()), *(T((5, 3), d) for d in FLOATS)]
        for name, options in LOSSES.items():
            for option in options:
                attrs = {"reduction": reduction, **option}
                if "mean" not in reduction:
                    samples.append(row(name, _loss(name, **attrs), T((0, 3)), T((0, 3), of="positive"), **attrs))
                for x in xs if name != "soft_margin_loss" else xs[:-1]:  # torch overflows in float16
                    t = T(x.shape, x.dtype, "positive")
                    samples.append(row(name, _loss(name, **attrs), x, t, **attrs))
                    g = T(x.shape if reduction == "none" else (), x.dtype)
                    samples.append(row(f"{name}_backward", _loss_back(name, **attrs), g, x, t, **attrs))
        probabilities = {d: V([0.2, 0.5, 0.9, 0.75], d) for d in FLOATS}
        for d, p in probabilities.items():
            for weight in ([], [T((4,), d, "positive")]):
                attrs = {"reduction": reduction}
                t = V([0.0, 1.0, 0.5, 0.25], d)
                samples.append(
                    row("binary_cross_entropy", _loss("binary_cross_entropy", **attrs), p, t, *weight, **attrs)
                )
                g = T((4,) if reduction == "none" else (), d)
                back = _loss_back("binary_cross_entropy", **attrs)
                samples.append(row("binary_cross_entropy_backward", back, g, p, t, *weight, **attrs))
                for pos in ([], [T((4,), d, "positive")]):
                    how = {"weight": bool(weight), "pos_weight": bool(pos), **attrs}
                    like = _with_logits(**how)
                    samples.append(row("binary_cross_entropy_with_logits", like, T((4,), d), t, *weight, *pos, **how))
    return samples


def _loss(name: str, **attrs: Any) -> Callable[..., Any]:
    fixed = name == "soft_margin_loss"
    return lambda x, t, *w: getattr(F, name)(x, t.detach() if fixed else t, *(v.detach() for v in w), **attrs)


def _loss_back(name: str, **attrs: Any) -> Callable[..., Any]:
    """The gradient of the loss times g, as a function of g and of the operands."""

    def back(g: Any, x: Any, t: Any, *w: Any) -> Any:
        with torch.enable_grad():
            leaf = x if x.requires_grad else x.detach().requires_grad_()
            t = t.detach() if name == "soft_margin_loss" else t
            y = getattr(F, name)(leaf, t, *(v.detach() for v in w), **attrs)
            return torch.autograd.grad(y, leaf, g, create_graph=torch.is_grad_enabled() and _wanted(g, x, t))[0]

    return back


def _wanted(*xs: Any) -> bool:
    return any(x.requires_grad for x in xs)


def _with_logits(weight: bool, pos_weight: bool, reduction: str) -> Callable[..., Any]:
    def loss(x: Any, t: Any, *weights: Any) -> Any:
        w, pos = _two([v.detach() for v in weights], weight, pos_weight)
        return F.binary_cross_entropy_with_logits(x, t, w, pos_weight=pos, reduction=reduction)

    return loss


# -- convolutions --------------------------------------------------------------------------


def _how(rank: int, **options: Any) -> dict[str, Any]:
    plain = {"stride": 1, "padding": 0, "dilation": 1, "transposed": False, "output_padding": 0, "groups": 1}
    merged = plain | options
    each = ("stride", "padding", "dilation", "output_padding")
    return {k: (v,) * rank if k in each and isinstance(v, int) else v for k, v in merged.items()}


def convolutions() -> list[Sample]:
    samples = []
    cases = [
        *[((2, 4, 7), (6, 4, 3), _how(1)), ((2, 4, 7), (6, 2, 3), _how(1, stride=2, padding=1, groups=2))],
        *[
            ((2, 4, 6, 7), (6, 4, 3, 2), _how(2, stride=(2, 1), padding=(1, 0))),
            ((1, 2, 6, 7), (4, 1, 2, 3), _how(2, groups=2)),
        ],
        *[((2, 3, 7, 7), (2, 3, 3, 3), _how(2, dilation=2, padding=2)), ((0, 3, 5, 5), (2, 3, 3, 3), _how(2))],
        *[((1, 2, 4, 5, 4), (3, 2, 2, 2, 2), _how(3, stride=2, padding=1)), ((2, 4, 3), (3, 4, 1), _how(1))],
        *[((2, 4, 5), (4, 3, 3), _how(1, transposed=True, stride=2, output_padding=1))],
        *[((2, 4, 5, 4), (4, 3, 3, 2), _how(2, transposed=True, stride=2, padding=1, groups=2))],
        *[((2, 2, 3, 3), (2, 3, 3, 3), _how(2, transposed=True, dilation=2, output_padding=1, stride=2))],
    ]
    typed = [(x, w, how, d) for x, w, how in cases for d in (ROUNDED if x == (2, 4, 6, 7) else ("float32",))]
    for x, w, how, d in typed:
        out = w[1] * how["groups"] if how["transposed"] else w[0]
        samples.append(row("convolution", _convolve(how), T(x, d), T(w, d), **how))
        samples.append(row("convolution", _convolve(how), T(x, d), T(w, d), T((out,), d), **how))
        y = _convolve(how)(torch.zeros(x), torch.zeros(w)).shape
        for mask in ((True, True), (True, False), (False, True)):
            back = _convolve_back(how, mask)
            samples.append(row("convolution_backward", back, T(tuple(y), d), T(x, d), T(w, d), **how, mask=mask))
    for x, how in (
        (T((2, 3, 5, 6)), {"kernel": (2, 3), "dilation": (1, 1), "padding": (0, 0), "stride": (1, 1)}),
        (T((1, 2, 6, 6), "float64"), {"kernel": (2, 2), "dilation": (2, 1), "padding": (1, 1), "stride": (2, 1)}),
    ):
        size = x.shape[2:]
        columns = F.unfold(torch.zeros(x.shape), *how.values()).shape
        samples.append(row("im2col", lambda x, how=how: F.unfold(x, *how.values()), x, size=size, **how))
        fold = lambda x, size=size, how=how: F.fold(x, size, *how.values())
        samples.append(row("col2im", fold, T(tuple(columns), x.dtype), size=size, **how))
    return samples


def _convolve(how: dict[str, Any]) -> Callable[..., Any]:
    return lambda x, w, *b: aten.convolution(x, w, b[0] if b else None, *how.values())


def _convolve_back(how: dict[str, Any], mask: Any) -> Callable[..., Any]:
    return lambda g, x, w: _chosen(aten.convolution_backward(g, x, w, None, *how.values(), [*mask, False])[:2], mask)


# -- images at other positions -------------------------------------------------------------


def grids() -> list[Sample]:
    samples = []
    for mode, padding, corners in product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (True, False)
    ):
        how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        sample = lambda x, grid, how=how: F.grid_sample(x, grid, **how)
        for x, grid in (((2, 3, 4, 5), (2, 3, 2, 2)), ((1, 2, 3, 4, 2), (1, 2, 1, 3, 3))):
            if mode == "bicubic" and len(x) == 5:
                continue
            operands = T(x, "float64"), T(grid, "float64", "near")
            samples.append(row("grid_sample", sample, *operands, **how))
            g = T((*x[:2], *grid[1:-1]), "float64")
            for mask in ((True, True), (True, False), (False, True)):
                back = _unsample(how, mask)
                samples.append(row("grid_sample_backward", back, g, *operands, **how, mask=mask))
    how = {"mode": "bilinear", "padding_mode": "zeros", "align_corners": False}
    sample = lambda x, grid: F.grid_sample(x.double(), grid.double(), **how).to(x.dtype)
    samples += [row("grid_sample", sample, T((2, 1, 1, 3), d), T((2, 2, 2, 2), d, "near"), **how) for d in FLOATS]
    return [*samples, row("grid_sample", sample, T((0, 1, 1, 3)), T((0, 2, 2, 2)), **how)]


def _unsample(how: dict[str, Any], mask: Any) -> Callable[..., Any]:
    def back(g: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> Any:
        kernel = aten.grid_sampler_2d_backward if x.ndim == 4 else aten.grid_sampler_3d_backward
        modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
        numbers = modes.index(how["mode"]), paddings.index(how["padding_mode"]), how["align_corners"]
        return _chosen(kernel(g, x, grid, *numbers, list(mask)), mask)

    return back


# -- sequences without an alignment --------------------------------------------------------


def alignments() -> list[Sample]:
    samples = []
    rows, flat = V([[1, 2, 2], [3, 1, 0], [2, 9, 9]]), V([1, 2, 2, 3, 1, 2])
    ins, outs = V([6, 5, 4]), V([3, 2, 1])
    cases = [
        (rows, ins, outs),
        (flat, ins, outs),
        (rows, V([6, 2, 0]), V([3, 2, 0])),
        (rows, V([2, 0, 3]), V([3, 1, 0])),
    ]
    for (targets, *lengths), blank, zero in product(cases, (0, 3), (False, True)):
        how = {"blank": blank, "zero_infinity": zero}
        operands = T((6, 3, 4), "float64"), targets, *lengths
        loss = lambda *xs, how=how: F.ctc_loss(*xs, reduction="none", **how)
        samples.append(row("ctc_loss", loss, *operands, **how))
        samples.append(row("ctc_loss_backward", _unaligned(how), T((3,), "float64"), *operands, **how))
    how = {"blank": 0, "zero_infinity": False}
    loss = lambda x, *rest: F.ctc_loss(x.double(), *rest, reduction="none").to(x.dtype)
    return [*samples, *(row("ctc_loss", loss, T((6, 3, 4), d), rows, ins, outs, **how) for d in FLOATS)]


def _unaligned(how: dict[str, Any]) -> Callable[..., Any]:
    def back(g: torch.Tensor, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        loss, alpha = aten._ctc_loss(x, *rest, *how.values())
        return aten._ctc_loss_backward(g, x, *rest, loss, alpha, *how.values())

    return back


# -- pools and sizes -----------------------------------------------------------------------


def pools() -> list[Sample]:
    samples = []
    windows = [
        *[(T((2, 3, 7)), (3,), (2,), (1,), (1,), False), (T((3, 7)), (2,), (2,), (0,), (2,), True)],
        *[
            (T((2, 3, 6, 7)), (2, 3), (2, 2), (1, 1), (1, 1), True),
            (T((3, 6, 6)), (2, 2), (2, 2), (0, 0), (1, 1), False),
        ],
        *[
            (T((1, 2, 4, 5, 5)), (2, 2, 3), (2, 1, 2), (0, 1, 1), (1, 1, 1), False),
            (T((0, 3, 6, 6)), (2, 2), (2, 2), (0, 0), (1, 1), False),
        ],
        *[(T((2, 3, 6, 7), d), (2, 2), (2, 2), (0, 0), (1, 1), False) for d in FLOATS],
        (T((1, 1, 4, 4), of="special"), (2, 2), (1, 1), (0, 0), (1, 1), False),
    ]
    for x, kernel, stride, padding, dilation, ceil in windows:
        rank = len(kernel)
        how = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
        distinct = x if x.of == "special" else T(x.shape, x.dtype, "distinct")
        samples.append(row("max_pool", _max(rank, how), distinct, **how))
        if x.of == "any" and 0 not in x.shape:
            samples += _placed(x, rank, how)
        if dilation == (1,) * rank and x.of == "any":
            for pad, divisor in ((True, None), (False, None), (True, 3)) if rank > 1 else ((True, None), (False, None)):
                average = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
                average |= {"count_include_pad": pad, "divisor": divisor}
                samples += _both("avg_pool", _average(rank, average), x, rank, average)
    for x, size in (
        (T((2, 3, 7)), (3,)),
        (T((2, 3, 7, 5)), (2, 3)),
        (T((3, 4, 4)), (6, 2)),
        (T((1, 2, 3, 4, 5)), (2, 2, 2)),
        (T((2, 3, 7)), (1,)),
        (T((2, 3, 7, 5)), (1, 1)),
        (T((2, 2, 3, 4, 5)), (1, 1, 1)),
    ):
        rank = len(size)
        average = lambda x, rank=rank, size=size: getattr(F, f"adaptive_avg_pool{rank}d")(x, size)
        samples += _both("adaptive_avg_pool", average, x, rank, {"size": size})
        most = lambda x, rank=rank, size=size: getattr(F, f"adaptive_max_pool{rank}d")(x, size, return_indices=True)
        samples.append(row("adaptive_max_pool", most, T(x.shape, "float32", "distinct"), size=size))
    return samples


def _max(rank: int, how: dict[str, Any]) -> Callable[..., Any]:
    return lambda x: getattr(F, f"max_pool{rank}d")(x, *how.values(), return_indices=True)


def _placed(x: T, rank: int, how: dict[str, Any]) -> list[Sample]:
    _, indices = _max(rank, how)(torch.arange(int(np.prod(x.shape))).float().reshape(x.shape).flip(-1).sin())
    size, shape = x.shape[-rank:], tuple(indices.shape)

    def back(g: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros((*shape[:-rank], int(np.prod(size))), dtype=g.dtype)
        flat = (*shape[:-rank], int(np.prod(shape[-rank:])))
        return zeros.scatter_add(-1, at.reshape(flat), g.reshape(flat)).reshape(x.shape)

    values = V(indices.tolist())
    windows = (tuple(how.values()), ())
    return [row("max_pool_backward", back, T(shape, x.dtype), values, size=size, window=w) for w in windows]


def _average(rank: int, how: dict[str, Any]) -> Callable[..., Any]:
    options = list(how.values())
    return lambda x: getattr(F, f"avg_pool{rank}d")(x, *(options if rank > 1 else options[:-1]))


def _both(name: str, forward: Callable[..., Any], x: T, rank: int, how: dict[str, Any]) -> list[Sample]:
    """A linear op and its gradient."""
    shape = tuple(forward(torch.zeros(x.shape)).shape)

    def back(g: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            zero = g.new_zeros(x.shape).requires_grad_()
            return torch.autograd.grad(forward(zero), zero, g, create_graph=g.requires_grad)[0]

    sizes = x.shape[-rank:]
    return [row(name, forward, x, **how), row(f"{name}_backward", back, T(shape, x.dtype), sizes=sizes, **how)]


def sizes() -> list[Sample]:
    samples = []
    cases = [
        *[
            ("nearest", (2, 3, 5), (7,), False),
            ("nearest-exact", (2, 3, 5), (8,), False),
            ("linear", (2, 3, 5), (8,), True),
        ],
        *[
            ("linear", (2, 3, 5), (3,), False),
            ("nearest", (1, 2, 3, 4), (6, 5), False),
            ("bilinear", (1, 2, 3, 4), (6, 5), False),
        ],
        *[
            ("bilinear", (1, 2, 3, 4), (6, 2), True),
            ("bicubic", (1, 2, 4, 4), (6, 7), False),
            ("bicubic", (1, 2, 4, 4), (3, 7), True),
        ],
        *[("trilinear", (1, 2, 3, 3, 2), (4, 5, 4), False), ("nearest", (1, 2, 3, 3, 2), (4, 5, 4), False)],
        *[("nearest-exact", (1, 2, 3, 4), (2, 7), False), ("nearest-exact", (1, 2, 3, 3, 2), (4, 5, 4), False)],
    ]
    for mode, shape, size, corners in cases:
        rank = len(size)
        how = {"size": size, "mode": mode, "align_corners": corners, "scales": (None,) * rank}
        smooth = None if mode.startswith("nearest") else corners
        forward = lambda x, size=size, mode=mode, smooth=smooth: F.interpolate(x, size, mode=mode, align_corners=smooth)
        for d in FLOATS if mode == "bilinear" and not corners else ("float32", "float64"):
            samples += _both("interpolate", forward, T(shape, d), rank, how)
    # by scales; some keep a size or double it
    for mode, size, scales in (
        ("bilinear", (5, 7), (1.7, 1.9)),
        ("bilinear", (3, 8), (1.2, 2.2)),
        ("nearest", (3, 8), (1.2, 2.2)),
    ):
        how = {"size": size, "mode": mode, "align_corners": False, "scales": scales}
        scaled = lambda x, mode=mode, scales=scales: F.interpolate(x, scale_factor=scales, mode=mode)
        samples += _both("interpolate", scaled, T((1, 2, 3, 4)), 2, how)
    return samples
