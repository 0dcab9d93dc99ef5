"""torch's transforms on the device ``gtx``: gradients of gradients, forward mode, `torch.func`; each as on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import gt.torch_device
from gt.testing import Cluster
from tests.support.sizes import ROOT

DEVICE = gt.torch_device.NAME


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Compare what a function returns for tensors on the CPU and on the device."""
    results = [function(*[x.detach().to(device) for x in tensors]) for device in ("cpu", DEVICE)]
    want, got = (y if isinstance(y, tuple | list) else (y,) for y in results)
    for a, b in zip(got, want, strict=True):
        assert a.device.type == DEVICE
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


# -- gradients of gradients ------------------------------------------------------------------

X, W, TARGET = numbers(4, 6), numbers(6, 6, seed=1), torch.tensor([1, 0, -100, 3])
IMAGE, FILTER = numbers(2, 3, 5, 5), numbers(4, 3, 3, 3, seed=1)
#: functions of two tensors, of which the second is a parameter
TWICE: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]] = {
    "linear": (lambda x, w: functional.linear(x, w).tanh(), X, W),
    "gelu and norm": (lambda x, w: functional.layer_norm(functional.gelu(x @ w), (6,), w[0], w[1]), X, W),
    "attention": (lambda x, w: functional.scaled_dot_product_attention(x[None], (x @ w)[None], x[None]), X, W),
    "convolution": (lambda x, w: functional.conv2d(x, w, padding=1).sigmoid(), IMAGE, FILTER),
    "pool": (lambda x, w: functional.max_pool2d(functional.conv2d(x, w), 2) ** 2, IMAGE, FILTER),
    "embedding": (lambda x, w: functional.embedding(x.argmax(1), w) ** 3, X, W),
    **{
        f"cross entropy, {how}": (
            lambda x, w, how=how: functional.cross_entropy(x @ w, TARGET.to(x.device), reduction=how), X, W,
        )
        for how in ("mean", "sum", "none")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients(name: str) -> None:
    function, *tensors = TWICE[name]

    def penalty(*xs: torch.Tensor) -> Any:
        xs = tuple(x.requires_grad_() for x in xs)
        y = function(*xs)
        first = torch.autograd.grad(y.sum(), xs, create_graph=True, allow_unused=True)
        total = sum(g.square().sum() for g in first if g is not None)
        return [g for g in torch.autograd.grad(total, xs, allow_unused=True) if g is not None]

    with sdpa_kernel(SDPBackend.MATH):  # torch's kernels for a CPU have no gradient of the gradient
        both(penalty, *tensors)


PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "matmul": lambda x, w, b: x @ w.T,
    "vector": lambda x, w, b: x @ b,
    "linear": lambda x, w, b: functional.linear(x, w, b),
    "linear without bias": lambda x, w, b: functional.linear(x, w),
}


@pytest.mark.parametrize("kind", ["complex", "mixed", "real"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_beside_complex_numbers(name: str, kind: str) -> None:
    """torch itself refuses gradients of complex products that are one op; the real ones are recorded otherwise then."""
    pairs = [torch.complex(numbers(*shape), numbers(*shape, seed=2)) for shape in ((4, 6), (6, 6), (6,))]
    tensors = pairs if kind == "complex" else [x.real.contiguous() for x in pairs]
    assert pairs[0].to(DEVICE).is_complex()

    def penalty(*xs: torch.Tensor) -> Any:
        xs = tuple(x.requires_grad_() for x in xs)
        y = PRODUCTS[name](*xs)
        y = y * torch.tensor(1 + 2j, device=y.device) if kind == "mixed" else y
        first = torch.autograd.grad(y.abs().square().sum(), xs, create_graph=True, allow_unused=True)
        total = sum(g.abs().square().sum() for g in first if g is not None)
        second = torch.autograd.grad(total, xs, allow_unused=True)
        return [
            torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in (*first, *second) if g is not None
        ]

    both(penalty, *tensors)


ORDERS = """
import sys, warnings
import torch, gt.torch_device
from gt.testing import Cluster
from torch.autograd import forward_ad
warnings.filterwarnings("error", message="Warning only once for all operators")
with Cluster().client():
    x = torch.ones(2, 2, device="gtx")
    if sys.argv[1] == "before":
        torch.ones(2, dtype=torch.complex64).to("gtx")
    for _ in range(2):
        with forward_ad.dual_level():
            y = forward_ad.unpack_dual(forward_ad.make_dual(x, x) @ x)
            torch.ones(2, dtype=torch.complex64).to("gtx")
            z = forward_ad.unpack_dual(forward_ad.make_dual(x, x) @ x)
    z = x.to(torch.complex64).requires_grad_()
    (z @ z).abs().sum().backward()
    print(y.tangent.tolist(), z.grad.shape)
"""


@pytest.mark.parametrize("when", ["before", "inside"])
def test_forward_mode_beside_complex_numbers(when: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ORDERS, when]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.stdout == "[[2.0, 2.0], [2.0, 2.0]] torch.Size([2, 2])\n", process.stderr


# -- forward mode and functions of functions -------------------------------------------------


def dual(x: torch.Tensor, tangent: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        y = functional.gelu(forward_ad.make_dual(x, tangent) @ x.T).softmax(-1)
        return tuple(forward_ad.unpack_dual(y))


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x.tanh() @ w, torch.arange(x.shape[0], device=x.device))


def per_sample(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return vmap(grad(lambda w, row: (row @ w).tanh().sum()), (None, 0))(w, x)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "forward mode": lambda x, w: dual(x, w[:4]),
    "jvp": lambda x, w: jvp(lambda t: (t @ w).exp().log_softmax(-1), (x,), (x.cos(),)),
    "vjp": lambda x, w: vjp(lambda t: functional.layer_norm(t @ w, (6,)), x)[1](x.cos()),
    "grad": lambda x, w: grad(loss, (0, 1))(x, w),
    "jacrev": lambda x, w: jacrev(lambda t: (t @ w).sigmoid().sum(0))(x),
    "jacfwd": lambda x, w: jacfwd(lambda t: (t @ w).sigmoid().sum(0))(x),
    "hessian": lambda x, w: hessian(lambda t: loss(t, w))(x),
    "vmap": lambda x, w: vmap(lambda row: functional.softmax(row @ w, -1).cumsum(-1))(x),
    "per-sample gradients": per_sample,
    "vmap over dims": lambda x, w: vmap(torch.dot, (1, 0))(x, x.T),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch itself uses it for forward mode
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    both(TRANSFORMS[name], X, W)


def test_a_module_as_a_function_of_its_parameters() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 1))
    names = [name for name, _ in module.named_parameters()]

    def gradients(x: torch.Tensor, *parameters: torch.Tensor) -> Any:
        own = dict(zip(names, parameters, strict=True))
        return tuple(grad(lambda p: functional_call(module, p, (x,)).square().sum())(own).values())

    both(gradients, X, *module.parameters())


# -- threads ---------------------------------------------------------------------------------

THREADS = """
import threading, torch, gt.torch_device
from torch import nn

lock, losses = threading.Lock(), {}

def train(device, seed):
    with lock:  # the seed is of the process
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to(device)
        x = torch.randn(4, 6).to(device)
    optimizer, target, values = torch.optim.AdamW(model.parameters(), lr=0.01), torch.arange(4, device=device), []
    for _ in range(10):
        value = nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values.append(value.item())
    losses[device, seed] = values

threads = [threading.Thread(target=train, args=("gtx", seed)) for seed in range(4)]
[thread.start() for thread in threads]
[thread.join(60) for thread in threads]
for seed in range(4):
    train("cpu", seed)
    torch.testing.assert_close(torch.tensor(losses["gtx", seed]), torch.tensor(losses["cpu", seed]))
print("equal")
"""


def test_threads_train_models_of_their_own() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", THREADS]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert process.stdout == "equal\n", process.stderr[-2000:]
