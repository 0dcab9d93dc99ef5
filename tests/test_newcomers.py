"""What users of torch try first: torch's names, tensors and dtypes, numpy's, files, limits."""

from __future__ import annotations

import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import gt
import gt.missing
from docs import make_torch_names
from tests.support.worlds import session

__all__ = ["session"]

ROOT = pathlib.Path(__file__).parent.parent

# -- missing names --------------------------------------------------------------

NAMES = [
    ("gt.nn.MaxUnpool2d", "gt.nn.MaxUnpool2d is not there yet (torch.nn.MaxUnpool2d)"),
    ("gt.nn.Liner", "did you mean gt.nn.Linear?"),
    ("gt.nn.functional.max_unpool2d", "is not there yet (torch.nn.functional.max_unpool2d)"),
    ("gt.nn.functional.gelux", "did you mean gt.nn.functional.gelu?"),
    ("gt.optim.Muon", "gt.optim.Muon is not there yet (torch.optim.Muon)"),
    ("gt.optim.Adamm", "did you mean gt.optim.Adam?"),
    ("gt.optim.lr_scheduler.CosineLR", "does not exist"),
    ("gt.linalg.ldl_factor", "gt.linalg.ldl_factor is not there yet (torch.linalg.ldl_factor)"),
    ("gt.linalg.foo", "gt.linalg.foo does not exist, and torch 2.13.0 has no public name torch.linalg.foo"),
    ("gt.autograd.forward_ad", "is not there yet (torch.autograd.forward_ad)"),
    ("gt.cuda.MemPool", "gt.cuda.MemPool is not there yet (torch.cuda.MemPool)"),
    ("gt.distributed.all_reduce", "one program has all workers: gt.gpu_workers(n)"),
    ("gt.nn.modules.conv.Conv5d", "gt.nn.modules.conv.Conv5d does not exist"),
    ("gt.export", "gt.compile makes repeated calls fast"),
    ("gt.linalg._foo", "gt.linalg._foo does not exist"),
    ("gt.ones(2).as_strided", "gt.Tensor.as_strided is not there yet (torch.Tensor.as_strided)"),
]


@pytest.mark.parametrize(("expression", "text"), NAMES)
def test_the_error_for_a_missing_name(session, expression, text):
    with pytest.raises(AttributeError) as caught:
        eval(expression)
    assert text in str(caught.value)


def test_hasattr_is_false_for_missing_names(session):
    assert not hasattr(gt.ones(2), "as_strided")
    assert not hasattr(gt.Tensor, "as_strided")
    assert not hasattr(gt, "__path_to_nowhere__")


def test_nothing_is_written_for_an_error_that_nobody_reads(session, monkeypatch):
    written = []
    monkeypatch.setattr(gt.missing, "_text", lambda place, name: written.append(name) or f"no {name}")
    for place in (gt, gt.nn, gt.nn.functional, gt.ones(2)):
        assert not hasattr(place, "as_strided_typo")
    assert not written
    with pytest.raises(AttributeError, match="no as_strided_typo") as caught:
        gt.nn.as_strided_typo  # noqa: B018
    assert str(pickle.loads(pickle.dumps(caught.value))) == "no as_strided_typo"
    assert caught.value.name == "as_strided_typo"


def test_the_list_of_torchs_names_is_current():
    if not make_torch_names.FILE.read_text().startswith(f"torch {make_torch_names.VERSION},"):
        pytest.skip("made from another torch")
    # in a process of its own: modules that other tests import appear in torch's namespaces too
    code = "from docs import make_torch_names; print(make_torch_names.text(), end='')"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert make_torch_names.FILE.read_text() == process.stdout


def test_checkpoint_has_torchs_other_name():
    assert gt.utils.checkpoint.checkpoint is gt.checkpoint


# -- torch tensors --------------------------------------------------------------------

MIXED = """
x + p
p + x
x @ p.T
x == p
x < p
gt.add(x, p)
gt.relu(p)
gt.cat([x, p])
gt.reshape(p, (3, 2))
gt.ones_like(p)
gt.nn.Linear(3, 2)(p)
gt.nn.functional.mse_loss(x, p)
gt.nn.functional.softmax(p, 0)
gt.nn.functional.dropout(p)
gt.nn.functional.linear(x, p)
x.add_(p)
x.type_as(p)
x[p > 0]
x[torch.tensor([0])]
x.copy_(p)
""".strip().splitlines()


@pytest.mark.parametrize("expression", MIXED)
def test_a_torch_tensor_is_refused_with_a_hint(session, expression):
    with pytest.raises(TypeError, match=r"a tensor of torch; gt.tensor\(x\) makes a tensor of GT from it"):
        eval(expression, {"gt": gt, "torch": torch, "x": gt.ones(2, 3), "p": torch.ones(2, 3)})


