"""``gt.save`` and ``gt.load``: tensors in safetensors files, written and read by the workers where they can.

Nested objects are saved too: their tensors get generated names, and their structure is JSON in the metadata of the
file or folder (`gt.saving.objects`). Other readers of the format still see the tensors. Nothing in a file can run code.

A save is atomic: the values are written to a temporary file in the same folder, which replaces the old file once
everything is on disk. The safetensors library is not used, because it needs all values in this process.
"""

from __future__ import annotations

import io
import json
import os
from typing import Any, BinaryIO, cast

from gt.client.stream import connect
from gt.client.tensor.emit import upload
from gt.client.tensor.tensor import Tensor
from gt.functions.spectral.complex import view_as_complex, view_as_real
from gt.saving import distributed, folders
from gt.saving.headers import TorchFile, compose, read_places
from gt.saving.objects import flatten, unflatten
from gt.saving.stored import SeenFile, read, whole
from gt.saving.writing import TemporaryFile, value_of, write_atomically
from gt.say import warn
from gt.types import complex128

__all__ = ["load", "save"]

#: The key in the metadata for the structure of the saved object.
STRUCTURE = "gt"
#: The key in the metadata for the names of complex128 tensors. The format has no such dtype: they are saved as float64
#: with one more dim.
PAIRS = "complex128"

#: The endings of files that torch.save writes, which are pickles.
PICKLES = (".pt", ".pth", ".bin")


def save(
    obj: Any,
    f: str | os.PathLike[str] | BinaryIO,
    pickle_module: object = None,
    pickle_protocol: object = None,
    _use_new_zipfile_serialization: object = None,
    *,
    format: str = "safetensors",
    max_shard_size: int | str = folders.MAX_SHARD_SIZE,
) -> None:
    """Save tensors, modules, dicts, lists and other plain objects as a safetensors file, or into a file object.

    The workers write their tensors directly where they can, each its own blocks. A save replaces an old file
    atomically. If the path is a folder, or ends with ``/``, the tensors are divided among several files of at most
    ``max_shard_size`` bytes (such as ``"5GB"``), with an index in the form that Hugging Face's libraries read.
    ``format="torch"`` writes a file that torch.load reads; torch must be installed. The other arguments are those of
    `torch.save`, and have no effect.

    Example::

        gt.save(model.state_dict(), "model.safetensors")
        gt.save(model.state_dict(), "checkpoint/")
    """
    if format not in ("safetensors", "torch"):
        raise ValueError(f'save(format={format!r}): must be "safetensors" or "torch"')
    if hasattr(f, "write"):
        _save_into(obj, cast(BinaryIO, f), format)
        return
    name = os.fspath(f)
    path = os.path.abspath(name)
    if name.endswith(os.sep) or os.path.isdir(path):
        if format == "torch":
            raise ValueError(f'save({name!r}, format="torch"): this format is one file; the path is a folder')
        folders.write(path, *_prepare(obj), folders.parsed_size(max_shard_size))
    else:
        _save_at(obj, path, format)


def _save_at(obj: Any, path: str, format: str) -> None:
    def write(temporary: TemporaryFile) -> None:
        if format == "torch":
            _save_into(obj, temporary.file, format)
        else:
            temporary.write_tensors(*_prepare(obj))

    write_atomically(path, write)
    if path.endswith(PICKLES) and format != "torch":
        warn(f'{path} is a safetensors file, which torch.load cannot read; gt.save(…, format="torch") writes one')


def _save_into(obj: Any, file: BinaryIO, format: str) -> None:
    """Write from the current position of a file object on, which need not be able to seek."""
    if isinstance(file, io.TextIOBase):
        raise TypeError("save(): the file is open for text; open it in binary mode")
    if format == "torch":
        from gt.saving import torch_files

        torch_files.write(obj, file)
        return
    tensors, metadata = _prepare(obj)
    plan = compose({name: x._type for name, x in tensors.items()}, metadata)
    file.write(plan.header)
    for name in sorted(tensors, key=plan.offsets.__getitem__):
        file.write(value_of(tensors[name]))


