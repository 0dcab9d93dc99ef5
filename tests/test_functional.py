"""Every function of gt.nn.functional against torch's, by a table of calls: values and gradients, on both engines."""

# ruff: noqa: E501, a row of the table is a line

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import gt
import gt.nn.functional as F
from gt.client.grad import backward
from gt.testing import Cluster
from tests.support.samples import T, V


@dataclass(frozen=True)
class Case:
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [*map(str, self.args), *(f"{k}={v}" for k, v in self.options.items())]
        return f"{self.name}({', '.join(shown)})".replace(" ", "")


def case(name: str, *args: Any, **options: Any) -> Case:
    return Case(name, args, options)


def P(*shape: int) -> T:
    return T(shape, of="positive")


X, SQ = T((4, 3)), T((2, 3, 5, 6))
PROBABILITIES, TRUTHS = V([[0.1, 0.5], [0.9, 0.25]], "float32"), V([[0.0, 1.0], [0.5, 0.75]], "float32")
CLASSES = V([0, 2, 1, 1])
SIGNS = V([1, -1, -1, 1])
REDUCTIONS = ("none", "mean", "sum")

ACTIVATIONS = [
    *(case(n, X) for n in ("relu", "relu6", "silu", "mish", "hardsigmoid", "hardswish", "logsigmoid", "softsign")),
    *(case(n, X) for n in ("tanhshrink", "selu", "elu", "celu", "leaky_relu", "hardtanh", "softplus", "gelu", "tanh")),
    *(case(n, X) for n in ("hardshrink", "softshrink", "sigmoid", "rrelu")),
    *(case(n, T(())) for n in ("relu", "gelu", "softplus", "elu")),
    *[case("elu", X, 0.5), case("celu", X, alpha=2.0), case("leaky_relu", X, 0.2), case("hardtanh", X, -0.5, 2.0)],
    *[case("softplus", X, 2.0, 1.0), case("gelu", X, approximate="tanh"), case("threshold", X, 0.5, 2.0)],
    *[case("prelu", T((2, 3, 4)), T((3,))), case("prelu", X, T((1,))), case("rrelu", X, 0.1, 0.3, False)],
    *[case("glu", T((4, 6))), case("glu", T((4, 6)), 0), case("glu", T((2, 4, 3)), dim=-2)],
    *(case(n, X, dim=d) for n in ("softmax", "log_softmax", "softmin") for d in (0, -1)),
    *[case("softmax", T(()), dim=0), case("log_softmax", T((0, 3)), dim=1)],
]

WEIGHTED = [
    *[
        case("linear", T((5, 4)), T((3, 4)), T((3,))),
        case("linear", T((2, 5, 4)), T((3, 4))),
        case("linear", T((4,)), T((4,))),
    ],
    *[case("linear", T((0, 4)), T((3, 4)), T((3,))), case("linear", T((4,)), T((3, 4)), T((3,)))],
    *[
        case("bilinear", T((5, 2)), T((5, 3)), T((4, 2, 3)), T((4,))),
        case("bilinear", T((2, 3, 2)), T((2, 3, 3)), T((1, 2, 3))),
    ],
    *[case("embedding", V([[0, 2], [3, 2]]), T((4, 3))), case("embedding", V([0, 3, 3]), T((4, 3)), padding_idx=3)],
    *[
        case("embedding", V([0, 3, 3]), T((4, 3)), -4),
        case("embedding", V([0, 3, 3]), T((4, 3)), scale_grad_by_freq=True),
    ],
    *[case("embedding", V(2), T((4, 3))), case("embedding", V([], "int64"), T((4, 3)))],
    *[case("one_hot", V([[0, 2], [1, 1]])), case("one_hot", V([0, 1]), 4), case("one_hot", V(1), num_classes=2)],
    *[case("dropout", X, 0.0), case("dropout", X, 0.5, False), case("dropout", X, 1.0), case("alpha_dropout", X, 0.3)],
    *[case("normalize", X), case("normalize", X, 1.0, 0), case("normalize", T((2, 3, 4)), dim=-1, eps=1e-3)],
]

NORMS = [
    *[case("layer_norm", X, (3,)), case("layer_norm", X, (3,), T((3,)), T((3,))), case("layer_norm", X, (3,), T((3,)))],
    *[case("layer_norm", X, [4, 3], T((4, 3)), T((4, 3)), 0.1), case("layer_norm", T((0, 3)), (3,), T((3,)), T((3,)))],
    *[case("layer_norm", X, (3,), None, T((3,)))],
    *[
        case("rms_norm", X, (3,)),
        case("rms_norm", X, (3,), T((3,))),
        case("rms_norm", T((2, 4, 3)), (4, 3), T((4, 3)), 0.1),
    ],
    *[
        case("group_norm", T((2, 6, 3)), 2),
        case("group_norm", T((2, 6, 3, 2)), 3, T((6,)), T((6,))),
        case("group_norm", T((2, 6)), 2, T((6,))),
    ],
    *[case("instance_norm", T((2, 3, 4))), case("instance_norm", T((2, 3, 4, 2)), None, None, T((3,)), T((3,)))],
    *[
        case(
            "instance_norm",
            T((2, 3, 4)),
            V([0.1, 0.2, 0.3], "float32"),
            V([1.0, 2.0, 3.0], "float32"),
            use_input_stats=False,
        )
    ],
    *[case("batch_norm", x, None, None, training=True) for x in (T((4, 3)), T((2, 3, 4)), T((2, 3, 2, 2)))],
    *[case("batch_norm", T((2, 3, 4)), None, None, T((3,)), T((3,)), True, 0.1, 1e-3)],
    *[
        case(
            "batch_norm",
            T((2, 3, 4)),
            V([0.1, 0.2, 0.3], "float32"),
            V([1.0, 2.0, 3.0], "float32"),
            *affine,
            training=training,
        )
        for affine in ((), (T((3,)), T((3,))))
        for training in (True, False)
    ],
    *[case("local_response_norm", T((2, 5, 4)), 3), case("local_response_norm", T((2, 5, 4, 2)), 2, 0.1, 0.5, 2.0)],
]

