"""A fleet that stands on a real Docker engine: clients in containers, and the loss of a ps."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import port_probe
from support.compose_fleet import COMMAND_SECS, START_SECS, ids, inspected, psfleet
from support.images import docker

from psfleet.manifests.compose.render import project
from psfleet.polling import wait_until
from psfleet.report.schema import Report

EXAMPLES = Path(__file__).parents[2] / "examples" / "client"
NOTICE_SECS = 15.0
"""Issue 13: until clients get an error after a ps was killed."""
SECS = 60.0

pytestmark = pytest.mark.timeout(600)
SCRIPT = """\
import sys, time
import tensorflow as tf
import psfleet
import psfleet.errors

fleet = psfleet.connect()
with tf.Graph().as_default() as graph:
    with tf.device(fleet.device("ps", 0)):
        x = tf.compat.v1.get_variable("x", initializer=tf.ones([3]))
    with tf.device(fleet.device("worker", 0)):
        y = 2 * x
    with tf.device(fleet.device("ps", 1)):
        z = y + 1
with fleet.session(graph) as session:
    session.run(x.initializer)
    print(f"sum is {session.run(z).sum():g}", flush=True)
    if sys.argv[1] == "wait":
        while True:
            try:
                session.run(z)
            except psfleet.errors.LostPeerError:
                print("lost", flush=True)
                raise
            time.sleep(0.1)
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
"""A value goes from ps 0 to a worker, from there to ps 1, and back to the client."""


