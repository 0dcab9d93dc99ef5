"""Random programs with gradients, each run by torch and by GT and compared value by value.

A `Program` is data: initial tensors, steps (lines of Python, see `tests.support.gradient_steps`) and how gradients are
computed at the end. It is drawn from one integer. Torch runs every step while the program is drawn, so most steps are
legal; some that torch refuses are kept, because GT must refuse them too. A program that is sensitive to a slight change
of its inputs is drawn again: in the others, results differ only by rounding.

    program = generate(7)
    problem = difference(program, Setting("two workers", workers=2))
    print(source(shrunk(program, setting)))     # a complete script, with ``gt`` as torch or as GT
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint

import gt
from gt.errors import GtError
from gt.testing import Cluster
from tests.support.gradient_steps import EXPRESSIONS, LARGEST, STATEMENTS, WEIGHTS, Drawing, NoOperand

# -- programs ------------------------------------------------------------------------------

NAME = re.compile(r"\ba\d+\b")


@dataclass(frozen=True)
class Input:
    """A tensor a program starts with."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float64"
    requires_grad: bool = True

    def line(self) -> str:
        how = f"dtype=gt.{self.dtype}, requires_grad={self.requires_grad}"
        return f"{self.name} = gt.tensor(draw({int(self.name[1:])}, {self.shape}), {how})"


@dataclass(frozen=True)
class Step:
    kind: str
    line: str

    @property
    def makes(self) -> str | None:
        match = re.match(r"(a\d+) = ", self.line)
        return match[1] if match else None

    @property
    def reads(self) -> set[str]:
        return set(NAME.findall(self.line)) - {self.makes}


#: how gradients are computed: lines over ``loss`` and the list ``leaves``
ENDINGS: dict[str, tuple[str, ...]] = {
    "backward": ("loss.backward()",),
    "twice": ("loss.backward(retain_graph=True)", "(loss * loss).backward()"),
    "grad": ("grads = gt.autograd.grad(loss, leaves, allow_unused=True)",),
    "second": (
        "grads = gt.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)",
        "again = loss + sum((g * g).sum() for g in grads if g is not None)",
        "again.backward()",
    ),
    "optimizer": ("optimizer.zero_grad()", "loss.backward()", "optimizer.step()"),
}
OPTIMIZERS = ("gt.optim.SGD(leaves, lr=0.05, momentum=0.9)", "gt.optim.AdamW(leaves, lr=0.05)")


@dataclass(frozen=True)
class Program:
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    #: the tensors of the loss
    targets: tuple[str, ...]
    ending: str = "backward"
    rounds: int = 1
    optimizer: str = ""
    #: run under autocast to bfloat16
    autocast: bool = False

    def before(self) -> list[str]:
        names = ", ".join(g.name for g in self.inputs if g.requires_grad)
        return [
            *(g.line() for g in self.inputs),
            f"leaves = [{names}]",
            *([f"optimizer = {self.optimizer}"] if self.optimizer else []),
        ]

    def body(self) -> list[str]:
        lines = [step.line for step in self.steps]
        if self.targets:
            lines.append("loss = " + " + ".join(f"({name} * ramp({name})).sum()" for name in self.targets))
            lines += ENDINGS[self.ending]
        return lines

    @property
    def tolerance(self) -> float:
        if self.autocast:
            return 0.1
        narrow = any(g.dtype == "float32" for g in self.inputs) or any(".float()" in s.line for s in self.steps)
        return 2e-3 if narrow else 1e-7


PREAMBLE = '''
def draw(seed, shape):
    return np.random.default_rng(seed).standard_normal(shape)

def ramp(t):
    """Other weights for each element, so that no gradient is right by symmetry."""
    return gt.linspace(-1, 2, t.numel(), dtype=t.dtype).reshape(t.shape)
'''


def source(program: Program, library: str = "gt") -> str:
    """The program as a script."""
    body = [*program.body(), *(f"print({g.name}.grad)" for g in program.inputs if g.requires_grad)]
    if program.autocast:
        body = ["with gt.autocast('cpu', dtype=gt.bfloat16):", *("    " + line for line in body)]
    lines = [
        "import numpy as np",
        f"import {library}" + (" as gt" if library != "gt" else ""),
        "F = gt.nn.functional",
        f"from {library}.utils.checkpoint import checkpoint",
        PREAMBLE.strip("\n"),
        "reads = []",
        *program.before(),
    ]
    if program.rounds > 1:
        return "\n".join([*lines, f"for _ in range({program.rounds}):", *("    " + line for line in body)])
    return "\n".join([*lines, *body])


