"""TensorFlow's server: errors of its start, and how tests share one."""

from __future__ import annotations

import socket

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.tf_servers import tf_server

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.tf.server import boot


def test_a_server_without_its_devices_says_so_instead_of_naming_the_port() -> None:
    with pytest.raises(LostPeerError, match="cannot be started: No CPU devices are available"):
        boot(Address("localhost", 0), None, num_cpus=0)


def test_a_port_that_is_in_use_is_named() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LostPeerError, match=f"TensorFlow port {port} of localhost is in use, expected a free one"):
            boot(Address("localhost", port), None)


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
