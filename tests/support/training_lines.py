"""The lines that `tests.support.training_programs` draws from. ``gt`` is torch or GT."""

from __future__ import annotations

#: what every program begins with
PREAMBLE = '''
def draw(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)

def batch(k, dtype):
    return gt.tensor(draw(100 + k, (6, 4)), dtype=dtype), gt.tensor(draw(200 + k, (6, 4)), dtype=dtype)

def fill(net, dtype):
    net.to(dtype)
    for k, p in enumerate(net.parameters()):
        value = draw(k, tuple(p.shape)) * 0.5
        p.data.copy_(gt.tensor(value * (1 + globals().get("nudge", 0) * np.cos(value * 7)), dtype=dtype))

class Net(gt.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.names, self.scale = [name for name, _ in layers], 1.0
        for name, layer in layers:
            setattr(self, name, layer)

    def forward(self, x):
        for name in self.names:
            x = getattr(self, name)(x)
        return x * self.scale

class Apply(gt.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

class Residual(gt.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x).tanh()

class Counting(gt.nn.Module):
    """Writes a buffer in place, and uses it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", gt.zeros(4))

    def forward(self, x):
        if self.training:
            with gt.no_grad():
                self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean.clone()

class Options:
    def __init__(self):
        self.scale, self.shift, self.calls = 1.0, 0.0, 0

class Blocks(gt.nn.Module):
    """Layers in a list, and numbers in an object, in the class and behind a property."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.layers, self.options = gt.nn.ModuleList([gt.nn.Linear(4, 4), gt.nn.Linear(4, 4)]), Options()

    @property
    def shift(self):
        return self.options.shift

    def apply_layers(self, x):
        for layer in self.layers:
            x = layer(x).tanh() * self.factor
        return x

    def forward(self, x):
        self.options.calls += 1
        return self.apply_layers(x) * self.options.scale + x @ self.layers[0].weight * 0.1 + self.shift

def blocks(net):
    return [module for module in net.modules() if isinstance(module, Blocks)]

class Square(gt.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * (2 * ctx.factor), None

def times_two(x):
    x.mul_(2)
    return x

def write_rows(x):
    y = x.clone()
    y[:2] = y[2:4] * 0.5
    y[:, 1].add_(y[:, 0])
    return y
'''

#: each keeps four features
LAYERS = (
    "gt.nn.Linear(4, 4)", "gt.nn.Linear(4, 4)", "gt.nn.Linear(4, 4, bias=False)", "gt.nn.LayerNorm(4)",
    "gt.nn.BatchNorm1d(4)", "gt.nn.Tanh()", "gt.nn.GELU()", "gt.nn.Sigmoid()", "gt.nn.Softplus()", "Counting()",
    "Residual(gt.nn.Linear(4, 4))", "gt.nn.Sequential(gt.nn.Linear(4, 3), gt.nn.Tanh(), gt.nn.Linear(3, 4))",
    "gt.nn.Dropout(0.0)", "gt.nn.Identity()", "Blocks()", "Blocks()",
    "Apply(lambda x: x.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4))",
    "Apply(lambda x: times_two(x * 0.5))",
    "Apply(write_rows)",
    "Apply(lambda x: x * x.detach().tanh())",
    "Apply(lambda x: (x * x).tanh())",
    "Apply(lambda x: x @ (x.T @ x) * 0.05)",
    "Apply(lambda x: checkpoint(lambda t: t.tanh() * t, x, use_reentrant=False))",
    "Apply(lambda x: Square.apply(x, 0.5).tanh())",
    "Apply(lambda x: gt.cat([x[:, 1:], x[:, :1]], 1))",
    "Apply(lambda x: x - x.mean(0, keepdim=True).detach())",
    "Apply(lambda x: F.softmax(x, 1) + x)",
    "Apply(lambda x: gt.where(x > 0, x, x * 0.1))",
    "Apply(lambda x: gt.stack(x.unbind(1)[::-1], 1))",
    "Apply(lambda x: x.chunk(2, 1)[0].repeat(1, 2) + x)",
    "Apply(lambda x: x.expand(2, *x.shape).sum(0) / 2)",
    "Apply(lambda x: F.normalize(x, dim=1))",
)  # fmt: skip

