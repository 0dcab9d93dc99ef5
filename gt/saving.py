"""``gt.save`` and ``gt.load``: tensors in safetensors files, written and read by the workers where they can.

A file has 8 bytes with the length of the header, the header (JSON: names, dtypes, shapes and offsets), and the values.
Nested objects are saved too: their tensors get generated names, and their structure is JSON in the header's metadata.
Other readers of the format still see the tensors. Nothing in a file can run code.

A save is atomic: the values are written to a temporary file in the same folder, which replaces the old file once
everything is on disk. The worker that holds the tensors writes them itself if it can open that file (see
`gt.ops.system.files`); otherwise the client reads them and writes them. The safetensors library is not used, because
it needs all values in this process.
"""

from __future__ import annotations

import json
import os
import secrets
from typing import Any, BinaryIO

from gt.client.stream import connect
from gt.client.tensor.emit import call_with, current, detached, upload
from gt.client.tensor.tensor import Tensor
from gt.errors import RemoteError
from gt.functions.creation import as_tensor
from gt.functions.spectral.complex import view_as_complex, view_as_real
from gt.ops import OPS
from gt.ops.system.files import MARK, TAIL, proof
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


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save tensors, or dicts, lists and tuples of tensors and plain values, as a safetensors file.

    The workers write their tensors directly where they can. A save replaces an old file atomically.

    Example::

        gt.save(model.state_dict(), "model.safetensors")
    """
    path = os.path.abspath(os.fspath(path))
    if path.endswith(PICKLES):
        warn(f"{path} becomes a safetensors file, which torch.load cannot read; use safetensors.torch.load_file")
    tensors, structure = _flatten(obj)
    metadata = {"format": "pt"} if structure is None else {STRUCTURE: json.dumps(structure)}
    if pairs := [name for name, x in tensors.items() if x.dtype is complex128]:
        metadata[PAIRS] = json.dumps(pairs)
        tensors |= {name: view_as_real(tensors[name]) for name in pairs}
    header, offsets = _header(tensors, metadata)
    secret = secrets.token_hex(16)
    temporary = os.path.join(os.path.dirname(path), MARK + secret)
    file = open(temporary, "x+b")  # noqa: SIM115, it is renamed while it is open
    try:
        with file:
            file.write((MARK + secret).encode())
            _sync(file)
            if not _write_on_workers(temporary, secret, tensors, offsets):
                _write_from_client(file, tensors, offsets)
            file.seek(0)
            file.write(header)
            _sync(file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(path))


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
        if x._type.nbytes:
            current(x)
            file.write(x._cell.session.read(x._cell.id, x._type))
    file.truncate(offsets[-1])


# -- loading -------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], map_location: object = None) -> Any:
    """Load an object that `gt.save` saved, or the tensors of any safetensors file, by name.

    ``map_location`` is accepted and ignored.

    Example::

        model.load_state_dict(gt.load("model.safetensors"))
    """
    path = os.path.abspath(os.fspath(path))
    with open(path, "rb") as file:
        header, entries = _read_header(file, path)
        metadata = entries.pop("__metadata__", None) or {}
        places = {name: _entry(path, name, entry, len(header)) for name, entry in entries.items()}
        size = os.fstat(file.fileno()).st_size
        for name, (type, offset) in places.items():
            if offset + type.nbytes > size:
                raise ValueError(f"{path}: the file ends before {name!r} does")
        file.seek(max(0, size - TAIL))
        request = {"path": path, "head": len(header), "proof": proof(header, file.read())}
        values = _read_on_workers(request, list(places.values())) or _read_in_client(file, list(places.values()))
    tensors = dict(zip(places, values, strict=True))
    pairs = [name for name in json.loads(metadata.get(PAIRS, "[]")) if name in tensors]
    tensors |= {name: view_as_complex(tensors[name]) for name in pairs}
    return _unflatten(json.loads(metadata[STRUCTURE]), tensors) if STRUCTURE in metadata else tensors


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
        raise _wrong_format(path, first)
    return first + text, entries


def _wrong_format(path: str, first: bytes) -> ValueError:
    if not first.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return ValueError(f"{path} is not a safetensors file")
    new = f"{os.path.splitext(path)[0]}.safetensors"
    return ValueError(
        f"{path} is not a safetensors file but a pickle written by torch.save; convert it where torch is installed: "
        f"safetensors.torch.save_file(torch.load({path!r}), {new!r})"
    )


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


def _read_on_workers(request: dict[str, Any], entries: list[Entry]) -> list[Tensor] | None:
    """Let the workers read the tensors; None if one of them could not."""
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
    tensors = []
    for type, offset in entries:
        file.seek(offset)
        tensors.append(upload(memoryview(file.read(type.nbytes)), type, connect.session()))
    return tensors


# -- structure -----------------------------------------------------------------------------


def _flatten(obj: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors by name, and the structure as JSON with names for tensors; None for a flat dict of tensors."""
    if _is_flat(obj):
        return {key: detached(as_tensor(x)) for key, x in obj.items()}, None
    tensors: dict[str, Tensor] = {}
    return tensors, _describe(obj, "", tensors)


def _is_flat(obj: Any) -> bool:
    is_dict = isinstance(obj, dict) and "__metadata__" not in obj
    return is_dict and all(isinstance(key, str) and hasattr(x, "__array__") for key, x in obj.items())


def _describe(x: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON. Its tensors are added to ``tensors``, under names that begin with ``name``."""
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, DType):
        return {"dtype": x.name}
    if isinstance(x, dict):
        items = [[_describe(k, "", tensors), _describe(v, f"{name}.{k}", tensors)] for k, v in x.items()]
        return {"dict": items}
    if isinstance(x, list | tuple):
        items = [_describe(v, f"{name}.{i}", tensors) for i, v in enumerate(x)]
        return {"tuple": items} if isinstance(x, tuple) else items
    if hasattr(x, "__array__"):
        name = name.lstrip(".") or "value"
        while name in tensors or name == "__metadata__":
            name += "_"
        tensors[name] = detached(as_tensor(x))
        return {"tensor": name}
    raise TypeError(f"save(): {name.lstrip('.') or 'the object'} is a {type(x).__name__}, which cannot be saved")


#: the single key of a JSON object -> function of its value and the tensors: what the object stands for
DECODERS: dict[str, Any] = {
    "tensor": lambda value, tensors: tensors[value],
    "dtype": lambda value, tensors: DTYPES[value],
    "tuple": lambda value, tensors: tuple(_unflatten(x, tensors) for x in value),
    "dict": lambda value, tensors: {_unflatten(k, tensors): _unflatten(v, tensors) for k, v in value},
}


def _unflatten(x: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that `_describe` turned into this JSON."""
    if isinstance(x, list):
        return [_unflatten(item, tensors) for item in x]
    if isinstance(x, dict):
        ((kind, value),) = x.items()
        return DECODERS[kind](value, tensors)
    return x
