"""A namespace with a quota of CPUs, and a user who lacks some of the rights of `k8s/rbac.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml
from support.kind_fleet import RECOVERY_SECS, START_SECS, Space
from support.kind_user import ROLE

from psfleet.errors import USAGE

NAME = "narrow"
QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: cpus}
spec: {hard: {requests.cpu: "2", limits.cpu: "2"}}
"""


@contextmanager
def without(space: Space, resource: str) -> Iterator[None]:
    """Takes the rights to a resource from psfleet's user for the block."""
    content = yaml.safe_load(ROLE.read_text())
    for rule in content["rules"]:
        rule["resources"] = [each for each in rule["resources"] if each != resource]
    content["rules"] = [rule for rule in content["rules"] if rule["resources"]]
    assert content != yaml.safe_load(ROLE.read_text()), f"{ROLE} has no right to {resource}"
    space.apply("role", yaml.safe_dump(content))
    try:
        yield
    finally:
        space.kubectl("apply", "-f", str(ROLE))


@pytest.mark.timeout(START_SECS + RECOVERY_SECS)
def test_a_fleet_trains_within_a_quota_of_cpus_and_commands_name_the_right_that_is_missing(space: Space) -> None:
    space.apply("quota", QUOTA)
    limits = {"memory": "1Gi", "cpus": 0.5}
    job = space.job_file(
        NAME, {"step_secs": 0.3}, fleet={"ps": 1, "workers": 1}, train={"steps": 100000, "batch_size": 1},
        checkpoint={"every_steps": 5}, container={"ps": limits, "worker": limits},
    )  # fmt: skip
    space.start("up", job)
    space.wait_for_step(NAME, 6, START_SECS)
    with without(space, "statefulsets"):
        shown = space.psfleet("status", NAME)
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith(NAME)] == [[NAME, "ps"], [NAME, "chief"]]
    assert "standing fleets are not shown: Kubernetes refuses to list the parts of fleets: statefulsets.apps" in shown
    with without(space, "pods/exec"):
        refused = space.psfleet("down", NAME, code=USAGE)
    assert "psfleet: Kubernetes refuses to run sh in pod narrow-chief-0-" in refused
    assert 'cannot get resource "pods/exec"' in refused or 'cannot create resource "pods/exec"' in refused
    # By a pod that reads the volume, which the quota refused without a limit.
    assert "; the fleet runs" in space.psfleet("results", NAME, secs=START_SECS)
    space.psfleet("down", NAME, "--results", secs=START_SECS)
