"""Modules against torch's, from the same weights: repr, state, outputs, gradients."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch

import gt
from gt.client.grad.backward import no_grad
from gt.testing import Cluster


def f(*shape):
    return lambda rng: rng.standard_normal(shape)


def i(high, *shape):
    return lambda rng: rng.integers(0, high, shape)


def p(*shape):
    """Between 0 and 1."""
    return lambda rng: rng.random(shape) * 0.9 + 0.05


def sign(*shape):
    return lambda rng: rng.integers(0, 2, shape) * 2.0 - 1


ACTIVATIONS = [
    "ReLU()", "ReLU(inplace=True)", "ReLU6()", "SiLU()", "Mish()", "SELU()", "ELU(0.5)", "CELU()", "LeakyReLU(0.2)",
    "LeakyReLU(0.2, True)", "Threshold(0.1, 20)", "Hardtanh(-2, 2)", "Hardsigmoid()", "Hardswish()", "GELU()",
    "GELU('tanh')", "Softplus()", "Softplus(2, 1)", "Softshrink()", "Hardshrink()", "Sigmoid()", "Tanh()",
    "LogSigmoid()", "Softsign()", "Tanhshrink()", "Softmax(dim=-1)", "Softmin(1)", "LogSoftmax(dim=0)", "PReLU()",
    "PReLU(4, init=0.1)", "GLU()", "Identity(3, a=2)", "Flatten()", "Unflatten(1, (2, 2))", "Dropout(0.0)",
    "AlphaDropout(0.0)", "Dropout2d(0.0, inplace=True)",
]  # fmt: skip

LAYERS = {
    "Linear(4, 5)": [f(3, 4)],
    "Linear(4, 5, bias=False)": [f(2, 3, 4)],
    "Bilinear(3, 4, 2)": [f(5, 3), f(5, 4)],
    "Embedding(7, 3)": [i(7, 2, 4)],
    "Embedding(7, 3, padding_idx=1)": [i(7, 2, 4)],
    "EmbeddingBag(7, 3)": [i(7, 2, 4)],
    "EmbeddingBag(7, 3, 1.5, mode='sum', padding_idx=-1)": [i(7, 2, 4)],
    "EmbeddingBag(7, 3, norm_type=1, mode='max', include_last_offset=True)": [i(7, 4), lambda rng: np.array([0, 1, 4])],
    "Softmax2d()": [f(2, 3, 4, 4)],
    "Conv1d(4, 6, 3)": [f(2, 4, 9)],
    "Conv1d(4, 6, 3, padding='same', groups=2)": [f(2, 4, 9)],
    "Conv2d(3, 4, 3, stride=2, padding=1)": [f(2, 3, 8, 7)],
    "Conv2d(4, 4, (3, 2), dilation=2, groups=4, bias=False)": [f(1, 4, 8, 7)],
    "Conv2d(3, 4, 3, padding=1, padding_mode='reflect')": [f(2, 3, 6, 6)],
    "Conv2d(3, 4, 3, padding=1, padding_mode='circular')": [f(2, 3, 6, 6)],
    "ConvTranspose1d(3, 4, 3, stride=2)": [f(2, 3, 5)],
    "ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1)": [f(2, 3, 5, 5)],
    "MaxPool1d(2)": [f(2, 3, 8)],
    "MaxPool2d(3, stride=2, padding=1)": [f(2, 3, 8, 8)],
    "AvgPool1d(2)": [f(2, 3, 8)],
    "AvgPool2d((2, 3))": [f(2, 3, 8, 9)],
    "AdaptiveAvgPool1d(2)": [f(2, 3, 8)],
    "AdaptiveAvgPool2d((2, 3))": [f(2, 3, 8, 9)],
    "AdaptiveAvgPool2d(1)": [f(2, 3, 8, 9)],
    "AdaptiveMaxPool2d(2)": [f(2, 3, 8, 9)],
    "LayerNorm(4)": [f(3, 4)],
    "LayerNorm((3, 4), eps=1e-3, bias=False)": [f(2, 3, 4)],
    "LayerNorm(4, elementwise_affine=False)": [f(3, 4)],
    "RMSNorm(4)": [f(3, 4)],
    "GroupNorm(2, 4)": [f(2, 4, 3, 3)],
    "BatchNorm1d(4)": [f(6, 4)],
    "BatchNorm1d(4, affine=False)": [f(6, 4, 3)],
    "BatchNorm2d(3, momentum=0.3)": [f(4, 3, 5, 5)],
    "BatchNorm2d(3, momentum=None)": [f(4, 3, 5, 5)],
    "BatchNorm2d(3, track_running_stats=False)": [f(4, 3, 5, 5)],
    "InstanceNorm1d(3)": [f(2, 3, 5)],
    "InstanceNorm2d(3, affine=True, track_running_stats=True)": [f(2, 3, 5, 5)],
    "Upsample(scale_factor=2)": [f(1, 2, 3, 3)],
    "Upsample(size=(5, 7), mode='bilinear')": [f(1, 2, 3, 3)],
    "PixelShuffle(2)": [f(1, 8, 3, 3)],
    "PixelUnshuffle(2)": [f(1, 2, 4, 4)],
    "CosineSimilarity()": [f(3, 4), f(3, 4)],
    "PairwiseDistance()": [f(3, 4), f(3, 4)],
    "ConstantPad2d(1, 3.5)": [f(1, 2, 3, 3)],
    "ZeroPad2d((1, 2, 0, 1))": [f(1, 2, 3, 3)],
    "ReflectionPad1d(2)": [f(1, 2, 5)],
    "ReplicationPad2d(1)": [f(1, 2, 3, 3)],
    "RNN(3, 4)": [f(5, 2, 3)],
    "RNN(3, 4, 2, 'relu', batch_first=True)": [f(2, 5, 3), f(2, 2, 4)],
    "LSTM(3, 4)": [f(5, 2, 3)],
    "LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)": [f(2, 5, 3)],
    "LSTM(3, 4, proj_size=2, bias=False)": [f(5, 2, 3)],
    "GRU(3, 4, num_layers=2, bidirectional=True)": [f(5, 2, 3), f(4, 2, 4)],
    "GRU(3, 4)": [f(5, 3)],
    "RNNCell(3, 4)": [f(2, 3), f(2, 4)],
    "RNNCell(3, 4, nonlinearity='relu')": [f(2, 3)],
    "LSTMCell(3, 4)": [f(2, 3)],
    "GRUCell(3, 4, bias=False)": [f(2, 3), f(2, 4)],
    "MultiheadAttention(8, 2)": [f(5, 2, 8)] * 3,
    "MultiheadAttention(8, 2, batch_first=True, bias=False)": [f(2, 5, 8), f(2, 6, 8), f(2, 6, 8)],
    "MultiheadAttention(8, 4, kdim=3, vdim=5)": [f(5, 2, 8), f(6, 2, 3), f(6, 2, 5)],
    "MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True)": [f(5, 8), f(6, 8), f(6, 8)],
    "TransformerEncoderLayer(8, 2, 16, dropout=0.0)": [f(5, 2, 8)],
    "TransformerEncoderLayer(8, 2, 16, 0.0, 'gelu', batch_first=True, norm_first=True)": [f(2, 5, 8)],
    "TransformerDecoderLayer(8, 2, 16, dropout=0.0)": [f(5, 2, 8), f(6, 2, 8)],
    "TransformerDecoderLayer(8, 2, 16, 0.0, norm_first=True, bias=False)": [f(5, 2, 8), f(6, 2, 8)],
    "TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)": [f(2, 5, 8)],
    "TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0), 2, nn.LayerNorm(8))": [f(5, 2, 8), f(6, 2, 8)],
    "Transformer(8, 2, 1, 2, 16, 0.0, batch_first=True)": [f(2, 6, 8), f(2, 5, 8)],
    "Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 2)))": [f(2, 3)],
    "L1Loss()": [f(3, 4), f(3, 4)],
    "MSELoss(reduction='sum')": [f(3, 4), f(3, 4)],
    "MSELoss(reduction='none')": [f(3, 4), f(3, 4)],
    "SmoothL1Loss(beta=0.5)": [f(3, 4), f(3, 4)],
    "HuberLoss(delta=0.5)": [f(3, 4), f(3, 4)],
    "CrossEntropyLoss()": [f(5, 4), i(4, 5)],
    "CrossEntropyLoss(label_smoothing=0.1, ignore_index=2)": [f(5, 4, 2), i(4, 5, 2)],
    "NLLLoss(reduction='none')": [f(5, 4), i(4, 5)],
    "BCELoss()": [p(3, 4), p(3, 4)],
    "BCEWithLogitsLoss()": [f(3, 4), p(3, 4)],
    "CTCLoss(3, 'sum', zero_infinity=True)": [f(6, 2, 4), i(3, 2, 3), lambda rng: np.array([6, 1]), i(3, 2)],
    "KLDivLoss(reduction='batchmean')": [f(3, 4), p(3, 4)],
    "CosineEmbeddingLoss(0.1)": [f(3, 4), f(3, 4), sign(3)],
    "MarginRankingLoss(0.2)": [f(3), f(3), sign(3)],
    "HingeEmbeddingLoss()": [f(3, 4), i(2, 3, 4)],
    "SoftMarginLoss()": [f(3, 4), i(2, 3, 4)],
    "TripletMarginLoss(swap=True)": [f(3, 4), f(3, 4), f(3, 4)],
    "PoissonNLLLoss()": [f(3, 4), p(3, 4)],
    "GaussianNLLLoss()": [f(3, 4), f(3, 4), p(3, 4)],
} | {text: [f(3, 4) if "2d" not in text else f(2, 3, 4, 4)] for text in ACTIVATIONS}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def session():
    with Cluster().client() as session:
        yield session


def make_module(text, nn):
    return eval(f"nn.{text}", {"nn": nn})


def pair(text, dtype="float64"):
    """The same module in torch and in GT, with torch's weights."""
    torch.manual_seed(0)
    theirs = make_module(text, torch.nn).to(getattr(torch, dtype))
    ours = make_module(text, gt.nn).to(getattr(gt, dtype))
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    return theirs, ours


