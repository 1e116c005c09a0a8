"""Pods that are a worker and a ps: which can connect, and what the loss of one costs."""

from __future__ import annotations

import pytest
from support.kind_fleet import START_SECS, Space
from support.kind_pods import STEPS, ended, opened, replaced, started

from psfleet.addresses import DATA_PORT
from psfleet.manifests.container import CONTROL_PORT, EXCHANGE_PORT, TUNNEL_PORT


@pytest.mark.timeout(START_SECS * 3)
@pytest.mark.parametrize("tls", [True, pytest.param(False, marks=pytest.mark.extended)], ids=["tls", "plain"])
def test_workers_reach_each_others_ps_and_a_lost_one_costs_the_steps_since_the_last_checkpoint(
    space: Space, tls: bool
) -> None:
    data = TUNNEL_PORT if tls else DATA_PORT
    often = {"every_steps": 20, "keep": 2}
    up = started(space, tls, fleet={"workers": 2, "colocate": True}, checkpoint=often)
    assert not space.pods("ps")
    chief, worker = space.pod("chief", 0), space.pod("worker", 1)
    expected = {data, CONTROL_PORT, EXCHANGE_PORT}
    assert set(opened(space, chief, worker)) == set(opened(space, worker, chief)) == expected
    replaced(space, "worker", 1)
    replaced(space, "chief", 0)
    report = ended(space, up)
    assert report.generation >= 3, "the shard of each lost pod is restored"
    since = report.gradients.since_step
    assert since is not None
    assert [ps.used for ps in report.gradients.per_ps] == [2 * (STEPS - since)] * 2
