"""The programs: where each comes from, its data, its command line, and the lines that need more than the rename."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from tests.programs_of_others import data

#: scripts of a few lines that train a model of an installed package
SCRIPTS = pathlib.Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Edit:
    """A line that needs more than the rename."""

    file: str
    old: str
    new: str
    reason: str


@dataclass(frozen=True)
class Program:
    """One program. Its folder is copied for each world, and what it writes stays in the copy."""

    name: str
    #: the folder below `--programs`; empty for a script in `scripts/`
    source: str
    script: str
    arguments: str = ""
    make_data: Callable[[pathlib.Path], None] | None = None
    #: scripts that run first in the same process, with their arguments
    before: tuple[tuple[str, str], ...] = ()
    #: modules of installed packages that are renamed too
    renamed: tuple[str, ...] = ()
    #: installed packages without which the program does not run
    needs: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    #: what GT still lacks for it; empty: it runs
    missing: str = ""
    #: end the comparison after so many steps; 0: the program ends itself
    steps: int = 0
    #: the steps between which time is measured
    timed: tuple[int, int] = (5, 15)
    #: false: it calls no `backward`, and a step is a call of the model
    trains: bool = True
    #: a regular expression for the numbers and texts in its output that are compared as well
    prints: str = ""
    #: true: it reads a value in every step, so that the client cannot send ahead
    reads_every_step: bool = False
    #: relative difference of losses that is accepted
    tolerance: float = 1e-4

    def root(self, programs: pathlib.Path | None) -> pathlib.Path | None:
        """The folder of the program, or None if it is not there."""
        if not all(map(find_spec, self.needs)):
            return None
        if not self.source:
            return SCRIPTS
        folder = programs / self.source if programs else None
        return folder if folder is not None and folder.is_dir() else None

    def copy(self, folder: pathlib.Path, world: str) -> pathlib.Path:
        """Where the copy for a world is. A name such as ``torch`` would be imported in place of the package."""
        return folder / f"in_{world}" / "program"

    def edited(self, path: str, source: str) -> str:
        """The source of a file with the edits for it."""
        for edit in self.edits:
            if path.endswith(edit.file):
                assert edit.old in source, f"{self.name}: {edit.file} has no line {edit.old!r}"
                source = source.replace(edit.old, edit.new)
        return source


_MNIST = data.mnist("../data", train=64 * 20, test=200)
_NANOGPT = (
    "--dataset=shakespeare_char --device=cpu --compile=False --eval_iters=2 --log_interval=1 --block_size=64 "
    "--batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --dropout=0.0 --gradient_accumulation_steps=1 "
    "--lr_decay_iters=2000 --always_save_checkpoint=True --dtype=float32"
)

PROGRAMS = (
    Program(
        *("nanoGPT train", "nanoGPT", "train.py", f"{_NANOGPT} --max_iters=16 --eval_interval=8"),
        make_data=data.characters,
        prints=r"step \d+: train loss ([\d.]+), val loss ([\d.]+)",
        reads_every_step=True,
    ),
    Program(
        *("nanoGPT sample", "nanoGPT", "sample.py", "--device=cpu --num_samples=1 --max_new_tokens=40 --dtype=float32"),
        make_data=data.characters,
        before=(("train.py", f"{_NANOGPT} --max_iters=2 --eval_interval=1"),),
        trains=False,
        timed=(20, 40),
        prints=r"(?s)Loading meta.*",
        reads_every_step=True,
    ),
    Program(
        *("minGPT", "minGPT", "projects/adder/adder.py"),
        "--trainer.max_iters=21 --trainer.num_workers=0 --data.ndigit=1",
        prints=r"train loss ([\d.]+)|final score: (\S+)",
        timed=(5, 20),
        reads_every_step=True,
    ),
    Program("mnist", "examples/mnist", "main.py", "--epochs 1", _MNIST, prints=r"Average loss: ([\d.]+)"),
    Program("mnist_rnn", "examples/mnist_rnn", "main.py", "--epochs 1", _MNIST, prints=r"Average loss: ([\d.]+)"),
    Program(
        *("vae", "examples/vae", "main.py", "--epochs 1"),
        make_data=data.together(data.mnist("../data", train=128 * 16, test=128), data.results_folder),
        prints=r"loss: ([\d.]+)",
        reads_every_step=True,
    ),
    Program(
        *("dcgan", "examples/dcgan", "main.py"),
        "--dataset mnist --dataroot ../data --workers 0 --batchSize 16 --niter 1 --manualSeed 1 --ngf 32 --ndf 32",
        data.mnist("../data", train=16 * 4, test=10),
        prints=r"Loss_D: ([\d.]+) Loss_G: ([\d.]+)",
        timed=(3, 12),
        reads_every_step=True,
        # Adam on gradients near 0 amplifies rounding: torch differs so from itself if weights change by one rounding
        tolerance=1e-3,
    ),
    Program(
        *("word_language_model", "examples/word_language_model", "main.py"),
        "--epochs 1 --dropout 0 --log-interval 5",
        data.word_corpus,
        prints=r"(?:valid|test) loss +([\d.]+)",
        reads_every_step=True,
    ),
    Program(
        *("time_sequence_prediction", "examples/time_sequence_prediction", "train.py", "--steps 1"),
        before=(("generate_sine_wave.py", ""),),
        steps=4,
        timed=(1, 3),
        reads_every_step=True,
    ),
    Program(
        *("super_resolution", "examples/super_resolution", "main.py"),
        "--upscale_factor 3 --batchSize 4 --testBatchSize 2 --nEpochs 2 --lr 0.001 --threads 0",
        data.photos,
        prints=r"PSNR: ([\d.]+)",
        timed=(2, 8),
        reads_every_step=True,
    ),
    Program(
        *("language_translation", "examples/language_translation", "main.py"),
        "-e 2 --batch 16 --dropout 0 --logging_dir ./logs/ --embed_size 128 --enc_layers 2 --dec_layers 2",
        data.translations,
        timed=(2, 10),
        reads_every_step=True,
    ),
    Program(
        *("gat", "examples/gat", "main.py", "--epochs 12 --val-every 1 --hidden-dim 16 --num-heads 4"),
        make_data=data.citations(1800),
        prints=r"loss_train: ([\d.]+)",
        timed=(3, 12),
        reads_every_step=True,
    ),
    Program(
        *("gcn", "examples/gcn", "main.py", "--epochs 16 --val-every 1"),
        make_data=data.citations(1800),
        prints=r"loss_train: ([\d.]+)",
        reads_every_step=True,
    ),
    Program(
        *("reinforcement_learning (reinforce)", "examples/reinforcement_learning", "reinforce.py"),
        needs=("gymnasium",),
        steps=10,
        reads_every_step=True,
    ),
    Program(
        *("reinforcement_learning (actor_critic)", "examples/reinforcement_learning", "actor_critic.py"),
        needs=("gymnasium",),
        steps=10,
        reads_every_step=True,
    ),
    Program(
        *("siamese", "examples/siamese_network", "main.py", "--epochs 1 --batch-size 16 --log-interval 1 --lr 0.01"),
        make_data=data.mnist("../data", train=16 * 8, test=100),
        renamed=("torchvision.models.resnet",),
        timed=(2, 8),
        prints=r"Average loss: ([\d.]+)",
        reads_every_step=True,
        tolerance=1e-3,
    ),
    Program(
        *("forward_forward", "examples/mnist_forward_forward", "main.py"),
        "--epochs 10 --train_size 200 --test_size 50 --log-interval 1",
        data.mnist("data", train=200, test=50),
        prints=r"error: ([\d.]+)",
        timed=(4, 18),
        reads_every_step=True,
        edits=(
            Edit(
                *("main.py", "Lambda(lambda x: torch.flatten(x))", "Lambda(lambda x: x.flatten())"),
                "a transform of torchvision gets tensors of torch, which functions of GT refuse",
            ),
        ),
    ),
    Program("regression", "examples/regression", "main.py", steps=20, reads_every_step=True),
    Program("vit-pytorch", "", "vit.py", renamed=("vit_pytorch",), needs=("vit_pytorch", "einops")),
    Program("timm", "", "timm_vit.py", renamed=("timm",), needs=("timm", "torchvision")),
    Program("torchvision", "", "resnet.py", renamed=("torchvision.models.resnet",), needs=("torchvision",)),
    Program("transformers Llama", "", "llama.py", renamed=("transformers",), needs=("transformers",)),
    Program("transformers GPT-2", "", "gpt2.py", renamed=("transformers",), needs=("transformers",)),
    Program("transformers BERT", "", "bert.py", renamed=("transformers",), needs=("transformers",)),
)