def flat(x):
    return [y for part in x for y in flat(part)] if isinstance(x, tuple | list) else [] if x is None else [x]


def close(a, b, tol=1e-9):
    np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=tol, atol=tol)


@pytest.mark.parametrize("text", LAYERS)
def test_outputs_and_gradients(text):
    theirs, ours = pair(text)
    rng = np.random.default_rng(1)
    arrays = [make(rng) for make in LAYERS[text]]
    xs = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    ys = [gt.tensor(a).requires_grad_(a.dtype.kind == "f") for a in arrays]
    if "inplace=True" in text or ", True)" in text:
        outs, made_ = theirs(xs[0] * 1), ours(ys[0] * 1)
    else:
        outs, made_ = theirs(*xs), ours(*ys)
    outs, made_ = flat(outs), flat(made_)
    assert len(outs) == len(made_)
    for a, b in zip(outs, made_, strict=True):
        close(a, b)
    weights = [rng.standard_normal(tuple(a.shape)) for a in outs]
    if not outs[0].requires_grad:
        return
    sum((a * torch.tensor(w)).sum() for a, w in zip(outs, weights, strict=True)).backward()
    total = None
    for b, w in zip(made_, weights, strict=True):
        part = (b * gt.tensor(w)).sum()
        total = part if total is None else total + part
    total.backward()
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            close(a.grad, b.grad, 1e-8)
    for x, y in zip(xs, ys, strict=True):
        if x.requires_grad and x.grad is not None:
            close(x.grad, y.grad, 1e-8)
    for a, b in zip(theirs.buffers(), ours.buffers(), strict=True):
        close(a, b)


