"""Samples of optimizer steps, and of ops on all gradients; torch's optimizers give the expected results."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from gt.ops.system.files import MARK
from tests.support.samples import Sample, T, V

SHAPES = ((3, 4), (5,), ())
FLOATS = ("float64", "float32")
HALVES = (*FLOATS, "bfloat16", "float16")
INF = float("inf")
FEW_ROWS = [[0, 0, 0], [1, -2, 3], [0, 1, 0], [0, 0, 0]]
ORDERS = (0.0, 1.0, 2.0, 3.0, INF, -INF)


def training() -> list[Sample]:
    return [s for family in (steps, gradients, files) for s in family()]


def _columns(kinds: int, shapes: Any, dtype: str) -> list[T]:
    """Parameters, states and gradients; a state of squares is never negative."""
    states = [T(s, dtype, "positive") for _ in range(kinds - 1) for s in shapes]
    return [*(T(s, dtype) for s in shapes), *states, *(T(s, dtype) for s in shapes)]


def _step(name: str, kinds: int, numbers: tuple[float, ...], like: Callable[..., Any], **flags: Any) -> list[Sample]:
    samples = []
    for dtype in FLOATS:
        for shapes in (SHAPES, SHAPES[:1]):
            n = len(shapes)
            operands = (*_columns(kinds, shapes, dtype), *numbers)
            samples.append(Sample(name, operands, {"n": n, **flags}, _torchs(n, kinds, like)))
    return samples


def _torchs(n: int, kinds: int, like: Callable[..., Any]) -> Callable[..., Any]:
    """torch's optimizer over parameters, with their states set by hand."""

    def expected(*operands: Any, **_: Any) -> Any:
        columns = [operands[k * n : k * n + n] for k in range(kinds + 1)]
        params, names, options = [p.clone() for p in columns[0]], *like(*operands[(kinds + 1) * n :])
        opt = options.pop("kind")(params, **options)
        states = [[x.clone() for x in column] for column in columns[1:-1]]
        for i, (p, g) in enumerate(zip(params, columns[-1], strict=True)):
            p.grad = g
            numbers = {"mu_product": torch.tensor(0.25), "eta": torch.tensor(0.125), "mu": torch.tensor(0.5)}
            opt.state[p] = {"step": torch.tensor(2.0)} | numbers | {name: states[k][i] for k, name in enumerate(names)}
        opt.step()
        results = (*params, *(x for column in states for x in column))
        return results if len(results) > 1 else results[0]

    return expected