OPTIMIZERS = (
    "gt.optim.SGD(net.parameters(), lr=0.05)",
    "gt.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)",
    "gt.optim.Adam(net.parameters(), lr=0.01)",
    "gt.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)",
    "gt.optim.RMSprop(net.parameters(), lr=0.005, momentum=0.5)",
    "gt.optim.Adagrad(net.parameters(), lr=0.02)",
)

#: how the net is called under autocast
CALLS = ("call(x)", "call(x) + call(x * 0.5)", "call(x) * call(x.double().float())")

ERROR = "loss = ((h - y) ** 2).mean()"
#: the lines of a step, a function of x, y and k; ``call`` is the net, or the compiled net
STEPS = (
    ("optimizer.zero_grad()", "h = call(x)", ERROR, "loss.backward()", "optimizer.step()"),
    ("optimizer.zero_grad(set_to_none=False)", "h = call(x)", ERROR, "loss.backward()", "optimizer.step()"),
    ("h = call(x)", ERROR, "loss.backward()", "optimizer.step()", "optimizer.zero_grad()"),
    ("h = call(x)", ERROR, "(loss / 2).backward()", "if k: optimizer.step(); optimizer.zero_grad()"),
    (
        "optimizer.zero_grad()", "h = call(x[:3])", "loss = ((h - y[:3]) ** 2).mean()", "loss.backward()",
        "loss = (call(x[3:]) - y[3:]).abs().mean()", "loss.backward()", "optimizer.step()",
    ),
    (
        "optimizer.zero_grad()", "h = call(x)", ERROR, "loss.backward(retain_graph=True)",
        "(h * h).mean().backward()", "optimizer.step()",
    ),
    (
        "optimizer.zero_grad()", "h = call(x)", ERROR, "other = F.smooth_l1_loss(h, y)",
        "gt.autograd.backward([loss, other])", "gt.nn.utils.clip_grad_norm_(net.parameters(), 0.5)", "optimizer.step()",
    ),
    (
        "optimizer.zero_grad()", "h = call(x)", ERROR,
        "grads = gt.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad], create_graph=True, "
        "allow_unused=True)",
        "(loss + 0.01 * sum((g * g).sum() for g in grads if g is not None)).backward()", "optimizer.step()",
    ),
    (
        "optimizer.zero_grad()", "h = call(x)", ERROR, "loss.backward()",
        "gt.nn.utils.clip_grad_value_(net.parameters(), 0.1)", "optimizer.step()",
        "with gt.no_grad(): loss = net(x).mean()",
    ),
    (
        "optimizer.zero_grad()", "with gt.no_grad(): target = call(x)", "h = call(x * 0.9)",
        "loss = ((h - target) ** 2).mean() + ((h - y) ** 2).mean()", "loss.backward()", "optimizer.step()",
    ),
)  # fmt: skip