@pytest.mark.parametrize("text", LAYERS)
def test_repr_and_state(text):
    theirs, ours = make_module(text, torch.nn), make_module(text, gt.nn)
    if torch.__version__ >= "2.13":  # older ones do not tell of a bias
        assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    for key, x in theirs.state_dict().items():
        y = ours.state_dict()[key]
        assert tuple(y.shape) == tuple(x.shape)
        assert y.dtype.name == str(x.dtype).removeprefix("torch.")


@pytest.mark.parametrize("text", [t for t in LAYERS if t.split("(")[0] in (
    "Linear", "Bilinear", "Embedding", "EmbeddingBag", "Conv2d", "ConvTranspose2d", "LSTM", "MultiheadAttention",
    "Transformer",
)])  # fmt: skip
def test_initial_weights_have_torchs_distribution(text):
    """Bounds and spread of every parameter are torch's."""
    torch.manual_seed(0), gt.manual_seed(0)
    big = text.replace("(4, 5", "(40, 50").replace("(7, 3", "(200, 30").replace("(3, 4", "(30, 40")
    theirs, ours = make_module(big, torch.nn), make_module(big, gt.nn)
    for (name, a), b in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        if a.numel() < 200:
            continue
        x, y = a.detach().numpy(), b.detach().numpy()
        assert y.std() == pytest.approx(x.std(), rel=0.25, abs=1e-6), name
        assert abs(y).max() == pytest.approx(abs(x).max(), rel=0.3, abs=1e-6), name


