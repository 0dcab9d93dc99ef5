"""Autocast gives torch's dtypes, and scaled gradients give torch's steps."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import gt
from gt.client.tensor import emit
from gt.testing import Cluster


@pytest.fixture(scope="module", autouse=True)
def session():
    with Cluster().client() as session:
        yield session


#: what is called, with (library, its functional, a float32 3×3, one in the lower precision)
CALLS = {
    "matmul": lambda lib, fn, x, y: x @ y,
    "bmm": lambda lib, fn, x, y: lib.bmm(x[None], x[None]),
    "linear": lambda lib, fn, x, y: fn.linear(x, y, x[0]),
    "conv": lambda lib, fn, x, y: fn.conv1d(x[None], x[:, :, None]),
    "attention": lambda lib, fn, x, y: fn.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "relu": lambda lib, fn, x, y: fn.relu(y),
    "add": lambda lib, fn, x, y: x + y,
    "mul": lambda lib, fn, x, y: y * 2.0,
    "cat": lambda lib, fn, x, y: lib.cat([x, y]),
    "mean": lambda lib, fn, x, y: y.mean(),
}
#: those that torch runs in float32 on a GPU, where its list is longer than a CPU's
IN_FLOAT32 = {
    "softmax": lambda fn, y: fn.softmax(y, -1),
    "log_softmax": lambda fn, y: fn.log_softmax(y, -1),
    "layer_norm": lambda fn, y: fn.layer_norm(y, (3,)),
    "mse_loss": lambda fn, y: fn.mse_loss(y, y * 2),
    "cross_entropy": lambda fn, y: fn.cross_entropy(y, gt.tensor([0, 1, 2])),
    "sum": lambda fn, y: y.sum(),
    "exp": lambda fn, y: y.exp(),
    "pow": lambda fn, y: y**3,
    "norm": lambda fn, y: y.norm(),
    "cumsum": lambda fn, y: y.cumsum(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_dtypes_are_torchs(name):
    values = np.random.default_rng(0).random((3, 3), dtype=np.float32)
    a = torch.tensor(values)
    b = gt.tensor(values)
    with torch.autocast("cpu", torch.bfloat16):
        want = CALLS[name](torch, torch.nn.functional, a, a.bfloat16())
    with gt.autocast(dtype=gt.bfloat16):
        got = CALLS[name](gt, gt.nn.functional, b, b.bfloat16())
    assert got.dtype.name == str(want.dtype).removeprefix("torch.")
    np.testing.assert_allclose(got.float().numpy(), want.float().numpy(), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_ops_that_need_precision_compute_in_float32(name):
    y = gt.rand(3, 3).half()
    with gt.autocast(dtype=gt.float16):
        assert IN_FLOAT32[name](gt.nn.functional, y).dtype is gt.float32


def test_nesting_threads_and_the_end():
    x = gt.ones(2, 2)
    assert emit.casting is None
    with gt.autocast(dtype=gt.bfloat16):
        assert (x @ x).dtype is gt.bfloat16
        assert gt.is_autocast_enabled()
        with gt.autocast(enabled=False):
            assert (x @ x).dtype is gt.float32
        with gt.amp.autocast("cuda"):
            assert (x @ x).dtype is gt.float16
        assert (x.double() @ x.double()).dtype is gt.float64
        seen = []
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
        assert seen == [gt.float32]
    assert emit.casting is None
    assert (x @ x).dtype is gt.float32

    @gt.autocast(dtype=gt.bfloat16)
    def product():
        return x @ x

    assert product().dtype is gt.bfloat16
    with pytest.raises(RuntimeError, match=r"bfloat16 and gt\.float16"):
        gt.autocast(dtype=gt.int32)


def test_a_weight_is_cast_once(session):
    net = gt.nn.Linear(3, 3)
    x = gt.ones(2, 3)
    with gt.autocast(dtype=gt.bfloat16):
        net(x)
        before = len(session.outbox.words)
        session.outbox.flush()
        out = net(x)
        assert len(session.outbox.words) <= max(before, 12)
        out.sum().backward()
    assert net.weight.grad.dtype is gt.float32


def test_training_in_bfloat16_is_near_torchs():
    torch.manual_seed(0)
    make = lambda nn: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    theirs, ours = make(torch.nn), make(gt.nn)
    ours.load_state_dict(theirs.state_dict())
    a, b = torch.optim.AdamW(theirs.parameters(), 1e-2), gt.optim.AdamW(ours.parameters(), 1e-2)
    rng = np.random.default_rng(0)
    for _ in range(10):
        x, y = rng.standard_normal((6, 8)).astype("float32"), rng.integers(0, 4, 6)
        with torch.autocast("cpu", torch.bfloat16):
            one = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        with gt.autocast("cpu", gt.bfloat16):
            other = gt.nn.functional.cross_entropy(ours(gt.tensor(x)), gt.tensor(y))
        for loss, opt in ((one, a), (other, b)):
            opt.zero_grad()
            loss.backward()
            opt.step()
        assert other.item() == pytest.approx(one.item(), abs=3e-2)


def test_scaler_steps_as_torchs():
    values = np.ones(3, dtype=np.float32)
    theirs, ours = torch.tensor(values, requires_grad=True), gt.tensor(values).requires_grad_()
    a, b = torch.optim.SGD([theirs], 0.1), gt.optim.SGD([ours], 0.1)
    options = {"init_scale": 1024.0, "growth_interval": 3}
    sa, sb = torch.amp.GradScaler("cpu", **options), gt.amp.GradScaler("cpu", **options)
    for step in range(12):
        factor = float("inf") if step in (2, 7) else 0.5
        for p, opt, scaler in ((theirs, a, sa), (ours, b, sb)):
            opt.zero_grad()
            scaler.scale((p * factor).sum()).backward()
            if step % 2:
                scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()
        assert sb.get_scale() == sa.get_scale()
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6)
    want = sa.state_dict()
    assert sb.state_dict() == want
    fresh = gt.amp.GradScaler()
    fresh.load_state_dict(want)
    assert fresh.get_scale() == sa.get_scale()


def test_scaler_says_what_is_wrong():
    p = gt.ones(1).requires_grad_()
    opt, scaler = gt.optim.SGD([p], 0.1), gt.amp.GradScaler()
    p.grad = gt.ones(1)
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="already been called on this optimizer"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(RuntimeError, match="since the last update"):
        scaler.step(opt)
    off = gt.amp.GradScaler(enabled=False)
    assert off.scale(p) is p


@pytest.mark.parametrize("outside", [None, "bfloat16"])
@pytest.mark.parametrize("cast_inputs", [None, "float32", "float16"])
def test_user_defined_functions_follow_autocast_as_in_torch(outside, cast_inputs):
    def run(lib):
        seen = []

        class Product(lib.autograd.Function):
            @staticmethod
            @lib.amp.custom_fwd(
                device_type="cpu", cast_inputs=None if cast_inputs is None else getattr(lib, cast_inputs)
            )
            def forward(ctx, a, pair, *, scale=1):
                ctx.save_for_backward(a, pair[0])
                result = a @ pair[0] * scale
                seen.extend([a.dtype, pair[0].dtype, (a @ a).dtype, lib.is_autocast_enabled("cpu")])
                return result

            @staticmethod
            @lib.amp.custom_bwd(device_type="cpu")
            def backward(ctx, g):
                _, b = ctx.saved_tensors
                seen.extend([(g.float() @ g.float()).dtype, lib.is_autocast_enabled("cpu")])
                return (g.to(b.dtype) @ b.T).float(), None

        x = lib.ones(2, 2, requires_grad=True)
        with lib.autocast("cpu", dtype=lib.bfloat16, enabled=outside is not None):
            y = Product.apply(x, (lib.full((2, 2), 2.0),))
        y.float().sum().backward()
        return [str(s).removeprefix("torch.").removeprefix("gt.") for s in seen], x.grad.tolist()

    assert run(gt) == run(torch)


def test_custom_fwd_without_brackets():
    class Double(gt.autograd.Function):
        @staticmethod
        @gt.cuda.amp.custom_fwd
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @gt.cuda.amp.custom_bwd
        def backward(ctx, g):
            return g * 2

    x = gt.ones(2, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert gt.amp.is_autocast_available("cuda")


@pytest.mark.parametrize("inside", [True, False])
def test_a_checkpoint_runs_again_with_its_own_autocast(inside):
    """The backward pass may be outside of the autocast of the forward pass, or inside of another one."""
    gt.manual_seed(0)
    first, second = gt.nn.Linear(4, 8), gt.nn.Linear(8, 4)
    x = gt.randn(3, 4)
    block = lambda x: second(first(x).tanh())
    grads = []
    for run in (block, lambda x: gt.checkpoint(block, x, use_reentrant=False)):
        with gt.autocast(dtype=gt.bfloat16, enabled=inside):
            loss = run(x).float().square().sum()
        with gt.autocast(dtype=gt.bfloat16, enabled=not inside):
            loss.backward()
        grads.append([p.grad.numpy() for p in (*first.parameters(), *second.parameters())])
        first.zero_grad()
        second.zero_grad()
    for plain, again in zip(*grads, strict=True):
        np.testing.assert_array_equal(plain, again)


def test_casts_belong_to_the_line_of_their_op():
    with Cluster().client() as session:
        x, w, b = gt.ones(2, 3), gt.nn.Parameter(gt.ones(4, 3)), gt.nn.Parameter(gt.ones(4))
        session.outbox.flush()
        with gt.autocast(dtype=gt.bfloat16):
            gt.nn.functional.linear(x, w, b)
        words, sites, i = session.outbox.words, [], 0
        while words[i] >= 0:
            sites.append(words[i + 1])
            i += session.signatures.by_code[words[i]].width
        assert len(sites) == 4
        assert set(sites) == {sites[0]}
        assert sites[0]


def test_the_widest_dtype_is_that_of_all_operands():
    """bfloat16 and float16 together give float32, in any order."""
    with Cluster().client(), gt.autocast(dtype=gt.bfloat16):
        a, b = gt.ones(2).half(), gt.ones(2).bfloat16()
        assert gt.cat([a, b]).dtype is gt.cat([b, a]).dtype is gt.float32
        assert gt.cat([a, a.double()]).dtype is gt.float64


def test_leaves_that_share_a_value_each_have_a_gradient() -> None:
    """Each is cast once, and cached by itself."""
    w = gt.ones(3, 3, requires_grad=True)
    twin, x = w.detach().requires_grad_(), gt.ones(2, 3)
    with gt.autocast(dtype=gt.bfloat16):
        y, z = x @ w, x @ twin
        w.requires_grad_(False).requires_grad_().register_hook(lambda g: g * 3)
        hooked = x @ w
    (y.sum() + z.sum() * 2 + hooked.sum() * 0).backward()
    assert twin.grad is not None
    assert twin.grad.numpy().tolist() == [[4.0] * 3] * 3
