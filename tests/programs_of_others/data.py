"""Synthetic data in the formats that the programs read: images, texts, graphs. Every function fills a folder."""

from __future__ import annotations

import io
import pathlib
import pickle
import random
import struct
import tarfile
from collections.abc import Callable

import numpy as np
from PIL import Image

Maker = Callable[[pathlib.Path], None]


def mnist(root: str, train: int, test: int) -> Maker:
    """MNIST's four files below ``root``: noisy images whose labels can be learned."""

    def make(folder: pathlib.Path) -> None:
        raw = folder / root / "MNIST" / "raw"
        raw.mkdir(parents=True)
        rng = np.random.default_rng(0)
        patterns = rng.integers(0, 200, (10, 28, 28))
        for prefix, count in (("train", train), ("t10k", test)):
            labels = rng.integers(0, 10, count)
            images = (patterns[labels] + rng.integers(0, 56, (count, 28, 28))).astype(np.uint8)
            _write_idx(raw / f"{prefix}-images-idx3-ubyte", images)
            _write_idx(raw / f"{prefix}-labels-idx1-ubyte", labels.astype(np.uint8))

    return make


def _write_idx(path: pathlib.Path, array: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


def sentences(count: int, words: int = 200) -> list[str]:
    """Lines of made-up words."""
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghij", k=4)) for _ in range(words)]
    return [" ".join(rng.choices(vocabulary, k=rng.randint(5, 12))) for _ in range(count)]


def word_corpus(folder: pathlib.Path) -> None:
    """train.txt, valid.txt and test.txt of a language model."""
    where = folder / "data" / "wikitext-2"
    where.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 1400), ("valid", 60), ("test", 60)):
        (where / f"{name}.txt").write_text("\n".join(sentences(count)) + "\n")


def characters(folder: pathlib.Path) -> None:
    """nanoGPT's files of a text as characters."""
    text = "\n".join(sentences(400))
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(c) for c in text], dtype=np.uint16)
    where = folder / "data" / "shakespeare_char"
    where.mkdir(parents=True, exist_ok=True)
    codes[: len(codes) * 9 // 10].tofile(where / "train.bin")
    codes[len(codes) * 9 // 10 :].tofile(where / "val.bin")
    meta = {
        "vocab_size": len(alphabet),
        "stoi": {c: i for i, c in enumerate(alphabet)},
        "itos": dict(enumerate(alphabet)),
    }
    (where / "meta.pkl").write_bytes(pickle.dumps(meta))
    # sample.py imports the tokenizer of GPT-2, and uses it only without meta.pkl
    (folder / "tiktoken.py").write_text("")


def photos(folder: pathlib.Path) -> None:
    """Images in the folders of the BSDS300 data."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 24), ("test", 4)):
        where = folder / "dataset" / "BSDS300" / "images" / part
        where.mkdir(parents=True)
        for i in range(count):
            small = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
            small.resize((481, 321), Image.Resampling.BICUBIC).save(where / f"{i}.png")


def citations(nodes: int) -> Maker:
    """The files of the Cora graph, and a stand-in for the library that downloads them."""

    def make(folder: pathlib.Path) -> None:
        rng = np.random.default_rng(0)
        where = folder / "cora"
        where.mkdir()
        features = (rng.random((nodes, 120)) < 0.05).astype(int)
        features[:, 0] = 1
        rows = [f"{i + 7} {' '.join(map(str, features[i]))} class{i % 7}" for i in range(nodes)]
        (where / "cora.content").write_text("\n".join(rows) + "\n")
        edges = {(i + 7, (i + 1 + int(rng.integers(0, 20)) * 7) % nodes + 7) for i in range(nodes) for _ in range(2)}
        (where / "cora.cites").write_text("\n".join(f"{a} {b}" for a, b in sorted(edges)) + "\n")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(where, "cora")
        (folder / "cora.tgz").write_bytes(packed.getvalue())
        (folder / "requests.py").write_text(DOWNLOAD)

    return make


#: gcn downloads its data in any case: this `requests` opens the file instead
DOWNLOAD = """
import contextlib, types

@contextlib.contextmanager
def get(url, stream):
    with open("cora.tgz", "rb") as file:
        yield types.SimpleNamespace(raw=file)
"""

#: torchtext is no longer released, and its data would be downloaded: this has the few names that the program imports
TORCHTEXT = """
import collections, sys, types

LINES = {lines!r}

def Multi30k(split, language_pair):
    lines = LINES[:96] if split == "train" else LINES[96:]
    return [(line, " ".join(reversed(line.split()))) for line in lines]

class Vocabulary(dict):
    def __call__(self, tokens):
        return [self.get(token, self.default) for token in tokens]

    def set_default_index(self, index):
        self.default = index

def build_vocab_from_iterator(iterator, min_freq, specials, special_first):
    words = dict.fromkeys(word for words in iterator for word in words)
    return Vocabulary({{word: i for i, word in enumerate([*specials, *words])}})

def get_tokenizer(kind, language):
    return str.split

def _module(name, **names):
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(names)
    return module

_module("torchtext.data")
_module("torchtext.data.utils", get_tokenizer=get_tokenizer)
_module("torchtext.vocab", build_vocab_from_iterator=build_vocab_from_iterator)
_module("torchtext.datasets", Multi30k=Multi30k, multi30k=types.SimpleNamespace(URL={{}}))
"""


def translations(folder: pathlib.Path) -> None:
    """Pairs of sentences behind torchtext's names."""
    package = folder / "torchtext"
    package.mkdir()
    (package / "__init__.py").write_text(TORCHTEXT.format(lines=sentences(112)))


def text(folder: pathlib.Path) -> None:
    """input.txt, a text to learn by characters."""
    (folder / "input.txt").write_text("O God, O God!\n" + "\n".join(sentences(400)))


def results_folder(folder: pathlib.Path) -> None:
    (folder / "results").mkdir(exist_ok=True)


def together(*makers: Maker) -> Maker:
    def make(folder: pathlib.Path) -> None:
        for maker in makers:
            maker(folder)

    return make
