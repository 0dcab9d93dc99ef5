"""``gt.save`` and ``gt.load``: tensors in safetensors files, written and read by the workers where they can.

A file is 8 bytes that say how long the header is, the header (JSON: names, dtypes, shapes and places), and the
values. What is no flat dict of tensors is kept too: its tensors under made-up names, and its structure as JSON in the
header's metadata, so that other readers of the format still see the tensors. Nothing in a file can run code.

A save is all or nothing: the values go into a file of another name beside it, which takes the place of the old one
when all is on disk. The worker that has the tensors writes them there itself, if it sees that file (see
`gt.ops.system.files`); if not, they come through this process. The format is so simple that the library for it, which would
want all values here, is not used.
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
from gt.nn.state import value_of
from gt.ops import OPS
from gt.ops.system.files import MARK, TAIL, proof
from gt.say import warn
from gt.types import DTYPES, DType, TensorType

__all__ = ["load", "save"]

SAVE, LOAD = OPS["save_file"], OPS["load_file"]

NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
DTYPE_OF = {name: DTYPES[dtype] for dtype, name in NAMES.items()}

#: where the values begin is a multiple of this: pages of theirs are nobody else's
PAGE = 4096
#: tensors one instruction takes
MOST = 1000
#: the largest header that is read
MAX_HEADER = 100 << 20
#: the metadata's key for the structure of what was saved
STRUCTURE = "gt"

#: what torch's own files are called
PICKLES = (".pt", ".pth", ".bin")

Place = tuple[TensorType, int]


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Save tensors, or dicts, lists and tuples of tensors and plain values, as a safetensors file."""
    path = os.path.abspath(os.fspath(path))
    if path.endswith(PICKLES):
        warn(f"{path} becomes a safetensors file, which torch.load does not read; safetensors.torch.load_file does")
    tensors, structure = _taken_apart(obj)
    metadata = {"format": "pt"} if structure is None else {STRUCTURE: json.dumps(structure)}
    head, places = _header(tensors, metadata)
    secret = secrets.token_hex(16)
    making = os.path.join(os.path.dirname(path), MARK + secret)
    file = open(making, "x+b")  # noqa: SIM115, it is renamed while it is open
    try:
        with file:
            file.write((MARK + secret).encode())
            _to_disk(file)
            if not _written_by_workers(making, secret, tensors, places):
                _written_here(file, tensors, places)
            file.seek(0)
            file.write(head)
            _to_disk(file)
        os.replace(making, path)
    except BaseException:
        os.unlink(making)
        raise
    _directory_to_disk(os.path.dirname(path))


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _directory_to_disk(path: str) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _header(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, list[int]]:
    """The file's beginning, and where each tensor goes."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    ends = [0]
    for name, x in tensors.items():
        ends.append(ends[-1] + x._type.nbytes)
        entries[name] = {"dtype": NAMES[x.dtype.name], "shape": list(x.shape), "data_offsets": ends[-2:]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [start + end for end in ends]


def _written_by_workers(making: str, secret: str, tensors: dict[str, Tensor], places: list[int]) -> bool:
    listed = tuple(tensors.values())
    if not listed:
        return True
    counts: list[Tensor] = []
    for first in range(0, len(listed), MOST):
        request = json.dumps({"path": making, "secret": secret, "offset": places[first]}).encode()
        counts += call_with(SAVE, request, listed[first : first + MOST], (), listed[0]._cell.session)
    try:
        return sum(int(count.item()) for count in counts) == places[-1] - places[0]
    except RemoteError:
        return False


def _written_here(file: BinaryIO, tensors: dict[str, Tensor], places: list[int]) -> None:
    for x, place in zip(tensors.values(), places, strict=False):
        file.seek(place)
        if x._type.nbytes:
            current(x)
            file.write(x._cell.session.read(x._cell.id, x._type))
    file.truncate(places[-1])


# -- loading -------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], map_location: object = None) -> Any:
    """What was saved; of a file of another's making, its tensors by name. ``map_location`` is heard, and overlooked."""
    path = os.path.abspath(os.fspath(path))
    with open(path, "rb") as file:
        head, entries = _read_header(file, path)
        metadata = entries.pop("__metadata__", None) or {}
        places = {name: _place(path, name, entry, len(head)) for name, entry in entries.items()}
        size = os.fstat(file.fileno()).st_size
        for name, (type, offset) in places.items():
            if offset + type.nbytes > size:
                raise ValueError(f"{path}: the file ends before {name!r} does")
        file.seek(max(0, size - TAIL))
        told = {"path": path, "head": len(head), "proof": proof(head, file.read())}
        values = _read_by_workers(told, list(places.values())) or _read_here(file, list(places.values()))
    tensors = dict(zip(places, values, strict=True))
    return _put_together(json.loads(metadata[STRUCTURE]), tensors) if STRUCTURE in metadata else tensors


