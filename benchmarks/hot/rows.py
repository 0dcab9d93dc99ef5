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
    #: torch.compile's mode; of several, the one that is fastest after its warm-up is measured
    modes: tuple[str, ...] = ("",)
    #: is the loss compiled with the model, and the optimizer fused?
    best: bool = False
    #: is the step decorated with `gt.compile`?
    decorated: bool = False
    gpu_only: bool = False

    @property
    def compiles(self) -> bool:
        """Does GT go beyond templates, so that its warm-up takes longer?"""
        return "GT_AUTO_COMPILE" in self.environment

    @property
    def caches(self) -> bool:
        """Does the row keep compiled code on disk, so that a second start is quicker?"""
        return self.compiles or any(self.modes)


BASE, BEST = "torch", "torch-best"
OVERHEAD = "reduce-overhead"
ROWS = {
    row.name: row
    for row in (
        Row(BASE, "torch", "torch eager"),
        Row("torch-compile", "torch", "torch.compile of the model", modes=("default",)),
        Row("torch-overhead", "torch", "the same, mode=reduce-overhead", modes=(OVERHEAD,)),
        Row(BEST, "torch", "torch at its best", modes=("default", OVERHEAD), best=True),
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
        Work("mlp-sgd", "training step, MLP 784-256-10, batch 64, SGD", 20),
        Work("gpt", "training step, GPT of 2 layers of 128, batch 16 x 128, AdamW", 5),
        Work("mini-gpt", "training step, Mini-GPT, 8 layers of 1024, batch 8 x 1024, bf16 autocast", 4, gpu_only=True),
        Work("convnet", "training step, 2 conv + BN + linear, batch 128 x 3 x 32 x 32, AdamW", 10),
        Work("resnet18", "training step, ResNet-18 at 224, batch 64, bf16 autocast, SGD", 5),
        Work("resnet18-fp32", "training step, ResNet-18 at 224, batch 64, SGD", 5),
        Work("bert", "training step, BERT-base, batch 32 x 128, bf16 autocast, AdamW", 5),
        Work("lstm", "training step, LSTM of 2 layers of 512, batch 64 x 64, AdamW", 5),
        Work("vit", "training step, ViT-B/16 at 224, batch 64, bf16 autocast, AdamW", 4),
        Work("resnet18-forward", "ResNet-18, batch 1, bf16, no_grad, and a read", 10),
        Work("bert-forward", "BERT-base, batch 1 x 128, bf16, no_grad, and a read", 10),
        Work("decode", "GPT of 124M, bf16, one token with a KV cache, batch 1", 10),
        Work("decode-16", "GPT of 124M, bf16, one token with a KV cache, batch 16", 10),
        Work("adds", "1,000 chained adds of 64x64 and a read", 4),
    )
}


@dataclass(frozen=True)
class Goal:
    """A figure of a row, by `FIGURES` in figures.py, must be at most this. ``against``: the row it is compared with."""

    device: str
    work: str
    row: str
    against: str
    bound: float
    figure: str = "time"


#: programs that spend most of their time in kernels; the others wait for launches
COMPUTE_BOUND = ("resnet18", "resnet18-fp32", "bert", "lstm", "vit")
FORWARD, DECODE = ("resnet18-forward", "bert-forward"), ("decode", "decode-16")
FAST = ("compiled", "decorated")
GOALS = [
    Goal("cuda", "mlp", "compiled", BASE, 0.25),
    Goal("cuda", "mlp", "decorated", BASE, 0.12),
    Goal("cuda", "mlp", "decorated", "torch-overhead", 0.1),
    Goal("cuda", "mlp-sgd", "compiled", BASE, 0.2),
    Goal("cuda", "mlp-sgd", "decorated", BASE, 0.1),
    Goal("cuda", "mlp-sgd", "decorated", BASE, 0.1, "spread"),
    Goal("cuda", "mini-gpt", "compiled", "torch-compile", 1.02),
    *(Goal("cuda", "mini-gpt", row, BEST, 0.95) for row in FAST),
    *(Goal("cuda", "mini-gpt", row, BEST, 0.03, "more spread") for row in FAST),
    *(Goal("cuda", "mini-gpt", row, BEST, 1.1, "peak memory") for row in FAST),
    *(Goal("cuda", "mini-gpt", row, "torch-compile", 1.5, "cold start") for row in FAST),
    *(Goal("cuda", "mini-gpt", row, "torch-compile", 1.2, "cached start") for row in FAST),
    *(Goal("cuda", "convnet", row, BEST, 0.9) for row in FAST),
    *(Goal("cuda", work, row, BEST, 1.0) for work in COMPUTE_BOUND for row in FAST),
    *(Goal("cuda", work, "template", BASE, 1.0) for work in ("mlp-sgd", "mini-gpt", "convnet", *COMPUTE_BOUND)),
    *(Goal("cuda", work, row, BEST, 1.0, p) for work in FORWARD for row in FAST for p in ("p50", "p99")),
    *(Goal("cuda", work, row, BEST, 1.0) for work in DECODE for row in FAST),
    *(Goal("cuda", work, row, BASE, 1.5, "cost of reads") for work in DECODE for row in FAST),
    Goal("cuda", "adds", "compiled", BASE, 0.3),
    Goal("cuda", "adds", "decorated", BASE, 0.3),
    Goal("cpu", "mlp", "template", BASE, 1.3),
    Goal("cpu", "mlp", "compiled", BASE, 1.0),
]
