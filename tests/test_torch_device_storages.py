"""Storages of the device ``gtx``, which have no memory: `torch.load`, copies, pickling, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy
import pytest
import torch

import gt
import gt.torch_device
from gt.testing import Cluster
from gt.torch_device.handles import unwrap

DEVICE = "gtx"


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def numbers(device: str = DEVICE) -> torch.Tensor:
    return torch.arange(6.0, device=device)


def saved(value: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


# -- torch.load --------------------------------------------------------------------------------

LOCATIONS: list[Any] = [
    DEVICE,
    "gtx:0",
    torch.device(DEVICE),
    {"cpu": DEVICE},
    lambda storage, location: storage.to(device=DEVICE),
    lambda storage, location: storage,
    "cpu",
    None,
]


@pytest.mark.parametrize("map_location", LOCATIONS, ids=range(len(LOCATIONS)))
@pytest.mark.parametrize("mmap", [False, True])
def test_a_file_from_the_cpu_is_loaded_onto_the_device(map_location: Any, mmap: bool, tmp_path: Any) -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    state = {"whole": weight, "tied": weight, "part": weight[1:, ::2], "half": torch.ones(2).bfloat16(), "n": 3}
    state["none"] = torch.empty(0, 2)
    torch.save(state, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", map_location=map_location, mmap=mmap)
    on_cpu = map_location in ("cpu", None) or map_location is LOCATIONS[5]
    assert loaded["n"] == 3
    for name, x in state.items():
        if isinstance(x, torch.Tensor):
            assert loaded[name].device.type == ("cpu" if on_cpu else DEVICE), name
            assert loaded[name].dtype is x.dtype
            assert torch.equal(loaded[name].cpu(), x), name
    loaded["whole"][1, 2] = 50  # tensors that shared memory share it again
    assert loaded["tied"][1, 2] == loaded["part"][0, 1] == 50
    if not on_cpu:
        assert unwrap(loaded["whole"])._view is None  # a parameter, which is placed in its own shape


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_tensors_of_the_device_are_saved(is_zip: bool) -> None:
    x = numbers().reshape(2, 3).clone().requires_grad_()
    state = {"x": x, "tied": x.detach(), "view": x.detach().t()[1:], "empty": torch.empty(2, device=DEVICE)}
    state["conj"] = torch.tensor([1 + 2j], device=DEVICE).conj()
    state["parameter"] = torch.nn.Parameter(numbers())
    for location in (None, "cpu"):
        loaded = torch.load(saved(state, _use_new_zipfile_serialization=is_zip), map_location=location)
        for name, value in state.items():
            assert loaded[name].device.type == (location or DEVICE)
            assert loaded[name].requires_grad == value.requires_grad
            assert type(loaded[name]) is type(value)
            assert torch.equal(loaded[name].cpu(), value.cpu()), name
        with torch.no_grad():
            loaded["x"][0, 0] = 7
        assert loaded["tied"][0, 0] == 7


def test_a_legacy_file_is_loaded_onto_the_device() -> None:
    file = saved(torch.ones(3), _use_new_zipfile_serialization=False)
    assert torch.load(file, map_location=DEVICE).tolist() == [1, 1, 1]


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"GTX device 1 but torch\.gtx\.device_count\(\) is 1"):
        torch.load(saved(torch.ones(2)), map_location="gtx:1")


# -- storages ----------------------------------------------------------------------------------

#: What a storage, and a typed one, answer as on the CPU.
READS: list[Callable[[Any], Any]] = [
    lambda s: s.cpu().tolist(),
    lambda s: s.tolist(),
    lambda s: list(s),
    lambda s: s[1],
    lambda s: (len(s), s.size(), s.nbytes(), s.element_size()),
    lambda s: s.clone().tolist(),
    lambda s: copy.copy(s).tolist(),
    lambda s: copy.deepcopy(s).tolist(),
    lambda s: s.to(device="cpu").tolist(),
    lambda s: s.fill_(0).tolist(),
    lambda s: s.copy_(s.clone()).tolist(),
    lambda s: str(s).split("[torch")[0],
    lambda s: s.is_pinned(),
]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("number", range(len(READS)))
def test_storages_are_read_as_on_the_cpu(number: int) -> None:
    for kind in (torch.Tensor.untyped_storage, torch.Tensor.storage):
        on_device, on_cpu = kind(numbers()), kind(numbers("cpu"))
        assert READS[number](on_device) == READS[number](on_cpu)


def test_storages_are_written() -> None:
    x = numbers()
    x.untyped_storage().copy_(torch.ones(6).untyped_storage())
    assert x.tolist() == [1] * 6
    x.untyped_storage()[3] = 64  # the highest byte of the first number, 0x3f800000
    assert x[0] == 4
    x.untyped_storage().byteswap(torch.float32)
    assert x.untyped_storage().tolist()[:4] == [64, 128, 0, 0]
    target = torch.zeros(6).untyped_storage()
    target.copy_(numbers().untyped_storage())
    assert target.tolist() == numbers("cpu").untyped_storage().tolist()
    with pytest.raises(RuntimeError, match="size does not match, self was 24 bytes but src was 8 bytes"):
        x.untyped_storage().copy_(torch.ones(2).untyped_storage())


def test_new_storages_of_the_device() -> None:
    storage = torch.UntypedStorage(8, device=DEVICE)
    assert (storage.device.type, storage.tolist()) == (DEVICE, [0] * 8)
    storage.copy_(torch.ones(2).untyped_storage())
    x = torch.empty(0, device=DEVICE).set_(storage)
    assert x.tolist() == [1, 1]
    x += 1
    assert torch.empty(0, device=DEVICE).set_(storage, 1, (1, 2), (1, 0)).tolist() == [[2, 2]]
    assert torch.UntypedStorage(4).device.type == torch.UntypedStorage(4, device="cpu").device.type == "cpu"
    source = torch.ones(2).untyped_storage()
    moved = source.to(device=DEVICE)
    source.fill_(0)  # a copy was moved
    assert torch.empty(0, device=DEVICE).set_(moved).tolist() == [1, 1]
    assert moved.to(device=DEVICE) is moved
    assert torch.empty(2, device=DEVICE).untyped_storage().tolist() == []  # nothing was written yet


def test_what_needs_the_bytes_as_another_dtype_is_refused() -> None:
    with pytest.raises(gt.GtError, match=r"holds elements of gt\.float32; GT cannot read them as torch\.int32"):
        torch.empty(0, dtype=torch.int32, device=DEVICE).set_(numbers().untyped_storage())
    with pytest.raises(gt.GtError, match="the tensor is on 'gtx' and the storage on cpu"):
        torch.empty(0, device=DEVICE).set_(torch.ones(2).untyped_storage())


#: What needs the memory of a tensor, and torch's or GT's error.
REFUSALS: list[tuple[Callable[[torch.Tensor], Any], str]] = [
    (lambda x: x.share_memory_(), "has no memory in this process"),
    (lambda x: x.untyped_storage().share_memory_(), "has no memory in this process"),
    (lambda x: x.untyped_storage().pin_memory(), "has no memory in this process"),
    (lambda x: x.untyped_storage().resize_(0), "has no memory in this process"),
    (lambda x: x.untyped_storage()[:2], "has no memory in this process"),
    (lambda x: x.__dlpack__(copy=False), "has no memory in this process"),
    (lambda x: x.numpy(), "Use Tensor.cpu()"),
    (lambda x: numpy.asarray(x), "Use Tensor.cpu()"),
    (lambda x: memoryview(x), "bytes-like object"),  # type: ignore[arg-type]
    (lambda x: x.apply_(abs), "only implemented on CPU"),
]


@pytest.mark.parametrize(("function", "text"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_needs_memory_is_refused(function: Callable[[torch.Tensor], Any], text: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError, BufferError)) as error:
        function(numbers())
    assert text in str(error.value)


def test_dlpack_exports_a_copy_on_the_cpu() -> None:
    x = numbers()
    copies = (numpy.from_dlpack(x), torch.from_dlpack(x), torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)))
    x.zero_()
    assert [y.tolist() for y in copies] == [[0, 1, 2, 3, 4, 5]] * 3
    assert torch.from_dlpack(numpy.ones(2)).to(DEVICE).tolist() == torch.from_dlpack(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(BufferError, match="require gradient"):
        numpy.from_dlpack(numbers().requires_grad_())


def test_pickling_copies_the_values() -> None:
    x = numbers().requires_grad_()
    for y in (pickle.loads(pickle.dumps(x)), pickle.loads(ForkingPickler.dumps(x))):
        assert (y.device.type, y.requires_grad, y.tolist()) == (DEVICE, True, [0, 1, 2, 3, 4, 5])
    assert not x.untyped_storage().is_shared()
    y = pickle.loads(ForkingPickler.dumps(numbers("cpu")))  # in shared memory, as before
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.ones(2).share_memory_().is_shared()


@pytest.mark.filterwarnings("ignore:.*assuming the intent is to (save|load) in a single process")
@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_a_distributed_checkpoint(tmp_path):
    import torch.distributed.checkpoint as dcp

    dcp.save({"x": numbers(), "y": torch.ones(2)}, checkpoint_id=str(tmp_path))
    state = {"x": torch.zeros(6, device=DEVICE), "y": torch.zeros(2)}
    dcp.load(state, checkpoint_id=str(tmp_path))
    assert state["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert state["y"].tolist() == [1, 1]
