"""A thread that receives is woken once much has arrived, and never waits for more than what is sent."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from support.exchange_server import WAIT_SECS

from psfleet.exchange.connection import Connection
from psfleet.exchange.low_water import MAX_BYTES, MIN_BYTES, LowWater

SIZES = (1, MIN_BYTES - 1, MIN_BYTES, MIN_BYTES + 1, 2 * MAX_BYTES - 1, 2 * MAX_BYTES, 9 * MAX_BYTES + 7)
Sockets = tuple[socket.socket, socket.socket]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """The end that sends, and the end that receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as first:
        second, _ = listener.accept()
        with second:
            yield first, second


@pytest.mark.parametrize("timeout_secs", [None, WAIT_SECS])
def test_messages_of_all_sizes_arrive_in_turn(sockets: Sockets, timeout_secs: float | None) -> None:
    sent = [np.random.default_rng(size).integers(0, 256, size, np.uint8) for size in (*SIZES, *reversed(SIZES))]
    sender, receiver = (Connection(each) for each in sockets)
    receiver.set_timeout(timeout_secs)
    with ThreadPoolExecutor(1) as pool:
        for each in sent:
            done = pool.submit(sender.send, [each])
            received = np.zeros_like(each)
            receiver.receive_into(received)
            done.result(WAIT_SECS)
            assert np.array_equal(received, each)


def test_a_thread_is_woken_once_for_half_of_what_is_left(sockets: Sockets) -> None:
    sender, receiver = sockets
    receiver.settimeout(WAIT_SECS)
    target = memoryview(bytearray(MIN_BYTES))
    sender.sendall(bytes(1000))
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(LowWater(receiver).receive, MIN_BYTES, [target])
        threading.Event().wait(0.2)
        assert not received.done()
        sender.sendall(bytes(MIN_BYTES - 1000))
        assert received.result(WAIT_SECS) >= MIN_BYTES // 2


def test_a_message_that_arrives_slowly_is_received_at_each_timeout(sockets: Sockets) -> None:
    """On such a link fewer bytes than are awaited arrive within the timeout."""
    sender, receiver = sockets
    receiver.settimeout(0.2)
    target = memoryview(bytearray(MIN_BYTES))
    sender.sendall(bytes(1000))
    low_water = LowWater(receiver)
    assert low_water.receive(MIN_BYTES, [target]) == 1000
    with pytest.raises(TimeoutError):
        low_water.receive(MIN_BYTES, [target])


def test_an_end_wakes_a_thread_that_waits_for_much(sockets: Sockets) -> None:
    sender, receiver = sockets
    receiver.settimeout(10 * WAIT_SECS)
    sender.sendall(bytes(1000))
    target = memoryview(bytearray(MIN_BYTES))
    low_water = LowWater(receiver)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(low_water.receive, MIN_BYTES, [target])
        threading.Event().wait(0.2)
        assert not received.done()
        with suppress(OSError):
            sender.shutdown(socket.SHUT_RDWR)
        assert received.result(WAIT_SECS) == 1000
    assert low_water.receive(1, [target]) == 0


@pytest.mark.parametrize("timeout_secs", [None, WAIT_SECS])
def test_unix_sockets_have_no_marks(timeout_secs: float | None) -> None:
    """With one, a call without a timeout would wait for it."""
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.settimeout(timeout_secs)
        sender.sendall(bytes(1000))
        assert LowWater(receiver).receive(MIN_BYTES, [memoryview(bytearray(MIN_BYTES))]) == 1000


def test_a_kernel_without_the_option_receives_all_the_same(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = sockets
    monkeypatch.setattr(socket, "SO_RCVLOWAT", 9999)
    sender.sendall(bytes(1000))
    target = memoryview(bytearray(MIN_BYTES))
    assert LowWater(receiver).receive(MIN_BYTES, [target]) == 1000


def test_a_machine_that_the_kernel_has_given_up_is_not_asked_again() -> None:
    calls = []

    class Lost(socket.socket):
        def recvmsg_into(self, *args: object) -> tuple[int, list[tuple[int, int, bytes]], int, object]:
            calls.append(args)
            raise TimeoutError(errno.ETIMEDOUT, "connection timed out")

    with Lost() as lost, pytest.raises(TimeoutError, match="connection timed out"):
        LowWater(lost).receive(MIN_BYTES, [memoryview(bytearray(1))])
    assert len(calls) == 1
