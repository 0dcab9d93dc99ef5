"""``gt.save`` and ``gt.load``: tensors in safetensors files, written and read by the workers where they can.

A file has 8 bytes with the length of the header, the header (JSON: names, dtypes, shapes and offsets), and the values.
Nested objects are saved too: their tensors get generated names, and their structure is JSON in the header's metadata
(`gt.saving.objects`). Other readers of the format still see the tensors. Nothing in a file can run code.

A save is atomic: the values are written to a temporary file in the same folder, which replaces the old file once
everything is on disk. The worker that holds the tensors writes them itself if it can open that file (see
`gt.ops.system.files`); otherwise, and always on a shared server, the client reads them and writes them. The safetensors
library is not used, because it needs all values in this process.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import secrets
from typing import Any, BinaryIO, cast

from gt.client.stream import connect
from gt.client.tensor.emit import call_with, current, upload
from gt.client.tensor.tensor import Tensor
from gt.errors import RemoteError
from gt.functions.spectral.complex import view_as_complex, view_as_real
from gt.ops import OPS
from gt.ops.system.files import MARK, TAIL, proof
from gt.saving.objects import flatten, unflatten
from gt.say import warn
from gt.types import DTYPES, DType, TensorType, complex128

__all__ = ["load", "save"]

SAVE, LOAD = OPS["save_file"], OPS["load_file"]

SAFETENSORS_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
DTYPE_OF = {name: DTYPES[dtype] for dtype, name in SAFETENSORS_NAMES.items()}

#: The values start at a multiple of this, so that no page holds both header and values.
PAGE_BYTES = 4096
#: The most tensors in one instruction.
MAX_TENSORS = 1000
#: The largest header that is read.
MAX_HEADER_BYTES = 100 << 20
#: The key in the metadata for the structure of the saved object.
STRUCTURE = "gt"
#: The key in the metadata for the names of complex128 tensors. The format has no such dtype: they are saved as float64
#: with one more dim.
PAIRS = "complex128"

#: The endings of files that torch.save writes, which are pickles.
PICKLES = (".pt", ".pth", ".bin")

#: a tensor in a file: its type, and the offset of its values in bytes
Entry = tuple[TensorType, int]


def save(
    obj: Any,
    f: str | os.PathLike[str] | BinaryIO,
    pickle_module: object = None,
    pickle_protocol: object = None,
    _use_new_zipfile_serialization: object = None,
    *,
    format: str = "safetensors",
) -> None:
    """Save tensors, modules, dicts, lists and other plain objects as a safetensors file, or into a file object.

    The workers write their tensors directly where they can. A save replaces an old file atomically.
    ``format="torch"`` writes a file that torch.load reads; torch must be installed. The other arguments are those of
    `torch.save`, and have no effect.

    Example::

        gt.save(model.state_dict(), "model.safetensors")
    """
    if format not in ("safetensors", "torch"):
        raise ValueError(f'save(format={format!r}): must be "safetensors" or "torch"')
    if hasattr(f, "write"):
        _save_into(obj, cast(BinaryIO, f), format)
        return
    path = os.path.abspath(os.fspath(f))
    secret = secrets.token_hex(16)
    temporary = os.path.join(os.path.dirname(path), MARK + secret)
    file = open(temporary, "x+b")  # noqa: SIM115, it is renamed while it is open
    try:
        with file:
            _save_into(obj, file, format) if format == "torch" else _save_at(obj, file, temporary, secret)
            _sync(file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(path))
    if path.endswith(PICKLES) and format != "torch":
        warn(f'{path} is a safetensors file, which torch.load cannot read; gt.save(…, format="torch") writes one')


def _save_at(obj: Any, file: BinaryIO, temporary: str, secret: str) -> None:
    """Write a new file, which the workers can open under this name."""
    tensors, header, offsets = _prepare(obj)
    file.write((MARK + secret).encode())
    _sync(file)
    if not _write_on_workers(temporary, secret, tensors, offsets):
        _write_from_client(file, tensors, offsets)
    file.seek(0)
    file.write(header)


def _save_into(obj: Any, file: BinaryIO, format: str) -> None:
    """Write from the current position of a file object on, which need not be able to seek."""
    if isinstance(file, io.TextIOBase):
        raise TypeError("save(): the file is open for text; open it in binary mode")
    if format == "torch":
        from gt.saving import torch_files

        torch_files.write(obj, file)
        return
    tensors, header, _ = _prepare(obj)
    file.write(header)
    for x in tensors.values():
        file.write(_value(x))


def _prepare(obj: Any) -> tuple[dict[str, Tensor], bytes, list[int]]:
    """The tensors of an object, the header, and the offsets in the file."""
    tensors, structure = flatten(obj)
    metadata = {"format": "pt"} if structure is None else {STRUCTURE: json.dumps(structure)}
    if pairs := [name for name, x in tensors.items() if x.dtype is complex128]:
        metadata[PAIRS] = json.dumps(pairs)
        tensors |= {name: view_as_real(tensors[name]) for name in pairs}
    return tensors, *_header(tensors, metadata)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _header(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, list[int]]:
    """The header's bytes, and the offset of each tensor, with the end of the file as the last."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    ends = [0]
    for name, x in tensors.items():
        ends.append(ends[-1] + x._type.nbytes)
        entries[name] = {"dtype": SAFETENSORS_NAMES[x.dtype.name], "shape": list(x.shape), "data_offsets": ends[-2:]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [start + end for end in ends]


def _write_on_workers(path: str, secret: str, tensors: dict[str, Tensor], offsets: list[int]) -> bool:
    """Let the workers write their tensors; False if one of them could not."""
    listed = tuple(tensors.values())
    if not listed:
        return True
    if listed[0]._cell.session.connection.is_shared:
        return False
    counts: list[Tensor] = []
    for first in range(0, len(listed), MAX_TENSORS):
        request = json.dumps({"path": path, "secret": secret, "offset": offsets[first]}).encode()
        counts += call_with(SAVE, request, listed[first : first + MAX_TENSORS], (), listed[0]._cell.session)
    try:
        return sum(int(count.item()) for count in counts) == offsets[-1] - offsets[0]
    except RemoteError:
        return False


def _write_from_client(file: BinaryIO, tensors: dict[str, Tensor], offsets: list[int]) -> None:
    """Read each tensor and write it in this process."""
    for x, offset in zip(tensors.values(), offsets, strict=False):
        file.seek(offset)
        file.write(_value(x))
    file.truncate(offsets[-1])


def _value(x: Tensor) -> Any:
    """The bytes of a tensor's value."""
    if not x._type.nbytes:
        return b""
    current(x)
    return x._cell.session.read(x._cell.id, x._type)


# -- loading -------------------------------------------------------------------------------


def load(
    f: str | os.PathLike[str] | BinaryIO,
    map_location: object = None,
    pickle_module: object = None,
    *,
    weights_only: object = None,
    mmap: object = None,
) -> Any:
    """Load an object that `gt.save` saved, the tensors of any safetensors file by name, or a file of `torch.save`.

    A module or another object is restored if its class is imported. Nothing in a file can run code: a file of
    `torch.save` is read by ``torch.load(weights_only=True)``, so torch must be installed for it. The other arguments
    are those of `torch.load`, and have no effect.

    Example::

        model.load_state_dict(gt.load("model.safetensors"))
    """
    try:
        return _load_from(cast(BinaryIO, f)) if hasattr(f, "read") else _load_at(os.path.abspath(os.fspath(f)))
    except _TorchFile as found:
        from gt.saving import torch_files

        source: Any = io.BytesIO(found.start + f.read()) if hasattr(f, "read") else found.path
        return torch_files.read(source, found.path)


def _load_at(path: str) -> Any:
    with open(path, "rb") as file:
        header, metadata, places = _read_places(file, path)
        size = os.fstat(file.fileno()).st_size
        for name, (type, offset) in places.items():
            if offset + type.nbytes > size:
                raise ValueError(f"{path}: the file ends before {name!r} does")
        request = reading_request(file, path, header)
        values = read_on_workers(request, list(places.values())) or _read_in_client(file, list(places.values()))
    return _restore(path, metadata, dict(zip(places, values, strict=True)))


def _load_from(file: BinaryIO) -> Any:
    """Read from the current position of a file object on, which need not be able to seek."""
    if isinstance(file, io.TextIOBase):
        raise TypeError("load(): the file is open for text; open it in binary mode")
    name = str(getattr(file, "name", "the file object"))
    header, metadata, places = _read_places(file, name)
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


def _read_places(file: BinaryIO, path: str) -> tuple[bytes, dict[str, str], dict[str, Entry]]:
    """The header's bytes, the metadata, and where each tensor is."""
    header, entries = _read_header(file, path)
    metadata = entries.pop("__metadata__", None) or {}
    return header, metadata, {name: _entry(path, name, entry, len(header)) for name, entry in entries.items()}


def _read_header(file: BinaryIO, path: str) -> tuple[bytes, dict[str, Any]]:
    """The header's bytes, with the 8 bytes of its length, and its entries."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > MAX_HEADER_BYTES:
        raise _wrong_format(path, first)
    text = file.read(length)
    try:
        entries = json.loads(text)
    except ValueError:
        entries = None
    if len(text) < length or not isinstance(entries, dict):
        raise _wrong_format(path, first + text)
    return first + text, entries


class _TorchFile(ValueError):
    """A file that torch.save wrote. ``start``: the bytes that were read."""

    def __init__(self, path: str, start: bytes) -> None:
        super().__init__(path)
        self.path, self.start = path, start


def _wrong_format(path: str, start: bytes) -> ValueError:
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return _TorchFile(path, start)
    return ValueError(f"{path} is not a safetensors file")


def _entry(path: str, name: str, entry: Any, start: int) -> Entry:
    """Check an entry of the header. ``start``: the offset of the first value in the file."""
    try:
        dtype: DType = DTYPE_OF[entry["dtype"]]
        type = TensorType(tuple(map(int, entry["shape"])), dtype)
        begin, end = map(int, entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: {name!r} has a type that GT does not support: {entry}") from None
    if begin < 0 or end - begin != type.nbytes or min(type.shape, default=0) < 0:
        raise ValueError(f"{path}: {name!r} has a wrong entry: {entry}")
    return type, start + begin


def reading_request(file: BinaryIO, path: str, head: bytes) -> dict[str, Any]:
    """What `read_on_workers` needs to know of a file whose first bytes are ``head``."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
    return {"path": path, "head": len(head), "proof": proof(head, file.read())}


def read_on_workers(request: dict[str, Any], entries: list[Entry]) -> list[Tensor] | None:
    """Let the workers read the tensors; None if one of them could not."""
    if connect.session().connection.is_shared:
        return None
    tensors: list[Tensor] = []
    outcomes: list[Tensor] = []
    for first in range(0, len(entries), MAX_TENSORS):
        batch = entries[first : first + MAX_TENSORS]
        data = json.dumps(request | {"offsets": [offset for _, offset in batch]}).encode()
        types = tuple((type.shape, type.dtype.name) for type, _ in batch)
        *values, outcome = call_with(LOAD, data, (), (("types", types),), connect.session())
        tensors += values
        outcomes.append(outcome)
    try:
        for outcome in outcomes:
            outcome.item()
    except RemoteError:
        return None
    return tensors


def _read_in_client(file: BinaryIO, entries: list[Entry]) -> list[Tensor]:
    """Send the tensors to a worker in chunks. The file is mapped, so this process never holds a whole tensor."""
    mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    session = connect.session()
    return [upload(mapped[offset : offset + type.nbytes], type, session) for type, offset in entries]