def test_batch_norm_in_evaluation():
    theirs, ours = pair("BatchNorm2d(3)")
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 5))
    theirs(torch.tensor(x)), ours(gt.tensor(x))
    close(theirs.eval()(torch.tensor(x)), ours.eval()(gt.tensor(x)))
    assert ours.num_batches_tracked.item() == 1


MASKS = [
    {"need_weights": False},
    {"average_attn_weights": False},
    {"attn_mask": "causal"},
    {"attn_mask": "causal", "is_causal": True, "need_weights": False},
    {"attn_mask": "float"},
    {"attn_mask": "heads"},
    {"key_padding_mask": "padding"},
    {"key_padding_mask": "padding", "attn_mask": "causal", "need_weights": False},
    {"key_padding_mask": "padding", "attn_mask": "causal", "need_weights": False, "is_causal": True},
]


@pytest.mark.parametrize("masks_used", MASKS, ids=lambda d: ",".join(f"{k}={v}" for k, v in d.items()))
@pytest.mark.parametrize("extra", ["", ", add_bias_kv=True, add_zero_attn=True"])
def test_attention_masks(masks_used, extra):
    theirs, ours = pair(f"MultiheadAttention(8, 2, batch_first=True{extra})")
    rng = np.random.default_rng(0)
    masks = {
        "causal": np.triu(np.ones((5, 5), dtype=bool), 1),
        "float": rng.standard_normal((5, 5)),
        "heads": np.tile(np.triu(np.ones((5, 5), dtype=bool), 1), (4, 1, 1)),
        "padding": np.array([[False] * 5, [False] * 3 + [True] * 2]),
    }
    x = rng.standard_normal((2, 5, 8))
    options = lambda lib: {k: lib.tensor(masks[v]) if isinstance(v, str) else v for k, v in masks_used.items()}
    a, b = torch.tensor(x), gt.tensor(x)
    expected, results = theirs(a, a, a, **options(torch)), ours(b, b, b, **options(gt))
    for one, other in zip(flat(expected), flat(results), strict=True):
        close(one, other)
    assert (expected[1] is None) == (results[1] is None)


# -- modules -----------------------------------------------------------------------


