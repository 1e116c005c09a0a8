"""Certificates that are renewed while a fleet trains on a real cluster."""

from __future__ import annotations

import signal

import pytest
from support.kind_fleet import COMMAND_SECS, START_SECS, Space

from psfleet.cli.fleets import INTERRUPTED
from psfleet.polling import wait_until
from psfleet.tls import certificates

RELOAD_SECS = 240.0
"""The kubelet updates the files of a Secret once a minute, from a cache that is as old at most."""
NEW = "new certificate"


@pytest.mark.timeout(START_SECS * 3)
def test_a_fleet_takes_over_renewed_certificates_and_trains_on(space: Space) -> None:
    job = space.job_file("renewed", {"step_secs": 0.3}, tls=True, train={"steps": 100000, "batch_size": 1})
    up = space.start("up", job)
    space.wait_for_step("renewed", 1, START_SECS)
    up.send_signal(signal.SIGINT)
    assert up.wait(COMMAND_SECS) == INTERRUPTED
    pods = {pod["metadata"]["uid"] for pod in space.pods()}

    certificates.renew(space.folder / ".psfleet" / "certs" / "renewed")
    space.start("up", job)

    def reloaded() -> list[bool]:
        logs = [space.entries(pod["metadata"]["name"]) for pod in space.pods()]
        return [any(str(entry.get("message", "")).startswith(NEW) for entry in log) for log in logs]

    wait_until(reloaded, RELOAD_SECS, "every process to load its new certificate", done=all, poll_secs=2)
    space.wait_for_step("renewed", space.step("renewed") + 5)
    # The worker connects anew, with its new certificate, to a ps that has a new one.
    space.kubectl("delete", "pod", space.pod("worker", 1)["metadata"]["name"], "--wait=false")
    space.wait_for_step("renewed", space.step("renewed") + 5)
    assert len(pods & {pod["metadata"]["uid"] for pod in space.pods()}) == len(pods) - 1
    space.psfleet("down", "renewed", "--results", secs=180)