@pytest.mark.parametrize("expression", ["torch.add(p, x)", "torch.relu(x)", "torch.nn.Linear(3, 2)(x)", "p.add_(x)"])
def test_torch_functions_refuse_gt_tensors(session, expression):
    with pytest.raises(TypeError, match=r"got a tensor of GT; use GT's own function, or torch.tensor\(x\)"):
        eval(expression, {"torch": torch, "x": gt.ones(2, 3), "p": torch.ones(2, 3)})
    assert torch.tensor(gt.ones(2)).tolist() == [1, 1]


def test_torch_and_numpy_can_read_values(session):
    ours, theirs = gt.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    assert theirs.weight.tolist() == ours.weight.tolist()
    assert np.mean(gt.arange(4.0)).item() == 1.5
    assert np.sum(gt.ones(2, 3), axis=0).tolist() == [2, 2, 2]
    assert np.max(gt.arange(3)).item() == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_torch_tensor_can_be_converted(session, dtype):
    if dtype == "bfloat16" and session.connection.workers[0].backend == "numpy":
        pytest.skip("numpy has none")
    p = torch.tensor([0.0, 1.0, 3.0]).to(getattr(torch, dtype))
    for tensor in (gt.tensor(p), gt.as_tensor(p), gt.from_numpy(p)):
        assert tensor.dtype.name == dtype
        assert tensor.tolist() == p.tolist()
    assert gt.tensor(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


# -- torch and numpy dtypes -----------------------------------------------------------

DTYPES = """
gt.ones(2, dtype=D).dtype
gt.tensor([1], dtype=D).dtype
gt.ones(2).to(D).dtype
gt.ones(2).type(D).dtype
gt.ones(2).sum(dtype=D).dtype
gt.ones(2).new_zeros(3, dtype=D).dtype
gt.nn.Linear(2, 2, dtype=D).weight.dtype
gt.nn.Linear(2, 2).to(D).weight.dtype
gt.nn.Linear(2, 2).to(dtype=D).weight.dtype
""".strip().splitlines()


@pytest.mark.parametrize("dtype", [torch.float64, np.float64, np.dtype("float64"), float, "float64"], ids=str)
@pytest.mark.parametrize("expression", DTYPES)
def test_dtypes_of_other_libraries(session, expression, dtype):
    assert eval(expression, {"gt": gt, "D": dtype}) is gt.float64


@pytest.mark.parametrize("dtype", [torch.uint16, np.uint16, "float33", [1]], ids=str)
def test_unknown_dtypes_are_refused(session, dtype):
    with pytest.raises(gt.DTypeError, match=r"is not a dtype of GT; there are gt.float64, gt.float32"):
        gt.ones(2, dtype=dtype)


FLOATING = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"]
FLOATING += ["float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("name", FLOATING)
def test_limits_of_floating_dtypes(name):
    ours, theirs = gt.finfo(getattr(gt, name)), torch.finfo(getattr(torch, name))
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"])
def test_limits_of_integers(name):
    ours, theirs = gt.iinfo(getattr(gt, name)), torch.iinfo(getattr(torch, name))
    for field in ("bits", "max", "min", "dtype"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert repr(ours) == f"iinfo(min={theirs.min}, max={theirs.max}, dtype={name})"


def test_attributes_of_dtypes():
    for a in gt.types.DTYPES:
        for b in gt.types.DTYPES:
            want = torch.can_cast(getattr(torch, a), getattr(torch, b))
            assert gt.can_cast(gt.types.DTYPES[a], gt.types.DTYPES[b]) == want, (a, b)
    gt.set_default_dtype(gt.float32)
    assert gt.get_default_dtype() is gt.float32
    with pytest.raises(gt.DTypeError, match="the default is float32"):
        gt.set_default_dtype(gt.float64)
    for wrong, kind in ((gt.finfo, gt.int8), (gt.iinfo, gt.float32)):
        with pytest.raises(TypeError):
            wrong(kind)


# -- other functions --------------------------------------------------------------------------


def test_small_functions_of_torch(session):
    x = gt.LongTensor([1, 2])
    assert x.type() == "gt.LongTensor"
    assert gt.BFloat16Tensor([1]).type() == "gt.BFloat16Tensor"
    assert gt.FloatTensor(2, 3).shape == (2, 3)
    assert gt.is_nonzero(gt.ones(1))
    assert not gt.is_complex(x)
    assert x[gt.newaxis].shape == (1, 2)
    assert gt.tensor([gt.inf, -gt.inf, gt.pi, gt.e]).isinf().tolist() == [True, True, False, False]
    assert x.contiguous(memory_format=gt.channels_last).tolist() == [1, 2]
    with pytest.raises(RuntimeError):
        gt.is_nonzero(x)


def test_the_random_state_can_be_saved(session):
    gt.manual_seed(3)
    gt.rand(2)
    state = gt.get_rng_state()
    first, _ = gt.rand(4), gt.manual_seed(9)
    gt.set_rng_state(state)
    assert gt.rand(4).tolist() == first.tolist()
    with pytest.raises(RuntimeError, match="16 bytes"):
        gt.set_rng_state(state[:3])


def test_pickle_files_of_torch(session, tmp_path, capsys):
    old = tmp_path / "model.pt"
    torch.save({"a": torch.ones(2)}, old)
    assert gt.load(old)["a"].tolist() == [1, 1]
    gt.save({"a": gt.ones(2)}, old)
    assert "is a safetensors file, which torch.load cannot read" in capsys.readouterr().err
    assert gt.load(old)["a"].tolist() == [1, 1]


def test_workers_and_placements_are_reported(session, capsys):
    assert "host" not in repr(session.connection.workers[0])
    assert repr(session.connection.workers[0]).startswith("Worker(id=0, device='cpu', backend=")
    x = gt.ones(2, 3, 4)
    assert gt.debug.explain(x).startswith("float32[2,3,4] is placed whole on worker 0\nit was made there")
    gt.debug.show_layout(x)
    assert capsys.readouterr().out.endswith("dim 0 goes down, dim 1 across; each block has all of the other dims\n")


# -- equal results: T is torch or gt ------------------------------------------------

SAME = """
T.sum(T.ones(2, 3), axis=0)
T.ones(2, 3).mean(axis=1, keepdims=True)
T.cat([T.ones(2), T.zeros(1)], axis=0)
T.tensor([3.0, 1.0]).sort(axis=0).values
T.pow(T.arange(3.0), exponent=2)
T.heaviside(T.tensor([-1.0, 0.0]), values=T.tensor([0.5, 0.5]))
T.swapaxes(T.ones(2, 3), axis0=0, axis1=1)
T.hsplit(T.arange(4), sections=2)[1]
T.tensor_split(T.arange(4), indices=(1,))[1]
T.gather(T.arange(3), 0, T.tensor([2]), sparse_grad=False)
T.vander(T.tensor([1.0, 2.0, 3.0]), 2, increasing=True)
T.vander(T.tensor([1, 2, 3]))
T.hann_window(5)
T.hamming_window(5, periodic=False)
T.hamming_window(5, True, 0.6)
T.blackman_window(6)
T.bartlett_window(5)
T.hann_window(1)
T.detach(T.ones(2))
T.from_dlpack(np.arange(3.0))
T.frombuffer(bytearray(b"\\x01\\x02\\x03"), dtype=T.uint8, offset=1)
T.nn.utils.rnn.pad_sequence([T.ones(2, 2), T.ones(3, 2)])
T.nn.utils.rnn.pad_sequence([T.ones(2), T.ones(3)], batch_first=True, padding_value=7.0, padding_side="left")
T.nn.utils.rnn.unpad_sequence(T.arange(6).reshape(3, 2), T.tensor([3, 1]))[1]
T.special.expit(T.zeros(2))
T.ones(2).ndimension() + T.ones(2, 3).nelement()
T.ones(2).is_signed() and not T.tensor([1], dtype=T.uint8).is_signed()
T.is_same_size(T.ones(2), T.ones(2))
T.ones(4, 2).sum_to_size(1, 2)
""".strip().splitlines()

MODULES = """
T.nn.Unfold(2, stride=2)|1,2,4,4
T.nn.Fold((4, 4), 2, stride=2)|1,8,4
T.nn.ChannelShuffle(2)|1,4,2,2
T.nn.LocalResponseNorm(2)|1,4,2,2
T.nn.AdaptiveAvgPool3d(2)|1,2,4,4,4
T.nn.AdaptiveMaxPool3d((1, 2, 2))|1,2,4,4,4
T.nn.CircularPad1d((1, 2))|1,2,4
T.nn.LPPool1d(2, 2)|1,2,4
T.nn.LPPool2d(2, (2, 1), stride=1)|1,2,4,4
T.nn.LPPool3d(2, 2, ceil_mode=True)|1,2,3,3,3
T.nn.CircularPad2d(1)|1,2,4,4
T.nn.CircularPad3d(1)|1,2,3,3,3
T.nn.UpsamplingNearest2d(scale_factor=2)|1,2,4,4
T.nn.UpsamplingBilinear2d((3, 5))|1,2,4,4
T.nn.FeatureAlphaDropout().eval()|1,2,4
T.nn.MultiMarginLoss(p=2, margin=0.5)|3,4|T.tensor([0, 3, 1])
T.nn.MultiLabelMarginLoss()|2,4|T.tensor([[0, 3, -1, 1], [1, -1, 0, 0]])
T.nn.MultiLabelSoftMarginLoss(reduction="sum")|2,4|T.ones(2, 4)
T.nn.TripletMarginWithDistanceLoss(margin=0.5, swap=True)|2,4|T.ones(2, 4), T.zeros(2, 4)
""".strip().splitlines()


@pytest.mark.parametrize("expression", SAME)
def test_results_equal_torchs(session, expression):
    ours, theirs = (eval(expression, {"T": library, "np": np}) for library in (gt, torch))
    if isinstance(theirs, torch.Tensor):
        assert str(ours.dtype) == str(theirs.dtype).replace("torch", "gt")
        assert np.allclose(ours.numpy(), theirs.numpy(), atol=1e-6)
        assert tuple(ours.shape) == tuple(theirs.shape)
    else:
        assert ours == theirs


@pytest.mark.parametrize("row", MODULES)
def test_modules_of_one_function(session, row):
    expression, shape, *more = row.split("|")
    results = []
    for library in (gt, torch):
        sizes = tuple(map(int, shape.split(",")))
        x = library.arange(float(np.prod(sizes))).cos().reshape(sizes)
        module = eval(expression, {"T": library})
        results.append((module(x, *(eval(f"({more[0]},)", {"T": library}) if more else ())), repr(module)))
    (ours, shown), (theirs, wanted) = results
    assert np.allclose(ours.numpy(), theirs.numpy(), atol=1e-5)
    assert shown == wanted


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        ("exponential_(2.0)", 0.5),
        ("geometric_(0.25)", 4.0),
        ("log_normal_(0.0, 0.5)", 1.1331),
        ("cauchy_(3.0, 0.001)", None),
        ("random_(10)", 4.5),
        ("random_(2, 4)", 2.5),
    ],
)
def test_draws(session, draw, mean):
    gt.manual_seed(1)
    x = eval(f"gt.zeros(20000).{draw}", {"gt": gt})
    if mean is None:
        assert abs(x.median().item() - 3.0) < 0.01
    else:
        assert abs(x.mean().item() - mean) < 0.05 * mean
    with pytest.raises(RuntimeError):
        gt.zeros(2).exponential_(-1.0)


def test_repr_shows_gradients(session):
    x = gt.ones(2, requires_grad=True)
    assert repr(x) == "tensor([1., 1.], requires_grad=True)"
    assert repr(x * 2) == "tensor([2., 2.], grad_fn=<MulBackward0>)"
    assert repr((x * 2).detach()) == "tensor([2., 2.])"
    assert repr(gt.nn.Parameter(x.detach())) == "Parameter containing:\ntensor([1., 1.], requires_grad=True)"
    assert repr(gt.zeros(0, requires_grad=True)) == repr(torch.zeros(0, requires_grad=True))


def test_data_and_grad_can_be_assigned(session):
    x = gt.ones(2, requires_grad=True)
    x.data = gt.zeros(3)
    (x * 2).sum().backward()
    assert (x.tolist(), x.grad.tolist()) == ([0, 0, 0], [2, 2, 2])
    x.grad = gt.ones(3)
    for wrong in (gt.ones(2), gt.ones(3, dtype=gt.float64)):
        with pytest.raises(RuntimeError, match="the gradient of float32"):
            x.grad = wrong
    with pytest.raises(TypeError):
        x.grad = 1
    with pytest.raises(TypeError):
        x.data = 1
    with pytest.raises(RuntimeError, match="a view shares the data"):
        x.detach()[1:].data = gt.ones(2)


def hooked(T):  # noqa: N803
    """The effects of all hooks on gradients and states."""
    calls = []
    m = T.nn.Sequential(T.nn.Linear(2, 2), T.nn.Linear(2, 1))
    for p in m.parameters():
        T.nn.init.constant_(p, 0.5)
    m[1].register_full_backward_pre_hook(lambda module, g: (g[0] * 2,))
    m.register_state_dict_pre_hook(lambda module, prefix, keep: calls.append(("before", prefix)))
    handle = m.register_state_dict_post_hook(lambda module, state, prefix, meta: state.update(more=T.ones(1)))
    m.register_load_state_dict_pre_hook(lambda module, state, *rest: state.pop("more", None))
    m.register_load_state_dict_post_hook(lambda module, keys: calls.append(list(keys.missing_keys)))
    m(T.ones(1, 2)).sum().backward()
    m.load_state_dict(m.state_dict())
    handle.remove()
    return [p.grad.tolist() for p in m.parameters()], calls, list(m.state_dict())


def test_hooks(session):
    assert hooked(gt) == hooked(torch)