class Net(gt.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = gt.nn.Linear(2, 3)
        self.register_buffer("seen", gt.zeros(1))
        self.register_buffer("scratch", gt.zeros(1), persistent=False)
        self.blocks = gt.nn.ModuleList([gt.nn.Linear(3, 3) for _ in range(3)])
        self.tied = self.a
        self.scale = gt.nn.Parameter(gt.ones(3))
        self.nothing = None

    def forward(self, x):
        x = self.a(x) * self.scale
        for block in self.blocks:
            x = block(x)
        return x


def test_attributes():
    net = Net()
    assert [n for n, _ in net.named_children()] == ["a", "blocks"]
    assert "tied.weight" in net.state_dict()
    assert "tied.weight" not in dict(net.named_parameters())
    assert list(dict(net.named_buffers())) == ["seen", "scratch"]
    assert "scratch" not in net.state_dict()
    assert net.get_submodule("blocks.1") is net.blocks[1]
    assert net.get_parameter("blocks.1.weight") is net.blocks[1].weight
    with pytest.raises(TypeError, match="cannot assign 'int' as parameter 'scale'"):
        net.scale = 3
    net.scale = None
    assert net.scale is None
    del net.a
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'a'"):
        _ = net.a
    with pytest.raises(KeyError, match="already exists"):
        net.register_buffer("forward", gt.zeros(1))

    class Bad(gt.nn.Module):
        def __init__(self):
            self.p = gt.nn.Parameter(gt.ones(1))

    with pytest.raises(AttributeError, match=r"before Module\.__init__"):
        Bad()


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("by", ["optimizer", "module"])
def test_zero_grad_writes_zeros_into_the_gradients(by):
    """So a gradient that the program keeps is cleared, and added to, like torch's."""

    def run(lib):
        net = lib.nn.Linear(2, 1)
        optimizer = lib.optim.SGD(net.parameters(), lr=0.1)
        net(lib.ones(1, 2)).sum().backward()
        kept = net.weight.grad
        values = [kept.tolist()]
        (optimizer if by == "optimizer" else net).zero_grad(set_to_none=False)
        values.append(kept.tolist())
        (net(lib.ones(1, 2)) * 3).sum().backward(create_graph=True)
        values.append(kept.tolist())
        net.zero_grad(set_to_none=False)
        return [*values, net.weight.grad.requires_grad, net.weight.grad.tolist()]

    assert run(gt) == run(torch)


def test_modes_casts_and_zero_grad():
    net = Net()
    assert not net.eval().blocks[0].training
    assert net.train().blocks[0].training
    net(gt.ones(1, 2)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert net.a.weight.grad.sum().item() == 0
    net.zero_grad()
    assert net.a.weight.grad is None
    before = net.a.weight
    assert net.to("cuda").half().to(gt.float64).a.weight is before
    assert before.dtype is gt.float64
    assert before.requires_grad
    assert net.seen.dtype is gt.float64
    net.requires_grad_(False)
    assert not net(gt.ones(1, 2, dtype=gt.float64)).requires_grad
    assert [type(m).__name__ for m in net.modules()] == ["Net", "Linear", "ModuleList", "Linear", "Linear", "Linear"]
    copied = copy.deepcopy(net)
    with no_grad():
        copied.a.weight.fill_(7.0)
    assert net.a.weight.max().item() < 7
    assert copied.tied is copied.a


def test_load_state_dict_reports_problems():
    net, state = Net(), Net().state_dict()
    del state["a.bias"]
    state["more"] = gt.zeros(1)
    state["scale"] = gt.zeros(4)
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(state)
    text = str(error.value)
    assert text.startswith("Error(s) in loading state_dict for Net:\n\t")
    assert 'Missing key(s) in state_dict: "a.bias". ' in text
    assert 'Unexpected key(s) in state_dict: "more". ' in text
    assert "size mismatch for scale: copying a param with shape gt.Size([4]) from checkpoint" in text
    del state["scale"]
    keys = net.load_state_dict(state, strict=False)
    assert keys.missing_keys == ["scale", "a.bias"]
    assert keys.unexpected_keys == ["more"]
    weight = net.a.weight
    net.load_state_dict({"a.weight": np.full((3, 2), 5.0)}, strict=False)
    assert net.a.weight is weight
    assert weight.tolist() == [[5.0] * 2] * 3


class Counting(gt.nn.Module):
    """A module with state that is not a tensor."""

    def __init__(self, count):
        super().__init__()
        self.layer, self.count = gt.nn.Linear(2, 2), count

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_extra_state():
    first, second = gt.nn.Sequential(Counting(3)), gt.nn.Sequential(Counting(0))
    state = first.state_dict()
    assert list(state) == ["0._extra_state", "0.layer.weight", "0.layer.bias"]
    second.load_state_dict(state)
    assert second[0].count == 3
    del state["0._extra_state"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"0\._extra_state"'):
        second.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"_extra_state"'):
        gt.nn.Linear(2, 2).load_state_dict({**gt.nn.Linear(2, 2).state_dict(), "_extra_state": 1})


def test_hooks():
    net, seen = gt.nn.Linear(2, 2), []
    handles = [
        net.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
        net.register_forward_hook(lambda m, args, out: seen.append(args[0].sum().item()) or out + 1),
        net.register_full_backward_hook(lambda m, ins, outs: seen.append((ins[0].shape, outs[0].sum().item()))),
    ]
    x = gt.ones(1, 2).requires_grad_()
    hooked = net(x)
    hooked.sum().backward()
    assert seen == [4.0, (gt.Size([1, 2]), 2.0)]
    for handle in handles:
        handle.remove()
    plain = net(x * 2)
    assert gt.allclose(hooked, plain + 1)


def _hooked(lib, seen):
    """A module with three inputs and two outputs: its hooks note and change all gradients."""

    class Pair(lib.nn.Module):
        def forward(self, a, b, c):
            return a * b, (b * c).exp()

    def before(module, outs):
        seen.append([None if g is None else g.tolist() for g in outs])
        return tuple(g if g is None else g * 2 for g in outs)

    def after(module, ins, outs):
        seen.append([None if g is None else g.tolist() for g in (*ins, *outs)])
        return tuple(g if g is None else g + 1 for g in ins)

    net = Pair()
    net.register_full_backward_pre_hook(before)
    net.register_full_backward_hook(after)
    return net


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_backward_hooks_get_all_gradients(used):
    results = []
    for lib in (torch, gt):
        seen = []
        a, b = (lib.tensor([v, 3.0]).requires_grad_() for v in (1.0, 2.0))
        outs = _hooked(lib, seen)(a * 1, b * 1, lib.tensor([0.5, 0.25]))
        sum(outs[i].sum() for i in used).backward()
        results.append([seen, None if a.grad is None else a.grad.tolist(), b.grad.tolist()])
    assert repr(results[0]) == repr(results[1])


def test_backward_hooks_return_a_gradient_for_each_input():
    net = gt.nn.Linear(2, 2)
    net.register_full_backward_hook(lambda m, ins, outs: (ins[0], ins[0]))
    with pytest.raises(gt.GradError, match="invalid number of grad_input, got 2, but expected 1"):
        net(gt.ones(1, 2).requires_grad_()).sum().backward()


def test_backward_hooks_without_gradients_of_inputs():
    net, seen = gt.nn.Linear(2, 2), []
    net.register_full_backward_hook(lambda m, ins, outs: seen.append((ins, outs[0].tolist())))
    net(gt.ones(1, 2)).sum().backward()
    assert seen == [((None,), [[1.0, 1.0]])]
    with gt.no_grad():
        net(gt.ones(1, 2))


def test_attributes_of_torchs_modules():
    nn = gt.nn
    assert nn.Upsample(2).name == "Upsample"
    assert nn.UpsamplingNearest2d(2).name == "UpsamplingNearest2d"
    assert nn.PairwiseDistance(3.0).norm == 3.0
    codes = [
        nn.TransformerEncoderLayer(4, 2, 8, activation=a).activation_relu_or_gelu
        for a in ("relu", nn.ReLU(), nn.functional.gelu, nn.GELU(), gt.tanh)
    ]
    assert codes == [1, 1, 2, 2, 0]


def test_containers():
    nn = gt.nn
    seq = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert isinstance(seq[1], nn.ReLU)
    assert len(seq[:2]) == 2
    assert seq[-1] is seq[2]
    assert list(seq.append(nn.Tanh())._modules) == ["0", "1", "2", "3"]
    del seq[1]
    assert [type(m).__name__ for m in seq] == ["Linear", "Linear", "Tanh"]
    named = nn.Sequential({"a": nn.Linear(2, 2), "b": nn.ReLU()})
    assert named.a is named[0]
    modules = nn.ModuleDict({"x": nn.Linear(1, 1), "y": nn.ReLU()})
    assert list(modules) == ["x", "y"]
    assert "x" in modules
    params = nn.ParameterList([gt.ones(2), nn.Parameter(gt.zeros(1))])
    assert len(list(params.parameters())) == 2
    named_params = nn.ParameterDict({"w": gt.ones(2)})
    assert isinstance(named_params["w"], nn.Parameter)
    theirs = torch.nn.ModuleList([torch.nn.Linear(1, 1)] * 3 + [torch.nn.ReLU()])
    assert repr(nn.ModuleList([nn.Linear(1, 1)] * 3 + [nn.ReLU()])) == repr(theirs)
    with pytest.raises(IndexError):
        _ = seq[5]


def test_parameter():
    p_ = gt.nn.Parameter(gt.ones(2))
    assert isinstance(p_, gt.Tensor)
    assert p_.is_leaf
    assert repr(p_).startswith("Parameter containing:\ntensor([1., 1.]")
    p_.data = gt.zeros(2, dtype=gt.float64)
    assert p_.tolist() == [0, 0]
    assert p_.requires_grad
    view = gt.nn.Parameter(gt.arange(4.0).reshape(2, 2)[0])
    view.grad = gt.ones(2)
    gt.optim.SGD([view], lr=1.0).step()
    assert view.tolist() == [-1, 0]


# -- init and utils ------------------------------------------------------------------------

INITS = [
    ("uniform_", (-1, 2)), ("normal_", (1, 2)), ("trunc_normal_", (0.5, 2, -1, 3)), ("xavier_uniform_", (2,)),
    ("xavier_normal_", (2,)), ("kaiming_uniform_", ()), ("kaiming_normal_", (0.1, "fan_out", "relu")),
    ("constant_", (3,)), ("ones_", ()), ("zeros_", ()), ("sparse_", (0.3, 1)), ("orthogonal_", (2,)), ("eye_", ()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), INITS, ids=[name for name, _ in INITS])
def test_init(name, args):
    a, b = torch.empty(120, 80), gt.empty(120, 80)
    getattr(torch.nn.init, name)(a, *args)
    assert getattr(gt.nn.init, name)(b, *args) is b
    x, y = a.numpy(), b.numpy()
    tails = (
        () if name in ("normal_", "sparse_", "orthogonal_", "xavier_normal_", "kaiming_normal_") else (np.min, np.max)
    )
    for measure in (np.mean, np.std, lambda v: (v == 0).mean(), *tails):
        assert measure(y) == pytest.approx(measure(x), rel=0.1, abs=0.06)
    if name == "orthogonal_":
        np.testing.assert_allclose(y.T @ y, 4 * np.eye(80), atol=1e-4)


def test_gains_and_dirac():
    for name in ("linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"):
        assert gt.nn.init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    a, b = torch.nn.init.dirac_(torch.empty(6, 3, 3, 3), 2), gt.nn.init.dirac_(gt.empty(6, 3, 3, 3), 2)
    close(a, b)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.1, 1000.0])
def test_clipping(norm, max_norm):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s).astype("float32") for s in ((3, 4), (5,), ())]
    xs, ys = [torch.zeros(v.shape) for v in values], [gt.zeros(v.shape) for v in values]
    for x, y, v in zip(xs, ys, values, strict=True):
        x.grad, y.grad = torch.tensor(v), gt.tensor(v)
    a = torch.nn.utils.clip_grad_norm_(xs, max_norm, norm)
    b = gt.nn.utils.clip_grad_norm_(ys, max_norm, norm)
    close(a, b, 1e-6)
    torch.nn.utils.clip_grad_value_(xs, 0.05)
    gt.nn.utils.clip_grad_value_(ys, 0.05)
    for x, y in zip(xs, ys, strict=True):
        close(x.grad, y.grad, 1e-6)


