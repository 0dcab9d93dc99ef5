"""The state of the random numbers: a generator has a seed and a count.

Each random op gets a pair (seed, stream). The stream is the number of random ops that drew from the generator since its
seed was set. An element's value depends only on this pair and on its position, so it does not depend on the number of
workers. Functions without ``generator=`` draw from `default_generator`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from operator import index
from typing import Any

from gt.client.stream import recorder
from gt.client.tensor.arguments import Device, check_device, upload_array
from gt.errors import DTypeError, ShapeError

__all__ = ["Generator", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]

#: the length of the tensor that `get_rng_state` returns
STATE_BYTES = 16
#: the seed of a new generator, torch's
DEFAULT_SEED = 67280421310721


def _signed(seed: int) -> int:
    """The seed as the wire carries it: as a signed 64-bit number."""
    return (seed + 2**63) % 2**64 - 2**63


def _random_seed() -> int:
    return _signed(int.from_bytes(os.urandom(8)))


class Generator:
    """A source of random numbers with a seed of its own: ``gt.randn(3, generator=gt.Generator().manual_seed(0))``.

    The device is accepted and ignored. See `torch.Generator`.
    """

    # no __dict__: `gt.compile` would take the seed for a part of the arguments
    __slots__ = ("__weakref__", "_seed", "_streams")

    def __init__(self, device: Any = None) -> None:
        check_device(device)
        self._seed, self._streams = DEFAULT_SEED, itertools.count()

    @property
    def device(self) -> Device:
        """Always ``"gt"``: workers draw the numbers."""
        return Device("gt")

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed: the same seed and the same draws give the same numbers. Returns the generator."""
        seed = index(seed)
        if not -(2**63) <= seed < 2**64:
            raise DTypeError(f"manual_seed({seed}): a seed has at most 64 bits")
        self._restore((_signed(seed), 0))
        return self

    def seed(self) -> int:
        """Set a random seed and return it."""
        return self.manual_seed(_random_seed()).initial_seed()

    def initial_seed(self) -> int:
        """The seed that was set last."""
        return self._seed % 2**64

    def get_state(self) -> Any:
        """The state as a tensor of 16 bytes, which can be saved with a model."""
        import numpy as np

        return upload_array(np.frombuffer(struct.pack("<qq", *self._state()), dtype=np.uint8))

    def set_state(self, new_state: Any) -> None:
        """Continue from a state that `get_state` returned. Reads the tensor."""
        data = bytes(new_state.tolist())
        if len(data) != STATE_BYTES:
            raise ShapeError(f"set_rng_state(): the state has {STATE_BYTES} bytes, not {len(data)}")
        self._restore(struct.unpack("<qq", data))

    def clone_state(self) -> Generator:
        """A new generator with the same state."""
        new = Generator()
        new._restore(self._state())
        return new

    def _state(self) -> tuple[int, int]:
        """The seed and the next stream."""
        # The text of a count is the only access that does not advance it.
        return self._seed, int(repr(self._streams)[len("count(") : -1])

    def _restore(self, state: tuple[int, int]) -> None:
        if recorder.active is not None:
            recorder.active.refuse("it sets the seed of random numbers")
        self._seed, self._streams = state[0], itertools.count(state[1])

    def __repr__(self) -> str:
        return f"<gt.Generator seed={self.initial_seed()}>"


#: what functions without ``generator=`` draw from
default_generator = Generator()
default_generator._seed = _random_seed()
#: functions that get each new seed: other sources of random numbers that a program uses with GT
followers: list[Callable[[int], object]] = []


def key(generator: Generator | None = None) -> tuple[int, int]:
    """The first two operands of a random op. Every call returns another pair."""
    if generator is None:
        generator = default_generator
    elif type(generator) is not Generator:
        raise DTypeError(f"generator is a gt.Generator, not a {type(generator).__module__}.{type(generator).__name__}")
    pair = generator._seed, next(generator._streams)
    if recorder.active is not None:
        recorder.active.draws.append((generator, pair))
    return pair


def manual_seed(seed: int) -> Generator:
    """Set the seed of random numbers: the same seed and the same program give the same numbers."""
    default_generator.manual_seed(seed)
    for follow in followers:
        follow(initial_seed())
    return default_generator


def seed() -> int:
    """Set a random seed and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed that was set last, or the random one of this process."""
    return default_generator.initial_seed()


def get_rng_state() -> Any:
    """The state of the random numbers as a tensor of 16 bytes, which can be saved with a model."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Continue from a state that `get_rng_state` returned. Reads the tensor."""
    default_generator.set_state(new_state)


def state() -> tuple[int, int]:
    """The state of the default generator; see `restored`."""
    return default_generator._state()


@contextlib.contextmanager
def restored(earlier: tuple[int, int] | None) -> Iterator[None]:
    """Inside the block, draw from an earlier state again. Afterwards, continue as if the block had drawn nothing."""
    before = default_generator._seed, default_generator._streams
    if earlier is not None:
        default_generator._seed, default_generator._streams = earlier[0], itertools.count(earlier[1])
    try:
        yield
    finally:
        default_generator._seed, default_generator._streams = before
