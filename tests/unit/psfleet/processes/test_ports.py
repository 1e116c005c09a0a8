"""Free ports in pairs, none of which is given to two launchers."""

from __future__ import annotations

import random
import socket
from collections import deque
from contextlib import closing

import pytest

from psfleet.errors import BadJobError, LostPeerError
from psfleet.processes import ports


def test_addresses_are_pairs_of_ports_that_nobody_uses() -> None:
    addresses = ports.free_addresses(20)
    assert len({address.port for address in addresses}) == 20
    for address in addresses:
        assert address.host == "127.0.0.1"
        assert address.port % 2 == 0
        assert ports.LOW <= address.port < ports.HIGH
        for port in (address.port, address.port + 1):
            with closing(socket.socket()) as probe:
                probe.bind(("127.0.0.1", port))


def test_a_pair_that_was_given_out_is_not_given_to_another_until_many_more_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs that begin at once would have the same ports otherwise: their processes listen seconds later."""
    monkeypatch.setattr(ports, "_reserved", deque())
    [address] = ports.free_addresses(1)
    with monkeypatch.context() as narrow:
        narrow.setattr(ports, "LOW", address.port)
        narrow.setattr(ports, "HIGH", address.port + 2)
        with pytest.raises(LostPeerError, match="no 1 pairs of free ports"):
            ports.free_addresses(1)
    monkeypatch.setattr(ports, "MAX_RESERVED", 3)
    ports.free_addresses(3)
    monkeypatch.setattr(ports, "LOW", address.port)
    monkeypatch.setattr(ports, "HIGH", address.port + 2)
    assert ports.free_addresses(1) == [address]
    ports._release()


def test_more_processes_than_there_are_ports_are_a_bad_job() -> None:
    """Of exit code 78: a retry would end the same way."""
    with pytest.raises(
        BadJobError, match="7501 processes on this machine, expected at most 7500, which have a pair of ports each"
    ):
        ports.free_addresses(7501)


@pytest.mark.parametrize("taken", [0, 1], ids=["TensorFlow's port", "the control port"])
def test_a_pair_of_which_one_port_is_taken_is_not_given_out(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    [address] = ports.free_addresses(1)
    monkeypatch.setattr(ports, "LOW", address.port)
    monkeypatch.setattr(ports, "HIGH", address.port + 2)
    monkeypatch.setattr(ports, "_reserved_name", lambda port: socket.socket())
    assert ports.free_addresses(1) == [address]
    with closing(socket.socket()) as user:
        user.bind(("127.0.0.1", address.port + taken))
        user.listen()
        with pytest.raises(
            LostPeerError, match=f"no 1 pairs of free ports between {address.port} and {address.port + 2}"
        ):
            ports.free_addresses(1)


def test_ports_that_another_launcher_has_reserved_are_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process could not listen while another one checks whether the ports are free."""
    bound = []

    def reserved(port: int) -> None:
        with closing(socket.socket()) as listener:
            listener.bind(("", port))
            bound.append(port)

    [address] = ports.free_addresses(1)
    monkeypatch.setattr(ports, "LOW", address.port)
    monkeypatch.setattr(ports, "HIGH", address.port + 2)
    monkeypatch.setattr(ports, "_reserved_name", reserved)
    with pytest.raises(LostPeerError, match="no 1 pairs of free ports"):
        ports.free_addresses(1)
    assert bound == [address.port]


def test_every_free_pair_of_the_range_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    [address] = ports.free_addresses(1)
    monkeypatch.setattr(ports, "LOW", address.port - 2)
    monkeypatch.setattr(ports, "HIGH", address.port + 4)
    monkeypatch.setattr(ports, "_reserved_name", lambda port: None if port != address.port else socket.socket())
    assert ports.free_addresses(1) == [address]


def test_programs_that_seed_their_random_numbers_do_not_try_the_same_ports() -> None:
    random.seed(1)
    first = ports.free_addresses(3)
    after = random.random()
    random.seed(1)
    assert random.random() == after
    random.seed(1)
    assert ports.free_addresses(3) != first


def test_no_address_is_given_out_twice() -> None:
    assert ports.free_addresses(0) == []
