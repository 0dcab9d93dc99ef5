"""``python -m tests.support.cable PID NAME PID NAME DELAY_MS LOSS MBIT``: a slow and lossy network cable in user space.

It creates a network card in the network namespaces of two processes and carries the frames between them, each way late,
at a limited rate, and not all of them. For kernels without netem.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
#: A longer queue loses what comes, as that of a real card does.
QUEUE_LENGTH = 1000


def open_card(pid: int, name: str) -> int:
    """A descriptor for the frames of a new card in the network namespace of a process."""
    with open(f"/proc/{pid}/ns/net") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to the network of process {pid}")
    card = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(card, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return card


class Direction:
    """The frames on their way from one card to the other."""

    def __init__(self, source: int, target: int, delay_s: float, loss: float, seconds_per_byte: float) -> None:
        self.source, self._target = source, target
        self._delay_s, self._loss, self._seconds_per_byte = delay_s, loss, seconds_per_byte
        self._frames: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        self._random = random.Random(1)

    def take(self, now: float) -> None:
        while True:
            try:
                frame = os.read(self.source, 1 << 16)
            except BlockingIOError:
                return
            if len(self._frames) < QUEUE_LENGTH and self._random.random() >= self._loss:
                self._free_at = max(now, self._free_at) + len(frame) * self._seconds_per_byte
                self._frames.append((self._free_at + self._delay_s, frame))

    def deliver(self, now: float) -> float:
        """Deliver the frames that are due. Returns when the next one is."""
        while self._frames and self._frames[0][0] <= now:
            try:
                os.write(self._target, self._frames.popleft()[1])
            except OSError:  # the card is not up: the frame is lost
                continue
        return self._frames[0][0] if self._frames else now + 1.0


def main(words: list[str]) -> None:
    cards = [open_card(int(words[0]), words[1]), open_card(int(words[2]), words[3])]
    delay_s, loss, mbit = float(words[4]) / 1000, float(words[5]), float(words[6])
    effects = delay_s, loss, 8 / (mbit * 1e6) if mbit else 0.0
    directions = [Direction(*cards, *effects), Direction(*reversed(cards), *effects)]
    print("ready", flush=True)
    while True:
        due = min(direction.deliver(time.monotonic()) for direction in directions)
        readable, _, _ = select.select(cards, [], [], max(0.0, due - time.monotonic()))
        for direction in directions:
            if direction.source in readable:
                direction.take(time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1:])