# -- running one ---------------------------------------------------------------------------


@dataclass
class Outcome:
    """The results of a program in one library."""

    #: one per line: the error it raised, or None
    raised: list[Exception | None] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    #: one per round: the value of every tensor by its name
    values: list[dict[str, Any]] = field(default_factory=list)


def world(library: Any, checkpoint: Any, nudge: float = 0.0) -> dict[str, Any]:
    names = {"gt": library, "np": np, "F": library.nn.functional, "checkpoint": checkpoint, "reads": []}
    exec(PREAMBLE, names)
    if nudge:
        plain = names["draw"]
        names["draw"] = lambda seed, shape: (
            plain(seed, shape) * (1 + nudge * np.cos(np.arange(np.prod(shape)) * 7).reshape(shape))
        )
    return names


def torch_world(nudge: float = 0.0) -> dict[str, Any]:
    return world(torch, torch.utils.checkpoint.checkpoint, nudge)


def gt_world() -> dict[str, Any]:
    return world(gt, gt.utils.checkpoint.checkpoint)


def execute(line: str, names: dict[str, Any]) -> Exception | None:
    try:
        exec(line, names)
    except Exception as error:
        return error.with_traceback(None)
    return None


def run(program: Program, names: dict[str, Any], around: Any = contextlib.nullcontext) -> Outcome:
    outcome = Outcome()

    def do(line: str) -> None:
        with around():
            error = execute(line, names)
        outcome.lines.append(line)
        outcome.raised.append(error)

    for line in program.before():
        do(line)
    kept = {g.name for g in program.inputs}
    for _ in range(program.rounds):
        for line in program.body():
            do(line)
        outcome.values.append(observed(names))
        for name in [n for n in names if (NAME.fullmatch(n) and n not in kept) or n in ("loss", "grads", "again")]:
            del names[name]
        names["reads"].clear()
    return outcome


def observed(names: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"reads": [array(x) for x in names["reads"]]}
    for name, x in names.items():
        if NAME.fullmatch(name) or name in ("loss", "again"):
            values[name] = array(x)
            try:
                values |= {f"{name}.{key}": value for key, value in _gradient(x).items()}
            except RuntimeError as error:
                values[name + ".grad"] = error
        elif name == "grads":
            values[name] = [None if g is None else array(g) for g in x]
    return values


def array(x: Any) -> Any:
    """A tensor's value, or why it has none."""
    if not isinstance(x, torch.Tensor | gt.Tensor):
        return x
    try:
        x = x.detach()
        return (x.float() if str(x.dtype).endswith("bfloat16") else x).numpy().copy()
    except RuntimeError as error:
        return error.with_traceback(None)


