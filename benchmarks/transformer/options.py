"""Flags and defaults of ``benchmark.py``, and the checks before anything runs."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.transformer.model import Sizes
from benchmarks.transformer.problems import BadInput

#: flag -> default on a GPU, default on a CPU, where everything is small
DEFAULTS: dict[str, tuple[Any, Any]] = {
    "batch_size": (32, 8),
    "seq_len": (256, 32),
    "num_samples": (50_000, 96),
    "warmup_steps": (10, 2),
    # many CPUs have no half-precision arithmetic, and take hundreds of times as long with it
    "amp_dtype": ("fp16", "fp32"),
}
#: ``--num-samples full``: as many samples as this many bytes of int64 tokens
FULL_BYTES = 30e9
UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6}
#: dtype -> torch's and GT's name of it
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Config:
    """The options of a run, with every default filled in."""

    sizes: Sizes
    engine: str
    batch_size: int
    num_samples: int
    epochs: int
    warmup_epochs: int
    warmup_steps: int
    #: fp32, fp16 or bf16
    precision: str
    compile: bool
    seed: int
    #: None: generated in memory
    data_dir: Path | None
    num_shards: int | None
    #: drop or keep
    page_cache: str
    results_dir: Path
    #: None, a share of the memory (float) or bytes (int)
    target_vram: float | int | None


def at_least(least: int) -> Any:
    def number(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: a whole number from {least} on is needed")
        return int(text)

    return number


def samples(text: str) -> int | str:
    return text if text == "full" else at_least(1)(text)


def memory(text: str) -> float | int:
    """``0.9`` and ``90%`` are shares of the device's memory, ``60GiB`` is an amount."""
    match = re.fullmatch(r"([0-9.]+)\s*(%|[a-z]+)?", text.strip().lower())
    unit = match[2] if match else None
    if not match or match[1].count(".") > 1 or match[1] == "." or unit not in (None, "%", *UNITS):
        raise argparse.ArgumentTypeError(f"{text!r}: a share (0.9 or 90%) or an amount (60GiB) is needed")
    value = float(match[1])
    if unit in UNITS:
        return int(value * UNITS[unit])
    share = value / 100 if unit == "%" else value
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share of the memory is between 0 and 1 (0.9 or 90%)")
    return share


def _defaults_text(name: str) -> str:
    gpu, cpu = DEFAULTS[name]
    return f"(default: {gpu}; {cpu} without a GPU)"


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Trains an encoder-decoder Transformer on synthetic tokens, and records how fast. "
        "One process here; `torchrun --nproc_per_node=N benchmark.py …` or run_benchmark.sh for N GPUs "
        "(with --engine gt: run_benchmark.sh).",
        epilog="Exit codes: 0 done, 1 failed, 2 bad input, 3 out of memory, 4 disk, 130 interrupted. Under plain "
        "torchrun a failure is always 1.",
    )
    _model(command_line.add_argument_group("model"))
    _training(command_line.add_argument_group("training"))
    _data(command_line.add_argument_group("data"))
    return command_line


def _model(group: Any) -> None:
    rows = (
        ("d-model", 128, "model embedding dimension"),
        ("nhead", 4, "number of attention heads; must divide --d-model"),
        ("num-encoder-layers", 3, "Transformer encoder layers"),
        ("num-decoder-layers", 3, "Transformer decoder layers"),
        ("dim-feedforward", 512, "inner dimension of the feed-forward part"),
    )
    for name, default, help in rows:
        group.add_argument(f"--{name}", type=at_least(1), default=default, help=f"{help} (default: {default})")
    group.add_argument("--vocab-size", type=at_least(2), default=8192, help="tokens there are (default: 8192)")
    group.add_argument(
        "--seq-len", type=at_least(1), help=f"tokens of a source and of a target {_defaults_text('seq_len')}"
    )


