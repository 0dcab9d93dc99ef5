"""The store where the members of a group meet: encrypted, and open only to workers of the same server.

The worker with rank 0 serves it. Each worker has one `StoreServer`, which listens from the start, for all groups that
the worker leads. A connection to it is authenticated both ways by CURVE, as the connections to the server are. The
member must have the key that follows from the *data secret*, which the server gives to its workers and to nobody else.
The worker must have the key that the server announced with its address.

gloo and NCCL read and write the store through `MemberStore` in `gt.worker.collectives.member_store`. This file needs
no torch.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import deque
from typing import Any

import msgspec
import zmq

from gt.errors import ConfigError
from gt.wire.addresses import AddressTaken, join_address, split_address
from gt.wire.server_keys import KeyPair, key_pair_from, key_text
from gt.wire.sockets import Gatekeeper, configure_socket
from gt.wire.token_file import Identities
from gt.worker.collectives.descriptors import WakeEvent

#: The keys of this many groups that were left are kept: other members may still need them.
KEPT_GROUPS = 64
#: The most bytes that the keys and values of all groups take.
MAX_STORE_BYTES = 64 << 20


class StoreRequest(msgspec.Struct, frozen=True, array_like=True):
    """What a member asks: "set", "increase", "compare", "delete", or "wait" for these keys; ``now``: do not wait."""

    number: int
    action: str
    keys: list[str]
    values: list[bytes] = []
    now: bool = False


class StoreAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The values of the keys after the request; None for a key that does not exist."""

    number: int
    values: list[bytes | None]


def member_keys(data_secret: bytes) -> KeyPair:
    """The key pair of all workers of a server."""
    return key_pair_from(hashlib.blake2b(data_secret, digest_size=32, person=b"gt/data").digest())


class StoreValues:
    """The keys and values, and the requests that wait for a key. Without sockets."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._nbytes = 0
        self._waiting: deque[tuple[bytes, StoreRequest]] = deque()

    def handle(self, peer: bytes, request: StoreRequest) -> list[tuple[bytes, StoreAnswer]]:
        """The answers that can be given now, to this request and to those that have waited."""
        # a member that asks again has given up what it waited for
        self._waiting = deque(entry for entry in self._waiting if entry[0] != peer)
        changed = request.action != "wait"
        if changed:
            self._change(request)
        if not changed and not request.now and not self._complete(request):
            self._waiting.append((peer, request))
            return []
        answers = [(peer, self._answer(request))]
        if changed:
            ready = [entry for entry in self._waiting if self._complete(entry[1])]
            for entry in ready:
                self._waiting.remove(entry)
                answers.append((entry[0], self._answer(entry[1])))
        return answers

    def forget(self, group: str) -> None:
        """Remove the keys of a group."""
        prefix = f"{group}/"
        for key in [key for key in self.values if key.startswith(prefix)]:
            self._put(key, None)
        self._waiting = deque(entry for entry in self._waiting if not entry[1].keys[0].startswith(prefix))

    def _change(self, request: StoreRequest) -> None:
        key, values = request.keys[0], request.values
        if request.action == "set":
            self._put(key, values[0])
        elif request.action == "increase":
            self._put(key, str(int(self.values.get(key, b"0")) + int(values[0])).encode())
        elif request.action == "compare":
            if self.values.get(key, b"") == values[0]:
                self._put(key, values[1])
        elif request.action == "delete":
            self._put(key, None)

    def _put(self, key: str, value: bytes | None) -> None:
        before = self.values.pop(key, None)
        self._nbytes -= 0 if before is None else len(key) + len(before)
        if value is None:
            return
        if self._nbytes + len(key) + len(value) > MAX_STORE_BYTES:
            raise ValueError("the store is full")
        self._nbytes += len(key) + len(value)
        self.values[key] = value

    def _complete(self, request: StoreRequest) -> bool:
        return all(key in self.values for key in request.keys)

    def _answer(self, request: StoreRequest) -> StoreAnswer:
        return StoreAnswer(request.number, [self.values.get(key) for key in request.keys])


class StoreServer:
    """Listens on a numeric address and the first free port. Raises AddressTaken or ConfigError.

    Nobody is admitted until `admit` was called. A thread serves it; it ends with `close`.
    """

    def __init__(self, host: str, ports: range) -> None:
        self._keys = key_pair_from(secrets.token_bytes(32))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._members = Identities(None)
        self._gatekeeper = Gatekeeper(self._context, self._members, lambda address, reason: None)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        configure_socket(self._socket, self._keys)
        self._socket.curve_server = True
        port = self._bind(host, ports)
        #: "host:port KEY", for members
        self.address = f"{join_address(host, port)} {key_text(self._keys.public)}"
        self._values, self._lock = StoreValues(), threading.Lock()
        self._left: deque[str] = deque()
        self._wakeup, self._closed = WakeEvent(), False
        threading.Thread(target=self._run, name="gt store", daemon=True).start()

    def admit(self, data_secret: bytes) -> None:
        """From here on workers that have this secret may connect."""
        self._members.set_owner(member_keys(data_secret).public)

    def leave(self, group: str) -> None:
        """This worker has left a group that it led."""
        with self._lock:
            self._left.append(group)
            if len(self._left) > KEPT_GROUPS:
                self._values.forget(self._left.popleft())

    def close(self) -> None:
        self._closed = True
        self._wakeup.set()

    def _bind(self, host: str, ports: range) -> int:
        for port in ports:
            try:
                self._socket.bind(f"tcp://{join_address(host, port or '*')}")
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    self._context.destroy(linger=0)
                    raise ConfigError(f"cannot listen on {join_address(host, port)}: {error.strerror}") from None
                continue
            return split_address(str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT)))[1]
        self._context.destroy(linger=0)
        raise AddressTaken(f"all ports from {ports[0]} to {ports[-1]} of {host} are taken; --ports names others")

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._socket, self._gatekeeper.socket, self._wakeup.fd):
            poller.register(source, zmq.POLLIN)
        while not self._closed:
            for source, _ in poller.poll():
                if source is self._gatekeeper.socket:
                    self._gatekeeper.answer()
                elif source is self._socket:
                    self._receive()
        self._context.destroy(linger=0)
        self._wakeup.close()

    def _receive(self) -> None:
        """Answer one request. A member that sends anything else gets no answer: all members are trusted workers."""
        peer, *frames = self._socket.recv_multipart()
        try:
            request: Any = msgspec.msgpack.decode(frames[0], type=StoreRequest)
            with self._lock:
                answers = self._values.handle(peer, request)
        except (msgspec.DecodeError, ValueError, IndexError):
            return
        for to, answer in answers:
            self._socket.send_multipart([to, msgspec.msgpack.encode(answer)])