def _gradient(x: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning that a tensor which is not a leaf has no gradient
        return {"requires_grad": x.requires_grad, "grad": None if x.grad is None else array(x.grad)}


# -- drawing one ---------------------------------------------------------------------------

#: steps of a program
SHORTEST, LONGEST = 2, 14


@dataclass(frozen=True)
class Profile:
    """The kind of programs that are drawn."""

    #: kinds of steps that are left out, or the only ones allowed
    avoid: str = ""
    only: str = ""
    #: how often a step that torch refuses is kept
    refused: float = 0.3
    rounds: int | None = None
    autocast: bool = False

    def takes(self, kind: str) -> bool:
        return kind not in self.avoid.split() and (not self.only or kind in self.only.split())


ANY = Profile()
#: with loops, so that repeated steps are replayed
REPEATED = Profile(rounds=9)
#: for a compiled function: it reads nothing, keeps nothing, and has no refused steps
COMPILABLE = Profile(
    avoid="read_item read_array forget careless backward_early masked retained hook without_gradient "
    "gradient_used write_gradient gradient_early",
    refused=0,
    rounds=6,
)
#: the ops of models; torch's lists of ops for autocast on a CPU agree with GT's on these
MIXED = Profile(
    only="matmul matmul_transposed linear heads packed_heads mlp checkpointed conv norm softmax transpose "
    "permute reshape flatten part cat stack split_part unary binary with_number sums write_number read_item "
    "contiguous unsqueeze expand",
    refused=0,
    autocast=True,
)


def generate(seed: int, profile: Profile = ANY) -> Program:
    """The program of a seed."""
    attempt = 0
    while True:
        program = _draw_program(random.Random(f"{seed}.{attempt}"), profile)
        if program is not None and steady(program) and (profile.refused or not any(oracle(program).raised)):
            return program
        attempt += 1


def _draw_program(rng: random.Random, profile: Profile) -> Program | None:
    inputs = _draw_inputs(rng, profile)
    names = torch_world()
    for g in inputs:
        exec(g.line(), names)
    steps: list[Step] = []
    for _ in range(rng.randint(SHORTEST, LONGEST)):
        if (step := _step(rng, names, f"a{len(inputs) + len(steps)}", profile)) is not None:
            steps.append(step)
    floats = [n for n, x in _tensors(names).items() if x.is_floating_point() and x.requires_grad and x.numel()]
    computed = [n for n in floats if n not in {g.name for g in inputs}]
    if not computed:
        return None
    targets = tuple(dict.fromkeys([computed[-1], *rng.sample(computed, min(len(computed), rng.randint(0, 2)))]))
    ending = rng.choice((*ENDINGS, "backward"))
    optimizer = rng.choice(OPTIMIZERS) if ending == "optimizer" else ""
    rounds = profile.rounds or (3 if optimizer else rng.choice((1, 1, 1, 4)))
    return Program(tuple(inputs), tuple(steps), targets, ending, rounds, optimizer, profile.autocast)


def _draw_inputs(rng: random.Random, profile: Profile) -> list[Input]:
    """A few tensors whose sizes often match."""
    sizes = rng.choices((1, 2, 3, 4, 6), k=3)
    dtype = "float32" if profile.autocast or rng.random() < 0.15 else "float64"
    if rng.random() < 0.06:
        sizes[0] = 0
    square = rng.choice(sizes)
    inputs = []
    for k in range(rng.randint(2, 4)):
        shape = tuple(rng.choices(sizes, k=rng.choices((0, 1, 2, 3, 4), (1, 3, 6, 5, 2))[0]))
        if k == 1 and rng.random() < 0.6:
            shape = (square, square)
        elif k == 2 and rng.random() < 0.5:
            shape = (*rng.choices(sizes, k=2), square)
        inputs.append(Input(f"a{k}", shape, dtype, k == 0 or rng.random() < 0.7))
    return inputs


def _step(rng: random.Random, names: dict[str, Any], target: str, profile: Profile) -> Step | None:
    """One step that torch accepts, or sometimes one that it refuses; its effect is then in ``names``."""
    for _ in range(8):
        table = STATEMENTS if rng.random() < 0.25 else EXPRESSIONS
        kinds = list(filter(profile.takes, table))
        (kind,) = rng.choices(kinds, [WEIGHTS.get(name, 1) for name in kinds])
        try:
            drawn = table[kind](Drawing(rng, _tensors(names)))
        except NoOperand:
            continue
        step = Step(kind, drawn if table is STATEMENTS else f"{target} = {drawn}")
        with warnings.catch_warnings(), _autocast(torch, profile.autocast):
            warnings.simplefilter("ignore")
            error = execute(step.line, names)
        result = names.get(target)
        if isinstance(result, torch.Tensor) and result.numel() > LARGEST:
            del names[target]
        elif error is None or rng.random() < profile.refused:
            return step
    return None


def _autocast(library: Any, enabled: bool) -> Any:
    return library.autocast("cpu", dtype=library.bfloat16) if enabled else contextlib.nullcontext()


def _tensors(names: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in names.items() if NAME.fullmatch(name) and isinstance(x, torch.Tensor) and _usable(x)}


def _usable(x: torch.Tensor) -> bool:
    try:
        return x.is_leaf is not None
    except RuntimeError:  # one of several views whose base was written
        return False


def steady(program: Program) -> bool:
    """Does torch give nearly the same result for nearly the same inputs, and nothing huge?"""
    nudge = 1e-2 if program.autocast else 1e-5 if program.tolerance > 1e-5 else 1e-10
    once = oracle(program)
    return all(_near(program, once, oracle(program, by)) for by in ((nudge, -nudge) if program.autocast else (nudge,)))


def _near(program: Program, once: Outcome, again: Outcome) -> bool:
    if [type(e) for e in once.raised] != [type(e) for e in again.raised]:
        return False
    for a, b in zip(once.values, again.values, strict=True):
        for name, value in a.items():
            for x, y in zip(_arrays(value), _arrays(b[name]), strict=True):
                if x.shape != y.shape:
                    return False
                if x.size and x.dtype.kind == "f" and not (np.isfinite(x).all() and np.abs(x).max() < 1e4):
                    return False
                if x.size and not np.allclose(x, y, rtol=0, atol=program.tolerance * (1 + np.abs(x).max()) / 2):
                    return False
    return True


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, list):
        return [a for v in value for a in _arrays(v)]
    return [] if value is None or isinstance(value, bool | Exception) else [np.asarray(value)]


