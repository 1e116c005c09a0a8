"""stunnel's configuration for a route: the peers whose certificates it accepts, and the authority that signs them.

tests/fleet/test_tunnels.py and tests/compose/test_tls.py run stunnel with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.tls.route import Route, configuration

CERTIFICATES = Path("/certs/worker")


def options(route: Route) -> dict[str, list[str]]:
    """The values of each option, in their order."""
    found: dict[str, list[str]] = {}
    for line in configuration(route, CERTIFICATES).splitlines():
        name, is_option, value = line.partition(" = ")
        if is_option:
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("dials", [True, False])
@pytest.mark.parametrize(("others", "roles"), [((), ["ps"]), (("worker",), ["ps", "worker"])])
def test_a_peer_needs_a_certificate_of_the_authority_for_a_role_of_the_route(
    dials: bool, others: tuple[str, ...], roles: list[str]
) -> None:
    found = options(Route("127.0.0.1:2225", "ps-0:2225", "ps", dials, others))
    assert found["verifyChain"] == ["yes"]
    assert found["checkHost"] == roles
    assert [found[name] for name in ("CAfile", "cert", "key")] == [
        [f"{CERTIFICATES}/ca.crt"],
        [f"{CERTIFICATES}/tls.crt"],
        [f"{CERTIFICATES}/tls.key"],
    ]
    assert found["sslVersionMin"] == ["TLSv1.3"]
    assert found["client"] == ["yes" if dials else "no"]


def test_an_ipv6_address_is_written_without_brackets() -> None:
    assert options(Route("127.0.0.1:2225", "[fd00::2]:2225", "ps", dials=True))["connect"] == ["fd00::2:2225"]
