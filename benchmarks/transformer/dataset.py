"""Random tokens: generated in memory, or in shards on disk with the same contents.

A sample is a source and a target of ``seq_len`` tokens each. Tokens depend only on the seed and the number of the
sample: a lost shard can be generated again, and a run reads the same data from disk as from memory. They are packed
into uint16, or int32 for more than 65,536 different tokens; a file system that compresses may still save unused bits.

A shard is written under another name, synced and renamed; ``dataset.json`` then contains its checksum. An interrupted
run leaves complete shards, which the next run keeps, and never a part of one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.transformer.problems import BadInput, NoDisk, disk, no_space

MANIFEST, FORMAT = "dataset.json", 1
SHARD = re.compile(r"shard_\d{4,}\.bin")
SHARD_BYTES = 128e6
#: samples drawn at a time
BLOCK = 64
#: samples written at a time: 16 MiB of the default ones
PIECE = 256 * BLOCK

#: files being written, and the right to write: `discard` takes it permanently
_unfinished: set[Path] = set()
_writing = threading.Lock()

#: wraps the numbers of the shards that are written, so that a progress bar can show them
Progress = Callable[[list[int], str], Iterable[int]]


@dataclass(frozen=True)
class Spec:
    """What the data are; an equal spec gives equal bytes."""

    num_samples: int
    seq_len: int
    vocab_size: int
    seed: int = 0
    num_shards: int = 1

    @property
    def dtype(self) -> str:
        return "uint16" if self.vocab_size <= 2**16 else "int32"

    @property
    def sample_bytes(self) -> int:
        return 2 * self.seq_len * np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return self.num_samples * self.sample_bytes

    def bounds(self, shard: int) -> tuple[int, int]:
        """The samples of a shard; shard sizes differ by one at most."""
        return shard * self.num_samples // self.num_shards, (shard + 1) * self.num_samples // self.num_shards

    def shard_of(self, sample: int) -> int:
        return ((sample + 1) * self.num_shards - 1) // self.num_samples


def spec_of(num_samples: int, seq_len: int, vocab_size: int, seed: int, num_shards: int | None) -> Spec:
    one = Spec(num_samples, seq_len, vocab_size, seed)
    shards = num_shards or max(1, math.ceil(one.bytes / SHARD_BYTES))
    if shards > num_samples:
        raise BadInput(f"--num-shards {shards}: {num_samples} samples fill at most {num_samples} shards")
    return Spec(num_samples, seq_len, vocab_size, seed, shards)


# -- tokens --------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _block(seed: int, number: int, seq_len: int, vocab_size: int, dtype: str) -> np.ndarray:
    """Zero is reserved for the beginning of a target."""
    draw = np.random.default_rng([seed, number])
    return draw.integers(1, vocab_size, (BLOCK, 2, seq_len), dtype=np.dtype(dtype))


def generated(spec: Spec, start: int, stop: int) -> np.ndarray:
    """Samples start … stop as [sample, source or target, token]."""
    first, last = start // BLOCK, -(-stop // BLOCK)
    blocks = [_block(spec.seed, n, spec.seq_len, spec.vocab_size, spec.dtype) for n in range(first, last)]
    return np.concatenate(blocks)[start - first * BLOCK : stop - first * BLOCK]


class InMemory:
    """Tokens generated on request."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def read(self, start: int, stop: int) -> np.ndarray:
        return generated(self.spec, start, stop)

    def close(self) -> None:
        pass


