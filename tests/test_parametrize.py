"""Parametrized weights against torch's: values, gradients, state dicts, names and errors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations as their_rules
from torch.nn.utils import parametrize as theirs

import gt
from gt.nn.utils import parametrizations as our_rules
from gt.nn.utils import parametrize as ours
from gt.testing import Cluster


@pytest.fixture(autouse=True, params=["torch", "numpy"])
def session(request: pytest.FixtureRequest) -> Any:
    with Cluster(backend=request.param).client() as session:
        yield session


def pair(make: Any) -> tuple[Any, Any]:
    """The same module of both libraries, in float64 and with the same values."""
    a, b = make(torch).double(), make(gt).double()
    b.load_state_dict(a.state_dict())
    return a, b


def same_values(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(b.detach().numpy(), a.detach().numpy(), rtol=tolerance, atol=tolerance)


def same_modules(a: Any, b: Any, shape: tuple[int, ...], steps: int = 4) -> None:
    """The outputs, the gradients of all parameters, and the states stay the same during training and afterwards."""
    x = np.random.default_rng(0).standard_normal(shape)
    optimizers = [lib.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for lib, m in ((torch, a), (gt, b))]
    for _ in range(steps):
        same_values(a(torch.tensor(x)), b(gt.tensor(x)))
        for lib, module, optimizer in ((torch, a, optimizers[0]), (gt, b, optimizers[1])):
            optimizer.zero_grad()
            module(lib.tensor(x)).square().sum().backward()
        assert [n for n, _ in b.named_parameters()] == [n for n, _ in a.named_parameters()]
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            same_values(p.grad, q.grad)
        for optimizer in optimizers:
            optimizer.step()
    same_values(a.eval()(torch.tensor(x)), b.eval()(gt.tensor(x)))
    assert list(b.state_dict()) == list(a.state_dict())
    for key, value in a.state_dict().items():
        same_values(value, b.state_dict()[key])


LAYERS = {
    "linear": (lambda lib: lib.nn.Linear(4, 3), (5, 4)),
    "conv": (lambda lib: lib.nn.Conv2d(2, 3, 2), (2, 2, 4, 4)),
    "transposed": (lambda lib: lib.nn.ConvTranspose2d(2, 3, 2), (2, 2, 4, 4)),
}
RULES = {
    "weight_norm": lambda lib, m: lib.nn.utils.parametrizations.weight_norm(m),
    "weight_norm of dim 1": lambda lib, m: lib.nn.utils.parametrizations.weight_norm(m, dim=1),
    "weight_norm of all": lambda lib, m: lib.nn.utils.parametrizations.weight_norm(m, dim=None),
    "spectral_norm": lambda lib, m: lib.nn.utils.parametrizations.spectral_norm(m, n_power_iterations=2),
    "spectral_norm of the bias": lambda lib, m: lib.nn.utils.parametrizations.spectral_norm(m, "bias", dim=0),
    "old weight_norm": lambda lib, m: lib.nn.utils.weight_norm(m),
    "old weight_norm of dim 1": lambda lib, m: lib.nn.utils.weight_norm(m, dim=1),
    "old weight_norm of all": lambda lib, m: lib.nn.utils.weight_norm(m, dim=None),
    "old spectral_norm": lambda lib, m: lib.nn.utils.spectral_norm(m, n_power_iterations=2),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rule", RULES)
def test_normalised_weights(rule: str, layer: str) -> None:
    make, shape = LAYERS[layer]
    a, b = pair(lambda lib: RULES[rule](lib, make(lib)))
    assert repr(b) == repr(a)
    same_modules(a, b, shape)


@pytest.mark.parametrize("rule", ["matrix_exp", "cayley", "householder", None])
@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5), (5, 3)])
@pytest.mark.parametrize("trivial", [True, False])
def test_orthogonal(rule: str | None, m: int, n: int, trivial: bool) -> None:
    make = lambda lib: lib.nn.utils.parametrizations.orthogonal(
        lib.nn.Linear(n, m, dtype=lib.float64), orthogonal_map=rule, use_trivialization=trivial
    )
    a, b = pair(make)
    assert repr(b) == repr(a)
    same_modules(a, b, (6, n))
    q = b.weight if m >= n else b.weight.mT
    np.testing.assert_allclose((q.mT @ q).detach().numpy(), np.eye(min(m, n)), atol=1e-10)


def test_orthogonal_starts_from_the_weight() -> None:
    value = np.random.default_rng(0).standard_normal((5, 3))
    for options in ({}, {"use_trivialization": False}):
        modules = []
        for lib in (torch, gt):
            module = lib.nn.Linear(3, 5).double()
            module.load_state_dict({"weight": lib.tensor(value), "bias": lib.zeros(5)})
            modules.append(lib.nn.utils.parametrizations.orthogonal(module, orthogonal_map="householder", **options))
        same_values(modules[0].weight, modules[1].weight)
    modules[0].weight, modules[1].weight = torch.tensor(value * 2 + 1), gt.tensor(value * 2 + 1)
    same_values(modules[0].weight, modules[1].weight)


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_norm_except_dim(dim: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    same_values(torch.norm_except_dim(torch.tensor(x), 2, dim), gt.norm_except_dim(gt.tensor(x), 2, dim))
    row, first = x[0, 0], min(dim, 0)
    one = torch.norm_except_dim(torch.tensor(row), 2, first), gt.norm_except_dim(gt.tensor(row), 2, first)
    same_values(*one)
    assert tuple(one[1].shape) == tuple(one[0].shape)


def test_orthogonal_errors() -> None:
    for lib in (torch, gt):
        orthogonal = lib.nn.utils.parametrizations.orthogonal
        with pytest.raises(ValueError, match="has no parameter or buffer with name 'x'"):
            orthogonal(lib.nn.Linear(2, 2), "x")
        with pytest.raises(ValueError, match="Got a tensor of 1 dimensions"):
            orthogonal(lib.nn.Linear(2, 2), "bias")
        with pytest.raises(ValueError, match="orthogonal_map has to be one of"):
            orthogonal(lib.nn.Linear(2, 2), orthogonal_map="qr")
        module = orthogonal(lib.nn.Linear(2, 2), orthogonal_map="cayley", use_trivialization=False)
        with pytest.raises(NotImplementedError, match="use_trivialization=False"):
            module.weight = lib.eye(2)
        module = orthogonal(lib.nn.Linear(2, 2))
        with pytest.raises(ValueError, match="Expected a matrix or batch of matrices of shape"):
            module.weight = lib.eye(3)


def test_a_new_weight_norm_loads_the_state_of_an_old_one() -> None:
    old = gt.nn.utils.weight_norm(gt.nn.Linear(4, 3))
    new = our_rules.weight_norm(gt.nn.Linear(4, 3))
    new.load_state_dict(old.state_dict())
    same_values(old.weight, new.weight)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_old_normalisations_are_removed(kind: str) -> None:
    a, b = pair(lambda lib: getattr(lib.nn.utils, kind)(lib.nn.Linear(4, 3)))
    x = np.ones((2, 4))
    a(torch.tensor(x)), b(gt.tensor(x))
    for lib, module in ((torch, a), (gt, b)):
        with pytest.raises(RuntimeError, match=f"Cannot register two {kind} hooks"):
            getattr(lib.nn.utils, kind)(module)
        getattr(lib.nn.utils, f"remove_{kind}")(module)
        with pytest.raises(ValueError, match=f"{kind} of 'weight' not found in"):
            getattr(lib.nn.utils, f"remove_{kind}")(module)
    assert list(b.state_dict()) == list(a.state_dict())
    assert type(b.weight) is gt.nn.Parameter
    same_values(a.weight, b.weight)
    same_modules(a, b, (2, 4))


# -- any parametrization ---------------------------------------------------------------------


def rules_of(lib: Any) -> dict[str, Any]:
    class Symmetric(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).mT

        def right_inverse(self, x: Any) -> Any:
            return x.triu()

    class Doubled(lib.nn.Module):
        def forward(self, x: Any) -> Any:
            return 2 * x

    class RankOne(lib.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.unsqueeze(-1) @ y.unsqueeze(-2)

        def right_inverse(self, z: Any) -> Any:
            return z[:, 0] * 1, z[0] / z[0, 0]

    class Counted(lib.nn.Module):
        calls = 0

        def forward(self, x: Any) -> Any:
            type(self).calls += 1
            return x + 1

    class Returns(lib.nn.Module):
        def __init__(self, value: Any, inverse: Any = None) -> None:
            super().__init__()
            self.rule, self.inverse = value, inverse

        def forward(self, *x: Any) -> Any:
            return self.rule(*x)

        def right_inverse(self, x: Any) -> Any:
            if self.inverse is None:
                raise NotImplementedError
            return self.inverse(x)

    return {"Symmetric": Symmetric, "Doubled": Doubled, "RankOne": RankOne, "Counted": Counted, "Returns": Returns}


def parametrized(lib: Any, *names: str, unsafe: bool = False) -> Any:
    module, rules = lib.nn.Linear(3, 3), rules_of(lib)
    for name in names:
        lib.nn.utils.parametrize.register_parametrization(module, "weight", rules[name](), unsafe=unsafe)
    return module


@pytest.mark.parametrize("names", [("Symmetric",), ("Symmetric", "Doubled"), ("RankOne",), ("RankOne", "Doubled")])
def test_registered(names: tuple[str, ...]) -> None:
    a, b = pair(lambda lib: parametrized(lib, *names))
    assert repr(b) == repr(a)
    assert isinstance(b, gt.nn.Linear)
    assert ours.type_before_parametrizations(b) is gt.nn.Linear
    assert ours.is_parametrized(b)
    assert ours.is_parametrized(b, "weight")
    assert not ours.is_parametrized(b, "bias")
    same_modules(a, b, (2, 3))


@pytest.mark.parametrize("leave", [True, False])
def test_removed(leave: bool) -> None:
    a, b = pair(lambda lib: parametrized(lib, "Symmetric", "Doubled"))
    original = b.parametrizations.weight.original
    theirs.remove_parametrizations(a, "weight", leave_parametrized=leave)
    ours.remove_parametrizations(b, "weight", leave_parametrized=leave)
    assert b.weight is original
    assert type(b) is gt.nn.Linear
    assert repr(b) == repr(a)
    same_values(a.weight, b.weight)
    same_modules(a, b, (2, 3))


def test_removed_where_there_are_several_originals() -> None:
    a, b = pair(lambda lib: parametrized(lib, "RankOne"))
    with pytest.raises(ValueError, match="Cannot leave unparametrized"):
        ours.remove_parametrizations(b, "weight", leave_parametrized=False)
    theirs.remove_parametrizations(a, "weight")
    ours.remove_parametrizations(b, "weight")
    assert type(b.weight) is gt.nn.Parameter
    same_modules(a, b, (2, 3))


def test_assigning_sets_the_originals() -> None:
    value = np.arange(9.0).reshape(3, 3) + 1
    for names in (("Symmetric",), ("RankOne",)):
        a, b = pair(lambda lib, names=names: parametrized(lib, *names))
        a.weight, b.weight = torch.tensor(value), gt.tensor(value)
        same_values(a.weight, b.weight)
    with pytest.raises(KeyError, match="attribute 'weight' already exists"):
        b.weight = gt.nn.Parameter(gt.tensor(value))
    with pytest.raises(RuntimeError, match="does not implement right_inverse"):
        parametrized(gt, "Doubled").weight = gt.ones(3, 3)


def test_buffers_can_be_parametrized() -> None:
    norms = [lib.nn.BatchNorm1d(3) for lib in (torch, gt)]
    for lib, norm in zip((torch, gt), norms, strict=True):
        lib.nn.utils.parametrize.register_parametrization(norm, "running_mean", rules_of(lib)["Doubled"]())
    assert list(norms[1].state_dict()) == list(norms[0].state_dict())
    assert [n for n, _ in norms[1].named_buffers()] == [n for n, _ in norms[0].named_buffers()]


def test_a_cache_computes_once() -> None:
    module = parametrized(gt, "Counted")
    rule = type(module.parametrizations.weight[0])
    rule.calls = 0
    with ours.cached(), ours.cached():
        assert module.weight is module.weight
    assert rule.calls == 1
    assert module.weight is not module.weight
    assert rule.calls == 3


def test_copies_are_independent() -> None:
    first = parametrized(gt, "Symmetric")
    second = copy.deepcopy(first)
    assert second.weight.tolist() == first.weight.tolist()
    ours.remove_parametrizations(first, "weight")
    assert ours.is_parametrized(second)
    second.weight = gt.zeros(3, 3)
    assert second.weight.sum().item() == 0
    assert first.weight.abs().sum().item() > 0


def test_transferred() -> None:
    source, target = parametrized(gt, "Symmetric"), gt.nn.Linear(3, 3)
    assert ours.transfer_parametrizations_and_params(source, target) is target
    assert target.parametrizations.weight.original is source.parametrizations.weight.original
    assert target.weight.tolist() == source.weight.tolist()
    plain = gt.nn.Linear(3, 3)
    assert ours.transfer_parametrizations_and_params(plain, target) is target


ERRORS: dict[str, tuple[Any, ...]] = {
    "no tensor": (lambda x: 1, None),
    "another dtype": (lambda x: x.int(), None),
    "another shape": (lambda x: x[:1], None),
    "an inverse that is no tensor": (lambda x: x, lambda x: 1),
    "an inverse of another dtype": (lambda x: x, lambda x: x.int()),
    "an inverse with an element that is no tensor": (lambda x, y: x, lambda x: (x, 1)),
}


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("case", ERRORS)
def test_refused(case: str, chained: bool) -> None:
    texts = []
    for lib in (torch, gt):
        module = parametrized(lib, "Doubled") if chained else lib.nn.Linear(3, 3)
        rule = rules_of(lib)["Returns"](*ERRORS[case])
        with pytest.raises((ValueError, TypeError)) as error:
            lib.nn.utils.parametrize.register_parametrization(module, "weight", rule)
        texts.append((type(error.value), str(error.value).split(",")[0].split("\n")[0].split(" Got")[0]))
    assert texts[1] == texts[0]


def test_names_that_do_not_exist() -> None:
    module = gt.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="does not have a parameter, a buffer, or a parametrized element"):
        ours.register_parametrization(module, "x", gt.nn.Identity())
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        ours.remove_parametrizations(module, "weight")
    with pytest.raises(ValueError, match="requires one or more modules"):
        ours.ParametrizationList([], module.weight)
    with pytest.raises(ValueError, match="Expected n_power_iterations to be positive"):
        our_rules.spectral_norm(module, n_power_iterations=0)
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-2, 1\] but got 2\)"):
        our_rules.spectral_norm(module, dim=2)
    assert their_rules.__all__ == our_rules.__all__


# -- fusion ----------------------------------------------------------------------------------


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_a_convolution_and_its_norm_become_one(session, transpose, affine):
    kind = gt.nn.ConvTranspose2d if transpose else gt.nn.Conv2d
    conv, norm = kind(3, 4, 3, bias=not affine), gt.nn.BatchNorm2d(4, affine=affine)
    norm(gt.randn(5, 4, 6, 6) * 2 + 1)
    with pytest.raises(gt.ConfigError, match="only for evaluation mode"):
        gt.nn.utils.fusion.fuse_conv_bn_eval(conv, norm, transpose)
    conv.eval(), norm.eval()
    x = gt.randn(2, 3, 8, 8)
    fused = gt.nn.utils.fusion.fuse_conv_bn_eval(conv, norm, transpose)
    assert gt.allclose(fused(x), norm(conv(x)), atol=1e-5)
    assert isinstance(fused.weight, gt.nn.Parameter)


def test_a_linear_layer_and_its_norm_become_one(session):
    linear, norm = gt.nn.Linear(3, 4).eval(), gt.nn.BatchNorm1d(4)
    norm(gt.randn(8, 4) * 2 + 1)
    norm.eval()
    x = gt.randn(5, 3)
    assert gt.allclose(gt.nn.utils.fusion.fuse_linear_bn_eval(linear, norm)(x), norm(linear(x)), atol=1e-5)
    with pytest.raises(gt.ConfigError, match="4 outputs, and a norm of 3"):
        gt.nn.utils.fusion.fuse_linear_bn_eval(linear, gt.nn.BatchNorm1d(3).eval())
    with pytest.raises(gt.ConfigError, match="track_running_stats=True"):
        gt.nn.utils.fusion.fuse_linear_bn_eval(linear, gt.nn.BatchNorm1d(4, track_running_stats=False).eval())