def _prepare(obj: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of an object, and the metadata of its file."""
    tensors, structure = flatten(obj)
    metadata = {"format": "pt"} if structure is None else {STRUCTURE: json.dumps(structure)}
    if pairs := [name for name, x in tensors.items() if x.dtype is complex128]:
        metadata[PAIRS] = json.dumps(pairs)
        tensors |= {name: view_as_real(tensors[name]) for name in pairs}
    return tensors, metadata


# -- loading -------------------------------------------------------------------------------


def load(
    f: str | os.PathLike[str] | BinaryIO,
    map_location: object = None,
    pickle_module: object = None,
    *,
    weights_only: object = None,
    mmap: object = None,
    into: Any = None,
) -> Any:
    """Load an object that `gt.save` saved, the tensors of any safetensors file by name, or a file of `torch.save`.

    A folder may be one that `gt.save` wrote, one of Hugging Face's with an index, or a checkpoint of
    ``torch.distributed.checkpoint``. ``into`` is an object with the same names, such as a state dict: its tensors get
    the values in place and keep their layout, and each worker reads only the blocks that it holds. Other tensors of a
    nested object are created; those of a plain dict are not read.

    A module or another object is restored if its class is imported. Nothing in a file can run code: a file of
    `torch.save` is read by ``torch.load(weights_only=True)``, so torch must be installed for it. The other arguments
    are those of `torch.load`, and have no effect.

    Example::

        model.load_state_dict(gt.load("model.safetensors"))
        gt.load("checkpoint/", into=model.state_dict())
    """
    targets = {} if into is None else _targets(into)
    try:
        if hasattr(f, "read"):
            return _load_from(cast(BinaryIO, f), targets)
        path = os.path.abspath(os.fspath(f))
        return _load_folder(path, targets) if os.path.isdir(path) else _load_at(path, targets)
    except TorchFile as found:
        from gt.saving import torch_files

        if targets:
            raise ValueError(
                f"{found.path}: load(into=…) reads safetensors and folders, not files of torch.save"
            ) from None
        source: Any = io.BytesIO(found.start + f.read()) if hasattr(f, "read") else found.path
        return torch_files.read(source, found.path)


def _targets(into: Any) -> dict[str, Tensor]:
    """The tensors of an object, under the names that `save` would give them."""
    tensors, _ = flatten(into)
    if pairs := [name for name, x in tensors.items() if x.dtype is complex128]:
        raise TypeError(f"load(into=…): {pairs[0]} is complex128; load it without into=")
    return tensors


def _load_at(path: str, targets: dict[str, Tensor]) -> Any:
    with open(path, "rb") as file:
        _, metadata, places = read_places(file, path)
        seen = SeenFile(file, path)
        stored = {name: whole(seen, type, offset) for name, (type, offset) in places.items()}
        return _restore(path, metadata, read(_wanted(path, metadata, stored, targets), targets))


def _load_folder(path: str, targets: dict[str, Tensor]) -> Any:
    if distributed.is_checkpoint(path):
        return distributed.load(path, targets)
    with folders.stored_tensors(path) as (metadata, stored):
        return _restore(path, metadata, read(_wanted(path, metadata, stored, targets), targets))


def _wanted(path: str, metadata: dict[str, str], stored: dict[str, Any], targets: dict[str, Tensor]) -> dict[str, Any]:
    """The tensors to read: the targets, if the file is a plain dict of tensors; otherwise all that the object has.

    Raises KeyError if the file lacks a target.
    """
    if missing := [name for name in targets if name not in stored]:
        raise KeyError(f"{path} has no tensor {missing[0]!r}; it has {', '.join(list(stored)[:3])}, …")
    return {name: stored[name] for name in targets} if targets and STRUCTURE not in metadata else stored


def _load_from(file: BinaryIO, targets: dict[str, Tensor]) -> Any:
    """Read from the current position of a file object on, which need not be able to seek."""
    if isinstance(file, io.TextIOBase):
        raise TypeError("load(): the file is open for text; open it in binary mode")
    name = str(getattr(file, "name", "the file object"))
    if targets:
        raise TypeError("load(into=…) takes a path")
    header, metadata, places = read_places(file, name)
    position, tensors = len(header), {}
    for key, (type, offset) in sorted(places.items(), key=lambda place: place[1][1]):
        data = file.read(offset - position + type.nbytes)[offset - position :] if offset >= position else b""
        if len(data) < type.nbytes:
            raise ValueError(f"{name}: the file ends before {key!r} does")
        position = offset + type.nbytes
        tensors[key] = upload(memoryview(data), type, connect.session())
    return _restore(name, metadata, {key: tensors[key] for key in places})


def _restore(path: str, metadata: dict[str, str], tensors: dict[str, Tensor]) -> Any:
    """The saved object."""
    pairs = [name for name in json.loads(metadata.get(PAIRS, "[]")) if name in tensors]
    tensors |= {name: view_as_complex(tensors[name]) for name in pairs}
    if STRUCTURE not in metadata:
        return tensors
    try:
        return unflatten(json.loads(metadata[STRUCTURE]), tensors)
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: the structure of the object is malformed: {error!r}") from None
