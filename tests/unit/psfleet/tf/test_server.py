"""TensorFlow's server: errors of its start, and how tests share one."""

from __future__ import annotations

import socket
from contextlib import nullcontext

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.tf_servers import tf_server

from psfleet.addresses import Address
from psfleet.errors import BadJobError, DeadlineError, LostPeerError
from psfleet.processes.ports import free_addresses
from psfleet.tf import server
from psfleet.tf.server import boot
from psfleet.tls.listeners import process_listens_on


def test_a_server_without_its_devices_says_so_instead_of_naming_the_port() -> None:
    with pytest.raises(LostPeerError, match="cannot be started: No CPU devices are available"):
        boot(Address("localhost", 0), None, num_cpus=0)


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LostPeerError, match=f"TensorFlow port {port} of localhost is in use, expected a free one"):
            boot(Address("localhost", port), None)


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Address:
    """An address of a container, whose host has an address of this machine."""
    monkeypatch.setattr(server, "resolved", lambda host: "127.9.8.7")
    (free,) = free_addresses(1)
    return Address("front-of-members", free.port)


def test_a_server_on_its_own_host_listens_on_that_address_alone(front: Address) -> None:
    assert boot(front, None, is_on_own_host=True) == f"grpc://front-of-members:{front.port}"
    assert process_listens_on(front.port, "127.9.8.7")
    assert not process_listens_on(front.port, "127.0.0.1")


def test_a_server_that_others_could_reach_is_refused(front: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "bound_to", lambda port, host: nullcontext())
    with pytest.raises(BadJobError, match=r"is open on all interfaces, expected 127\.9\.8\.7 alone"):
        boot(front, None, is_on_own_host=True)


def test_a_host_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RESOLVE_SECS", 0.1)
    with pytest.raises(DeadlineError, match=r"the address of nowhere\.invalid"):
        boot(Address("nowhere.invalid", 2222), None, is_on_own_host=True)


@pytest.mark.parametrize("container", ["", "fleet/1"], ids=["default", "named"])
def test_a_server_that_tests_use_again_has_nothing_of_the_block_before(container: str) -> None:
    with tf.Graph().as_default() as graph, v1.container(container):
        variable = v1.get_variable("v", initializer=3.0, use_resource=True)
    with tf_server([container]) as before, v1.Session(f"grpc://{before.data}", graph=graph) as session:
        session.run(variable.initializer)
    with tf_server([container]) as again, v1.Session(f"grpc://{again.data}", graph=graph) as session:
        assert again == before
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(variable)