def oracle(program: Program, nudge: float = 0.0) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(program, torch_world(nudge), lambda: _autocast(torch, program.autocast))


# -- settings ------------------------------------------------------------------------------

#: the signals of a setting with several workers; one is drawn for each line
SIGNALS = """
rows:    {shard: {axis: 0}}
columns: {shard: {axis: 1}}
last:    {shard: {axis: 2}}
copies:  {replicate: true}
alone:   {shard: {axis: 0, workers: [1]}}
forced:  {shard: {axis: 0, workers: [0, 1]}, output: {axis: 0}}
"""


@dataclass(frozen=True)
class Setting:
    """A setting: how GT runs a program."""

    name: str
    workers: int = 1
    backend: str = "torch"
    #: "", "auto" for `gt.auto_shard`, or "signals" for random ones
    sharding: str = ""
    templates: bool = True


SETTINGS = (
    Setting("torch"),
    Setting("numpy", backend="numpy"),
    Setting("two workers, sharded by themselves", workers=2, sharding="auto"),
    Setting("three workers, random signals", workers=3, sharding="signals"),
    Setting("three numpy workers, random signals", workers=3, backend="numpy", sharding="signals"),
)
WITHOUT_TEMPLATES = Setting("without templates", templates=False)


@contextlib.contextmanager
def client(setting: Setting, seed: int, folder: str) -> Iterator[Any]:
    """A cluster for the setting; yields the context for each line."""
    before = os.environ.get("GT_TEMPLATES", "1")
    os.environ["GT_TEMPLATES"] = "1" if setting.templates else "0"
    rng = random.Random(seed)
    try:
        with Cluster(setting.workers, seed, setting.backend).client():
            if setting.sharding == "auto":
                gt.auto_shard(workers=setting.workers)
                yield contextlib.nullcontext
            elif setting.sharding == "signals":
                path = os.path.join(folder, "signals.yaml")
                with open(path, "w") as file:
                    file.write(SIGNALS)
                gt.load_config(path)
                names = rng.sample([line.split(":")[0] for line in SIGNALS.split("\n") if line], 3)
                draw = lambda: rng.choice([*names, None])
                yield lambda: _under(draw())
            else:
                yield contextlib.nullcontext
    finally:
        os.environ["GT_TEMPLATES"] = before
        if setting.sharding:
            gt.auto_shard(False)
            gt.load_config(None)


def _under(name: str | None) -> Any:
    return gt.signal.context(name) if name else contextlib.nullcontext()


# -- comparing -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Allowed:
    """A call that one library refuses and the other accepts."""

    #: the library that refuses, and its text
    who: str
    text: str
    why: str


ALLOWED = (
    Allowed("torch", "modified by an inplace operation", "GT keeps other values for its gradients than torch does"),
    Allowed("torch", "the output of a function that returns multiple views", "in GT each is a view like any other"),
    Allowed("torch", "is not implemented", "GT has gradients of gradients for every op"),
    Allowed(
        "gt", "needed by attention", "its result is kept, as by torch's fast kernels; torch's slow one keeps others"
    ),
    Allowed("gt", "needed by (linear|matmul)", "torch keeps a copy where it has to fold an operand's dims into one"),
    Allowed(
        "gt",
        "(unfold|expand) shows elements more than once",
        "windows that overlap are not written: docs/differences.md",
    ),
    Allowed("gt", "its memory has no view of that shape", "a fresh result counts as contiguous: docs/differences.md"),
    Allowed(
        "torch", "a leaf Variable that requires grad", "torch takes a base for a leaf whose empty view was written"
    ),
    Allowed("torch", "refer to a single memory location", "GT has the new value before it writes any of it"),
    Allowed("torch", "view size is not compatible", "a fresh result counts as contiguous: docs/differences.md"),
)