def test_vectors():
    net = Net()
    vector = gt.nn.utils.parameters_to_vector(net.parameters())
    gt.nn.utils.vector_to_parameters(vector * 0 + 2, net.parameters())
    assert all((x == 2).all() for x in net.parameters())


def test_buffers_are_registered_when_set():
    results = []
    for lib in (torch, gt):
        net = lib.nn.Linear(2, 2)
        value = lib.ones(2)
        net.plain = lib.nn.Buffer(value)
        net.scratch = lib.nn.Buffer(lib.zeros(1), persistent=False)
        net.learned = lib.nn.Buffer(lib.ones(1).requires_grad_())
        net.plain.add_(1)
        assert isinstance(net.plain, lib.nn.Buffer)
        assert not isinstance(value, lib.nn.Buffer)
        copied = copy.deepcopy(net)
        assert isinstance(copied.scratch, lib.nn.Buffer)
        copied.plain.zero_()
        net.scratch = lib.full((1,), 5.0)  # a plain tensor keeps the name a buffer
        state = {name: x.tolist() for name, x in net.state_dict().items() if name not in ("weight", "bias")}
        buffers = {name: (x.tolist(), x.requires_grad) for name, x in net.named_buffers()}
        net.scratch = lib.nn.Buffer(lib.ones(1))
        results.append([state, buffers, list(net.state_dict()), [n for n, _ in copied.named_buffers()], value.tolist()])
        with pytest.raises(TypeError, match="as parameter 'weight'"):
            net.weight = lib.nn.Buffer(value)
        assert lib.nn.Buffer().numel() == 0
    assert results[0] == results[1]


