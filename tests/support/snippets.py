"""Short pieces of torch programs. Each runs with torch and, renamed, with GT; the values of ``out`` must be the same.

``### name`` begins a piece. It finds `torch`, `nn`, `F` and `np` imported.
"""

from __future__ import annotations

import re

SNIPPETS = """
### gradient penalty with only_inputs
x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
y = (x ** 3).sum(1)
g, = torch.autograd.grad(outputs=y, inputs=x, grad_outputs=torch.ones(2), create_graph=True, retain_graph=True,
                         only_inputs=True)
((g.norm(2, dim=1) - 1) ** 2).mean().backward()
out = [g, x.grad]

### a scheduler of one's own, from the older base
from torch.optim.lr_scheduler import _LRScheduler
class Warmup(_LRScheduler):
    def __init__(self, optimizer, steps, last_epoch=-1):
        self.steps = steps
        super().__init__(optimizer, last_epoch)
    def get_lr(self):
        return [base * min(1.0, (self.last_epoch + 1) / self.steps) for base in self.base_lrs]
optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
scheduler, out = Warmup(optimizer, 4), []
for _ in range(5):
    optimizer.step()
    scheduler.step()
    out.append(scheduler.get_last_lr()[0])

### cyclic learning rates
from torch.optim.lr_scheduler import CyclicLR
out = []
for options in ({}, {"mode": "triangular2"}, {"mode": "exp_range", "gamma": 0.9}, {"scale_fn": lambda x: 0.5 ** x},
                {"step_size_down": 2}, {"scale_fn": lambda x: 0.9 ** x, "scale_mode": "iterations"}):
    for optimizer in (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9),
                      torch.optim.Adam([nn.Parameter(torch.ones(1))])):
        scheduler = CyclicLR(optimizer, 0.01, 0.1, 3, **options)
        group = optimizer.param_groups[0]
        for _ in range(9):
            optimizer.step()
            scheduler.step()
            out += [group["lr"], group["betas"][0] if "betas" in group else group["momentum"]]
        scheduler.load_state_dict(scheduler.state_dict())
        out.append(scheduler.get_last_lr())

### cyclic learning rates, refused
out = []
for options in ({"mode": "square"}, {"max_lr": [1.0, 2.0]}, {"cycle_momentum": True}):
    try:
        torch.optim.lr_scheduler.CyclicLR(torch.optim.Adagrad([nn.Parameter(torch.ones(1))]), 0.01,
                                          **{"max_lr": 0.1, **options})
        out.append("accepted")
    except ValueError:
        out.append("refused")

### averages of weights
from torch.optim.swa_utils import *
def net():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
    return model
x, out = torch.linspace(-1, 2, 8).reshape(4, 2), []
for options in ({}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}, {"avg_fn": get_ema_avg_fn(0.8)},
                {"avg_fn": get_swa_avg_fn(), "use_buffers": True}, {"multi_avg_fn": get_swa_multi_avg_fn()},
                {"multi_avg_fn": get_ema_multi_avg_fn(0.5), "use_buffers": True}):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average, scheduler = AveragedModel(model, **options), SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        average.update_parameters(model)
        scheduler.step()
        out.append(scheduler.get_last_lr())
    again = AveragedModel(net(), **options)
    again.load_state_dict(average.state_dict())
    again.update_parameters(model)
    update_bn([x, (x * 2, None)], average)
    out += [dict(average.state_dict()), again.n_averaged, again.module[0].weight, average(x).detach(),
            average.training]

### averages of weights, refused
from torch.optim.swa_utils import AveragedModel, SWALR, get_ema_avg_fn
optimizer, out = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), []
for call in (lambda: get_ema_avg_fn(2.0), lambda: SWALR(optimizer, 0.1, anneal_strategy="square"),
             lambda: SWALR(optimizer, 0.1, anneal_epochs=-1), lambda: SWALR(optimizer, [0.1, 0.2]),
             lambda: AveragedModel(nn.Linear(1, 1), avg_fn=max, multi_avg_fn=max)):
    try:
        call()
        out.append("accepted")
    except (ValueError, AssertionError) as error:
        out.append(type(error).__name__)

### checkpoints of a chain of modules
from torch.utils.checkpoint import checkpoint_sequential
model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)), nn.Tanh())
with torch.no_grad():
    for p in model.parameters():
        p.fill_(0.3)
x, out = torch.ones(1, 2, requires_grad=True), []
for segments in (1, 2, 3, 6):
    y = checkpoint_sequential(model, segments, x, use_reentrant=False).sum()
    y.backward()
    out += [y.detach(), x.grad.clone(), model[0].weight.grad.clone()]

### a loss of one's own, from torch's base
from torch.nn.modules.loss import _Loss, _WeightedLoss
class Plain(_Loss):
    def forward(self, x, y):
        return F.mse_loss(x, y, reduction=self.reduction)
class Weighted(_WeightedLoss):
    def forward(self, x, y):
        return F.cross_entropy(x, y, weight=self.weight, reduction=self.reduction)
x = torch.arange(6.0).reshape(2, 3)
out = [Plain(reduction="sum")(x, x + 1), Plain(size_average=False)(x, x + 1), Plain(reduce=False)(x, x + 1),
       Weighted(torch.tensor([1.0, 2.0, 3.0]))(x, torch.tensor([0, 2])), sorted(Weighted(torch.ones(3)).state_dict())]

### a device as a context
with torch.device("cpu") as device:
    out = [torch.ones(2), str(device)]

### all names of utils.data
from torch.utils.data import *
batches = list(DataLoader(TensorDataset(torch.arange(4.0), torch.arange(4)), batch_size=2))
out = [batches, issubclass(TensorDataset, Dataset), len(ConcatDataset([[1], [2]]))]

### sizes
s = torch.ones(2, 3, 4).shape
out = [type(s[:2]).__name__, s[1:].numel(), type(s + (1,)).__name__, s[-1], s[::-1].numel(), (s[:-1] + (5,)).numel(),
       s == (2, 3, 4), hash(s) == hash((2, 3, 4)), torch.zeros(s[1:]).shape]

### the older constructors of sparse matrices
i = torch.tensor([[0, 1, 1], [2, 0, 2]])
out = [torch.sparse.FloatTensor(i, torch.ones(3), torch.Size([2, 3])).to_dense(),
       torch.sparse.FloatTensor(2, 3).to_dense(),
       torch.sparse.FloatTensor(i, torch.ones(3)).to_dense(),
       torch.sparse.DoubleTensor(i, torch.ones(3).double(), torch.Size([2, 3])).to_dense()]

### new
x = torch.ones(2, dtype=torch.float64)
out = [x.new(2, 3).shape, x.new([1, 2]), x.new().shape, x.new(torch.Size([3])).shape, str(x.new(1).dtype).split(".")[1]]

### shapes changed in place
x = torch.ones(1, 3, 1)
x.squeeze_().unsqueeze_(0).t_()
y = torch.arange(6).reshape(2, 3)
y.transpose_(0, 1)
z = torch.arange(6.0).reshape(1, 2, 3, 1).swapaxes_(1, 2).squeeze_(-1)
out = [x, y, y.stride(), z, y.contiguous(), torch.ones(2, 1).squeeze_(0), torch.ones(2, 1).squeeze_(dim=1)]

### shapes changed in place, with views made before
x = torch.zeros(2, 3)
v, w, d = x[0], x.view(6), x.detach()
x.unsqueeze_(1)
x += 1
v.mul_(3)
w[5] = 9
d[1, 0] = 7
x[0, 0, 1] = 5
out = [x.clone(), v.clone(), w.clone(), d.clone()]
x.squeeze_()
x.t_()
x[2] += 100
w.add_(1)
out += [x, v, w, d, x.reshape(-1)]

### shapes of views changed in place
b = torch.arange(12.0).reshape(3, 4)
v = b[1:]
u = v[:, :1]
u.squeeze_(1)
u.add_(10)
v.t_()
v[0] = -1
out = [b, v, u]

### shapes changed in place, with gradients
a = torch.arange(6.0, requires_grad=True)
b = (a * 2).reshape(2, 3).clone()
c = b[0]
b.unsqueeze_(0)
b.mul_(3)
(b * b).sum().backward(retain_graph=True)
(c ** 2).sum().backward()
out = [a.grad, b.shape, b.is_leaf]
try:
    a.unsqueeze_(0)
except RuntimeError:
    out.append("refused")

### apply_ and map_
x, y = torch.arange(4.0).reshape(2, 2), torch.ones(2, 2)
x.apply_(lambda v: v * 3 + 1)
y.map_(x, lambda a, b: a - b)
out = [x, y]
"""