def allowed(who: str, error: Exception | None) -> bool:
    return any(row.who == who and re.search(row.text, str(error)) for row in ALLOWED)


class Agreed(Exception):
    """The rest of a program cannot be compared, for a legitimate reason."""


def difference(program: Program, setting: Setting, folder: str = "/tmp", theirs: Outcome | None = None) -> str:
    """The difference between GT and torch; "" if there is none."""
    theirs = theirs or oracle(program)
    ours = outcome(program, setting, folder)
    try:
        return _refusals(theirs, ours) or _values(theirs, ours, program.tolerance)
    except Agreed:
        return ""


def outcome(program: Program, setting: Setting, folder: str = "/tmp") -> Outcome:
    with client(setting, len(program.steps), folder) as around:
        around = around if not program.autocast else lambda: _autocast(gt, True)
        return run(program, gt_world(), around)


def _refusals(theirs: Outcome, ours: Outcome) -> str:
    for line, a, b in zip(theirs.lines, theirs.raised, ours.raised, strict=True):
        if a is None and b is None:
            continue
        who, error = ("torch", a) if b is None else ("gt", b)
        if a is None or b is None:
            if allowed(who, error):
                raise Agreed
            return f"only {who} refuses `{line}`: {type(error).__name__}: {error}"
        if not isinstance(b, GtError) and type(b) is not type(a):
            return f"refused in an odd way: `{line}`: {type(b).__name__}: {b}; torch: {a}"
        if "grad" in line or "backward" in line:
            raise Agreed  # some gradients existed by then, and which ones is not specified
    return ""


def _values(theirs: Outcome, ours: Outcome, tolerance: float) -> str:
    for k, (a, b) in enumerate(zip(theirs.values, ours.values, strict=True)):
        for name in a:
            if problem := _unlike(a[name], b.get(name), tolerance):
                return f"{name} in round {k}: {problem}"
    return ""


