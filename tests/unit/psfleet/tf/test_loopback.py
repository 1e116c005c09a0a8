"""The address that replaces the one on which TensorFlow's server would listen."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
import tensorflow as tf

from psfleet.tf import loopback
from psfleet.tf.loopback import loopback_address

PORT = 3005


def ipv4(host: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


def ipv6(host: str, port: int) -> bytes:
    head = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 7)
    return head + socket.inet_pton(socket.AF_INET6, host) + struct.pack("=I", 2)


@pytest.mark.parametrize(
    ("requested", "bound"),
    [
        (ipv4("0.0.0.0", PORT), ipv4("127.0.0.1", PORT)),
        (ipv4("10.1.2.3", PORT), ipv4("127.0.0.1", PORT)),
        (ipv6("::", PORT), ipv6("::ffff:127.0.0.1", PORT)),
        (ipv6("::ffff:0.0.0.0", PORT), ipv6("::ffff:127.0.0.1", PORT)),
        (ipv4("0.0.0.0", PORT + 1), ipv4("0.0.0.0", PORT + 1)),
        (ipv6("::", 0), ipv6("::", 0)),
    ],
)
def test_the_servers_port_gets_the_loopback_address_and_no_other_does(requested: bytes, bound: bytes) -> None:
    assert loopback_address(requested, PORT, "127.0.0.1") == bound


def test_an_address_of_another_family_is_left_alone() -> None:
    unix = struct.pack("=H", socket.AF_UNIX) + struct.pack("!H", PORT) + b"a/socket"
    assert loopback_address(unix, PORT, "127.0.0.1") == unix


def test_the_host_is_any_address_of_loopback() -> None:
    assert loopback_address(ipv4("0.0.0.0", PORT), PORT, "127.9.8.7") == ipv4("127.9.8.7", PORT)
    assert loopback_address(ipv6("::", PORT), PORT, "127.9.8.7") == ipv6("::ffff:127.9.8.7", PORT)


def test_the_libraries_are_found_where_tensorflow_is_imported_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel knows the files that are mapped by their own paths: a virtual environment may be a symbolic link."""
    link = tmp_path / "packages"
    link.symlink_to(Path(tf.__file__).resolve().parents[1])
    monkeypatch.setattr(tf, "__file__", str(link / "tensorflow" / "__init__.py"))
    assert list(loopback._slots(b"bind"))
