"""A member's connection to the store of its group, as a store of torch.distributed (see `store`)."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed

from gt.wire.addresses import join_address, split_address
from gt.wire.auth import Keys
from gt.wire.server_keys import key_from_text
from gt.wire.sockets import ZmqConnection
from gt.worker.collectives.interface import GroupBroken
from gt.worker.collectives.membership import Cancelled
from gt.worker.collectives.store import StoreAnswer, StoreRequest, member_keys

#: torch has no types for what is used here
_dist: Any = torch.distributed

#: Seconds after which a store that has not answered counts as lost. It answers at once, except to "wait".
ANSWER_TIMEOUT_S = 30.0
#: The interval between two checks whether the group was left meanwhile.
CANCEL_POLL_S = 0.1


class MemberStore(_dist.Store):  # type: ignore[misc]
    """``address``: "host:port KEY". All keys begin with ``prefix``. Any thread may call it, one at a time."""

    def __init__(self, address: str, data_secret: bytes, prefix: str, timeout: timedelta) -> None:
        super().__init__()
        self._arguments = address, data_secret, prefix, timeout
        where, _, key = address.partition(" ")
        server, own = key_from_text(key), member_keys(data_secret)
        if server is None:
            raise GroupBroken(f"{address} is not the address of a store")
        self._where, self._prefix, self._timeout = where, prefix, timeout
        keys = Keys(own.public, own.secret, server)
        self._connection = ZmqConnection(f"tcp://{join_address(*split_address(where))}", keys, reconnect=False)
        self._lock, self._count = threading.Lock(), 0
        #: Seconds until the first answer, connecting included: several times the way to the store and back.
        self.first_answer_s = 0.0
        #: torch holds no reference to the Python half of a clone
        self._clones: list[MemberStore] = []

    # -- what torch calls -----------------------------------------------------------------

    def set(self, key: str, value: bytes | str) -> None:
        self._answer("set", [key], value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._wait([key], self._timeout)[0]

    def add(self, key: str, amount: int) -> int:
        return int(self._answer("increase", [key], str(amount).encode())[0] or b"0")

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self._answer("compare", [key], expected, desired)[0] or expected

    def deleteKey(self, key: str) -> bool:
        existed = self.check([key])
        self._answer("delete", [key])
        return existed

    def check(self, keys: list[str]) -> bool:
        return None not in self._answer("wait", keys, now=True)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, timeout or self._timeout)

    def clone(self) -> MemberStore:
        clone = MemberStore(*self._arguments)
        self._clones.append(clone)
        return clone

    # -- the connection -------------------------------------------------------------------

    def wait_for(self, keys: list[str], seconds: float, cancelled: Cancelled) -> list[bytes] | None:
        """The values of the keys as soon as all exist; None if they do not in time. Raises GroupBroken."""
        answer = self._ask("wait", keys, seconds=seconds, cancelled=cancelled)
        return None if answer is None else [value or b"" for value in answer]

    def close(self) -> None:
        for store in (*self._clones, self):
            with store._lock:
                store._connection.close()

    def _wait(self, keys: list[str], timeout: timedelta) -> list[bytes]:
        return [value or b"" for value in self._answer("wait", keys, seconds=timeout.total_seconds())]

    def _answer(
        self, action: str, keys: list[str], *values: bytes, seconds: float = ANSWER_TIMEOUT_S, now: bool = False
    ) -> list[bytes | None]:
        """The values of the keys, after the action. Raises GroupBroken."""
        answer = self._ask(action, keys, *values, seconds=seconds, now=now)
        if answer is None:
            raise GroupBroken(f"the store at {self._where} did not answer within {seconds:g} s")
        return answer

    def _ask(
        self, action: str, keys: list[str], *values: bytes, seconds: float, now: bool = False,
        cancelled: Cancelled = lambda: False,
    ) -> list[bytes | None] | None:  # fmt: skip
        """The values of the keys, after the action; None if there is no answer in time. Raises GroupBroken."""
        with self._lock:
            self._count += 1
            request = StoreRequest(self._count, action, [f"{self._prefix}/{key}" for key in keys], list(values), now)
            self._connection.send([msgspec.msgpack.encode(request)])
            began = time.monotonic()
            deadline = began + seconds
            while (left := deadline - time.monotonic()) > 0:
                self._connection.wait(int(min(left, CANCEL_POLL_S) * 1000) + 1)
                for frames in self._connection.take():
                    answer = msgspec.msgpack.decode(frames[0], type=StoreAnswer)
                    if answer.number == self._count:  # not one to a request that was given up
                        self.first_answer_s = self.first_answer_s or time.monotonic() - began
                        return answer.values
                if cancelled():
                    raise GroupBroken("the group was left before all had joined")
                if problem := self._problem():
                    raise GroupBroken(f"the store at {self._where} {problem}")
        return None

    def _problem(self) -> str:
        if self._connection.refused:
            return "refuses this worker: they have different servers"
        return "is gone" if self._connection.ended or self._connection.unreachable else ""