ATTENTION = [
    case("scaled_dot_product_attention", *qkv, **options)
    for qkv in ([T((2, 3, 5, 8))] * 3, (T((2, 4, 5, 8)), T((2, 4, 6, 8)), T((2, 4, 6, 8))), (T((5, 4)), T((6, 4)), T((6, 3))))
    for options in ({}, {"is_causal": True}, {"scale": 0.1})
] + [
    *[case("scaled_dot_product_attention", *[T((2, 3, 5, 8))] * 3, m) for m in (T((5, 5)), T((2, 1, 1, 5)), T((2, 3, 5, 5)))],
    *[case("scaled_dot_product_attention", *[T((2, 3, 5, 8))] * 3, V(m, "bool")) for m in (
        [[i >= j for j in range(5)] for i in range(5)], [[i != 2 and j != 1 for j in range(5)] for i in range(5)],
    )],
    case("scaled_dot_product_attention", T((2, 4, 5, 8)), T((2, 2, 5, 8)), T((2, 2, 5, 8)), enable_gqa=True),
    case("scaled_dot_product_attention", T((2, 4, 5, 8)), T((2, 1, 5, 8)), T((2, 1, 5, 8)), is_causal=True, enable_gqa=True),
    case("scaled_dot_product_attention", *[T((0, 3, 5, 8))] * 3),
    case("scaled_dot_product_attention", *[T((3, 5, 8))] * 3, is_causal=True),
]  # fmt: skip

