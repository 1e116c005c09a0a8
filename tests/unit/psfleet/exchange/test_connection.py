"""Arrays arrive as they were sent, and whatever ends a connection ends what waits for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from psfleet.exchange.connection import SMALL_BYTES, Connection, joined
from psfleet.exchange.messages import LENGTH, MAX_GREETING_BYTES, Answer, Greeting, receive_text, send_text
from worker_service.connections import INLINE_BYTES

WAIT_SECS = 30.0
Pair = tuple[Connection, Connection]


@pytest.fixture(params=["TCP", "Unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    connections = tuple(map(Connection, socket.socketpair() if request.param == "Unix" else tcp_pair()))
    assert len(connections) == 2
    for each in connections:
        each.set_timeout(WAIT_SECS)
    yield connections
    for each in connections:
        each.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        return first, listener.accept()[0]


@pytest.mark.parametrize("at_once", [1, 100, 2000])
def test_many_arrays_arrive_one_after_the_other(pair: Pair, at_once: int) -> None:
    random = np.random.default_rng(1)
    sent = [random.normal(size=size).astype(np.float32) for size in [*range(1200), 3_000_000]]
    sent.append(np.arange(7, dtype=np.float32).astype(ml_dtypes.bfloat16))
    received = [np.empty_like(each) for each in sent]
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(pair[0].send, [b"head", *sent])
        assert pair[1].receive(4) == b"head"
        for at in range(0, len(received), at_once):
            pair[1].receive_into(*received[at : at + at_once])
        done.result(WAIT_SECS)
    assert all(np.array_equal(one, other) for one, other in zip(sent, received, strict=True))


@pytest.mark.parametrize("end", ["its own", "the other"])
def test_a_connection_that_ends_wakes_the_thread_that_receives(pair: Pair, end: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair[0].receive, 1)
        pair[0 if end == "its own" else 1].close()
        with pytest.raises(OSError, match="closed"):
            waiting.result(WAIT_SECS)


def test_a_connection_that_ends_wakes_the_thread_that_sends(pair: Pair) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair[0].send, [np.zeros(100_000_000, np.uint8)])
        pair[1].close()
        with pytest.raises(ConnectionError):
            waiting.result(WAIT_SECS)


def test_a_connection_is_not_used_after_it_was_closed(pair: Pair) -> None:
    pair[0].close()
    pair[0].close()
    with pytest.raises(OSError, match="closed"):
        pair[0].send([b"x"])
    with pytest.raises(OSError, match="closed"):
        pair[0].receive(1)
    assert not pair[0].can_send()


def test_the_socket_of_a_closed_connection_stays_open_while_a_thread_uses_it(pair: Pair) -> None:
    """Its number could be that of another connection by the time at which that thread receives."""
    is_in, may_leave = threading.Event(), threading.Event()

    def use() -> int:
        with pair[0]._in_use():
            is_in.set()
            assert may_leave.wait(WAIT_SECS)
            return pair[0]._socket.fileno()

    with ThreadPoolExecutor(1) as pool:
        used = pool.submit(use)
        assert is_in.wait(WAIT_SECS)
        pair[0].close()
        may_leave.set()
        assert used.result(WAIT_SECS) >= 0
    assert pair[0]._socket.fileno() == -1


def test_silence_ends_the_wait_for_a_connection(pair: Pair) -> None:
    pair[0].set_timeout(0.05)
    with pytest.raises(TimeoutError):
        pair[0].receive(1)


def test_a_full_connection_cannot_send(pair: Pair) -> None:
    assert pair[0].can_send()
    pair[0].set_timeout(0.05)
    with pytest.raises(TimeoutError):
        pair[0].send([np.zeros(100_000_000, np.uint8)])
    assert not pair[0].can_send()


def test_a_message_that_is_sent_without_a_thread_needs_nobody_who_receives(pair: Pair) -> None:
    """Both ends may send one at once."""
    pair[0].set_timeout(WAIT_SECS)
    sent = np.arange(INLINE_BYTES, dtype=np.uint8)
    pair[0].send([sent])
    received = np.zeros_like(sent)
    pair[1].receive_into(received)
    assert np.array_equal(received, sent)


def test_a_unix_socket_keeps_more_for_its_receiver_than_by_default() -> None:
    first, second = socket.socketpair()
    with first, second:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        before = first.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        Connection(first)
        assert first.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > before


def test_small_pieces_are_joined_in_their_order() -> None:
    pieces = [b"a", b"b" * SMALL_BYTES, b"c", b"d", b"e" * SMALL_BYTES, b"f" * (SMALL_BYTES + 1), b"g"]
    found = [bytes(each) for each in joined([memoryview(each) for each in pieces])]
    assert b"".join(found) == b"".join(pieces)
    assert [each[:2] for each in found] == [b"a", b"bb", b"cd", b"ee", b"ff", b"g"]


def test_a_greeting_arrives(pair: Pair) -> None:
    greeting = Greeting(version="1", run="run", generation=3, worker=2, incarnation=7, session="abc", carries="replies")
    send_text(pair[0], greeting)
    assert receive_text(pair[1], Greeting) == greeting


@pytest.mark.parametrize(
    "content", [b"GET / HTTP/1.1\r\n\r\n", LENGTH.pack(MAX_GREETING_BYTES + 1), LENGTH.pack(2) + b"{}"]
)
def test_whatever_is_no_greeting_is_refused(pair: Pair, content: bytes) -> None:
    pair[0].send([content])
    with pytest.raises(ConnectionError, match="the other end sends"):
        receive_text(pair[1], Greeting)


def test_an_answer_says_why_a_worker_is_refused(pair: Pair) -> None:
    send_text(pair[0], Answer(refusal="no"))
    assert receive_text(pair[1], Answer).refusal == "no"
