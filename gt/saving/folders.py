"""Checkpoints that are folders of safetensors files, with an index in the form of Hugging Face's libraries.

``model.safetensors.index.json`` says in which file each tensor is. Each save writes files with new names, and then the
index. So the folder is the old checkpoint until the index is replaced, and the new one from then on; a reader that has
the old index never gets values of the new files. The files of the old checkpoint are removed after that, and so are
files of a save that was killed. A lock on the folder lets only one program save at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.saving.headers import read_places
from gt.saving.stored import SeenFile, StoredTensor, opened, whole
from gt.saving.writing import TemporaryFile, remove_abandoned, sync_folder, write_atomically

INDEX = "model.safetensors.index.json"
#: A checkpoint of one file, which has no index.
SINGLE = "model.safetensors"
#: A checkpoint of torch.distributed.checkpoint has this file.
METADATA = ".metadata"
#: The names of the files that `write` makes.
OWN_NAME = re.compile(r"model-[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors")
MAX_SHARD_SIZE = "5GB"
#: How often the index is read again because its files were replaced meanwhile.
ATTEMPTS = 5
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parsed_size(size: int | str) -> int:
    """A number of bytes, given as such or as a text like ``"5GB"``."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", str(size))
    if match is None or match[2].upper() not in UNITS or not int(match[1]):
        raise ValueError(f'save(max_shard_size={size!r}): expected a number of bytes, or a text such as "5GB"')
    return int(match[1]) * UNITS[match[2].upper()]


# -- writing -------------------------------------------------------------------------------


def write(path: str, tensors: dict[str, Tensor], metadata: dict[str, str], max_shard_bytes: int) -> None:
    """Save tensors in a folder, which is created if there is none. ``metadata`` goes into the index."""
    os.makedirs(path, exist_ok=True)
    if other := next((name for name in (SINGLE, METADATA) if os.path.exists(os.path.join(path, name))), None):
        raise FileExistsError(f"{path} has {other}, which readers would take instead of the new files; remove it first")
    with _locked(path):
        remove_abandoned(path)
        shards = _divided(tensors, max_shard_bytes)
        tag = secrets.token_hex(4)
        names = [f"model-{tag}-{k:05}-of-{len(shards):05}.safetensors" for k in range(1, len(shards) + 1)]
        try:
            for name, shard in zip(names, shards, strict=True):
                _write_shard(os.path.join(path, name), shard)
            sync_folder(path)
            _write_index(path, metadata, dict(zip(names, shards, strict=True)))
        except BaseException:
            _remove(path, set(names))
            raise
        # the files of the old checkpoint, and those of saves that were killed
        _remove(path, {name for name in os.listdir(path) if OWN_NAME.fullmatch(name)} - set(names))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Wait until no other program saves in this folder."""
    folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system may have no locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _divided(tensors: dict[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    """The tensors of each file, in order. A tensor is in one file, also if it is larger than a file should be."""
    shards: list[dict[str, Tensor]] = [{}]
    nbytes = 0
    for name, x in tensors.items():
        if shards[-1] and nbytes + x._type.nbytes > max_bytes:
            shards.append({})
            nbytes = 0
        shards[-1][name] = x
        nbytes += x._type.nbytes
    return shards


def _write_shard(path: str, tensors: dict[str, Tensor]) -> None:
    def write(temporary: TemporaryFile) -> None:
        temporary.write_tensors(tensors, {"format": "pt"})

    write_atomically(path, write)


def _write_index(path: str, metadata: dict[str, str], shards: dict[str, dict[str, Tensor]]) -> None:
    index = {
        "metadata": {
            "total_size": sum(x._type.nbytes for shard in shards.values() for x in shard.values()),
            **metadata,
        },
        "weight_map": {name: file for file, shard in shards.items() for name in shard},
    }

    def write(temporary: TemporaryFile) -> None:
        temporary.file.write(json.dumps(index, indent=2).encode())

    write_atomically(os.path.join(path, INDEX), write)


def _remove(path: str, names: set[str]) -> None:
    for name in names:
        try:
            os.unlink(os.path.join(path, name))
        except FileNotFoundError:
            continue


# -- reading -------------------------------------------------------------------------------


@contextmanager
def stored_tensors(path: str) -> Iterator[tuple[dict[str, str], dict[str, StoredTensor]]]:
    """The metadata and the tensors of a checkpoint, whose files stay open meanwhile."""
    with ExitStack() as stack:
        metadata, weight_map, files = _open(path, stack)
        stored: dict[str, StoredTensor] = {}
        for seen in files.values():
            _, file_metadata, places = read_places(seen.file, seen.path)
            metadata = metadata or file_metadata
            for name, (type, offset) in places.items():
                if weight_map is None or weight_map.get(name) == os.path.basename(seen.path):
                    stored[name] = whole(seen, type, offset)
        if missing := [name for name in weight_map or () if name not in stored]:
            raise ValueError(f"{path}: the index names {missing[0]!r}, which is not in {weight_map[missing[0]]}")  # type: ignore[index]
        yield metadata, {name: stored[name] for name in weight_map or stored}


def _open(path: str, stack: ExitStack) -> tuple[dict[str, Any], dict[str, str] | None, dict[str, SeenFile]]:
    """The metadata and the map of an index, and its files, all of one save. There may be one file without an index."""
    for attempt in range(ATTEMPTS):
        metadata, weight_map = _read_index(path)
        names = [SINGLE] if weight_map is None else sorted(set(weight_map.values()))
        try:
            return metadata, weight_map, stack.enter_context(opened(os.path.join(path, name) for name in names))
        except FileNotFoundError:
            # a save may have replaced the checkpoint since the index was read; then there is a new index
            if attempt == ATTEMPTS - 1 or _read_index(path)[1] == weight_map:
                raise
    raise AssertionError("unreachable")


def _read_index(path: str) -> tuple[dict[str, Any], dict[str, str] | None]:
    try:
        with open(os.path.join(path, INDEX), "rb") as file:
            index = json.loads(file.read())
        weight_map, metadata = index["weight_map"], index.get("metadata") or {}
        if not isinstance(metadata, dict) or any(os.path.basename(name) != name for name in weight_map.values()):
            raise ValueError("a file outside of the folder")
    except FileNotFoundError:
        if os.path.exists(os.path.join(path, SINGLE)):
            return {}, None
        raise FileNotFoundError(f"{path} is a folder without {INDEX}, {SINGLE} or .metadata") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {INDEX} is malformed: {error!r}") from None
    return metadata, weight_map