def _training(group: Any) -> None:
    add = group.add_argument
    add("--epochs", type=at_least(1), default=3, help="measured passes over the data (default: 3)")
    add("--warmup-epochs", type=at_least(0), default=1, help="passes before them that do not count (default: 1)")
    add(
        "--warmup-steps", type=at_least(0), help=f"steps after those that do not count {_defaults_text('warmup_steps')}"
    )
    add("--batch-size", type=at_least(1), help=f"samples of a step on each GPU {_defaults_text('batch_size')}")
    add(
        "--target-vram", type=memory, metavar="SHARE", help="choose the batch size that fills this much of a GPU's "
        "memory: 0.9, 90%% or 60GiB; fits peak memory over three batch sizes, predicts, and tries",
    )  # fmt: skip
    add("--no-amp", action="store_true", help="compute in fp32 throughout")
    add(
        "--amp-dtype",
        choices=["fp16", "bf16"],
        help=f"mixed precision with this type; fp16 scales the loss {_defaults_text('amp_dtype')}",
    )
    add("--compile", action="store_true", help="torch.compile the model; a last short batch is then left out")
    add("--engine", choices=["ddp", "fsdp", "gt"], default="ddp", help="what trains: torch with DDP (one GPU: torch "
        "alone), torch with FSDP2, or GT (default: ddp)")  # fmt: skip
    add("--seed", type=int, default=0, help="of weights and tokens (default: 0)")
    add("--results-dir", type=Path, default=Path("results"), help="where the result file goes (default: results)")


def _data(group: Any) -> None:
    add = group.add_argument
    add("--num-samples", type=samples, metavar="N|full", help="samples of an epoch; 'full' is 30 GB of int64 tokens "
        f"(a quarter of it on disk, packed as uint16) {_defaults_text('num_samples')}")  # fmt: skip
    add("--data-dir", type=Path, help="read the data from shards in this folder, written at first use; without it "
        "tokens are generated in memory and no disk is involved")  # fmt: skip
    add("--num-shards", type=at_least(1), help="files to split the data into (default: about 128 MB each)")
    add("--page-cache", choices=["drop", "keep"], default="drop", help="drop: before each epoch the shards are put out "
        "of the page cache, so that the disk is read; keep: leave them there (default: drop)")  # fmt: skip


def resolve(options: argparse.Namespace, cuda: bool) -> Config:
    """The options with their defaults; raises `BadInput`."""
    if options.target_vram is not None and options.batch_size is not None:
        raise BadInput("--target-vram chooses the batch size: leave --batch-size out, or --target-vram")
    if options.d_model % options.nhead:
        raise BadInput(_heads(options.d_model, options.nhead))
    if options.num_shards is not None and options.data_dir is None:
        raise BadInput("--num-shards splits the data on disk: it needs --data-dir (or --disk with run_benchmark.sh)")
    chosen = {n: v[not cuda] if getattr(options, n) is None else getattr(options, n) for n, v in DEFAULTS.items()}
    if chosen["num_samples"] == "full":
        chosen["num_samples"] = math.floor(FULL_BYTES / (2 * chosen["seq_len"] * 8))
    return Config(
        sizes=Sizes(**{n: chosen.get(n, getattr(options, n)) for n in Sizes.__dataclass_fields__}),
        precision="fp32" if options.no_amp else chosen["amp_dtype"],
        **{n: chosen[n] for n in ("batch_size", "num_samples", "warmup_steps")},
        **{n: getattr(options, n) for n in (
            "engine", "epochs", "warmup_epochs", "compile", "seed", "data_dir", "num_shards", "page_cache",
            "results_dir", "target_vram",
        )},
    )  # fmt: skip


def _heads(width: int, heads: int) -> str:
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    nearest = sorted(divisors, key=lambda n: abs(n - heads))[:3]
    return f"--nhead {heads} does not divide --d-model {width}: try --nhead {' or '.join(map(str, sorted(nearest)))}"
