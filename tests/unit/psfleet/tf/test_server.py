"""Errors of the start of TensorFlow's server."""

from __future__ import annotations

import socket

import pytest

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
