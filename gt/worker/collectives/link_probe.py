"""Measuring the link between two workers: one accepts connections for a while, the other one sends bytes and waits.

    measuring                        accepting
    the key of the probe      ──▶    closes the connection if it is another key
    how many bytes follow, n  ──▶
    n bytes                   ──▶
                              ◀──    8 bytes, when all have arrived
    and so on, until the first closes the connection

Latency is half of the shortest exchange without bytes. The rate is the best one of a few sizes: worse ones are those of
small messages, or of a busy processor. Every wait is limited, and so is what a stranger could send.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable

from gt.errors import ConfigError
from gt.say import topic
from gt.wire.addresses import join_address, listen_within, numeric_addresses, split_address
from gt.wire.link_messages import LinkMeasured, MeasureLink, OpenProbe, ProbeOpen
from gt.wire.structures import Message

KEY_BYTES = 16
#: A probe accepts connections this long; one connection is served this long.
PROBE_S, CONNECTION_S = 15.0, 5.0
#: Exchanges without bytes: at least the first number, at most the second, as long as there is time.
PINGS, MAX_PINGS, PING_S = 4, 40, 0.2
#: The sizes of messages for the rate. No larger one is sent once this many seconds have passed.
SIZES = tuple(1 << n for n in range(16, 24, 2))
RATE_S = 0.3
_LENGTH = struct.Struct("!Q")


class LinkProbe:
    """The measurements of one worker, each in a thread of its own. ``wake``: a measurement has something to send."""

    def __init__(self, host: str, ports: range, wake: Callable[[], None]) -> None:
        self._host, self._ports, self._wake = host, ports, wake
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._say = topic("GT_VERBOSE")

    def handle(self, message: OpenProbe | MeasureLink) -> None:
        run = self._accept if isinstance(message, OpenProbe) else self._measure
        threading.Thread(target=run, args=(message,), name="gt link probe", daemon=True).start()

    def finished(self) -> list[Message]:
        """The messages to send to the dispatcher."""
        messages = []
        while not self._messages.empty():  # only one thread takes messages
            messages.append(self._messages.get_nowait())
        return messages

    def _post(self, message: Message) -> None:
        self._messages.put(message)
        self._wake()

    def _accept(self, m: OpenProbe) -> None:
        key, end = os.urandom(KEY_BYTES), time.monotonic() + PROBE_S
        try:
            host = numeric_addresses(self._host)[0]
            listener = listen_within(host, self._ports, backlog=m.count)
        except (ConfigError, OSError):  # no free port: the links stay unmeasured
            return
        with listener:
            self._post(ProbeOpen(join_address(host, listener.getsockname()[1]), key))
            served = 0
            while served < m.count and (left := end - time.monotonic()) > 0:
                listener.settimeout(left)
                with contextlib.suppress(OSError):  # a stranger, or a peer that is lost
                    connection, _ = listener.accept()
                    with connection:
                        served += answer(connection, key)

    def _measure(self, m: MeasureLink) -> None:
        latency_us, bytes_per_us = 0.0, 0.0
        try:
            with socket.create_connection(split_address(m.address), CONNECTION_S) as connection:
                latency_us, bytes_per_us = measure(connection, m.key)
        except (OSError, ConfigError):  # a firewall, or the other worker has ended: the link stays unmeasured
            pass
        self._post(LinkMeasured(m.worker, latency_us, bytes_per_us))
        if self._say:
            figures = f"{latency_us / 1e3:.2f} ms, {bytes_per_us:.3g} MB/s" if latency_us else "could not be measured"
            self._say(f"the link to worker {m.worker}: {figures}")


def answer(connection: socket.socket, key: bytes) -> bool:
    """Serve one connection until its end or for `CONNECTION_S`; whether it knew the key. Raises OSError."""
    end = time.monotonic() + CONNECTION_S
    _prepare(connection)
    if not hmac.compare_digest(_receive(connection, KEY_BYTES), key):
        return False
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
            if length > SIZES[-1]:
                break
            _receive(connection, length)
            connection.sendall(_LENGTH.pack(length))
    return True


def measure(connection: socket.socket, key: bytes) -> tuple[float, float]:
    """(latency in microseconds, bytes in a microsecond) of a connection whose other end answers. Raises OSError."""
    _prepare(connection)
    connection.sendall(key)
    round_trip, end = _exchange(connection, 0), time.monotonic() + PING_S
    for number in range(1, MAX_PINGS):
        if number < PINGS or time.monotonic() < end:
            round_trip = min(round_trip, _exchange(connection, 0))
    rate, end = 0.0, time.monotonic() + RATE_S
    for length in SIZES:
        seconds = _exchange(connection, length)
        rate = max(rate, length / max(seconds - round_trip, 0.1 * seconds) / 1e6)
        if time.monotonic() > end:
            break
    return round_trip / 2 * 1e6, rate


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(CONNECTION_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _exchange(connection: socket.socket, length: int) -> float:
    """The seconds until this many bytes have arrived and were acknowledged."""
    began = time.perf_counter()
    connection.sendall(_LENGTH.pack(length) + bytes(length))
    _receive(connection, _LENGTH.size)
    return time.perf_counter() - began


def _receive(connection: socket.socket, length: int) -> bytes:
    """Exactly this many bytes. Raises OSError if the connection ends before."""
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(length - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection ended")
        parts += part
    return bytes(parts)
