"""Whether a host is this machine."""

from __future__ import annotations

import pytest

from psfleet.service.host_routes import HostRoute, is_here, route_to

ELSEWHERE = "198.51.100.1"
"""An address for documentation (RFC 5737), to which nothing is sent."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.1.1"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_here(host)


@pytest.mark.parametrize("host", [ELSEWHERE, "a" * 64])
def test_another_host_and_no_name_of_a_host_are_not_this_machine(host: str) -> None:
    assert not is_here(host)


def test_the_address_from_which_this_machine_sends_is_its_own() -> None:
    try:
        own = route_to(ELSEWHERE).source
    except OSError:
        own = "127.0.0.5"
    assert is_here(own)


def test_an_address_that_several_machines_share_by_nat_is_not_this_machine() -> None:
    assert not HostRoute("203.0.113.5", source="10.0.0.2").ends_here
    assert HostRoute("10.0.0.2", source="10.0.0.2").ends_here