LOSSES = [
    *(case(n, X, P(4, 3), reduction=r) for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss") for r in REDUCTIONS),
    *(case(n, T(()), P()) for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")),
    *(case(n, T((0, 3)), T((0, 3)), reduction="sum") for n in ("mse_loss", "l1_loss")),
    *[case("smooth_l1_loss", X, P(4, 3), beta=0.5), case("smooth_l1_loss", X, P(4, 3), beta=0.0), case("huber_loss", X, P(4, 3), delta=0.5)],
    *[case("mse_loss", X, P(4, 3), weight=V([[1.0, 2.0, 3.0]] * 4, "float32"))],
    *(case("binary_cross_entropy", PROBABILITIES, TRUTHS, reduction=r) for r in REDUCTIONS),
    case("binary_cross_entropy", PROBABILITIES, TRUTHS, V([1.0, 3.0], "float32")),
    *(case("binary_cross_entropy_with_logits", T((2, 2)), TRUTHS, reduction=r) for r in REDUCTIONS),
    case("binary_cross_entropy_with_logits", T((2, 2)), TRUTHS, V([1.0, 3.0], "float32"), pos_weight=V([2.0, 0.5], "float32")),
    *(case("kl_div", X, P(4, 3), reduction=r) for r in (*REDUCTIONS, "batchmean")),
    *[case("kl_div", X, X, log_target=True, reduction="batchmean"), case("kl_div", T((2,)), V([0.0, 1.0], "float32"), reduction="sum")],
    *(case("nll_loss", X, CLASSES, reduction=r) for r in REDUCTIONS),
    *[case("nll_loss", X, CLASSES, V([1.0, 2.0, 3.0], "float32"), ignore_index=1), case("nll_loss", T((3,)), V(2))],
    *[case("nll_loss", T((2, 3, 2)), V([[0, 1], [2, 2]])), case("nll_loss", T((0, 3)), V([], "int64"), reduction="sum")],
    *(case("cross_entropy", X, CLASSES, reduction=r) for r in REDUCTIONS),
    *(
        case("cross_entropy", X, CLASSES, w, ignore_index=i, reduction=r, label_smoothing=s)
        for w in (None, V([1.0, 2.0, 3.0], "float32"))
        for i in (-100, 1)
        for r in REDUCTIONS
        for s in (0.0, 0.2)
    ),
    *(case("cross_entropy", X, P(4, 3), w, reduction=r, label_smoothing=s) for w in (None, V([1.0, 2.0, 3.0], "float32")) for r in REDUCTIONS for s in (0.0, 0.2)),
    *[case("cross_entropy", T((3,)), V(1)), case("cross_entropy", T((3,)), P(3)), case("cross_entropy", T((2, 3, 2, 2)), V([[[0, 1], [2, 0]]] * 2), label_smoothing=0.1)],
    *(case("cosine_similarity", X, T((4, 3), of="positive"), dim=d) for d in (0, 1, -1)),
    *[case("cosine_similarity", X, P(3)), case("pairwise_distance", X, P(4, 3)), case("pairwise_distance", X, P(4, 3), p=1.0, keepdim=True)],
    *(case("cosine_embedding_loss", X, P(4, 3), SIGNS, margin=0.2, reduction=r) for r in REDUCTIONS),
    *[case("cosine_embedding_loss", T((3,)), P(3), V(-1))],
    *(case("triplet_margin_loss", X, P(4, 3), T((4, 3), of="distinct"), swap=s, p=p) for s in (False, True) for p in (1.0, 2.0)),
    *(case("margin_ranking_loss", T((4,)), P(4), SIGNS, margin=0.5, reduction=r) for r in REDUCTIONS),
    *(case("hinge_embedding_loss", T((4,)), SIGNS, margin=2.0, reduction=r) for r in REDUCTIONS),
    *(case("soft_margin_loss", T((4,)), SIGNS, reduction=r) for r in REDUCTIONS),
    *(case("gaussian_nll_loss", X, P(4, 3), P(4, 3), full=f, reduction=r) for f in (True, False) for r in REDUCTIONS),
    *[case("gaussian_nll_loss", X, P(4, 3), P(4)), case("gaussian_nll_loss", X, P(4, 3), P(4, 1))],
    *(case("poisson_nll_loss", P(4, 3), P(4, 3), log_input=i, full=f) for i in (True, False) for f in (True, False)),
    *(case("multilabel_soft_margin_loss", X, V([[0.0, 1.0, 1.0]] * 4, "float32"), reduction=r) for r in REDUCTIONS),
]  # fmt: skip

SPATIAL = [
    *[case("conv1d", T((2, 4, 7)), T((6, 4, 3)), T((6,))), case("conv1d", T((4, 7)), T((6, 2, 3)), None, 2, 1, 1, 2)],
    *[case("conv2d", T((2, 4, 6, 7)), T((6, 4, 3, 2)), T((6,)), (2, 1), (1, 0)), case("conv2d", T((4, 6, 7)), T((2, 4, 3, 2)))],
    *(case("conv2d", T((2, 4, 6, 7)), T((4, 1, 3, 2)), groups=4, padding=p, dilation=d) for p in ("same", "valid") for d in (1, 2)),
    *[case("conv2d", T((0, 4, 6, 7)), T((2, 4, 3, 3)), T((2,))), case("conv3d", T((1, 2, 4, 5, 4)), T((3, 2, 2, 2, 2)), T((3,)), padding=1)],
    *[case("conv_transpose1d", T((2, 4, 5)), T((4, 3, 3)), T((3,)), 2, 1, 1), case("conv_transpose3d", T((1, 2, 3, 3, 3)), T((2, 1, 2, 2, 2)))],
    *[case("conv_transpose2d", T((2, 4, 5, 4)), T((4, 3, 3, 2)), T((6,)), 2, groups=2), case("conv_transpose2d", T((4, 5, 4)), T((4, 3, 3, 2)), dilation=2)],
    *[case("max_pool1d", T((2, 3, 7), of="distinct"), 3), case("max_pool2d", T(SQ.shape, of="distinct"), (2, 3), 2, 1, 1, True)],
    *[case("max_pool2d", T(SQ.shape, of="distinct"), 2, return_indices=True), case("max_pool3d", T((1, 2, 4, 5, 4), of="distinct"), 2, dilation=2)],
    *[case("avg_pool1d", T((2, 3, 7)), 3, 2, 1), case("avg_pool2d", SQ, 2), case("avg_pool2d", SQ, 3, 2, 1, True, False)],
    *[case("avg_pool2d", SQ, 2, divisor_override=3), case("avg_pool3d", T((1, 2, 4, 5, 4)), 2, padding=1)],
    *[case("adaptive_avg_pool1d", T((2, 3, 7)), 3), case("adaptive_avg_pool2d", SQ, (2, None)), case("adaptive_avg_pool2d", T((3, 5, 6)), 1)],
    *[case("adaptive_avg_pool3d", T((1, 2, 3, 4, 5)), 2), case("adaptive_max_pool2d", T(SQ.shape, of="distinct"), (2, 3), True)],
    *[case("adaptive_max_pool1d", T((2, 3, 7), of="distinct"), 3), case("interpolate", SQ, (7, 3)), case("interpolate", T((2, 3, 5)), scale_factor=2)],
    *(case("interpolate", SQ, scale_factor=f, mode=m, align_corners=a) for f in (2, 1.7, (0.5, 1.3)) for m in ("bilinear", "bicubic") for a in (False, True)),
    *[case("interpolate", SQ, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), case("interpolate", SQ, (2, 3), mode="area")],
    *[case("interpolate", SQ, scale_factor=1.7, mode=m) for m in ("nearest", "nearest-exact")],
    *[case("interpolate", T((2, 3, 5)), 8, mode="linear"), case("interpolate", T((1, 2, 3, 3, 2)), 4, mode="trilinear")],
    *[case("unfold", SQ, 2), case("unfold", SQ, (2, 3), 1, 1, 2), case("fold", T((2, 12, 20)), (5, 6), 2), case("unfold", T((3, 5, 6)), 2)],
    *(case("pad", SQ, (1, 2, 0, 1), mode=m) for m in ("constant", "reflect", "replicate", "circular")),
    *[case("pad", X, (1, -1), value=2.5), case("pad", T((0, 3)), (1, 1))],
    *[case("pixel_shuffle", T((2, 8, 3, 2)), 2), case("pixel_unshuffle", T((2, 2, 4, 6)), 2), case("pixel_shuffle", T((8, 1, 1)), 2)],
]  # fmt: skip

GRID = T((2, 3, 4, 2), of="near")
GRIDS = [
    *(case("grid_sample", SQ, GRID, m, p, a) for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection") for a in (True, False)),
    *(case("grid_sample", T((2, 3, 4, 2, 3)), T((2, 1, 2, 2, 3), of="near"), m, "reflection") for m in ("bilinear", "nearest")),
    *[case("grid_sample", SQ, GRID), case("grid_sample", T((0, 3, 5, 6)), T((0, 3, 4, 2)))],
    *(case("affine_grid", T((2, 2, 3)), [2, 3, h, w], a) for h, w in ((4, 5), (1, 3)) for a in (True, False)),
    *(case("affine_grid", T((1, 3, 4)), [1, 2, 3, 4, 1], align_corners=a) for a in (True, False)),
]  # fmt: skip

LOGS, TARGETS, JOINED = T((6, 3, 4)), V([[1, 2, 2], [3, 1, 0], [2, 9, 9]]), V([1, 2, 2, 3, 1, 2])
SEQUENCES = [
    *(case("ctc_loss", LOGS, t, V([6, 5, 4]), V([3, 2, 1]), reduction=r) for t in (TARGETS, JOINED) for r in REDUCTIONS),
    *(case("ctc_loss", LOGS, TARGETS, (6, 5, 4), (3, 2, 1), 3, r) for r in REDUCTIONS),
    *(case("ctc_loss", LOGS, TARGETS, (6, 1, 0), [3, 2, 0], 0, r, True) for r in REDUCTIONS),
    *(case("ctc_loss", T((6, 4)), V([1, 2, 2]), V(n), V(m), reduction=r) for n, m in ((5, 3), ([6], [3])) for r in REDUCTIONS),
    case("ctc_loss", LOGS, V([[1, 2, 2], [3, 1, 0], [2, 3, 3]], "int32"), V([6, 5, 4], "int32"), V([3, 2, 1], "int32")),
]  # fmt: skip

FLAT, TABLE = V([3, 0, 3, 2, 1, 3, 0]), T((4, 3))
MODES = ("sum", "mean", "max")

BAGS = [
    *(case("embedding_bag", V([[0, 2, 2], [3, 1, 3]]), TABLE, mode=m, padding_idx=p) for m in MODES for p in (None, 3, -4)),
    *(case("embedding_bag", FLAT, TABLE, V([0, 2, 2, 5]), mode=m, padding_idx=p) for m in MODES for p in (None, 3, 2)),
    *(case("embedding_bag", FLAT, TABLE, V([0, 3, 7], "int32"), mode=m, include_last_offset=True) for m in MODES),
    *(case("embedding_bag", V([3, 3, 3, 1]), TABLE, V([0, 3]), mode=m, padding_idx=3) for m in MODES),
    *(case("embedding_bag", V([], "int64"), TABLE, V([0, 0]), mode=m) for m in MODES),
    *(case("embedding_bag", FLAT, TABLE, V([0, 2]), 0.5, n, mode=m) for n in (1.0, 2.0) for m in MODES),
    *(case("embedding_bag", FLAT, TABLE, V([0, 2, 2]), None, 2.0, False, "sum", False, T((7,)), False, p) for p in (None, 3)),
    case("embedding_bag", V([[0, 2, 2], [3, 1, 3]]), TABLE, None, None, 2.0, False, "sum", False, T((2, 3)), False, 2),
    # equal rows: the first one gets the gradient of the maximum
    *(case("embedding_bag", V([2, 1, 0, 1, 2]), V([[1.0, 2.0], [1.0, 2.0], [1.0, 0.0]], "float32"), V(o), mode="max") for o in ([0], [0, 3])),
]  # fmt: skip

CASES = [*ACTIVATIONS, *WEIGHTED, *BAGS, *NORMS, *ATTENTION, *LOSSES, *SPATIAL, *GRIDS, *SEQUENCES]
TOLERANCE = {torch.float64: (1e-9, 1e-9), torch.float32: (2e-4, 2e-5)}


@pytest.fixture(scope="module", params=["torch", "numpy"])
def _engine(request: Any) -> Iterator[str]:
    with Cluster(backend=request.param).client():
        yield request.param


def typed(x: Any, dtype: str) -> Any:
    return replace(x, dtype=dtype) if isinstance(x, T | V) and x.dtype == "float32" else x


def make_arguments(call: Case, dtype: str) -> tuple[list[Any], dict[str, Any]]:
    rng = torch.Generator().manual_seed(zlib.crc32(str(call).encode()))
    make = lambda x: x.make(rng) if isinstance(x, T | V) else x
    options = {k: make(typed(v, dtype)) for k, v in call.options.items()}
    return [make(typed(x, dtype)) for x in call.args], options


def ours(x: Any, learns: bool) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    tensor = gt.tensor(x.detach().numpy())
    return tensor.requires_grad_() if learns and x.dtype.is_floating_point else tensor


def theirs(x: Any, learns: bool) -> Any:
    return x.requires_grad_() if learns and isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x


def close(got: Any, want: torch.Tensor) -> None:
    array = torch.tensor(np.array(got.detach().numpy()))
    assert (array.shape, array.dtype) == (want.shape, want.dtype)
    rtol, atol = TOLERANCE.get(want.dtype, (0, 0))
    torch.testing.assert_close(array, want.detach(), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("call", CASES, ids=str)
def test_values_and_gradients_are_torchs(_engine: str, call: Case, dtype: str) -> None:  # noqa: PT019
    args, options = make_arguments(call, dtype)
    learning = [isinstance(x, T) for x in call.args]
    our_args = [ours(x, n) for x, n in zip(args, learning, strict=True)]
    our_options = {k: ours(v, False) for k, v in options.items()}
    expected = [theirs(x, n) for x, n in zip(args, learning, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = getattr(torch.nn.functional, call.name)(*expected, **options)
        got = getattr(F, call.name)(*our_args, **our_options)
    wants, gots = (list(x) if isinstance(x, tuple | list) else [x] for x in (want, got))
    for g, w in zip(gots, wants, strict=True):
        close(g, w)
    for g, w in zip(our_args, expected, strict=True):  # running statistics, for one, are written
        if isinstance(w, torch.Tensor):
            close(g, w)
    compare_gradients(gots, wants, our_args, expected)


def compare_gradients(gots: list[Any], wants: list[Any], our_args: list[Any], expected: list[Any]) -> None:
    leaves = [i for i, x in enumerate(expected) if isinstance(x, torch.Tensor) and x.requires_grad]
    pairs = [(g, w) for g, w in zip(gots, wants, strict=True) if w.requires_grad]
    if not leaves or not pairs:
        return
    rng = torch.Generator().manual_seed(7)
    torch_cotangents = [torch.randn(w.shape, generator=rng, dtype=torch.float64).to(w.dtype) for _, w in pairs]
    try:
        want = torch.autograd.grad(
            [w for _, w in pairs], [expected[i] for i in leaves], torch_cotangents, allow_unused=True
        )
    except NotImplementedError:
        return
    cotangents = [gt.tensor(c.numpy()) for c in torch_cotangents]
    got = backward.grad([g for g, _ in pairs], [our_args[i] for i in leaves], cotangents, allow_unused=True)
    for g, w in zip(got, want, strict=True):
        if w is None:
            assert g is None
        elif g is not None:
            close(g, w)
        else:
            assert not w.count_nonzero()


# -- in half precision ---------------------------------------------------------------------

HALVES = [
    *[case("linear", T((5, 4)), T((3, 4)), T((3,))), case("layer_norm", X, (3,), T((3,)), T((3,))), case("rms_norm", X, (3,), T((3,)))],
    *[case("group_norm", T((2, 6, 3)), 2, T((6,)), T((6,))), case("batch_norm", T((4, 3)), None, None, T((3,)), T((3,)), True)],
    *[case("scaled_dot_product_attention", *[T((2, 3, 5, 8))] * 3, is_causal=True, scale=0.1), case("cross_entropy", X, CLASSES)],
    *[case("conv2d", T((2, 4, 6, 7)), T((6, 4, 3, 2)), T((6,))), case("max_pool2d", T((1, 2, 4, 4), of="distinct"), 2)],
    *[case("mse_loss", X, P(4, 3)), case("embedding", V([0, 3, 3]), T((4, 3))), case("avg_pool2d", SQ, 2), case("interpolate", SQ, (7, 3), mode="bilinear")],
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("call", HALVES, ids=str)
def test_half_precision_is_torchs(call: Case, dtype: str) -> None:
    args, options = make_arguments(call, dtype)
    expected = [theirs(x, isinstance(t, T)) for x, t in zip(args, call.args, strict=True)]
    want = getattr(torch.nn.functional, call.name)(*expected, **options)
    leaves = [x for x in expected if isinstance(x, torch.Tensor) and x.requires_grad]
    wanted = torch.autograd.grad(want.sum(), leaves)
    with Cluster().client():
        our_args = [half(x, dtype) for x in expected]
        got = getattr(F, call.name)(*our_args, **options)
        learning = [x for x in our_args if isinstance(x, gt.Tensor) and x.requires_grad]
        for g, w in zip((got, *backward.grad(got.sum(), learning)), (want, *wanted), strict=True):
            assert g.dtype is getattr(gt, dtype)
            near = torch.tensor(np.array(g.detach().float().numpy()))
            torch.testing.assert_close(near, w.detach().float(), rtol=5e-2, atol=5e-2)


def half(x: Any, dtype: str) -> Any:
    if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
        return ours(x, False)
    tensor = gt.tensor(x.detach().float().numpy()).to(getattr(gt, dtype))
    return tensor.requires_grad_() if x.requires_grad else tensor


# -- what is drawn -------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_dropout_is_a_function_of_the_seed(backend: str) -> None:
    with Cluster(backend=backend).client():
        x = gt.ones(40, 50).requires_grad_()
        gt.manual_seed(5)
        first, second = F.dropout(x, 0.3), F.dropout(x, 0.3)
        gt.manual_seed(5)
        again = F.dropout(x, 0.3)
        assert gt.equal(first, again)
        assert not gt.equal(first, second)
        kept = (first != 0).float().mean().item()
        assert abs(kept - 0.7) < 0.03
        assert gt.allclose(first, (first != 0).float() / 0.7)
        (g,) = backward.grad(first.sum(), x)
        assert gt.equal(g, first)


def test_the_engines_drop_the_same() -> None:
    results = []
    for backend in ("torch", "numpy"):
        with Cluster(backend=backend).client():
            gt.manual_seed(11)
            results.append(F.dropout(gt.ones(300), 0.5).numpy())
    assert (results[0] == results[1]).all()


def test_whole_channels_are_dropped() -> None:
    with Cluster().client():
        for drop, shape in ((F.dropout1d, (4, 5, 6)), (F.dropout2d, (4, 5, 6, 2)), (F.dropout3d, (4, 5, 6, 2, 1))):
            rows = drop(gt.ones(*shape), 0.5).numpy().reshape(20, -1)
            assert ((rows == rows[:, :1]).all(1)).all()
            assert set(np.unique(rows)) == {0.0, 2.0}


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    with Cluster().client():
        gt.manual_seed(1)
        y = F.alpha_dropout(gt.randn(40000), 0.3, training=True)
        assert abs(y.mean().item()) < 0.05
        assert abs(y.std().item() - 1) < 0.05


def test_attention_with_dropout_drops_weights() -> None:
    with Cluster().client():
        q, v = gt.zeros(1, 1, 4, 8), gt.ones(1, 1, 50, 3)
        gt.manual_seed(3)
        y = F.scaled_dot_product_attention(q, gt.zeros(1, 1, 50, 8), v, dropout_p=0.5)
        assert y.shape == (1, 1, 4, 3)
        assert abs(y.mean().item() - 1) < 0.4
        assert not gt.equal(y, gt.ones(1, 1, 4, 3))


def test_in_place_forms_write() -> None:
    with Cluster().client():
        x = gt.tensor([-1.0, 2.0])
        assert F.relu(x, inplace=True) is x
        assert x.tolist() == [0.0, 2.0]
        assert F.leaky_relu_(gt.tensor([-1.0]), 0.5).tolist() == [-0.5]
        assert F.dropout(x, 1.0, inplace=True) is x
        assert x.tolist() == [0.0, 0.0]


def test_a_mask_can_learn() -> None:
    mask = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    q = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    want = torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(q, q, q, mask).sum(), mask)[0]
    with Cluster().client():
        our_mask, x = gt.tensor(mask.detach().numpy()).requires_grad_(), gt.tensor(q.numpy())
        close(backward.grad(F.scaled_dot_product_attention(x, x, x, our_mask).sum(), our_mask)[0], want)


def test_attention_holds_no_square() -> None:
    """What is kept for the gradient: the operands, the result and a number a row."""
    with Cluster().client():
        q = gt.randn(1, 2, 64, 8).requires_grad_()
        y = F.scaled_dot_product_attention(q, q, q)
        assert {tuple(s.type.shape) for s in y._node.saved} == {(1, 2, 64, 8), (1, 2, 64)}


def test_statistics_are_kept_and_results_are_not() -> None:
    with Cluster().client():
        x = gt.randn(4, 3).requires_grad_()
        node = F.layer_norm(x, (3,))._node
        assert node.plan.results == (node.out_types[0], 0, 1)
        assert [x.type for x in node.saved[:2]] == [*node.out_types[1:]]


# -- what is refused -----------------------------------------------------------------------

REFUSED = [
    (lambda: F.linear(gt.ones(2, 3), gt.ones(4, 5)), gt.ShapeError, r"linear(float32[2,3], float32[4,5]): inner sizes differ: 3 and 5"),
    (lambda: F.linear(gt.ones(2, 3), gt.ones(4, 3).double()), gt.DTypeError, "dtypes differ: float32, float64"),
    (lambda: F.conv2d(gt.ones(1, 3, 4, 4), gt.ones(2, 4, 3, 3)), gt.ShapeError, "takes 4 channels, not 3"),
    (lambda: F.conv2d(gt.ones(1, 3, 2, 2), gt.ones(2, 3, 3, 3)), gt.ShapeError, "is larger than the padded input"),
    (lambda: F.conv2d(gt.ones(1, 3, 4, 4), gt.ones(2, 3, 3, 3), stride=2, padding="same"), gt.ShapeError, "not supported for strided"),
    (lambda: F.layer_norm(gt.ones(2, 3), (4,)), gt.ShapeError, "normalized_shape [4] is not how float32[2,3] ends"),
    (lambda: F.group_norm(gt.ones(2, 6, 3), 4), gt.ShapeError, "6 channels do not make 4 groups"),
    (lambda: F.batch_norm(gt.ones(1, 3), None, None, training=True), gt.ShapeError, "more than one value a channel"),
    (lambda: F.batch_norm(gt.ones(2, 3), None, None), gt.ShapeError, "needs running statistics"),
    (lambda: F.dropout(gt.ones(3), 1.5), gt.ShapeError, "between 0 and 1, but got 1.5"),
    (lambda: F.embedding(gt.ones(2), gt.ones(4, 3)), gt.DTypeError, "the index is an int64 or int32 tensor"),
    (lambda: F.embedding(gt.tensor([0, 4]), gt.ones(4, 3)).numpy(), gt.RemoteError, ""),
    (lambda: F.nll_loss(gt.ones(2, 3), gt.tensor([0])), gt.ShapeError, "the target has the input's shape without the classes"),
    (lambda: F.nll_loss(gt.ones(2, 3), gt.tensor([0, 3])).item(), gt.RemoteError, ""),
    (lambda: F.cross_entropy(gt.ones(2, 3), gt.tensor([[0, 1, 2], [0, 1, 2]])), gt.DTypeError, "a target of probabilities must be floating"),
    (lambda: F.mse_loss(gt.ones(2), gt.ones(2), reduction="most"), gt.ShapeError, "most is not a valid value for reduction"),
    (lambda: F.binary_cross_entropy(gt.ones(2), gt.ones(3)), gt.ShapeError, "target and input must have the same size"),
    (lambda: F.max_pool2d(gt.ones(1, 2, 4, 4), 2, padding=2), gt.ShapeError, "padding 2 is more than half of kernel size 2"),
    (lambda: F.interpolate(gt.ones(1, 2, 4, 4)), gt.ShapeError, "give either size or scale_factor"),
    (lambda: F.interpolate(gt.ones(1, 2, 4), 3, mode="bilinear"), gt.ShapeError, "mode 'bilinear' is not for 1 spatial dims"),
    (lambda: F.scaled_dot_product_attention(*[gt.ones(2, 3, 4)] * 3, gt.ones(3, 3), is_causal=True), gt.ShapeError, "either attn_mask or is_causal"),
    (lambda: F.scaled_dot_product_attention(gt.ones(3, 4), gt.ones(3, 5), gt.ones(3, 4)), gt.ShapeError, "features of query and key differ: 4 and 5"),
    (lambda: F.glu(gt.ones(3)), gt.ShapeError, "the dim that is halved must be even"),
    (lambda: F.pixel_shuffle(gt.ones(1, 3, 2, 2), 2), gt.ShapeError, "3 channels are not a multiple of 2²"),
    (lambda: F.one_hot(gt.ones(2)), gt.DTypeError, "int64"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED, ids=lambda x: x if isinstance(x, str) else None)
def test_bad_calls_say_why(call: Any, error: Any, text: str) -> None:
    with Cluster().client(), pytest.raises(error) as raised:
        call()
    assert text in str(raised.value)


def test_the_table_has_every_function() -> None:
    tried = {c.name for c in CASES}
    others = {"gumbel_softmax", "upsample", "triplet_margin_with_distance_loss", "feature_alpha_dropout"}
    others |= {
        "channel_shuffle",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "pdist",
        "lp_pool1d",
        "lp_pool2d",
        "lp_pool3d",
    }  # by `tests.test_opinfo`
    drawn = {"dropout1d", "dropout2d", "dropout3d"}
    forms = {n for n in F.__all__ if n.endswith(("_", "_with_indices"))} | {"adaptive_max_pool3d"}
    assert set(F.__all__) == tried | others | drawn | forms


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        (([0, 1], 2), {}, "offsets has to be a 1D Tensor"),
        (([0, 1], 2, [[0]]), {}, "offsets has to be a 1D Tensor"),
        (([[0, 1]], 2, [0]), {}, "if input is 2D, then offsets has to be None"),
        (([[[0, 1]]], 2), {}, "input has to be a 1D or 2D Tensor"),
        (([[0, 1]], 1), {}, "weight has to be a 2D Tensor"),
        (([[0, 1]], 2), {"mode": "min"}, "mode has to be one of sum, mean or max"),
        (([[0, 1]], 2), {"mode": "max", "sparse": True}, "max mode does not support scale_grad_by_freq or sparse"),
        (([[0, 1]], 2), {"mode": "sum", "per_sample_weights": [1.0]}, "must have the shape of the input"),
        (([[0, 1]], 2), {"padding_idx": 9}, "padding_idx must be within the 4 rows"),
    ],
)
def test_bad_bags(args: Any, options: dict[str, Any], text: str) -> None:
    with Cluster(backend="numpy").client():
        index, dims, *offsets = args
        weight = gt.ones(*(4, 3)[:dims])
        options = {k: gt.tensor(v) if isinstance(v, list) else v for k, v in options.items()}
        with pytest.raises(gt.ShapeError, match=text):
            F.embedding_bag(gt.tensor(index), weight, *map(gt.tensor, offsets), **options)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_bags_begin_at_the_first_row_number(backend: str) -> None:
    with Cluster(backend=backend).client():
        index, weight = gt.tensor([0, 1, 2]), gt.ones(4, 3)
        with pytest.raises(NotImplementedError, match="per_sample_weights needs mode='sum'"):
            F.embedding_bag(index, weight, gt.tensor([0]), per_sample_weights=gt.ones(3))
        for mode in MODES:
            with pytest.raises(gt.RemoteError, match=r"out of (range|bounds)|outside dim 0"):
                F.embedding_bag(index, weight, gt.tensor([1, 2]), mode=mode).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_the_last_offset_ends_the_last_bag(mode: str) -> None:
    """As torch documents it; its kernels for float64 and for other modes than sum go on to the end of the input."""
    with Cluster().client():
        index, weight = gt.tensor([3, 0, 3, 2, 1, 3, 0]), gt.arange(12.0).reshape(4, 3)
        got = F.embedding_bag(index, weight, gt.tensor([0, 3, 5]), mode=mode, include_last_offset=True)
        assert got.tolist() == F.embedding_bag(index[:5], weight, gt.tensor([0, 3]), mode=mode).tolist()


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_of_bags_by_frequency(mode: str) -> None:
    """A row's gradient is divided by its count, as torch documents it; its CPU kernel divides by counts of other rows."""
    with Cluster().client():
        grads = []
        for by_freq in (False, True):
            weight = gt.ones(4, 2).requires_grad_()
            index, offsets = gt.tensor([3, 0, 3, 2, 1, 3, 0]), gt.tensor([0, 2])
            F.embedding_bag(index, weight, offsets, mode=mode, scale_grad_by_freq=by_freq).sum().backward()
            grads.append(weight.grad.numpy())
        np.testing.assert_allclose(grads[1], grads[0] / np.array([[2], [1], [1], [3]]), rtol=1e-6)


GRID_ERRORS = [
    ("sample", [(1, 2, 3, 3), (1, 2, 2, 2)], ["cubic"], gt.ShapeError, "mode is one of"),
    ("sample", [(1, 2, 3, 3), (1, 2, 2, 2)], ["nearest", "wrap"], gt.ShapeError, "padding_mode one of"),
    ("sample", [(1, 2, 3), (1, 2, 2, 2)], [], gt.ShapeError, "both 4 or both 5 dims"),
    ("sample", [(1, 2, 3, 3, 3), (1, 2, 2, 2, 3)], ["bicubic"], gt.ShapeError, "bicubic"),
    ("sample", [(1, 2, 3, 3), (2, 2, 2, 2)], [], gt.ShapeError, "has 1 images and 2 coordinates"),
    ("sample", [(1, 2, 0, 3), (1, 2, 2, 2)], [], gt.ShapeError, "no elements in an image"),
    ("grid", [(1, 2, 3)], [[2, 1, 3, 3]], gt.ShapeError, "needs one matrix per image"),
    ("grid", [(1, 2, 3)], [[1, 1, 0, 3]], gt.ShapeError, "Expected non-zero, positive output size"),
]


@pytest.mark.parametrize(("what", "shapes", "rest", "error", "text"), GRID_ERRORS)
def test_bad_grids(what: str, shapes: Any, rest: Any, error: Any, text: str) -> None:
    function = {"sample": F.grid_sample, "grid": F.affine_grid}[what]
    with Cluster(backend="numpy").client(), pytest.raises(error, match=text):
        function(*(gt.ones(shape) for shape in shapes), *rest)


def test_dtypes_of_grids() -> None:
    with Cluster(backend="numpy").client():
        with pytest.raises(gt.DTypeError, match="dtypes differ: float32 and float64"):
            F.grid_sample(gt.ones(1, 2, 3, 3), gt.ones(1, 2, 2, 2).double())
        with pytest.raises(gt.DTypeError, match="needs a floating theta"):
            F.affine_grid(gt.ones(1, 2, 3).int(), [1, 1, 2, 2])
        with pytest.raises(gt.DTypeError, match="a tensor"):
            F.grid_sample(np.ones((1, 2, 3, 3)), 3)  # type: ignore[arg-type]


def test_the_second_gradient_by_a_grid_is_refused() -> None:
    with Cluster().client():
        x, grid = gt.ones(1, 1, 3, 3).requires_grad_(), gt.zeros(1, 2, 2, 2).requires_grad_()
        first = backward.grad((F.grid_sample(x, grid) ** 2).sum(), [x, grid], create_graph=True)
        for g in first:
            with pytest.raises(gt.GradError, match="no second gradient by the grid; detach the grid"):
                backward.grad(g.sum(), [x, grid], retain_graph=True)
        (g,) = backward.grad((F.grid_sample(x, grid.detach()) ** 2).sum(), [x], create_graph=True)
        assert backward.grad(g.sum(), [x])[0].shape == x.shape


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("targets", "ins", "outs", "text"),
    [
        ([[1, 2], [1, 1]], (5, 3), (2, 2), "input_lengths are between 0 and 4"),
        ([[1, 2], [1, 1]], (4, -1), (2, 2), "input_lengths are between 0 and 4"),
        ([[1, 2], [1, 1]], (4, 3), (3, 2), "target_lengths do not fit targets"),
        ([[1, 2], [1, 1]], (4, 3), (2, -1), "target_lengths do not fit targets"),
        ([1, 2, 1], (4, 3), (2, 2), "target_lengths do not fit targets"),
        ([[1, 3], [1, 1]], (4, 3), (2, 2), "a target is outside the 3 classes"),
        ([[1, -1], [1, 1]], (4, 3), (2, 2), "a target is outside the 3 classes"),
    ],
)
def test_values_that_ctc_loss_refuses(backend: str, targets: Any, ins: Any, outs: Any, text: str) -> None:
    with Cluster(backend=backend).client():
        loss = F.ctc_loss(gt.zeros(4, 2, 3), gt.tensor(targets), ins, outs)
        with pytest.raises(gt.RemoteError, match=text):
            loss.item()


def test_bad_calls_of_ctc_loss() -> None:
    with Cluster(backend="numpy").client():
        x, targets = gt.zeros(4, 2, 3), gt.tensor([[1, 2], [1, 1]])
        for args, text in (
            ((gt.zeros(4), targets, (4, 3), (2, 2)), r"log_probs are \[times, classes\]"),
            ((gt.zeros(0, 2, 3), targets, (0, 0), (0, 0)), "none of them 0"),
            ((x, targets, (4,), (2, 2)), "two tensors of 2 numbers each"),
            ((x, targets[:1], (4, 3), (2, 2)), "the targets are 2 rows"),
            ((x, targets, (4, 3), (2, 2), 3), "blank"),
            ((x, targets, (4, 3), (2, 2), 0, "max"), "max is not a valid value for reduction"),
        ):
            with pytest.raises(gt.ShapeError, match=text):
                F.ctc_loss(*args)
        with pytest.raises(gt.DTypeError, match="not defined for int32"):
            F.ctc_loss(x.int(), targets, (4, 3), (2, 2))
        (g,) = backward.grad(F.ctc_loss(x.requires_grad_(), targets, (4, 3), (2, 2)), [x], create_graph=True)
        with pytest.raises(gt.GradError, match="ctc_loss has no second gradient"):
            backward.grad(g.sum(), [x])


@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "adaptive_max_pool2d"])
@pytest.mark.parametrize("shape", [(), (3,), (3, 4)])
def test_adaptive_pools_name_the_dims_they_need(name, shape):
    with Cluster().client(), pytest.raises(gt.ShapeError, match="needs 3 or 4 dims"):
        getattr(gt.nn.functional, name)(gt.ones(shape), 2)