def test_sync_batch_norm():
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 5))
    theirs = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Sequential(torch.nn.BatchNorm2d(3, affine=False)))
    ours = gt.nn.Sequential(gt.nn.BatchNorm2d(3), gt.nn.Sequential(gt.nn.BatchNorm2d(3, affine=False)))
    weight = ours[0].weight
    assert gt.nn.SyncBatchNorm.convert_sync_batchnorm(ours) is ours
    wanted = repr(torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(theirs)))
    without_bias = [re.sub(r" bias=\w+,", "", text) for text in (repr(ours), wanted)]
    assert without_bias[0] == without_bias[1]  # before torch 2.13 the bias is not shown
    assert ours[0].weight is weight
    assert list(ours.state_dict()) == list(theirs.state_dict())
    a, b = theirs.double()(torch.tensor(x)), ours.double()(gt.tensor(x))
    close(a, b)
    (a**3).sum().backward()
    (b**3).sum().backward()
    close(theirs[0].weight.grad, ours[0].weight.grad)
    for one, other in zip(theirs.buffers(), ours.buffers(), strict=True):
        close(one, other)
    single = gt.nn.BatchNorm1d(3).eval()
    converted = gt.nn.SyncBatchNorm.convert_sync_batchnorm(single)
    assert converted is not single
    assert not converted.training
    with pytest.raises(ValueError, match=r"expected at least 2D input \(got 1D input\)"):
        converted(gt.ones(3))


