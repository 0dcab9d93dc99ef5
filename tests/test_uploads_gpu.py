"""Values that a worker copies to its GPU: the worker does not wait for the kernels before them, and no byte changes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gt.ops import OPS, sign
from gt.ops.system import upload
from gt.types import BYTES
from gt.worker.engines import make_engine

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ELEMENTS = 4 << 20


def signature(elements: int) -> Any:
    return sign(OPS["upload"], (("shape", (elements,)), ("dtype", "float32")), (BYTES,))


def received(engine: Any, values: np.ndarray[Any, Any]) -> memoryview:
    """The values in the memory into which a worker receives them."""
    memory = memoryview(engine.allocate(values.nbytes))
    memory[:] = values.view(np.uint8).data
    return memory


@needs_gpu
@pytest.mark.parametrize("elements", [100, ELEMENTS])
def test_an_upload_does_not_wait_for_kernels(elements: int) -> None:
    engine = make_engine("torch", "cuda:0")
    kernel, values = engine.link(signature(elements)), np.random.default_rng(0).random(elements, np.float32)
    kernel(received(engine, values))  # the first one creates the stream and the pinned memory
    square = torch.randn(8192, 8192, device="cuda:0")
    square @ square
    torch.cuda.synchronize()
    data = received(engine, values)
    for _ in range(20):  # about 20 ms each in float32
        square @ square
    ended = torch.cuda.Event()
    ended.record()
    started = time.perf_counter()
    array = kernel(data)
    seconds = time.perf_counter() - started
    assert not ended.query(), "the kernels before it have ended"
    assert seconds < 0.1
    assert array.cpu().numpy().tobytes() == values.tobytes()


@needs_gpu
def test_memory_is_not_used_again_before_its_copy_has_ended() -> None:
    engine = make_engine("torch", "cuda:0")
    kernel, rng = engine.link(signature(ELEMENTS)), np.random.default_rng(0)
    sent = [rng.random(ELEMENTS, np.float32) for _ in range(8)]
    for _ in range(5):
        arrays = [kernel(received(engine, values)) for values in sent]
        doubled = [array * 2 for array in arrays]
        for values, array, twice in zip(sent, arrays, doubled, strict=True):
            assert array.cpu().numpy().tobytes() == values.tobytes()
            assert twice.cpu().numpy().tobytes() == (values * 2).tobytes()


class FakeStream:
    def __init__(self, events: list[str], name: str) -> None:
        self.events, self.name = events, name

    def wait_stream(self, other: FakeStream) -> None:
        self.events.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self.events.append(f"in {self.name}")

    def __exit__(self, *_: object) -> None:
        self.events.append(f"out of {self.name}")


def test_a_large_copy_runs_beside_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls, with a torch that records them."""
    events: list[str] = []
    host = SimpleNamespace(
        nbytes=upload.MIN_BESIDE_BYTES,
        to=lambda device, non_blocking: events.append(f"copy {non_blocking}") or array,
    )
    array = SimpleNamespace(record_stream=lambda stream: events.append(f"used in {stream.name}"))
    cuda = SimpleNamespace(
        Stream=lambda device: FakeStream(events, "copies"),
        current_stream=lambda device: FakeStream(events, "kernels"),
        stream=lambda stream: stream,
    )
    fake = SimpleNamespace(cuda=cuda, device=torch.device)
    monkeypatch.setattr(upload, "from_bytes_torch", lambda *_: host)
    monkeypatch.setattr(upload, "_copy_stream", lambda torch, device: cuda.Stream(device))
    large = upload._upload(fake, b"", shape=(1,), dtype="uint8", device="cuda:0")
    assert large is array
    assert events == ["in copies", "copy True", "out of copies", "kernels waits for copies", "used in kernels"]
    events.clear()
    host.nbytes -= 1
    upload._upload(fake, b"", shape=(1,), dtype="uint8", device="cuda:0")
    assert events == ["copy True"]
