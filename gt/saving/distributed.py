"""Reads checkpoints of ``torch.distributed.checkpoint``: a folder with ``.metadata`` and ``.distcp`` files.

``.metadata`` is a pickle that describes each tensor: its type, and the chunks that it was divided into, one for each
process that held a part. A chunk is a file of torch.save inside a ``.distcp`` file: a zip archive that is not
compressed. So its values are a range of bytes of the ``.distcp`` file, and workers read the parts of it that they need.
No pickle is run: `gt.saving.pickled_data` only looks at what it describes.
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from contextlib import ExitStack
from math import prod
from typing import Any, BinaryIO, NamedTuple

from gt.client.tensor.tensor import Tensor
from gt.ops.system.file_blocks import common_part
from gt.saving.folders import METADATA
from gt.saving.pickled_data import Persistent, PickledCall, PickledName, parse
from gt.saving.stored import SeenFile, StoredChunk, StoredTensor, opened, read
from gt.types import DTYPES, Shape, TensorType

#: The largest description that is read.
MAX_METADATA_BYTES = 1 << 30
TYPES = "torch.distributed.checkpoint.metadata."
#: torch's classes of storages -> dtypes
STORAGES = {
    "torch.DoubleStorage": "float64", "torch.FloatStorage": "float32", "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16", "torch.LongStorage": "int64", "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16", "torch.CharStorage": "int8", "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool", "torch.ComplexFloatStorage": "complex64", "torch.ComplexDoubleStorage": "complex128",
}  # fmt: skip


class Item(NamedTuple):
    """Where one file of torch.save is."""

    path: str
    offset: int
    length: int


class Described(NamedTuple):
    """A tensor as the description gives it: its type, and where each chunk begins, its sizes and its file."""

    type: TensorType
    chunks: list[tuple[Shape, Shape, Item]]


class Checkpoint(NamedTuple):
    tensors: dict[str, Described]
    #: the other values
    values: dict[str, Item]
    #: name -> the keys that lead to it in the object that was saved
    paths: dict[str, tuple[Any, ...]]


def is_checkpoint(path: str) -> bool:
    return os.path.exists(os.path.join(path, METADATA))


def load(path: str, targets: dict[str, Tensor]) -> Any:
    """The object that was saved. With targets, only these tensors are read, in place."""
    checkpoint = describe(path)
    if missing := [name for name in targets if name not in checkpoint.tensors]:
        raise KeyError(f"{path} has no tensor {missing[0]!r}; it has {', '.join(list(checkpoint.tensors)[:3])}, …")
    wanted = {name: one for name, one in checkpoint.tensors.items() if not targets or name in targets}
    items = [item for one in wanted.values() for _, _, item in one.chunks]
    with ExitStack() as stack:
        files = stack.enter_context(opened(sorted({i.path for i in (*items, *checkpoint.values.values())})))
        copies = stack.enter_context(tempfile.NamedTemporaryFile(prefix="gt-loading-"))
        placed = {name: _stored(name, one, files, copies) for name, one in wanted.items()}
        copies.flush()
        copied = SeenFile(open(copies.name, "rb"), copies.name)  # noqa: SIM115, closed on the next line
        stack.callback(copied.file.close)
        stored = {
            name: StoredTensor(
                t, tuple(StoredChunk(file or copied, at, starts, sizes) for file, at, starts, sizes in chunks)
            )
            for name, (t, chunks) in placed.items()
        }
        found: dict[str, Any] = dict(read(stored, targets))
        for name, item in checkpoint.values.items():
            found[name] = _value(files[item.path], item)
    return _nested(path, {name: found[name] for name in checkpoint.paths or found if name in found}, checkpoint.paths)


# -- the description --------------------------------------------------------------------------


def describe(path: str) -> Checkpoint:
    """What is in a checkpoint. Raises ValueError if it cannot be read."""
    file = os.path.join(path, METADATA)
    if os.path.getsize(file) > MAX_METADATA_BYTES:
        raise ValueError(f"{file} is larger than {MAX_METADATA_BYTES} bytes")
    with open(file, "rb") as opened_file:
        data = opened_file.read()
    try:
        metadata = _state(parse(data), "Metadata")
        items = _items(path, metadata["storage_data"])
        tensors: dict[str, Described] = {}
        values: dict[str, Item] = {}
        for name, entry in metadata["state_dict_metadata"].items():
            if entry.name == f"{TYPES}BytesStorageMetadata":
                values[name] = items[name, None]
            else:
                tensors[name] = _described(name, _state(entry, "TensorStorageMetadata"), items)
        paths = metadata.get("planner_data") or {}
        return Checkpoint(tensors, values, {name: tuple(keys) for name, keys in paths.items()})
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{file} is not a checkpoint of torch.distributed.checkpoint: {error!r}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _state(x: Any, kind: str) -> dict[str, Any]:
    """The attributes of an object of one of torch's classes."""
    if not isinstance(x, PickledCall) or x.name != TYPES + kind or not isinstance(x.state, dict):
        raise ValueError(f"no {kind} where one was expected")
    return x.state