def test_embedding_bag_of_a_table():
    for lib in (torch, gt):
        table = lib.ones(4, 2)
        bag = lib.nn.EmbeddingBag.from_pretrained(table, mode="sum", padding_idx=1)
        assert not bag.weight.requires_grad
        assert bag(lib.tensor([[0, 1, 2]])).tolist() == [[2.0, 2.0]]
        assert lib.nn.EmbeddingBag.from_pretrained(table, freeze=False).weight.requires_grad
        assert lib.nn.EmbeddingBag(4, 2, padding_idx=-1).weight[3].tolist() == [0.0, 0.0]
        with pytest.raises(AssertionError, match="padding_idx must be within num_embeddings"):
            lib.nn.EmbeddingBag(4, 2, padding_idx=4)
        with pytest.raises(AssertionError, match="expected to be 2-dimensional"):
            lib.nn.EmbeddingBag.from_pretrained(lib.ones(4))
        with pytest.raises(AssertionError, match="does not match num_embeddings and embedding_dim"):
            lib.nn.EmbeddingBag(3, 2, _weight=table)


@pytest.mark.parametrize("lib", [gt, torch])
def test_old_checkpoints_of_batch_norms_count_no_batches(lib):
    norm = lib.nn.Sequential(lib.nn.BatchNorm1d(2))
    state = norm.state_dict()
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    assert norm.load_state_dict(old).missing_keys == []
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"0.running_var\""):
        norm.load_state_dict({k: v for k, v in old.items() if k != "0.running_var"})


def test_a_new_checkpoint_without_the_count_is_incomplete():
    state = torch.nn.BatchNorm1d(2).state_dict()
    del state["num_batches_tracked"]  # it says of which version it is
    assert gt.nn.BatchNorm1d(2).load_state_dict(state, strict=False).missing_keys == ["num_batches_tracked"]
    assert torch.nn.BatchNorm1d(2).load_state_dict(state, strict=False).missing_keys == ["num_batches_tracked"]