@dataclass(frozen=True)
class Lab:
    """A fleet that stands, and a folder with `client.py`."""

    name: str
    folder: Path
    tls: bool

    @property
    def client(self) -> Path:
        """`SCRIPT`."""
        return self.folder / "client.py"

    def run(self, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a client to its end."""
        return subprocess.run(
            self.command(script, *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=COMMAND_SECS,
        )  # fmt: skip

    def command(self, script: Path, *arguments: str) -> list[str]:
        """Runs a client."""
        return psfleet("run", str(script), *arguments, "--fleet", self.name, "--on", "compose")

    def started(self, script: Path, *arguments: str) -> subprocess.Popen[str]:
        """Starts a client."""
        return subprocess.Popen(
            self.command(script, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def waiting(self) -> subprocess.Popen[str]:
        """A client that has a session and keeps it."""
        client = self.started(self.client, "wait")
        assert client.stdout is not None
        assert client.stdout.readline() == "sum is 9\n", client.communicate(timeout=SECS)
        return client

    def clients(self) -> list[str]:
        """Ids of the containers of clients."""
        label = f"label=com.docker.compose.project={project(self.name)}"
        return docker(
            "ps", "--all", "--quiet", "--filter", label, "--filter", "label=psfleet.role=client"
        ).stdout.split()

    def status(self) -> dict[str, dict[str, object]]:
        """Rows of `psfleet status` by role and index."""
        rows = json.loads(commanded("status", self.name, "--on", "compose", "--json").stdout)
        return {f"{row['role']}-{row['index']}": row for row in rows}


def commanded(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        psfleet(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_SECS
    )
    assert done.returncode == code, f"psfleet {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}"
    return done


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two ps and a worker; nothing of them is left behind the module."""
    name, folder = f"test-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("lab")
    folder.chmod(0o755)
    found = Lab(name, folder, request.param)
    found.client.write_text(SCRIPT)
    file = folder / "fleet.yaml"
    file.write_text(f"name: {name}\nfleet: {{ps: 2, workers: 1}}\ntls: {str(request.param).lower()}\n")
    try:
        up = commanded("fleet", "up", str(file), "--on", "compose")
        assert up.stdout == f"{name}: up, 2 ps and 1 worker\n"
        assert commanded("fleet", "up", str(file), "--on", "compose").stdout == up.stdout
        yield found
        assert commanded("fleet", "down", name, "--on", "compose").stdout == f"{name}: down\n"
    finally:
        left = ids("ps", "--all", project=project(name)), ids("network", "ls", project=project(name))
        if any(left):
            docker("rm", "--force", "--volumes", *left[0], check=False)
            docker("network", "rm", *left[1], check=False)
    assert not any(left), "of a fleet that is down"


def test_the_examples_print_what_they_say(lab: Lab) -> None:
    printed = [lab.run(EXAMPLES / "shared_variable.py", amount).stdout for amount in ("2", "3")]
    assert printed == ["total is 2\n", "total is 5\n"]
    assert lab.run(EXAMPLES / "two_containers.py").stdout == (
        "problem_1: x is 1\nproblem_2: x is 2\n"
        "problem_1 after the reset of problem_1: gone\nproblem_2 after the reset of problem_1: 2\n"
    )


def test_two_clients_share_a_queue(lab: Lab) -> None:
    trainer = lab.started(EXAMPLES / "trainer.py")
    loader = lab.run(EXAMPLES / "loader.py")
    assert (loader.returncode, loader.stdout) == (0, "2000 points loaded\n"), loader.stderr
    out, errors = trainer.communicate(timeout=COMMAND_SECS)
    assert trainer.returncode == 0, errors
    assert re.fullmatch(r"10[01] steps, w is [12]\.\d+ and b is [01]\.\d+\n", out), out


def test_output_and_exit_code_are_the_scripts(lab: Lab) -> None:
    done = lab.run(lab.client, "7")
    assert (done.returncode, done.stdout) == (7, "sum is 9\n"), done.stderr
    assert done.stderr.endswith("to stderr\n")
    assert lab.clients() == []


def test_no_port_of_fleet_or_client_is_opened(lab: Lab) -> None:
    """The fleet's network has what the machine has not, so that an answer would be seen."""
    client = lab.waiting()
    found = inspected("ps", "--all", project(lab.name))
    assert len(found) == 4
    for name, each in found.items():
        assert not any(each["NetworkSettings"]["Ports"].values()), name
        ((network, at),) = each["NetworkSettings"]["Networks"].items()
        assert port_probe.answering_on_machine(at["IPAddress"]) == [], name
        inside = port_probe.answering_in(network, at["IPAddress"])
        assert inside == ([] if lab.tls else [2222] if "client" in name else [2222, 2223]), name
    client.terminate()
    client.communicate(timeout=SECS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_client_ends_with_its_command(lab: Lab, number: signal.Signals) -> None:
    client = lab.waiting()
    client.send_signal(number)
    client.communicate(timeout=SECS)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert client.returncode == expected
    wait_until(lambda: not lab.clients(), SECS, "the container to be removed")


def test_a_ps_that_was_killed_comes_back(lab: Lab) -> None:
    client = lab.waiting()
    docker("exec", f"{project(lab.name)}-ps-1-1", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)", check=False)
    began = time.monotonic()
    assert client.stdout is not None
    assert client.stdout.readline() == "lost\n"
    assert time.monotonic() - began < NOTICE_SECS
    _, errors = client.communicate(timeout=SECS)
    assert client.returncode == 1
    assert re.search(rf"LostPeerError: ps 1 of fleet {lab.name} has gone away", errors), errors
    file = lab.folder / "fleet.yaml"
    commanded("fleet", "up", str(file), "--on", "compose")
    assert lab.run(lab.client, "0").returncode == 0
    found = lab.status()
    assert {key: (row["state"], row["restarts"]) for key, row in found.items()} == {
        "ps-0": ("running", 0),
        "ps-1": ("running", 1),
        "worker-0": ("running", 0),
    }


def test_a_run_trains_on_the_ps_of_the_fleet(lab: Lab, tmp_path: Path) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    words = ["up", str(EXAMPLES.parent / "linear" / "job.yaml"), "--set", f"name={name}", "--set", "train.steps=200"]
    up = [*words, "--out", str(tmp_path / "out"), "--fleet", lab.name]
    if lab.tls:
        assert f"--fleet {lab.name}: the fleet has tls: true" in commanded(*up, code=64).stderr
        return
    try:
        commanded(*up)
        report = Report.read(tmp_path / "out")
        assert (report.status, report.final_step) == ("done", 200)
        logged = commanded("logs", lab.name, "ps-1", "--json").stdout
        assert f'"run": "{name}"' in logged, "its ps has trained"
    finally:
        commanded("down", name, "--results")
    assert {row["restarts"] for row in lab.status().values() if row["index"] == 0} == {0}


def test_a_run_of_the_same_name_leaves_the_fleet_as_it_is(lab: Lab) -> None:
    assert "is a fleet that stands" in commanded("down", lab.name, "--results", code=64).stderr
    assert lab.run(lab.client, "0").returncode == 0
