"""Faults of a fleet that stands on a Docker engine: a process that would only fail again, a client never started."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.compose_fleet import COMMAND_SECS, ids, inspected
from support.compose_lab import Lab, commanded, standing_lab
from support.images import docker

from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose.render import project
from psfleet.platforms.compose.fleet_labels import access_of, file_of
from psfleet.platforms.compose.standing import ComposeFleets
from psfleet.polling import wait_until
from psfleet.tls import certificates

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two ps and a worker, with TLS."""
    with standing_lab(tmp_path_factory.mktemp("lab"), tls=True) as found:
        yield found


def test_a_process_whose_certificate_has_expired_says_so_and_the_next_up_mends_it(lab: Lab) -> None:
    certificates.renew(certificates_folder(lab.name), days=0)
    container = f"{project(lab.name)}-ps-1-1"
    lab.kill("ps-1")

    def row() -> dict[str, object]:
        return lab.status()["ps-1"]

    found = wait_until(row, COMMAND_SECS, "ps 1 to fail", done=lambda found: found["state"] == "failed (78)")
    assert "tls.crt expired on" in str(found["last_event"])
    state = inspected("ps", "--all", project(lab.name))[container]
    assert (state["State"]["Status"], state["RestartCount"]) == ("running", 1), "it is not started again and again"
    lab.up()
    assert row()["state"] == "running"
    done = lab.run(lab.client, "0")
    assert (done.returncode, done.stdout) == (0, "sum is 9\n"), done.stderr


def test_a_client_that_was_created_and_never_started_does_not_outlive_the_fleet(lab: Lab) -> None:
    """Its `psfleet run` was killed by SIGKILL at that moment; the fixture takes the fleet down and looks."""
    fleets = ComposeFleets()
    process = fleets._find(lab.name)[0]
    created = fleets._created(file_of(process), access_of(process), lab.client, [])
    assert docker("inspect", "--format", "{{.State.Status}}", str(created.id)).stdout == "created\n"
    assert commanded("status", lab.name, "--on", "compose").stdout.count("created") == 1
    commanded("fleet", "down", lab.name, "--on", "compose")
    assert ids("ps", "--all", project=project(lab.name)) == []
    lab.up()
