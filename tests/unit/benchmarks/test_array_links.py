"""Connections of contenders that use no library for them: they carry whole arrays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from benchmarks.array_links import Link, accepted, connected
from benchmarks.duplex import Steps
from psfleet.addresses import LOOPBACK, Address
from psfleet.exchange.connection import MAX_PIECES
from psfleet.processes.ports import free_addresses

pytestmark = pytest.mark.usefixtures("closed_links")

SECS = 60.0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_pieces_arrive_as_one_array(host: str) -> None:
    pieces = [np.full(index % 3, index, np.float32) for index in range(2 * MAX_PIECES)]
    pieces.append(np.arange(1 << 20, dtype=np.float32))
    whole = np.concatenate(pieces)
    first, second = link_pair(host)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(first.send, pieces)
        np.testing.assert_array_equal(second.receive(np.empty_like(whole)), whole)
        sent.result(SECS)


def test_an_end_that_is_closed_is_an_error() -> None:
    first, second = link_pair()
    first.close()
    with pytest.raises(EOFError):
        second.receive(np.empty(1, np.float32))


def test_a_step_carries_all_bytes_both_ways_on_each_connection() -> None:
    """More than fit into the buffers of sockets: neither end waits for the other to have sent all."""
    pairs = [link_pair() for _ in range(2)]
    ends = [Steps([pair[index] for pair in pairs], 1 << 20) for index in range(2)]
    for end in ends:
        for array in end._received:
            array[:] = 0
    with ThreadPoolExecutor(2) as pool:
        steps = [pool.submit(end.step, 4) for end in ends]
        assert [each.result(SECS) for each in steps] == [5, 5]
    assert [array.sum() for end in ends for array in end._received] == [1 << 20] * 4


def link_pair(host: str = LOOPBACK) -> tuple[Link, Link]:
    """Both ends of a connection: of Unix sockets at 127.0.0.1 alone."""
    address = Address(host, free_addresses(1)[0].port)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accepted, address, 1)
        first = connected(address)
        return Link(first), Link(accepting.result(SECS)[0])
