"""The name or address at which the other machines of a fleet reach this one."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from psfleet.errors import LostPeerError
from psfleet.processes import own_host as module
from psfleet.processes.own_host import own_host
from psfleet.service.host_routes import HostRoute

Routes = dict[str, tuple[str, str]]


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Routes], None]:
    """Sets the addresses of hosts, and those from which this machine sends to them; other hosts are unknown."""

    def use(routes: Routes) -> None:
        def route_to(host: str) -> HostRoute:
            if host.strip("[]") not in routes:
                raise socket.gaierror(-2, "Name or service not known")
            return HostRoute(*routes[host.strip("[]")])

        monkeypatch.setattr(module, "route_to", route_to)

    return use


def test_a_worker_beside_a_ps_has_the_name_of_that_ps(routed: Callable[[Routes], None]) -> None:
    routed({"a": ("10.0.0.1", "10.0.0.2"), "b": ("10.0.0.2", "10.0.0.2")})
    assert own_host(["a", "b"]) == "b"


def test_a_name_that_means_loopback_here_is_that_of_this_machine(routed: Callable[[Routes], None]) -> None:
    """Debian's installer gives the machine's own name the address 127.0.1.1."""
    routed({"a": ("10.0.0.1", "10.0.0.2"), "here": ("127.0.1.1", "127.0.0.1")})
    assert own_host(["a", "here"]) == "here"


def test_another_machine_has_its_address_on_the_route_to_the_first_ps(routed: Callable[[Routes], None]) -> None:
    routed({"a": ("10.0.0.1", "10.0.0.2"), "b": ("10.1.0.1", "10.1.0.2")})
    assert own_host(["a", "b"]) == "10.0.0.2"
    assert own_host(["unknown", "b"]) == "10.1.0.2"


def test_an_ipv6_address_is_in_brackets(routed: Callable[[Routes], None]) -> None:
    routed({"fd00::1": ("fd00::1", "fd00::2")})
    assert own_host(["[fd00::1]"]) == "[fd00::2]"


def test_without_a_route_to_any_ps_the_first_problem_is_named(routed: Callable[[Routes], None]) -> None:
    routed({})
    with pytest.raises(LostPeerError) as caught:
        own_host(["ps-0", "ps-1"])
    expected = "no route to a ps (ps-0: Name or service not known), expected one, or --address"
    assert str(caught.value) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.1.1"])
def test_this_machine_finds_its_own_loopback(host: str) -> None:
    assert own_host([host]) == host