def _size(x: Any) -> Shape:
    """The numbers of a torch.Size."""
    if not isinstance(x, PickledCall) or x.name != "torch.Size":
        raise ValueError("no torch.Size where one was expected")
    if any(type(n) is not int or n < 0 for n in x.arguments[0]):
        raise ValueError(f"{x.arguments[0]} is not a size")
    return tuple(x.arguments[0])


def _items(path: str, storage: dict[Any, Any]) -> dict[tuple[str, Shape | None], Item]:
    """(name, where the chunk begins, or None) -> its file"""
    items: dict[tuple[str, Shape | None], Item] = {}
    for index, info in storage.items():
        key, place = _state(index, "MetadataIndex"), info.state
        if place.get("transform_descriptors"):
            raise ValueError(f"{key['fqn']!r} is compressed ({place['transform_descriptors']}), which GT does not read")
        name = str(place["relative_path"])
        if os.path.basename(name) != name:
            raise ValueError(f"{name!r} is not in the folder")
        at = None if key.get("offset") is None else _size(key["offset"])
        items[key["fqn"], at] = Item(os.path.join(path, name), int(place["offset"]), int(place["length"]))
    return items


def _described(name: str, state: dict[str, Any], items: dict[tuple[str, Shape | None], Item]) -> Described:
    dtype = state["properties"].state[0].text.removeprefix("torch.")
    if dtype not in DTYPES:
        raise ValueError(f"{name!r} has the dtype {dtype}, which GT does not have")
    shape = _size(state["size"])
    chunks = []
    for chunk in state["chunks"]:
        fields = _state(chunk, "ChunkStorageMetadata")
        starts, sizes = _size(fields["offsets"]), _size(fields["sizes"])
        if any(s + n > whole for s, n, whole in zip(starts, sizes, shape, strict=True)):
            raise ValueError(f"a chunk of {name!r} is outside of it")
        if prod(sizes):
            chunks.append((starts, sizes, items[name, starts]))
    if _overlap(chunks) or sum(prod(sizes) for _, sizes, _ in chunks) != prod(shape):
        raise ValueError(f"the chunks of {name!r} are not all of it")
    return Described(TensorType(shape, DTYPES[dtype]), chunks)


def _overlap(chunks: list[tuple[Shape, Shape, Item]]) -> bool:
    """Whether two chunks have an element in common. They are compared in the order of the dim that divides them most,
    so that only neighbours are."""
    if len(chunks) < 2:
        return False
    ndim = len(chunks[0][0])
    dim = max(range(ndim), key=lambda d: len({starts[d] for starts, _, _ in chunks}), default=None)
    if dim is None:
        return True
    near: list[tuple[Shape, Shape]] = []
    for starts, sizes, _ in sorted(chunks, key=lambda chunk: chunk[0][dim]):
        near = [(at, n) for at, n in near if at[dim] + n[dim] > starts[dim]]
        if any(common_part(starts, sizes, at, n) is not None for at, n in near):
            return True
        near.append((starts, sizes))
    return False


# -- files of torch.save ----------------------------------------------------------------------


class _Range(io.RawIOBase):
    """A range of a file, as a file."""

    def __init__(self, file: BinaryIO, item: Item) -> None:
        self._file, self._item, self._at = file, item, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._item.length)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._item.length - self._at))
        self._file.seek(self._item.offset + self._at)
        data = self._file.read(count)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