class OnDisk:
    """Tokens from the shards of a folder that `prepare` has checked."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self.spec, self.folder = spec, folder
        self.paths = [folder / shard_name(i) for i in range(spec.num_shards)]
        with disk(folder):
            self._handles = [os.open(path, os.O_RDONLY) for path in self.paths]

    def read(self, start: int, stop: int) -> np.ndarray:
        spec = self.spec
        tokens = np.empty((stop - start, 2, spec.seq_len), spec.dtype)
        for shard in range(spec.shard_of(start), spec.shard_of(stop - 1) + 1):
            first, last = spec.bounds(shard)
            a, b = max(start, first), min(stop, last)
            self._fill(tokens[a - start : b - start], shard, (a - first) * spec.sample_bytes)
        return tokens

    def _fill(self, into: np.ndarray, shard: int, offset: int) -> None:
        view = into.data.cast("B")
        while view:
            with disk(self.folder):
                count = os.preadv(self._handles[shard], [view], offset)
            if count == 0:
                raise NoDisk(
                    f"{self.paths[shard]} ends before byte {offset:,}: it was damaged during the run; "
                    f"run again, and it is made anew"
                )
            view, offset = view[count:], offset + count

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)


# -- shards --------------------------------------------------------------------------------


def shard_name(shard: int) -> str:
    return f"shard_{shard:04}.bin"


def prepare(folder: Path, spec: Spec, progress: Progress = lambda shards, _: shards) -> dict[str, Any]:
    """Make the folder contain the spec's shards; report how many existed, were damaged, and were written."""
    with disk(folder, spec.bytes):
        folder.mkdir(parents=True, exist_ok=True)
        listed = _listed(folder, spec)
        good = _undamaged(folder, spec, listed)
        _sweep(folder, spec)
        missing = [i for i in range(spec.num_shards) if i not in good]
        _check_space(folder, spec, missing)
        rows = {i: listed[i] for i in good}
        for shard in progress(missing, "writing shards"):
            rows[shard] = _write(folder, spec, shard)
            _save(folder, spec, rows)
    return {"reused": len(good), "damaged": len(listed) - len(good), "written": len(missing), "shards": spec.num_shards}


def _listed(folder: Path, spec: Spec) -> dict[int, dict[str, Any]]:
    """The shards listed in the folder's file, by number; shards of another spec do not count."""
    path = folder / MANIFEST
    if not path.exists():
        foreign = [p.name for p in folder.iterdir() if SHARD.fullmatch(p.name)]
        if foreign:
            raise NoDisk(
                f"{folder} has {sorted(foreign)[0]} but no {MANIFEST}: not written by this benchmark, so not "
                f"overwritten; give another --data-dir or move it away"
            )
        return {}
    try:
        contents = json.loads(path.read_text())
        same = contents["format"] == FORMAT and contents["spec"] == asdict(spec)
        return {int(number): row for number, row in contents["shards"].items()} if same else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _undamaged(folder: Path, spec: Spec, listed: dict[int, dict[str, Any]]) -> set[int]:
    def intact(shard: int) -> bool:
        path, (first, last) = folder / shard_name(shard), spec.bounds(shard)
        if not path.exists() or path.stat().st_size != (last - first) * spec.sample_bytes:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == listed[shard].get("sha256")

    with ThreadPoolExecutor(4) as pool:
        return {shard for shard, fine in zip(listed, pool.map(intact, listed), strict=True) if fine}


def _sweep(folder: Path, spec: Spec) -> None:
    """Remove shards of another spec, and leftovers of a killed run."""
    names = {shard_name(i) for i in range(spec.num_shards)}
    for path in folder.iterdir():
        if (SHARD.fullmatch(path.name) and path.name not in names) or re.fullmatch(r"\.(shard|data).*\.tmp", path.name):
            path.unlink()


def _check_space(folder: Path, spec: Spec, missing: list[int]) -> None:
    """Check the space before the first byte is written; overwritten shards free nothing before their rename."""
    needed = sum(b - a for a, b in map(spec.bounds, missing)) * spec.sample_bytes
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise NoDisk(no_space(folder, needed, free))


def _write(folder: Path, spec: Spec, shard: int) -> dict[str, Any]:
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        first, last = spec.bounds(shard)
        for start in range(first, last, PIECE):
            piece = generated(spec, start, min(start + PIECE, last)).tobytes()
            digest.update(piece)
            yield piece

    written = _atomically(folder / shard_name(shard), pieces())
    return {"name": shard_name(shard), "bytes": written, "sha256": digest.hexdigest()}


def _save(folder: Path, spec: Spec, rows: dict[int, dict[str, Any]]) -> None:
    contents = {"format": FORMAT, "dtype": spec.dtype, "spec": asdict(spec), "shards": dict(sorted(rows.items()))}
    _atomically(folder / MANIFEST, [json.dumps(contents, indent=1).encode()])


def _atomically(path: Path, pieces: Iterable[bytes]) -> int:
    """The file exists completely on disk, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _writing:
            _unfinished.add(temporary)
            file = open(temporary, "wb")  # noqa: SIM115, closed below
        with file:
            written = 0
            for piece in pieces:
                with _writing:
                    written += file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        with _writing:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        _unfinished.discard(temporary)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return written


def discard() -> None:
    """Remove the file being written and stop writing: for a process that is about to end."""
    _writing.acquire()
    for path in list(_unfinished):
        path.unlink(missing_ok=True)