FUNCTION_SNIPPETS = """
### jacobians, hessians and products
from torch.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
def f(x):
    return (x.exp() * x.sum()).sum()
def g(x, y):
    return x * y.sum(), (x ** 2).sum() * y
x, y = torch.arange(3.0) / 3, torch.tensor([1.0, 2.0])
out = [jacobian(lambda t: torch.stack([t.sum(), t.prod()]), x), hessian(f, x), hvp(f, x, torch.ones(3)),
       vhp(f, x, torch.arange(3.0)), vjp(lambda t: t ** 2, x, torch.ones(3)),
       jvp(lambda t: t ** 2, x, torch.arange(3.0)),
       jacobian(g, (x, y)), hessian(lambda a, b: (a * b.sum()).pow(3).sum(), (x, y)),
       jvp(g, (x, y), (torch.ones(3), torch.ones(2))), vjp(g, (x, y), (torch.ones(3), torch.ones(2))),
       jacobian(lambda t: torch.ones(2), x), jacobian(lambda t: t, torch.ones(2, 2)), jacobian(f, x).requires_grad,
       vjp(f, x)[1]]
xr = x.clone().requires_grad_()
j = jacobian(lambda t: t ** 3, xr, create_graph=True)
j.sum().backward()
out += [j.detach(), xr.grad]

### jacobians, refused
import torch.autograd.functional as A
out = []
for call in (lambda: A.hessian(lambda x: x * 2, torch.ones(2)), lambda: A.vjp(lambda x: x * 2, torch.ones(2)),
             lambda: A.vjp(lambda x: x * 2, torch.ones(2), torch.ones(3)),
             lambda: A.jacobian(lambda x: torch.ones(1), torch.ones(2), strict=True)):
    try:
        call()
        out.append("accepted")
    except RuntimeError:
        out.append("refused")

### gradients as functions
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp
x, w = torch.arange(1.0, 4.0), torch.ones(3, requires_grad=True)
f = lambda x: (x.sin() * x).sum()
p = {"w": torch.ones(3), "b": torch.zeros(3)}
captured = grad(lambda x: (x * x * w).sum())(x)
captured.sum().backward()
out = [grad(f)(x), grad(f)(x).requires_grad, grad(lambda x: grad(f)(x).sum())(x), grad_and_value(f)(x),
       grad(lambda p, x: ((p["w"] * x + p["b"]) ** 2).sum())(p, x),
       grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x * 2),
       grad(lambda a, b: (a * b * b).sum(), argnums=1)(x, x * 2),
       grad(lambda x: ((x ** 2).sum(), x.sum()), has_aux=True)(x), w.grad, jacrev(lambda x: x ** 2)(x),
       jacfwd(lambda x: x ** 3)(x), hessian(f)(x), jvp(lambda x: x ** 2, (x,), (torch.ones(3),)),
       vjp(lambda x: x ** 2, x)[1](torch.ones(3)), vjp(lambda x, y: (x * y, x), x, x)[1]((torch.ones(3), x)),
       jacrev(lambda a, b: a * b, argnums=(0, 1))(x, x), grad(lambda x: torch.ones(()) * 2)(x)]
try:
    grad(lambda x: x * 2)(x)
except RuntimeError:
    out.append("refused")

### vmap
from torch.func import grad, vmap
x = torch.arange(6.0).reshape(2, 3)
out = [torch.vmap(torch.sum)(x), vmap(lambda a, b: a * b, in_dims=(0, None))(x, torch.ones(3)),
       vmap(lambda a: a * 2, in_dims=1, out_dims=1)(x),
       vmap(lambda a, b: {"s": a + b, "d": (a - b).sum()}, in_dims=(0, 1))(x, x.t()),
       vmap(grad(lambda a: (a ** 2).sum()))(x), vmap(vmap(lambda a: a * a))(x),
       vmap(lambda d: d["a"].sum() + d["b"])({"a": x, "b": torch.ones(2)}), vmap(lambda a, k=1.0: a * k)(x)]
for call in (lambda: vmap(lambda a, b: a + b)(x, torch.ones(3)), lambda: vmap(lambda a: a, in_dims=(0, 0))(x)):
    try:
        call()
    except (ValueError, RuntimeError):
        out.append("refused")

### modules as functions
from torch.func import functional_call, grad, stack_module_state, vmap
m = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).eval()
p, b = {k: torch.full_like(v, 0.5) for k, v in m.named_parameters()}, dict(m.named_buffers())
x, y, before = torch.arange(8.0).reshape(4, 2), torch.ones(4, 1), m[0].weight.clone()
def loss(p, b, x, y):
    return F.mse_loss(functional_call(m, (p, b), (x.unsqueeze(0),)), y.unsqueeze(0))
each = vmap(grad(loss), in_dims=(None, None, 0, 0))(p, b, x, y)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.b(self.a(x))
models = [nn.Linear(2, 1) for _ in range(3)]
stacked, _ = stack_module_state(models)
out = [functional_call(m, p, (x,)), each["0.weight"], each["2.bias"].shape, torch.equal(before, m[0].weight),
       functional_call(Tied(), {"a.weight": torch.eye(2) * 3}, x), functional_call(m, {**p, "unknown": x}, (x,)),
       stacked["weight"].shape, stacked["weight"].requires_grad,
       vmap(lambda p, x: functional_call(models[0], p, (x,)), in_dims=(0, None))(stacked, x).shape]
for call in (lambda: functional_call(m, {"0.weight": x}, (x,), strict=True), lambda: stack_module_state([])):
    try:
        call()
    except RuntimeError:
        out.append("refused")
"""


def pieces(text: str) -> dict[str, str]:
    """Name -> source."""
    parts = re.split(r"^### (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
