"""The Docker engine is restarted under fleets: an engine of the tests' own, so that nobody else's containers stop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.compose_fleet import START_SECS, fleet, inspected
from support.compose_lab import standing_lab
from support.images import PS_IMAGE, WORKER_IMAGE, docker

from psfleet.manifests.compose.render import project
from psfleet.polling import wait_until

ENGINE_SECS = 90.0
COPY_SECS = 600.0
"""Both images go from one engine to the other; they are 1.3 GB together."""
STOP_SECS = 10
"""The engine gives its containers as long as their own grace period."""
STEPS = 1500
PACE_SECS = 0.25

pytestmark = pytest.mark.timeout(1200)


@dataclass
class Engine:
    """A second dockerd on this machine, with its own folder and socket, and a network namespace of its own.

    In the machine's it would take bridges and firewall rules away from the engine that others use.
    """

    root: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """As DOCKER_HOST names it."""
        return f"unix://{self.root}/docker.sock"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = [
            *("unshare", "--net", "sh", "-c", 'ip link set lo up && exec dockerd "$@"', "dockerd"),
            f"--data-root={self.root}/data",
            f"--exec-root={self.root}/exec",
            f"--pidfile={self.root}/pid",
            f"--host={self.host}",
        ]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        wait_until(self.answers, ENGINE_SECS, f"an engine to answer; its log is {self.root}/log")

    def answers(self) -> bool:
        """Whether it can be asked."""
        assert self.process is not None, "start() comes first"
        assert self.process.poll() is None, f"dockerd ended: {(self.root / 'log').read_text()[-2000:]}"
        return docker("--host", self.host, "info", check=False).returncode == 0

    def stop(self) -> None:
        """Ends it as a machine's shutdown would; its containers end first."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(ENGINE_SECS)


@pytest.fixture(scope="module")
def second() -> Iterator[Engine]:
    """An engine that has the images under test, as `DOCKER_HOST`; nothing is left of it behind the tests."""
    assert os.geteuid() == 0, "a second Docker engine needs root; this test cannot restart the one that others use"
    root = Path(tempfile.mkdtemp(prefix="psfleet-engine-", dir="/var/tmp"))
    second = Engine(root)
    try:
        second.start()
        copy = f"docker save {PS_IMAGE} {WORKER_IMAGE} | docker --host {second.host} load"
        subprocess.run(["sh", "-c", copy], check=True, stdout=subprocess.DEVNULL, timeout=COPY_SECS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", second.host)
            yield second
    finally:
        second.stop()
        # An engine mounts its folder onto itself, and does not always take that back; mostly there is nothing to do.
        subprocess.run(["umount", "--lazy", root / "data"], check=False, capture_output=True, timeout=ENGINE_SECS)
        shutil.rmtree(root)


def test_a_run_goes_on_after_a_restart_of_the_engine(second: Engine, tmp_path: Path) -> None:
    sections = {
        "train": {"steps": STEPS},
        "checkpoint": {"every_steps": 10},
        "deadlines": {"stop_secs": STOP_SECS},
    }
    with fleet(tmp_path / "job", PACE_SECS, **sections) as seen:
        seen.up()
        seen.wait_for_step(20)
        before = {name: item["State"]["StartedAt"] for name, item in seen.containers().items()}
        second.stop()
        second.start()
        stopped_at = max(seen.step(), 20)
        seen.wait_for(lambda: seen.step() > stopped_at, START_SECS, f"a step after {stopped_at}")
        after = {name: item["State"]["StartedAt"] for name, item in seen.containers().items()}
        assert {name for name in before if before[name] != after[name]} == set(before), "all were started again"
        seen.hurry()
        assert seen.end() == 0, seen.screen.read_text()
        report = seen.report()
        assert (report.status, report.final_step) == ("done", STEPS)
        lost = sum(event.steps_lost for event in report.events)
        assert lost <= 20, "the steps since the last checkpoint"
        seen.run("down", seen.name, "--results")


def test_a_fleet_that_stands_serves_again_after_a_restart_of_the_engine(second: Engine, tmp_path: Path) -> None:
    with standing_lab(tmp_path, tls=True) as lab:
        assert lab.run(lab.client, "0").stdout == "sum is 9\n"
        before = {name: item["State"]["StartedAt"] for name, item in inspected("ps", project(lab.name)).items()}
        assert len(before) == 3
        second.stop()
        second.start()
        done = wait_until(
            lambda: lab.run(lab.client, "0"), START_SECS, "a client to end well", done=lambda done: done.returncode == 0
        )
        assert done.stdout == "sum is 9\n"
        after = {name: item["State"]["StartedAt"] for name, item in inspected("ps", project(lab.name)).items()}
        assert {name for name in before if before[name] != after[name]} == set(before), "all were started again"
        assert lab.clients() == []
