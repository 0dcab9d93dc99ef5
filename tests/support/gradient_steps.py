"""The steps of random programs with gradients; `tests.support.gradient_programs` combines them.

A step is one line of Python over tensors named ``a0``, ``a1``, …; ``gt`` is the library, torch or GT. Each function
below draws one: it picks operands by their shapes, known from torch, and returns an expression, or a statement that
writes or reads. ``NoOperand`` means that no existing tensor fits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

#: draws a line of Python
Draw = Callable[["Drawing"], str]

#: steps that create a tensor, by name
EXPRESSIONS: dict[str, Draw] = {}
#: steps that write into a tensor or read one
STATEMENTS: dict[str, Draw] = {}

#: the weight of a kind; the default is 1
WEIGHTS = {
    "transpose": 2, "reshape": 2, "view": 2, "binary": 3, "unary": 2, "matmul": 3, "part": 2, "norm": 2, "conv": 2,
    "heads": 4, "packed_heads": 4, "mlp": 2, "write_tensor": 5, "write_at": 3, "write_number": 2,
}  # fmt: skip

#: the most elements of a tensor
LARGEST = 600


class NoOperand(Exception):
    """No existing tensor has the shape a step needs."""


class Drawing:
    """The tensors a program has so far, as torch computed them, and a source of choices."""

    def __init__(self, rng: random.Random, values: dict[str, torch.Tensor]) -> None:
        self.rng, self.values = rng, values

    def pick(self, fits: Callable[[torch.Tensor], Any] = lambda t: True, kind: str = "float") -> str:
        """The name of a tensor that fits; newer ones are likelier."""
        wanted = {"float": lambda t: t.is_floating_point(), "any": lambda t: True}[kind]
        names = [name for name, t in self.values.items() if wanted(t) and fits(t)]
        if not names:
            raise NoOperand
        return names[-1 - min(int(self.rng.expovariate(0.35)), len(names) - 1)]

    def of(self, name: str) -> torch.Tensor:
        return self.values[name]

    def like(self, name: str, fits: Callable[[torch.Tensor], Any] = lambda t: True) -> str:
        """Another tensor of the same dtype, perhaps the same one."""
        return self.pick(lambda t: t.dtype == self.of(name).dtype and fits(t))

    def dim(self, t: torch.Tensor) -> int:
        if not t.ndim:
            raise NoOperand
        return self.rng.randrange(-t.ndim, t.ndim)

    def dims(self, t: torch.Tensor) -> tuple[int, ...]:
        if not t.ndim:
            raise NoOperand
        return tuple(self.rng.sample(range(t.ndim), self.rng.randint(1, t.ndim)))

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def number(self) -> float:
        return self.rng.choice((-1.5, -0.5, 0.25, 0.5, 2, 3))

    def positions(self, count: int, size: int, distinct: bool = False) -> list[int]:
        if not size or (distinct and count > size):
            raise NoOperand
        return self.rng.sample(range(size), count) if distinct else [self.rng.randrange(size) for _ in range(count)]


def expression(draw: Draw) -> Draw:
    EXPRESSIONS[draw.__name__] = draw
    return draw


def statement(draw: Draw) -> Draw:
    STATEMENTS[draw.__name__] = draw
    return draw


def rank(*ndims: int) -> Callable[[torch.Tensor], bool]:
    return lambda t: t.ndim in ndims


def at_least(ndim: int) -> Callable[[torch.Tensor], bool]:
    return lambda t: t.ndim >= ndim


def apart(t: torch.Tensor, dim: int | None = None) -> bool:
    """Are no two elements so close that rounding would decide their order?"""
    t = t.detach()
    gaps = (
        (t.flatten() if dim is None else t).sort(-1 if dim is None else dim).values.diff(dim=-1 if dim is None else dim)
    )
    return bool((gaps > 1e-6).all())


def clear(t: torch.Tensor) -> bool:
    """Is every element zero, or clearly not?"""
    t = t.detach().abs()
    return bool(((t > 1e-6) | (t == 0)).all())


def broadcastable(a: torch.Size, b: torch.Size) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(reversed(a), reversed(b), strict=False))


# -- views ---------------------------------------------------------------------------------


def factors(rng: random.Random, numel: int, most: int = 4) -> tuple[int, ...]:
    """A shape with this many elements."""
    shape: list[int] = []
    while numel > 1 and len(shape) < most - 1:
        n = rng.choice([d for d in range(1, numel + 1) if numel % d == 0])
        shape.append(n)
        numel //= n
    shape.append(numel)
    rng.shuffle(shape)
    return tuple(shape)


def part_of(d: Drawing, t: torch.Tensor) -> str:
    """An index of ints, slices, None and an ellipsis."""
    items = []
    for n in t.shape[: d.rng.randint(1, t.ndim)]:
        start = d.rng.randrange(n + 1)
        options = [":", f"{start}:", f":{start}", f"{start}:{d.rng.randint(start, n)}", "::2"]
        if n:
            options += [str(d.rng.randrange(n)), str(d.rng.randrange(-n, 0)), "1:", ":-1"]
        items.append(d.choice(options))
    if d.rng.random() < 0.2:
        items.insert(d.rng.randint(0, len(items)), "None")
    if d.rng.random() < 0.15:
        items.append("...")
    return ", ".join(items)


@expression
def transpose(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(2)))
    return f"{x}.{d.choice(('transpose', 'transpose', 'swapaxes'))}({d.dim(t)}, {d.dim(t)})"


@expression
def permute(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(2)))
    return f"{x}.permute({', '.join(map(str, d.rng.sample(range(t.ndim), t.ndim)))})"


@expression
def matrix_transpose(d: Drawing) -> str:
    return f"{d.pick(at_least(2))}.mT"


@expression
def movedim(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(2)))
    return f"{x}.movedim({d.dim(t)}, {d.dim(t)})"


@expression
def reshape(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.numel()))
    return f"{x}.reshape({factors(d.rng, t.numel())})"


@expression
def view(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.numel()))
    return f"{x}.view({factors(d.rng, t.numel())})"


@expression
def flatten(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(2)))
    first = d.rng.randrange(t.ndim)
    return f"{x}.flatten({first}, {d.rng.randrange(first, t.ndim)})"


@expression
def unflatten(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim in (1, 2, 3) and t.numel()))
    dim = d.rng.randrange(t.ndim)
    return f"{x}.unflatten({dim}, {factors(d.rng, t.shape[dim], 2)})"


@expression
def squeeze(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: 1 in t.shape))
    return f"{x}.squeeze({d.choice(('', d.dim(t)))})"


@expression
def unsqueeze(d: Drawing) -> str:
    t = d.of(x := d.pick(rank(0, 1, 2, 3)))
    return f"{x}.unsqueeze({d.rng.randrange(-t.ndim - 1, t.ndim + 1)})"


@expression
def expand(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim < 4 and (1 in t.shape or t.ndim < 3)))
    shape = [d.choice((2, 3)) if n == 1 else d.choice((-1, n)) for n in t.shape]
    return f"{x}.expand({[*([2] if t.ndim < 3 and d.rng.random() < 0.6 else []), *shape]})"


@expression
def part(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(1)))
    return f"{x}[{part_of(d, t)}]"


@expression
def narrow(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(1)))
    n = t.shape[dim := d.dim(t)]
    start = d.rng.randrange(n + 1)
    return f"{x}.narrow({dim}, {start}, {d.rng.randint(0 if d.rng.random() < 0.1 else min(1, n - start), n - start)})"


@expression
def diagonal(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(2)))
    one, two = d.rng.sample(range(t.ndim), 2)
    return f"{x}.diagonal({d.rng.randint(-1, 1)}, {one}, {two})"


@expression
def unfold(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim in (1, 2, 3) and t.numel()))
    n = t.shape[dim := d.dim(t)]
    return f"{x}.unfold({dim}, {d.rng.randint(1, n)}, {d.rng.randint(1, 2)})"


@expression
def split_part(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    n = t.shape[dim := d.dim(t)]
    how = d.choice((f"split({d.rng.randint(1, n)}, {dim})", f"chunk({d.rng.randint(1, 3)}, {dim})", f"unbind({dim})"))
    return f"{x}.{how}[{d.choice((0, -1))}]"


@expression
def parts_joined(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.dim(t)
    forms = (
        f"gt.cat({x}.chunk(2, {dim})[::-1], {dim})",
        f"gt.stack([part * k for k, part in enumerate({x}.unbind({dim}))], {dim})",
        f"sum(part.sum() * k for k, part in enumerate({x}.split(1, {dim})))",
    )
    return str(d.choice(forms))


@expression
def contiguous(d: Drawing) -> str:
    return f"{d.pick()}.{d.choice(('contiguous', 'clone', 'ravel'))}()"


# -- element by element --------------------------------------------------------------------

#: each is well-behaved for every input
UNARY = (
    "{}.tanh()", "{}.sin()", "{}.cos()", "{}.sigmoid()", "{}.tanh().exp()", "({} * {} + 1).sqrt()", "-{}",
    "({} * {} + 1).log()", "1 / ({} * {} + 1)", "{} ** 2", "F.gelu({})", "F.silu({})", "F.softplus({})", "{}.atan()",
    "{}.square()", "F.gelu({}, approximate='tanh')", "({}.square() + 0.5).rsqrt()", "gt.erf({})", "{}.sinh().tanh()",
    "F.logsigmoid({})", "F.softsign({})", "F.mish({})", "F.selu({})", "{}.expm1().tanh()", "F.tanhshrink({})",
)  # fmt: skip
#: these have a kink at zero
BENT = (
    "{}.relu()", "{}.abs()", "F.leaky_relu({}, 0.1)", "F.elu({})", "{}.clamp(min=0)", "{}.clamp(max=0)", "F.relu6({})",
    "F.hardtanh({}, 0, 5)", "{}.sign() * {}", "gt.where({} > 0, {}, 0.5 * {})", "{}.masked_fill({} < 0, 0.25)",
)  # fmt: skip


@expression
def unary(d: Drawing) -> str:
    x = d.pick()
    return str(d.choice(UNARY)).replace("{}", x)


@expression
def bent(d: Drawing) -> str:
    return str(d.choice(BENT)).replace("{}", d.pick(clear))


@expression
def with_number(d: Drawing) -> str:
    return f"{d.pick()} {d.choice('+-*/')} {d.number()}"


def pair(d: Drawing) -> tuple[str, str]:
    x = d.pick()
    return x, d.like(x, lambda t: broadcastable(t.shape, d.of(x).shape))


@expression
def binary(d: Drawing) -> str:
    x, y = pair(d)
    return f"{x} {d.choice('++-***')} {y}"


@expression
def binary_other(d: Drawing) -> str:
    x, y = pair(d)
    forms = (
        "{x} / ({y} * {y} + 1)", "gt.lerp({x}, {y}, 0.25)", "gt.addcmul({x}, {y}, {y}, value=0.5)",
        "gt.atan2({x}, {y} * {y} + 1)", "gt.logaddexp({x}, {y})", "({x} * {x} + 1) ** {y}.tanh()",
        "{x}.add({y}, alpha=2)", "gt.hypot({x}, {y} * {y} + 1)", "gt.addcdiv({x}, {y}, {y} * {y} + 1)",
    )  # fmt: skip
    return str(d.choice(forms)).format(x=x, y=y)


@expression
def larger(d: Drawing) -> str:
    x, y = pair(d)
    if not clear(d.of(x) - d.of(y)):
        raise NoOperand
    forms = ("gt.maximum({x}, {y})", "gt.minimum({x}, {y})", "gt.where({x} > {y}, {x}, {y} * 2)", "({x} - {y}).abs()")
    return str(d.choice(forms)).format(x=x, y=y)


# -- reductions, scans and orders ----------------------------------------------------------


@expression
def sums(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    return f"{x}.{d.choice(('sum', 'mean'))}({d.choice((d.dim(t), d.dims(t)))}, keepdim={d.rng.random() < 0.5})"


@expression
def reduction(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.dim(t)
    forms = [f"{x}.logsumexp({dim})", f"{x}.tanh().prod({dim})", f"({x} + 2).norm(dim={dim})", f"{x}.sum()"]
    if t.shape[dim] > 1 and apart(t, dim):
        forms += [f"{x}.var({dim}, keepdim=True)", f"{x}.std({dim}, unbiased=False)"]
    return str(d.choice(forms))


@expression
def extreme(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.dim(t)
    if not apart(t, dim):
        raise NoOperand
    forms = (
        f"{x}.amax({dim}, keepdim=True)", f"{x}.amin({dim})", f"{x}.max({dim}).values", f"{x}.min({dim}, True)[0]",
        f"{x}.sort({dim}).values", f"{x}.sort({dim}, descending=True)[0]", f"{x}.cummax({dim}).values",
        f"{x}.topk({d.rng.randint(1, t.shape[dim])}, {dim}).values", f"{x}.median({dim}).values",
        f"{x}.kthvalue({d.rng.randint(1, t.shape[dim])}, {dim}).values", f"{x}.gather({dim}, {x}.argsort({dim}))",
        f"{x}.take_along_dim({x}.argmax({dim}, keepdim=True), {dim})",
    )  # fmt: skip
    return str(d.choice(forms))


@expression
def scan(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.dim(t)
    forms = (f"{x}.cumsum({dim})", f"{x}.tanh().cumprod({dim})", f"{x}.logcumsumexp({dim})", f"{x}.diff(dim={dim})")
    return str(d.choice(forms))


@expression
def softmax(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(1)))
    return f"{x}.{d.choice(('softmax', 'log_softmax'))}({d.dim(t)})"


# -- joins and rearrangements --------------------------------------------------------------


@expression
def cat(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(1)))
    dim = d.rng.randrange(t.ndim)

    def fits(o: torch.Tensor) -> bool:
        return o.ndim == t.ndim and all(
            n == m or k == dim for k, (n, m) in enumerate(zip(o.shape, t.shape, strict=True))
        )

    return f"gt.cat([{x}, {', '.join(d.like(x, fits) for _ in range(d.rng.randint(1, 2)))}], {dim})"


@expression
def stack(d: Drawing) -> str:
    t = d.of(x := d.pick(rank(0, 1, 2, 3)))
    return f"gt.stack(({x}, {d.like(x, lambda o: o.shape == t.shape)}), {d.rng.randrange(t.ndim + 1)})"


@expression
def rearranged(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.dim(t)
    forms = [
        f"{x}.flip({dim})", f"{x}.roll({d.rng.randint(-2, 2)}, {dim})", f"F.pad({x}, (1, 2), value=0.5)",
        f"{x}.repeat_interleave(2, {dim})", f"{x}.repeat({[d.choice((1, 2)) for _ in t.shape]})", f"{x}.tile((2,))",
        f"F.pad({x}, (-1, 1))",
    ]  # fmt: skip
    if t.ndim > 1:
        forms += [f"{x}.tril({d.rng.randint(-1, 1)})", f"{x}.triu()", f"gt.rot90({x})"]
    return str(d.choice(forms))


# -- indexing ------------------------------------------------------------------------------


@expression
def indexed(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.rng.randrange(t.ndim)
    index = f"gt.tensor({d.positions(3, t.shape[dim])})"
    forms = [
        f"{x}.index_select({dim}, {index})",
        f"{x}[{':, ' * dim}{index}]",
        f"{x}[{':, ' * dim}{index}.reshape(3, 1)]",
    ]
    if t.ndim > 1:
        other = d.positions(3, t.shape[1])
        forms += [
            f"{x}[gt.tensor({d.positions(3, t.shape[0])}), gt.tensor({other})]",
            f"{x}[gt.tensor({d.positions(2, t.shape[0])})[:, None], gt.tensor({other})]",
            f"{x}[{d.rng.randrange(t.shape[0])}, gt.tensor({other})]",
        ]
    if t.ndim > 2:
        forms.append(f"{x}[gt.tensor({d.positions(2, t.shape[0])}), :, gt.tensor({d.positions(2, t.shape[2])})]")
    return str(d.choice(forms))


@expression
def gather(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.rng.randrange(t.ndim)
    shape = [d.rng.randint(1, 3) if k == dim else d.rng.randint(1, n) for k, n in enumerate(t.shape)]
    return f"{x}.gather({dim}, gt.tensor({d.positions(prod(shape), t.shape[dim])}).reshape({shape}))"


@expression
def masked(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: clear(t) and t.numel()))
    y = d.like(x, lambda o: broadcastable(o.shape, t.shape))
    forms = [
        f"{x}.masked_fill({x} > 0, 0.5)",
        f"gt.where({x} > 0, {y}, {x})",
        f"{x}[{x} > 0]",
        f"{x}.masked_select({x} < 0)",
    ]
    return str(d.choice(forms))


@expression
def scattered(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    dim = d.rng.randrange(t.ndim)
    n = t.shape[dim]
    y = d.like(x, lambda o: o.shape == t.shape)
    index, once = f"gt.tensor({d.positions(n, n)})", f"gt.tensor({d.positions(n, n, True)})"
    grown = f"[{', '.join('None' if k != dim else ':' for k in range(t.ndim))}].expand({tuple(t.shape)})"
    forms = [
        f"{x}.index_add({dim}, {index}, {y})", f"{x}.scatter_add({dim}, {index}{grown}, {y})",
        f"{x}.scatter({dim}, {once}{grown}, {y})", f"{x}.index_copy({dim}, {once}, {y})",
        f"{x}.index_fill({dim}, {index}, 0.5)",
        f"{x}.index_put((gt.tensor({d.positions(2, t.shape[0], True)}),), {x}[0])",
        f"{x}.index_put((gt.tensor({d.positions(2, t.shape[0])}),), {x}[:1], accumulate=True)",
        f"{x}.clone().select_scatter({x}.select({dim}, 0) * 2, {dim}, {d.rng.randrange(n)})",
    ]  # fmt: skip
    return str(d.choice(forms))


# -- products ------------------------------------------------------------------------------


@expression
def matmul(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(1)))

    def fits(o: torch.Tensor) -> bool:
        inner = o.shape[-2 if o.ndim > 1 else 0] if o.ndim else -1
        return inner == t.shape[-1] and broadcastable(o.shape[:-2], t.shape[:-2])

    return f"{x} @ {d.like(x, fits)}"


@expression
def matmul_transposed(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(2)))
    y = d.like(x, lambda o: o.ndim > 1 and o.shape[-1] == t.shape[-1] and broadcastable(o.shape[:-2], t.shape[:-2]))
    return f"{x} @ {y}.{d.choice(('mT', 'transpose(-2, -1)'))}"


@expression
def einsum(d: Drawing) -> str:
    t = d.of(x := d.pick(rank(1, 2, 3)))
    y = d.like(x, lambda o: o.ndim in (1, 2, 3) and o.shape[-1] == t.shape[-1])
    left, right = "abc"[: t.ndim - 1], "def"[: d.of(y).ndim - 1]
    kept = [*left, *right, *(["z"] if d.rng.random() < 0.3 else [])]
    kept = d.rng.sample(kept, d.rng.randint(1, len(kept))) if kept else []
    return f"gt.einsum('{left}z,{right}z->{''.join(kept)}', {x}, {y})"


@expression
def linear(d: Drawing) -> str:
    t = d.of(x := d.pick(at_least(1)))
    w = d.like(x, lambda o: o.ndim == 2 and o.shape[1] == t.shape[-1])
    return f"F.linear({x}, {w})"


@expression
def product(d: Drawing) -> str:
    t = d.of(x := d.pick(rank(1, 2, 3)))
    y = d.like(x, lambda o: o.ndim == t.ndim and o.shape == t.shape)
    forms = {
        1: (f"gt.outer({x}, {y})", f"gt.dot({x}, {y})", f"gt.inner({x}, {y})"),
        2: (f"gt.mm({x}, {y}.T)", f"gt.addmm({x} @ {x}.T, {x}, {y}.T, beta=0.5)", f"gt.tensordot({x}, {y}, 2)"),
        3: (
            f"gt.bmm({x}, {y}.mT)",
            f"gt.tensordot({x}, {y}, ([2, 1], [2, 1]))",
            f"gt.baddbmm({x} @ {x}.mT, {x}, {y}.mT)",
        ),
    }
    return str(d.choice(forms[t.ndim]))


# -- nn ------------------------------------------------------------------------------------


@expression
def norm(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.shape[-1] > 1 and t.numel()))
    n = t.shape[-1]
    forms = [
        f"F.layer_norm({x}, ({n},), eps=0.5)", f"F.rms_norm({x}, ({n},), eps=0.5)", f"F.normalize({x} + 2, dim=-1)",
        f"F.cosine_similarity({x} + 2, {x}.flip(-1) + 2, dim=-1)",
    ]  # fmt: skip
    if t.ndim > 1 and t.shape[-2:].numel() > 1:
        forms.append(f"F.layer_norm({x}, {tuple(t.shape[-2:])}, eps=0.5)")
    if t.ndim in (3, 4) and t.shape[0] > 1:
        forms += [f"F.batch_norm({x}, None, None, training=True, eps=0.5)", f"F.group_norm({x}, 1, eps=0.5)"]
    return str(d.choice(forms))


@expression
def affine_norm(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim > 1 and t.shape[-1] > 1 and t.numel()))
    w = d.like(x, lambda o: o.shape == t.shape[-1:])
    return f"F.layer_norm({x}, ({t.shape[-1]},), {w}, {d.choice((w, 'None'))}, eps=0.5)"


@expression
def dropout(d: Drawing) -> str:
    return f"F.dropout({d.pick()}, 0.0)"


@expression
def loss(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim in (2, 3) and t.numel()))
    y = d.like(x, lambda o: o.shape == t.shape)
    target = f"gt.tensor({d.positions(t.shape[0], t.shape[1])})"
    how = d.choice(("mean", "sum", "none"))
    forms = [
        f"F.mse_loss({x}, {y}, reduction='{how}')", f"F.smooth_l1_loss({x}, {y}.detach() + 0.125, reduction='{how}')",
        f"F.binary_cross_entropy_with_logits({x}, {y}.sigmoid().detach(), reduction='{how}')",
        f"F.kl_div({x}.log_softmax(-1), {y}.softmax(-1), reduction='sum')", f"F.huber_loss({x}, {y} + 0.125)",
    ]  # fmt: skip
    if t.ndim == 2:
        forms += [
            f"F.cross_entropy({x}, {target}, reduction='{how}')",
            f"F.cross_entropy({x}, {target}, label_smoothing=0.1)",
            f"F.nll_loss({x}.log_softmax(1), {target}, reduction='{how}')",
            f"F.cross_entropy({x}, {y}.softmax(1))",
        ]
    return str(d.choice(forms))


@expression
def attention(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim in (3, 4) and t.numel()))
    y = d.like(x, lambda o: o.shape == t.shape)
    z = d.like(x, lambda o: o.shape == t.shape)
    return f"F.scaled_dot_product_attention({x}, {y}, {z}, is_causal={d.rng.random() < 0.5})"


@expression
def conv(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim in (3, 4) and t.numel()))
    w = d.like(x, lambda o: o.ndim == t.ndim and o.shape[1] == t.shape[1] and o.numel())
    options = f"padding={d.rng.randint(0, 2)}, stride={d.rng.randint(1, 2)}"
    if d.rng.random() < 0.25:
        w = d.like(x, lambda o: o.ndim == t.ndim and o.shape[0] == t.shape[1] and o.numel())
        return f"F.conv_transpose{t.ndim - 2}d({x}, {w}, stride={d.rng.randint(1, 2)})"
    return f"F.conv{t.ndim - 2}d({x}, {w}, {options})"


@expression
def pool(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim in (3, 4) and t.numel() and apart(t)))
    k = t.ndim - 2
    forms = (
        f"F.max_pool{k}d({x}, 2, 1, padding={d.rng.randint(0, 1)})",
        f"F.avg_pool{k}d({x}, 2, padding={d.rng.randint(0, 1)})",
        f"F.adaptive_avg_pool{k}d({x}, 2)", f"F.interpolate({x}, scale_factor=2)", f"F.adaptive_max_pool{k}d({x}, 1)",
    )  # fmt: skip
    return str(d.choice(forms))


@expression
def embedding(d: Drawing) -> str:
    w = d.pick(lambda t: t.ndim == 2 and t.numel())
    rows = d.positions(6, d.of(w).shape[0])
    return f"F.embedding(gt.tensor({rows}).reshape({d.choice(((6,), (2, 3)))}), {w})"


# -- blocks of models ----------------------------------------------------------------------


@expression
def heads(d: Drawing) -> str:
    """Self-attention; its heads are split by reshape and transpose, and joined again."""
    t = d.of(x := d.pick(lambda t: t.ndim == 3 and t.shape[-1] > 1 and t.numel()))
    w = d.like(x, lambda o: o.ndim == 2 and o.shape == (t.shape[-1],) * 2)
    b, n, c = t.shape
    h = d.choice([k for k in range(1, c + 1) if c % k == 0])
    q = f"({x} @ {w}).reshape({b}, {n}, {h}, {c // h}).transpose(1, 2)"
    k = f"({x} @ {w}.T).view({b}, {n}, {h}, {c // h}).transpose(1, 2)"
    v = f"{x}.reshape({b}, {n}, {h}, {c // h}).transpose(1, 2)"
    if d.rng.random() < 0.5:
        y = f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)"
    else:
        y = f"(({q} @ {k}.transpose(-2, -1)) * 0.5).softmax(-1) @ {v}"
    return f"({y}).transpose(1, 2).reshape({b}, {n}, {c})"


@expression
def packed_heads(d: Drawing) -> str:
    """The same with queries, keys and values from one product, split by chunk or unbind."""
    t = d.of(x := d.pick(lambda t: t.ndim == 3 and t.shape[-1] > 1 and t.numel()))
    w = d.like(x, lambda o: o.ndim == 2 and o.shape == (t.shape[-1],) * 2)
    b, n, c = t.shape
    packed = f"({x} @ gt.cat([{w}, {w}.T, {w} * 0.5], 1))"
    if d.rng.random() < 0.5:
        parts = f"[part.reshape({b}, {n}, 1, {c}).transpose(1, 2) for part in {packed}.chunk(3, -1)]"
    else:
        parts = f"{packed}.view({b}, {n}, 3, 1, {c}).permute(2, 0, 3, 1, 4).unbind(0)"
    return f"F.scaled_dot_product_attention(*{parts}).transpose(1, 2).reshape({b}, {n}, {c})"


@expression
def mlp(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim and t.numel()))
    w = d.like(x, lambda o: o.ndim == 2 and o.shape[0] == t.shape[-1])
    return f"{x} + F.gelu({x} @ {w}) @ {w}.T"


@expression
def checkpointed(d: Drawing) -> str:
    t = d.of(x := d.pick(lambda t: t.ndim > 1 and t.numel()))
    w = d.like(x, lambda o: o.ndim == 2 and o.shape[0] == t.shape[-1])
    inner = d.choice((f"(t @ {w}).tanh().transpose(0, 1) * 2", f"F.silu(t.transpose(-2, -1).reshape({t.numel()}))"))
    return f"checkpoint(lambda t: {inner}, {x}, use_reentrant=False)"


# -- others --------------------------------------------------------------------------------


@expression
def detached(d: Drawing) -> str:
    return f"{d.pick()}.detach(){d.choice(('', '.clone()', '.clone().requires_grad_()'))}"


@expression
def cast(d: Drawing) -> str:
    return f"{d.pick()}.{d.choice(('float', 'double'))}()"


@expression
def careless(d: Drawing) -> str:
    """A step that is often refused."""
    x, y = d.pick(), d.pick()
    forms = (
        f"{x} + {y}", f"{x} @ {y}", f"{x}.view(-1, 2)", f"gt.cat([{x}, {y}])", f"{x}.transpose(0, 2)", f"{x}[1]",
        f"{x}.expand_as({y})", f"{x}.reshape({y}.shape)", f"{x}.sum(1)", f"{x}.squeeze(0)[..., 0]", f"{x}.T @ {y}",
        f"gt.where({x} > 0, {y}, 1.0)", f"{x}.view_as({y})", f"{x}.flatten(1)",
    )  # fmt: skip
    return str(d.choice(forms))


# -- statements ----------------------------------------------------------------------------


def place(d: Drawing, x: str) -> str:
    """A view of a tensor to write into, or the tensor."""
    t = d.of(x)
    if not t.ndim:
        return x
    forms = [x, f"{x}[{part_of(d, t)}]", f"{x}[{part_of(d, t)}]", f"{x}.select({d.dim(t)}, 0)"]
    if t.ndim > 1:
        one, two = d.rng.sample(range(t.ndim), 2)
        forms += [f"{x}.transpose({one}, {two})", f"{x}.diagonal(0, {one}, {two})", f"{x}.transpose({one}, {two})[1:]"]
    if t.numel():
        forms += [f"{x}.view({factors(d.rng, t.numel())})", f"{x}.unsqueeze(0)", f"{x}.chunk(2)[-1]"]
    # otherwise it is a copy in one library and a view in the other: new results have other strides in torch
    if t.is_contiguous():
        forms.append(f"{x}.flatten()")
    return str(d.choice(forms))


def written(d: Drawing) -> str:
    return d.pick(lambda t: t.numel() and not (t.requires_grad and t.is_leaf))


@statement
def write_number(d: Drawing) -> str:
    into = place(d, written(d))
    forms = (
        "mul_(0.5)",
        "add_(1)",
        "tanh_()",
        "zero_()",
        "fill_(0.25)",
        "sub_(0.5)",
        "div_(2)",
        "sigmoid_()",
        "neg_()",
        "sin_()",
    )
    return f"{into}.{d.choice(forms)}"


@statement
def write_tensor(d: Drawing) -> str:
    x = written(d)
    into = place(d, x)
    try:
        shape = eval(into, {x: d.of(x).detach()}).shape
    except (RuntimeError, IndexError):
        raise NoOperand from None
    y = d.like(
        x,
        lambda o: (
            o.ndim <= len(shape) and torch.broadcast_shapes(o.shape, shape) == shape
            if broadcastable(o.shape, shape)
            else False
        ),
    )
    forms = [
        "{}.add_({})",
        "{}.mul_({})",
        "{}.copy_({})",
        "{}.sub_({}, alpha=2)",
        "{}.lerp_({}.expand(" + str(tuple(shape)) + "), 0.5)",
    ]
    if into.endswith("]") and "chunk" not in into:
        forms += ["{} = {}", "{} += {}", "{} *= {}"]
    return str(d.choice(forms)).format(into, y)


@statement
def write_at(d: Drawing) -> str:
    t = d.of(x := written(d))
    if not t.ndim or not clear(t):
        raise NoOperand
    rows = f"gt.tensor({d.positions(2, t.shape[0], True)})"
    y = d.like(x, lambda o: o.shape == t.shape[1:])
    forms = (
        f"{x}[{rows}] = {y}", f"{x}[{x} > 0] = 0.5", f"{x}.masked_fill_({x} > 0.5, -0.25)", f"{x}[{rows}] += {y}",
        f"{x}.index_add_(0, {rows}, {x}[:2].clone())", f"{x}.index_fill_(0, {rows}, 0.5)",
        f"{x}.index_copy_(0, {rows}, {x}[:2].tanh())",
        f"{x}[{rows}, ...] = 0.5", f"{x}.clamp_(min=0)", f"{x}.relu_()",
        f"{x}.index_put_(({rows},), {y}, accumulate=True)",
        f"gt.where({x} > 0, {x}, 0.5)[...].mul_(2)",
    )  # fmt: skip
    return str(d.choice(forms))


@statement
def write_without_gradient(d: Drawing) -> str:
    """As an optimizer does, on a leaf or a tensor without history."""
    x = d.pick(lambda t: t.numel() and t.is_leaf and not t._is_view())
    return f"with gt.no_grad(): {place(d, x)}.{d.choice(('mul_(0.5)', 'add_(0.25)', 'clamp_(-1, 1)'))}"


@statement
def without_gradient(d: Drawing) -> str:
    x, y = pair(d)
    return f"with gt.no_grad(): reads.append(({x} * {y}).sum())"


@statement
def read_item(d: Drawing) -> str:
    return f"reads.append({d.pick(lambda t: t.numel())}.sum().item())"


@statement
def read_array(d: Drawing) -> str:
    return f"reads.append({d.pick()}.detach().numpy().copy())"


@statement
def retained(d: Drawing) -> str:
    return f"{d.pick(lambda t: t.requires_grad and not t.is_leaf)}.retain_grad()"


@statement
def hook(d: Drawing) -> str:
    return f"{d.pick(lambda t: t.requires_grad)}.register_hook(lambda g: g * 0.5 + 1)"


@statement
def backward_early(d: Drawing) -> str:
    return f"({d.pick(lambda t: t.requires_grad)} * 0.5).sum().backward(retain_graph=True)"


def with_gradient(t: torch.Tensor) -> bool:
    return t.is_leaf and t.grad is not None


@expression
def gradient_used(d: Drawing) -> str:
    return f"{d.pick(with_gradient)}.grad{d.choice((' * 2', '.detach()', '', '.mT'))}"


@statement
def write_gradient(d: Drawing) -> str:
    x = d.pick(with_gradient)
    return f"{x}.grad{d.choice(('.mul_(0.5)', '.zero_()', ' = None', '[:1].add_(1)', ' = ' + x + '.grad * 2'))}"


@statement
def gradient_early(d: Drawing) -> str:
    x = d.pick(lambda t: t.requires_grad)
    y = d.pick(lambda t: t.requires_grad)
    return f"reads += gt.autograd.grad(({x} * ramp({x})).sum(), [{y}], retain_graph=True, allow_unused=True)"


@statement
def forget(d: Drawing) -> str:
    name = d.pick(lambda t: not (t.is_leaf and t.requires_grad), kind="any")
    return f"del {name}"
