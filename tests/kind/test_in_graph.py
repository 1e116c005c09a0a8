"""One client drives the devices of other pods, of its replicas or parts: which can connect, and the loss of each."""

from __future__ import annotations

import pytest
from support.kind_fleet import START_SECS, Space
from support.kind_pods import opened, replaced, restarts, started

from psfleet.addresses import DATA_PORT
from psfleet.manifests.container import CONTROL_PORT, TUNNEL_PORT


@pytest.mark.timeout(START_SECS * 3)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_chief_and_workers_reach_each_other_and_a_lost_one_costs_no_step(space: Space, tls: bool) -> None:
    data = TUNNEL_PORT if tls else DATA_PORT
    up = started(space, tls, fleet={"ps": 1, "workers": 3}, update={"replication": "in_graph"})
    chief, first, second = space.pod("chief", 0), space.pod("worker", 1), space.pod("worker", 2)
    assert set(opened(space, chief, first)) == {data, CONTROL_PORT}
    assert opened(space, first, chief) == [data]
    assert opened(space, first, second) == []
    replaced(space, "worker", 1)
    replaced(space, "chief", 0)
    assert restarts(space, up) == {("worker", 1, 0), ("chief", 0, 0)}


@pytest.mark.extended
@pytest.mark.timeout(START_SECS * 3)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_parts_of_a_replica_reach_each_other_and_a_lost_one_costs_no_step(space: Space, tls: bool) -> None:
    """Workers 0 and 2 are a replica, and 1 and 3."""
    data = TUNNEL_PORT if tls else DATA_PORT
    up = started(space, tls, fleet={"ps": 1, "workers": 4, "parts": 2})
    chief, first, part_of_chief, part_of_first = [
        space.pod("worker" if index else "chief", index) for index in range(4)
    ]
    assert set(opened(space, chief, part_of_chief)) == {data, CONTROL_PORT}
    assert opened(space, part_of_chief, chief) == [data]
    assert opened(space, first, part_of_first) == opened(space, part_of_first, first) == [data]
    assert opened(space, chief, first) == opened(space, chief, part_of_first) == [CONTROL_PORT]
    for own, other in ((first, chief), (first, part_of_chief), (part_of_chief, first), (part_of_first, chief)):
        assert opened(space, own, other) == [], f"{own['metadata']['name']} to {other['metadata']['name']}"
    replaced(space, "worker", 3)
    replaced(space, "worker", 2)
    replaced(space, "chief", 0)
    assert restarts(space, up) == {("worker", 3, 0), ("worker", 2, 0), ("chief", 0, 0)}
