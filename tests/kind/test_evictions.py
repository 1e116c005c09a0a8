"""The PodDisruptionBudget of the ps: one is evicted at a time, and the next as soon as the first one is back."""

from __future__ import annotations

import json

import pytest
from support.kind_fleet import RECOVERY_SECS, START_SECS, Space

from psfleet.polling import wait_until

NAME = "evicted"


def is_evicted(space: Space, pod: str) -> bool:
    """Asks for the eviction of a pod, as `kubectl drain` does; False: its budget does not allow it now."""
    meta = {"name": pod, "namespace": space.name}
    file = space.folder / f"eviction-{pod}.json"
    file.write_text(json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}))
    try:
        space.kubectl("create", "--raw", f"/api/v1/namespaces/{space.name}/pods/{pod}/eviction", "-f", str(file))
    except AssertionError as error:
        if "violate the pod's disruption budget" not in str(error):
            raise
        return False
    return True


@pytest.mark.timeout(START_SECS + 4 * RECOVERY_SECS)
def test_one_ps_after_the_other_is_evicted_and_the_fleet_trains_on(space: Space) -> None:
    job = space.job_file(
        NAME, {"step_secs": 0.3}, fleet={"ps": 2, "workers": 2}, train={"steps": 100000, "batch_size": 1},
        checkpoint={"every_steps": 10},
    )  # fmt: skip
    space.start("up", job)
    space.wait_for_step(NAME, 1, START_SECS)
    first, second = (space.pod("ps", index)["metadata"]["name"] for index in (0, 1))
    assert is_evicted(space, first)
    assert not is_evicted(space, second), "the other one is not back yet"
    wait_until(lambda: is_evicted(space, second), RECOVERY_SECS, "the eviction of the second ps", poll_secs=1)
    assert space.pod("ps", 0)["metadata"]["name"] != first
    assert space.pod("ps", 1)["metadata"]["name"] != second
    space.wait_for_step(NAME, space.step(NAME) + 5)
    space.psfleet("down", NAME, "--results", secs=180)