def _unlike(a: Any, b: Any, tolerance: float) -> str:
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{len(a)} values in torch, {len(b)} in GT"
        return next((p for x, y in zip(a, b, strict=True) if (p := _unlike(x, y, tolerance))), "")
    if isinstance(a, Exception):
        return "" if allowed("torch", a) else f"torch cannot read it: {a}"
    if a is None or b is None or isinstance(a, bool) or isinstance(b, Exception):
        return "" if a is b else f"torch has {_short(a)}, GT {_short(b)}"
    a, b = np.asarray(a), np.asarray(b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"torch has {a.dtype}{a.shape}, GT {b.dtype}{b.shape}"
    if a.size and not np.allclose(a, b, rtol=0, atol=tolerance * (1 + np.abs(a).max())):
        return f"values differ\ntorch:\n{a}\nGT:\n{b}"
    return ""


def _short(x: Any) -> str:
    return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else repr(x)


def bits_differ(program: Program, one: Setting, other: Setting, folder: str = "/tmp") -> str:
    """Where two settings of GT give different bits; "" if nowhere."""
    a, b = outcome(program, one, folder), outcome(program, other, folder)
    if [type(x) for x in a.raised] != [type(x) for x in b.raised]:
        return f"other refusals: {a.raised} and {b.raised}"
    for k, (x, y) in enumerate(zip(a.values, b.values, strict=True)):
        for name in x:
            left, right = _arrays(x[name]), _arrays(y[name])
            if [v.tobytes() for v in left] != [v.tobytes() for v in right]:
                return f"{name} in round {k}: {left} and {right}"
    return ""


# -- compiled ------------------------------------------------------------------------------


def function(program: Program, names: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """One round of a program as a function that returns all its tensors; the initial tensors are created now."""
    for line in program.before():
        exec(line, names)
    results = [m for m in (step.makes for step in program.steps) if m is not None] + ["loss"] * bool(program.targets)
    entries = ", ".join(f"'{name}': {name}.detach()" for name in results)
    exec("\n    ".join(["def step():", *program.body(), f"return {{{entries}}}"]), names)
    return names["step"]


def compiled_difference(program: Program, setting: Setting, folder: str = "/tmp") -> str:
    """The difference between a round under `gt.compile` and torch."""
    theirs, ours = torch_world(), gt_world()
    with client(setting, 0, folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, compiled = function(program, theirs), gt.compile(function(program, ours))
        for k in range(program.rounds):
            a = {name: array(x) for name, x in plain().items()} | observed(theirs)
            try:
                results = compiled()
            except Exception as error:
                return "" if allowed("gt", error) else f"only gt refuses: {type(error).__name__}: {error}"
            b = {name: array(x) for name, x in results.items()} | observed(ours)
            for name in a:
                if problem := _unlike(a[name], b.get(name), program.tolerance):
                    return f"{name} in round {k}: {problem}"
    return ""


# -- shrinking -----------------------------------------------------------------------------


def shrunk(program: Program, problem: Any) -> Program:
    """A smaller program with the same problem: ``problem(program)`` describes it, or returns ""."""
    kind = _kind(problem(program))

    def fails(smaller: Program) -> bool:
        try:
            return _legal(smaller) and _kind(problem(smaller)) == kind
        except Exception:
            return False

    while True:
        failing = next((smaller for smaller in _smaller(program) if fails(smaller)), None)
        if failing is None:
            return program
        program = failing


def _kind(problem: str) -> str:
    """A problem without its numbers and names."""
    return re.sub(r"`.*?`|\d+|\.grad|again|loss", "", problem.split("\n")[0])


def _legal(program: Program) -> bool:
    theirs = oracle(program)
    return not any(isinstance(e, NameError | SyntaxError) for e in theirs.raised)


def _smaller(program: Program) -> Iterator[Program]:
    if program.rounds > 1:
        yield replace(program, rounds=program.rounds - 1)
    if program.ending != "backward":
        yield replace(program, ending="backward", optimizer="")
    for name in program.targets:
        if len(program.targets) > 1:
            yield replace(program, targets=tuple(n for n in program.targets if n != name))
    for k in reversed(range(len(program.steps))):
        yield from _without(program, k)
    used = set(program.targets).union(*(step.reads for step in program.steps))
    for g in program.inputs:
        if g.name not in used:
            yield replace(program, inputs=tuple(h for h in program.inputs if h is not g))
        elif g.requires_grad:
            yield replace(
                program, inputs=tuple(replace(h, requires_grad=h is not g and h.requires_grad) for h in program.inputs)
            )
    for size in {n for g in program.inputs for n in g.shape if n > 1}:
        for less in (1, 2):
            if less < size:
                shape = lambda g, size=size, less=less: tuple(less if n == size else n for n in g.shape)
                yield replace(program, inputs=tuple(replace(g, shape=shape(g)) for g in program.inputs))


def _without(program: Program, k: int) -> Iterator[Program]:
    """The program without a step: also without the steps that need its result, or with another tensor in its place."""
    step, target = program.steps[k], program.steps[k].makes
    rest = program.steps[:k] + program.steps[k + 1 :]
    if target is None:
        yield replace(program, steps=rest)
        return
    gone, kept = {target}, []
    for other in rest:
        if other.reads & gone:
            gone |= {other.makes} if other.makes else set()
        else:
            kept.append(other)
    targets = tuple(name for name in program.targets if name not in gone)
    yield replace(program, steps=tuple(kept), targets=targets)
    for name in sorted(step.reads):
        instead = lambda text, name=name: re.sub(rf"\b{target}\b", name, text)
        steps = tuple(replace(s, line=instead(s.line)) for s in rest)
        yield replace(program, steps=steps, targets=tuple(dict.fromkeys(map(instead, program.targets))))
    names = torch_world()
    for line in [*program.before(), *(s.line for s in program.steps[: k + 1])]:
        execute(line, names)
    value = names.get(target)
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        stand_in = Input(target, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        yield replace(program, inputs=(*program.inputs, stand_in), steps=rest)
