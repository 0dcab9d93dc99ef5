"""The rows, the programs and the goals: tables, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One way of running a program, in its own process."""

    name: str
    library: str
    about: str
    environment: dict[str, str] = field(default_factory=dict)
    #: torch.compile's mode
    mode: str = ""
    #: is the step decorated with `gt.compile`?
    decorated: bool = False
    gpu_only: bool = False

    @property
    def compiles(self) -> bool:
        """Does the row go beyond templates, so that its warm-up takes longer?"""
        return "GT_AUTO_COMPILE" in self.environment


BASE = "torch"
ROWS = {
    row.name: row
    for row in (
        Row(BASE, "torch", "torch eager"),
        Row("torch-compile", "torch", "torch.compile of the model", mode="default"),
        Row("torch-overhead", "torch", "the same, mode=reduce-overhead", mode="reduce-overhead"),
        Row("eager", "gt", "GT, GT_TEMPLATES=0", {"GT_TEMPLATES": "0"}),
        Row("template", "gt", "GT as it is"),
        Row("graph", "gt", "GT, GT_AUTO_COMPILE=graphs", {"GT_AUTO_COMPILE": "graphs"}, gpu_only=True),
        Row("compiled", "gt", "GT, GT_AUTO_COMPILE=1", {"GT_AUTO_COMPILE": "1"}),
        Row("decorated", "gt", "the same, @gt.compile", {"GT_AUTO_COMPILE": "1"}, decorated=True),
    )
}


@dataclass(frozen=True)
class Work:
    """A program, and how many steps of it run at once during warm-up."""

    name: str
    about: str
    chunk: int
    gpu_only: bool = False


WORKS = {
    work.name: work
    for work in (
        Work("mlp", "training step, MLP 784-256-10, batch 64, AdamW", 20),
        Work("gpt", "training step, GPT of 2 layers of 128, batch 16 x 128, AdamW", 5),
        Work("mini-gpt", "training step, Mini-GPT, 8 layers of 1024, batch 8 x 1024, bf16 autocast", 4, gpu_only=True),
        Work("adds", "1,000 chained adds of 64x64 and a read", 4),
    )
}


@dataclass(frozen=True)
class Goal:
    """A row's step time must be at most this many times another's."""

    device: str
    work: str
    row: str
    against: str
    bound: float


GOALS = [
    Goal("cuda", "mlp", "compiled", BASE, 0.25),
    Goal("cuda", "mlp", "decorated", BASE, 0.12),
    Goal("cuda", "mlp", "decorated", "torch-overhead", 0.1),
    Goal("cuda", "mini-gpt", "template", BASE, 1.0),
    Goal("cuda", "mini-gpt", "compiled", "torch-compile", 1.02),
    Goal("cuda", "adds", "compiled", BASE, 0.3),
    Goal("cuda", "adds", "decorated", BASE, 0.3),
    Goal("cpu", "mlp", "template", BASE, 1.3),
    Goal("cpu", "mlp", "compiled", BASE, 1.0),
]
