"""Nobody gets in: what a pod outside of the fleet can reach, and what the pods of the fleet may do."""

from __future__ import annotations

import pytest
from support.kind_fleet import START_SECS, Space
from support.visitors import STRANGER, address, opens, pod_manifest

from psfleet.polling import wait_until

FLEET_PORTS = ("2222", "2223", "2224", "2225")
OPEN_PORT = "8000"


DENY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: open}}
  policyTypes: [Ingress]
"""


@pytest.mark.timeout(600)
def test_a_pod_outside_the_fleet_opens_none_of_its_ports(space: Space) -> None:
    space.apply("stranger", pod_manifest("stranger", "sleep", "3600"))
    space.apply("open", pod_manifest("open", "python", "-m", "http.server", OPEN_PORT))
    job = space.job_file("shut", {"step_secs": 0.3}, train={"steps": 100000, "batch_size": 1})
    space.start("up", job)
    target = address(space, "open")
    address(space, "stranger")
    wait_until(lambda: opens(space, target, OPEN_PORT), START_SECS, "a pod without a policy to be reached", poll_secs=1)
    space.apply("deny", DENY)
    wait_until(
        lambda: opens(space, target, OPEN_PORT), 60, "the network to enforce policies, which this cluster's does not",
        done=lambda found: not found, poll_secs=1,
    )  # fmt: skip
    space.wait_for_step("shut", 1, START_SECS)
    for pod in space.pods():
        assert opens(space, pod["status"]["podIP"], *FLEET_PORTS) == [], pod["metadata"]["name"]
    ps = space.pod("ps", 0)
    inside = space.kubectl(
        "exec", space.pod("worker", 1)["metadata"]["name"], "--", "python", "-c", STRANGER.read_text(),
        ps["status"]["podIP"], *FLEET_PORTS,
    )  # fmt: skip
    assert inside.split() == ["2222", "2223"], "its own workers reach what they need, and no more"
    token = space.kubectl(
        "exec", ps["metadata"]["name"], "--", "sh", "-c", "ls /var/run/secrets/kubernetes.io 2>/dev/null || echo none"
    )  # fmt: skip
    assert token.strip() == "none"
    space.psfleet("down", "shut", "--results", secs=180)
    assert not space.kubectl(
        "get", "jobs,services,configmaps,pvc", "-l", "app.kubernetes.io/part-of=psfleet", "-o", "name"
    )