#: lines between two steps. LAYER is the name of a linear layer
EVENTS = (
    "reads.append(loss.item())",
    "reads.append(net.LAYER.weight.detach().numpy().copy())",
    "reads.append(net.LAYER.weight.sum().item())",
    "kept.append(loss)",
    "kept.append(net.LAYER.weight.detach().clone())",
    "kept.append(net.LAYER.weight.data); net.LAYER.weight.data = net.LAYER.weight.data * 0.9",
    "net.LAYER.weight.data = net.LAYER.weight.data * 1.1",
    "net.LAYER.requires_grad_(False)",
    "net.LAYER.requires_grad_(True)",
    "net.LAYER.weight.requires_grad_(not net.LAYER.weight.requires_grad)",
    "net.LAYER.bias = None",
    "net.LAYER.weight = gt.nn.Parameter(net.LAYER.weight.detach() * 0.5)",
    "kept.append(net.LAYER); net.LAYER = gt.nn.Linear(4, 4); fill(net.LAYER, x.dtype)",
    "net.LAYER = gt.nn.Sequential(net.LAYER, gt.nn.Tanh())",
    "net.scale = 0.5",
    "net.scale = 1",
    "net.names = net.names[::-1]",
    "net.names.reverse()",
    "for b in blocks(net): b.options.scale *= 0.9",
    "for b in blocks(net): b.options.shift += 0.1",
    "for b in blocks(net): b.options, b.old = Options(), b.options",
    "Blocks.factor = 1.1 - Blocks.factor / 2",
    "for b in blocks(net): kept.append(b.layers[0]); b.layers[0] = gt.nn.Linear(4, 4); fill(b.layers[0], x.dtype)",
    "for b in blocks(net): b.layers.append(gt.nn.Linear(4, 4)); fill(b.layers[-1], x.dtype)",
    "for b in blocks(net): kept.append(b.layers[0].weight); b.layers[0].weight = "
    "gt.nn.Parameter(b.layers[0].weight.detach() * 0.5)",
    "for b in blocks(net): kept.append(b.layers[1].weight.data); b.layers[1].weight.data = kept[-1] * 0.5",
    "net.eval()",
    "net.train()",
    "net.train(not net.training)",
    "kept.append(copy.deepcopy(net.state_dict()))",
    "net.load_state_dict({k: v * 0.9 for k, v in net.state_dict().items()})",
    "kept.append(optimizer.state_dict()); optimizer.load_state_dict(copy.deepcopy(kept.pop()))",
    "old = optimizer.state_dict(); optimizer.load_state_dict(copy.deepcopy(old))",
    "optimizer.param_groups[0]['lr'] *= 0.5",
    "optimizer.param_groups[0]['weight_decay'] = 0.1",
    "optimizer.param_groups[0]['maximize'] = not optimizer.param_groups[0].get('maximize', False)",
    "optimizer.add_param_group({'params': [gt.nn.Parameter(gt.ones(2, dtype=x.dtype))]})",
    "optimizer = gt.optim.SGD(net.parameters(), lr=0.03, momentum=0.5)",
    "optimizer.zero_grad()",
    "net.zero_grad(set_to_none=False)",
    "net.LAYER.weight.grad = None",
    "net.LAYER.weight.grad = gt.ones_like(net.LAYER.weight)",
    "if net.LAYER.weight.grad is not None: net.LAYER.weight.grad.mul_(0.5)",
    "if net.LAYER.weight.grad is not None: kept.append(net.LAYER.weight.grad)",
    "with gt.no_grad(): net.LAYER.weight.mul_(0.9)",
    "with gt.no_grad(): net.LAYER.weight[:2].add_(0.1)",
    "with gt.no_grad(): net.LAYER.weight.t()[1].zero_()",
    "with gt.no_grad(): reads.append(net(x).sum().item())",
    "reads.append(net(x * 0.5).sum().item())",
    "net(x).sum().backward()",
    "h = net(x); h.sum().backward(retain_graph=True); h.mean().backward()",
    "h = net(x); kept.append(h.detach()); del h",
    "if net.LAYER.weight.requires_grad: hooks.append(net.LAYER.weight.register_hook(lambda g: g * 0.5))",
    "if hooks: hooks.pop().remove()",
    "hooks.append(net.LAYER.register_forward_hook(lambda module, args, result: result * 0.5))",
    "hooks.append(net.LAYER.register_forward_pre_hook(lambda module, args: (args[0] + 0.1,)))",
    "hooks.append(net.LAYER.register_full_backward_hook(lambda module, before, after: (None if before[0] is None "
    "else before[0] * 0.5,)))",
    "hooks.append(optimizer.register_step_pre_hook(lambda o, args, kwargs: None))",
    "gt.set_grad_enabled(True)",
    "gc.collect()",
    "kept.clear()",
    "x, y = batch(7, x.dtype); step_0(x[:4], y[:4], 0)",
    "step_0(x, y, 1)",
    "step_0(x, x, True)",
    "step_0(y.t().contiguous().view(6, 4), y, 0)",
    "with gt.no_grad(): reads.append(call(x).sum().item())",
    "try: net(x[:, :3]); reads.append(1)\nexcept Exception: reads.append(0)",
    "if len(net.names) > 2: net.names.pop()",
    "net.LAYER.weight.data.copy_(net.LAYER.weight.data.flip(0))",
    "gt.nn.init.constant_(net.LAYER.weight, 0.25)",
)