def _of(kind: Any, names: tuple[str, ...], options: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    return lambda *numbers: (names, {"kind": kind, **options(*numbers)})


def steps() -> list[Sample]:
    optim = torch.optim
    sgd = lambda lr, decay, factor, dampening: {
        "lr": lr, "weight_decay": decay, "momentum": factor, "dampening": dampening
    }  # fmt: skip
    adam = lambda lr, b1, b2, eps, decay, step: {"lr": lr, "betas": (b1, b2), "eps": eps, "weight_decay": decay}
    rms = lambda lr, alpha, eps, decay, factor: {
        "lr": lr, "alpha": alpha, "eps": eps, "weight_decay": decay, "momentum": factor
    }  # fmt: skip
    buffer = ("momentum_buffer",)
    moments = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    plain = {"momentum": False, "nesterov": False, "maximize": False}
    with_momentum = plain | {"momentum": True}
    numbers = (0.1, 0.9, 0.99, 1e-8, 0.1, 3.0)
    kinds = {True: optim.AdamW, False: optim.Adam}
    return [
        *_more_steps(),
        *_step("sgd_step", 1, (0.1, 0.0, 0.0, 0.0), _of(optim.SGD, (), sgd), **plain),
        *_step("sgd_step", 2, (0.1, 0.1, 0.9, 0.2), _of(optim.SGD, buffer, sgd), **with_momentum),
        *_step(
            "sgd_step",
            2,
            (0.1, 0.0, 0.9, 0.0),
            _of(optim.SGD, buffer, lambda *n: sgd(*n) | {"nesterov": True, "maximize": True}),
            **with_momentum | {"nesterov": True, "maximize": True},
        ),
        *(
            s
            for amsgrad in (False, True)
            for decoupled, kind in kinds.items()
            for options in ({}, {"fused": False})
            for s in _step(
                "adam_step",
                3 + amsgrad,
                numbers,
                _of(kind, moments[: 2 + amsgrad], lambda *n, amsgrad=amsgrad: adam(*n) | {"amsgrad": amsgrad}),
                amsgrad=amsgrad,
                maximize=False,
                decoupled=decoupled,
                **options,
            )
        ),
        *_step(
            "adagrad_step",
            2,
            (0.1, 0.1, 1e-10),
            _of(optim.Adagrad, ("sum",), lambda lr, decay, eps: {"lr": lr, "weight_decay": decay, "eps": eps}),
            maximize=False,
        ),
        *_step(
            "rmsprop_step",
            2,
            (0.1, 0.9, 1e-2, 0.1, 0.0),
            _of(optim.RMSprop, ("square_avg",), rms),
            momentum=False,
            centered=False,
            maximize=False,
        ),
        *_step(
            "rmsprop_step",
            3,
            (0.1, 0.9, 1e-2, 0.0, 0.9),
            _of(optim.RMSprop, ("square_avg", "momentum_buffer"), rms),
            momentum=True,
            centered=False,
            maximize=False,
        ),
        *(Sample("lion_step", (T((3, 4), d), T((3, 4), d), T((3, 4), d), 0.1, 0.9, 0.99, 0.1),
                 {"n": 1, "maximize": False}, _lion) for d in FLOATS),
        *(Sample("adafactor_step", (T((3, 4), d), T((3, 1), d, "positive"), T((1, 4), d, "positive"), T((3, 4), d),
                                    0.1, -0.8, 1e-7, 1e-3, 1.0, 0.1, 3.0),
                 {"n": 1, "factored": True, "maximize": False}, _adafactor(("row_var", "col_var"))) for d in FLOATS),
        *(Sample("adafactor_step", (T((5,), d), T((5,), d, "positive"), T((5,), d),
                                    0.1, -0.8, 1e-7, 1e-3, 1.0, 0.1, 3.0),
                 {"n": 1, "factored": False, "maximize": False}, _adafactor(("variance",))) for d in FLOATS),
    ]  # fmt: skip


def _more_steps() -> list[Sample]:
    """Adadelta, Adamax, NAdam, RAdam, ASGD, Rprop, SparseAdam; the numbers of NAdam and RAdam are those of step 3."""
    optim, plain = torch.optim, {"maximize": False}
    adadelta = lambda lr, rho, eps, decay: {"lr": lr, "rho": rho, "eps": eps, "weight_decay": decay}
    adamax = lambda size, b1, b2, eps, decay: {
        "lr": size * (1 - b1**3), "betas": (b1, b2), "eps": eps, "weight_decay": decay
    }  # fmt: skip
    rprop = lambda low, high, least, most: {"etas": (low, high), "step_sizes": (least, most)}
    moments = ("exp_avg", "exp_avg_sq")
    nadam = lambda *_: {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1, "decoupled_weight_decay": True}
    radam = lambda *_: {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}
    mu, after = (0.9 * (1 - 0.5 * 0.96 ** (step * 4e-3)) for step in (3, 4))
    product = (torch.tensor(0.25) * mu).item()
    rates = (0.1 * (1 - mu) / (1 - product), 0.1 * after / (1 - product * after), 1 - 0.99**3)
    return [
        *_step("adadelta_step", 3, (0.5, 0.9, 1e-6, 0.1), _of(optim.Adadelta, ("square_avg", "acc_delta"), adadelta),
               **plain),
        *_step("adamax_step", 3, (0.1, 0.9, 0.99, 1e-8, 0.1), _of(optim.Adamax, ("exp_avg", "exp_inf"), adamax),
               **plain),
        *_step("nadam_step", 3, (*rates, 0.9, 0.99, 1e-8, 0.0, 0.99), _of(optim.NAdam, moments, nadam), **plain),
        *_step("radam_step", 3, (0.0, 0.1 / (1 - 0.9**3), 0.9, 0.99, 1e-8, 0.1, 1.0), _of(optim.RAdam, moments, radam),
               **plain),
        *_step("rprop_step", 3, (0.5, 1.2, 1e-6, 0.9), _of(optim.Rprop, ("prev", "step_size"), rprop), **plain),
        *_step("asgd_step", 2, (0.125, 0.5, 0.01, 0.1),
               _of(optim.ASGD, ("ax",), lambda _eta, _mu, lambd, decay: {"lambd": lambd, "weight_decay": decay}),
               **plain),
        *(Sample("sparse_adam_step", (T((4, 3), d), T((4, 3), d), T((4, 3), d, "positive"), V(FEW_ROWS, d),
                                      0.1, 0.9, 0.99, 1e-8),
                 {"n": 1, **plain}, _sparse_adam) for d in FLOATS),
    ]  # fmt: skip


def _sparse_adam(p: Any, m: Any, v: Any, g: Any, size: float, b1: float, b2: float, eps: float, **_: Any) -> Any:
    m, v, p = m.clone(), v.clone(), p.clone()
    for i in (g != 0).any(1).nonzero().flatten():
        m[i] = m[i] + (g[i] - m[i]) * (1 - b1)
        v[i] = v[i] * b2 + g[i] ** 2 * (1 - b2)
        p[i] -= size * m[i] / (v[i].sqrt() + eps)
    return p, m, v


def _lion(p: Any, m: Any, g: Any, lr: float, b1: float, b2: float, decay: float) -> Any:
    return p * (1 - lr * decay) - lr * (m * b1 + g * (1 - b1)).sign(), m * b2 + g * (1 - b2)


def _adafactor(names: tuple[str, ...]) -> Callable[..., Any]:
    options = lambda lr, decay2, eps1, eps2, d, decay, step: {
        "lr": lr, "beta2_decay": decay2, "eps": (eps1, eps2), "d": d, "weight_decay": decay
    }  # fmt: skip
    return _torchs(1, len(names) + 1, _of(torch.optim.Adafactor, names, options))


# -- gradients -----------------------------------------------------------------------------


def gradients() -> list[Sample]:
    def xs(dtype: str, count: int = 3) -> list[T]:
        return [T(s, dtype) for s in SHAPES[:count]]

    return [
        *(
            Sample("power_sums", tuple(xs(d, n)), {"ord": o}, _powers(o))
            for d in HALVES
            for o in ORDERS
            for n in (1, 3)
        ),
        *(Sample("total_power", (T((), d), T((), d)), {"ord": o}, _total(o)) for d in FLOATS for o in ORDERS),
        *(Sample("scale_many", (*xs(d, n), T((), d)), {}, _scaled) for d in FLOATS for n in (1, 3)),
        *(Sample("clamp_many", (*xs(d, n), -0.5, 0.5), {}, _clamped) for d in FLOATS for n in (1, 3)),
        *(Sample("amp_unscale", (*xs(d), T(()), 0.5), {}, _unscaled) for d in FLOATS),
        Sample("amp_unscale", (T((5,), "float32", "special"), T(()), 0.5), {}, _unscaled),
    ]


def _powers(ord: float) -> Callable[..., Any]:
    def powers(*xs: Any) -> Any:
        norms = [torch.linalg.vector_norm(x.to(torch.promote_types(x.dtype, torch.float32)), ord) for x in xs]
        results = tuple(n if ord in (0, INF, -INF) else n**ord for n in norms)
        return results if len(results) > 1 else results[0]

    return powers


def _total(ord: float) -> Callable[..., Any]:
    return {INF: torch.maximum, -INF: torch.minimum}.get(ord, torch.add)


def _scaled(*xs: Any) -> Any:
    results = tuple(x * xs[-1] for x in xs[:-1])
    return results if len(results) > 1 else results[0]


def _clamped(*xs: Any) -> Any:
    results = tuple(x.clamp(*xs[-2:]) for x in xs[:-2])
    return results if len(results) > 1 else results[0]


def _unscaled(*operands: Any) -> Any:
    *xs, flag, factor = operands
    bad = any(not x.isfinite().all() for x in xs)
    return (*(x * factor for x in xs), torch.ones_like(flag) if bad else flag.clone())


# -- files ---------------------------------------------------------------------------------


def files() -> list[Sample]:
    """A file that is being saved, and one to read; test_saving has the refusals."""
    folder, secret = tempfile.mkdtemp(prefix="gt-samples-"), "ab" * 16
    path = os.path.join(folder, MARK + secret)
    with open(path, "wb") as file:
        file.write((MARK + secret).encode().ljust(64) + bytes(range(24)))
    from gt.ops.system.files import proof

    with open(path, "rb") as file:
        data = file.read()
    save = json.dumps({"path": path, "secret": secret, "offset": 4096}).encode()
    other = os.path.join(folder, "loaded")
    with open(other, "wb") as file:
        file.write(data)
    stamp = {"size": len(data), "changed_ns": os.stat(other).st_mtime_ns}
    seen = {"path": other, "head": 64, "proof": proof(data[:64], data), **stamp}
    load = json.dumps({**seen, "offsets": [64, 72]}).encode()
    chunks = json.dumps({**seen, "chunks": [[72, [0, 0], [2, 1]], [64, [0, 1], [2, 1]]]}).encode()
    wanted = torch.frombuffer(bytearray(data[64:]), dtype=torch.float32)
    return [
        Sample("save_file", (save, T((2, 3)), T((), "float64")), {}, lambda *_: torch.tensor(32)),
        Sample(
            "load_file",
            (load,),
            {"types": (((2,), "float32"), ((2, 2), "float32"))},
            lambda _: (wanted[:2].clone(), wanted[2:6].view(2, 2).clone(), torch.tensor(2)),
        ),
        Sample("save_block", (save, T((2, 3))), {"starts": (1, 0), "whole": (4, 5)}, lambda *_: torch.tensor(24)),
        Sample(
            "load_block",
            (T((2, 2)), chunks),
            {"starts": (0, 0), "whole": (2, 2)},
            lambda x, _: torch.stack((wanted[2:4], wanted[:2]), 1),
        ),
        Sample("count_elements", (T((2, 3)),), {}, lambda x: torch.tensor(x.numel())),
    ]