def _read_header(file: BinaryIO, path: str) -> tuple[bytes, dict[str, Any]]:
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > MAX_HEADER:
        raise _no_safetensors(path, first)
    text = file.read(length)
    try:
        entries = json.loads(text)
    except ValueError:
        entries = None
    if len(text) < length or not isinstance(entries, dict):
        raise _no_safetensors(path, first)
    return first + text, entries


def _no_safetensors(path: str, first: bytes) -> ValueError:
    if not first.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04")):
        return ValueError(f"{path} is no safetensors file")
    new = f"{os.path.splitext(path)[0]}.safetensors"
    return ValueError(
        f"{path} is no safetensors file but a pickle, as torch.save makes them; to make one of it, where torch is: "
        f"safetensors.torch.save_file(torch.load({path!r}), {new!r})"
    )


def _place(path: str, name: str, entry: Any, start: int) -> Place:
    try:
        dtype: DType = DTYPE_OF[entry["dtype"]]
        type = TensorType(tuple(map(int, entry["shape"])), dtype)
        begin, end = map(int, entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: {name!r} is of a kind that GT does not have: {entry}") from None
    if begin < 0 or end - begin != type.nbytes or min(type.shape, default=0) < 0:
        raise ValueError(f"{path}: {name!r} is described wrongly: {entry}")
    return type, start + begin


def _read_by_workers(told: dict[str, Any], places: list[Place]) -> list[Tensor] | None:
    made: list[Tensor] = []
    done: list[Tensor] = []
    for first in range(0, len(places), MOST):
        some = places[first : first + MOST]
        request = json.dumps(told | {"offsets": [offset for _, offset in some]}).encode()
        types = tuple((type.shape, type.dtype.name) for type, _ in some)
        *values, last = call_with(LOAD, request, (), (("types", types),), connect.session())
        made += values
        done.append(last)
    try:
        for last in done:
            last.item()
    except RemoteError:
        return None
    return made


def _read_here(file: BinaryIO, places: list[Place]) -> list[Tensor]:
    made = []
    for type, offset in places:
        file.seek(offset)
        made.append(upload(memoryview(file.read(type.nbytes)), type, connect.session()))
    return made


# -- structure -----------------------------------------------------------------------------


def _taken_apart(obj: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors by name, and the rest as JSON with names for tensors; None if there is no rest."""
    if _is_flat(obj):
        return {key: detached(value_of(x)) for key, x in obj.items()}, None
    tensors: dict[str, Tensor] = {}
    return tensors, _described(obj, "", tensors)


def _is_flat(obj: Any) -> bool:
    named = isinstance(obj, dict) and "__metadata__" not in obj
    return named and all(isinstance(key, str) and hasattr(x, "__array__") for key, x in obj.items())


def _described(x: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, DType):
        return {"dtype": x.name}
    if isinstance(x, dict):
        items = [[_described(k, "", tensors), _described(v, f"{name}.{k}", tensors)] for k, v in x.items()]
        return {"dict": items}
    if isinstance(x, list | tuple):
        items = [_described(v, f"{name}.{i}", tensors) for i, v in enumerate(x)]
        return {"tuple": items} if isinstance(x, tuple) else items
    if hasattr(x, "__array__"):
        name = name.lstrip(".") or "value"
        while name in tensors or name == "__metadata__":
            name += "_"
        tensors[name] = detached(value_of(x))
        return {"tensor": name}
    raise TypeError(f"save(): {name.lstrip('.') or 'the object'} is a {type(x).__name__}, which cannot be saved")


#: the one key of a JSON object -> what it stands for
PARTS: dict[str, Any] = {
    "tensor": lambda value, tensors: tensors[value],
    "dtype": lambda value, tensors: DTYPES[value],
    "tuple": lambda value, tensors: tuple(_put_together(x, tensors) for x in value),
    "dict": lambda value, tensors: {_put_together(k, tensors): _put_together(v, tensors) for k, v in value},
}


def _put_together(x: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(x, list):
        return [_put_together(one, tensors) for one in x]
    if isinstance(x, dict):
        ((kind, value),) = x.items()
        return PARTS[kind](value, tensors)
    return x