#: a chunk before its file is known, which is None for those that were copied
Placed = tuple[SeenFile | None, int, Shape, Shape]


def _stored(name: str, one: Described, files: dict[str, SeenFile], copies: Any) -> tuple[TensorType, list[Placed]]:
    """Where the values of a tensor are. Those that are not in row-major order are copied to another file."""
    chunks: list[Placed] = []
    for starts, sizes, item in one.chunks:
        offset = _values_at(name, files[item.path], item, one.type.dtype.name, sizes)
        if offset is not None:
            chunks.append((files[item.path], offset, starts, sizes))
            continue
        value = _value(files[item.path], item, as_bytes=True)
        if len(value) != prod(sizes) * one.type.dtype.itemsize:
            raise ValueError(f"{item.path}: a chunk of {name!r} has another size than described")
        chunks.append((None, copies.tell(), starts, sizes))
        copies.write(value)
    return one.type, chunks


def _values_at(name: str, file: SeenFile, item: Item, dtype: str, sizes: Shape) -> int | None:
    """Where in the file the values of a chunk begin; None if they are not in row-major order there."""
    try:
        with zipfile.ZipFile(io.BufferedReader(_Range(file.file, item))) as archive:
            by_name = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            call = parse(archive.read(by_name["data.pkl"]))
            storage, first, shape, strides = call.arguments[:4]
            _, kind, key, _, _ = storage.id
            record = by_name[f"data/{key}"]
        plain = isinstance(call, PickledCall) and call.name == "torch._utils._rebuild_tensor_v2"
        plain = plain and isinstance(storage, Persistent) and isinstance(kind, PickledName)
        if not plain or STORAGES.get(kind.text) != dtype or tuple(shape) != sizes or record.compress_type:
            raise ValueError("it is not a tensor of the type that is described")
        row_major = tuple(prod(sizes[d + 1 :]) for d in range(len(sizes)))
        if any(n > 1 and s != wanted for n, s, wanted in zip(sizes, strides, row_major, strict=True)):
            return None
        itemsize = DTYPES[dtype].itemsize
        if (first + prod(sizes)) * itemsize > record.file_size:
            raise ValueError("it is too short")
        file.file.seek(item.offset + record.header_offset)
        head = file.file.read(30)
        start = item.offset + record.header_offset + 30 + int.from_bytes(head[26:28], "little")
        return int(start + int.from_bytes(head[28:30], "little") + first * itemsize)
    except (zipfile.BadZipFile, KeyError, AttributeError, TypeError, ValueError, EOFError) as error:
        raise ValueError(f"{item.path}: a chunk of {name!r} cannot be read: {error}") from None


def _value(file: SeenFile, item: Item, as_bytes: bool = False) -> Any:
    """What a file of torch.save holds. It is read by torch, which runs no code of it."""
    from gt.saving import torch_files

    file.file.seek(item.offset)
    source = io.BytesIO(file.file.read(item.length))
    return torch_files.read_bytes(source, item.path) if as_bytes else torch_files.read(source, item.path)


# -- the object -------------------------------------------------------------------------------


def _nested(path: str, found: dict[str, Any], paths: dict[str, tuple[Any, ...]]) -> Any:
    """The object that was saved: dicts, and lists where the keys are numbers."""
    result: dict[str, Any] = {}
    for name, value in found.items():
        keys = paths.get(name) or (name,)
        at: Any = result
        for key, following in zip(keys, (*keys[1:], None), strict=True):
            made: Any = value if following is None else [] if isinstance(following, int) else {}
            if isinstance(at, list):
                if not isinstance(key, int) or not 0 <= key <= len(paths):
                    raise ValueError(f"{path}: the path {keys} of {name!r} is malformed")
                at.extend([None] * (key + 1 - len(at)))
                at[key] = made if following is None or at[key] is None else at[key]
            elif isinstance(at, dict):
                at[key] = made if following is None else at.get(key, made)
            else:
                raise ValueError(f"{path}: the path {keys} of {name!r} is malformed")
            at = at[key]
    return result
