"""A client's connection under interrupts and between threads: no partial message, no lost interrupt, no busy loop."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from typing import Any

import pytest

from gt.client.stream import link
from gt.client.stream.link import ThreadedLink
from gt.wire import unix
from gt.wire.unix import Inbox, UnixConnection, UnixListener
from gt.worker.recovery.snapshots import WakePipe


def test_an_interrupt_does_not_cut_a_message_in_two(tmp_path: Any, stack: contextlib.ExitStack) -> None:
    """Ctrl-C while a message waits for room in the socket: the other side still reads complete messages."""
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    connection = UnixConnection(str(tmp_path / "socket"))
    connection.wait(0)
    other = stack.enter_context(listener.accept()[0])
    client = ThreadedLink(connection, lambda frames: None)
    main, received = threading.get_ident(), bytearray()

    def read() -> None:
        received.extend(other.recv(1))  # the first part of it has arrived, and the rest does not fit
        signal.pthread_kill(main, signal.SIGINT)
        while data := other.recv(1 << 20):
            received.extend(data)

    reader = threading.Thread(target=read)
    reader.start()

    def send_and_wait() -> None:
        client.send([bytes(8 << 20)])
        time.sleep(10)  # the interrupt comes when the message is sent

    with pytest.raises(KeyboardInterrupt):
        send_and_wait()
    client.send([b"next"])
    client.close()
    reader.join()
    assert [len(frame) for (frame,) in Inbox().split(bytes(received))] == [8 << 20, 4]


def test_a_server_that_does_not_read_counts_as_lost(
    tmp_path: Any, stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that finds no room in the socket for too long ends the connection."""
    monkeypatch.setattr(unix, "SEND_TIMEOUT_S", 0.05)
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    connection = UnixConnection(str(tmp_path / "socket"))
    stack.callback(connection.close)
    connection.wait(0)
    connection.send([bytes(8 << 20)])
    assert connection.ended == "the server does not accept messages (timed out)"


def test_an_interrupt_while_a_tensor_is_freed_is_not_lost(system: Any) -> None:
    """Python ignores exceptions in a destructor. The program still receives the interrupt, and the tensor is freed."""
    client = system.client(
        """
        from gt.client.stream.templates import Templates
        from gt.client.stream.connect import session
        x = gt.ones(1000)
        say(x.sum().item())
        empty = Templates.empty

        class Interrupted(property):
            def __get__(self, fragments, kind):
                Templates.empty = empty
                signal.raise_signal(signal.SIGINT)

        Templates.empty = Interrupted()
        assert not session().outbox.words
        try:
            del x
            time.sleep(10)
            say("nobody knows of it")
        except KeyboardInterrupt:
            say("interrupted")
        say("bytes:", gt.debug.memory()["worker 0"]["all_clients"]["bytes"])
        """
    )
    client.expect("1000.0")
    client.expect("interrupted")
    client.expect("bytes: 0")
    assert client.end() == 0
    assert "Exception ignored" not in client.output


class Idle:
    """A connection that never receives anything."""

    ended = refused = ""

    def __init__(self) -> None:
        self.poll = select.poll()

    def also_wake_on(self, fd: int) -> None:
        self.poll.register(fd, select.POLLIN)

    def send(self, frames: list[Any]) -> None: ...

    def wait(self, milliseconds: int) -> bool:
        return bool(self.poll.poll(milliseconds))

    def take(self) -> list[list[bytes]]:
        return []

    def close(self) -> None: ...


@pytest.mark.parametrize("first", ["the holder", "the byte"])
def test_a_wake_up_leaves_no_byte_behind(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that holds the turn may look before or after the waker's byte arrives: later waits really wait."""
    connection = Idle()
    client = ThreadedLink(connection, lambda frames: None)

    def write(fd: int, data: bytes) -> None:
        if first == "the holder":
            client._once(0)
        os.write(fd, data)
        if first == "the byte":
            client._once(0)

    with monkeypatch.context() as patch:
        patch.setattr(link, "os", type("os", (), {"write": staticmethod(write), "read": staticmethod(os.read)}))
        client._wake()
    client._once(0)
    assert not connection.wait(0)
    client.close()


def test_messages_that_find_no_room_arrive_whole_and_in_order(tmp_path: Any, stack: contextlib.ExitStack) -> None:
    """Small and large ones, with one frame and with more, in both directions, while the other side does not read."""
    listener = UnixListener(str(tmp_path / "socket"))
    stack.callback(listener.close)
    connection = UnixConnection(str(tmp_path / "socket"))
    stack.callback(connection.close)
    connection.wait(0)
    sent = [[b"%d" % k * (1 + k % 400)] * (1 + (k % 7 == 0)) for k in range(3000)] + [[bytes(1 << 20)], [b"last"]]

    def send() -> None:
        for frames in sent:
            connection.send(frames)

    sender = threading.Thread(target=send)
    sender.start()
    received: list[Any] = []
    while len(received) < len(sent):
        received += listener.receive(1.0)
    sender.join()
    peer = received[0][0]
    assert received == [(peer, frames) for frames in sent]
    assert all(listener.send(peer, frames) for frames in sent)
    assert listener._by_name[peer].unsent
    answers: list[Any] = []
    while len(answers) < len(sent):
        assert not list(listener.receive(0.0))  # it sends what waits
        if connection.wait(10):
            answers += connection.take()
    assert answers == sent


def test_a_worker_s_wake_pipe_is_empty_after_each_wake() -> None:
    pipe, poll = WakePipe(), select.poll()
    poll.register(pipe.fd, select.POLLIN)
    for wakes in (1, 3):
        for _ in range(wakes):
            pipe.wake()
        assert poll.poll(0)
        pipe.drain()
        assert not poll.poll(0)
        pipe.drain()
