"""A fleet that stands on a real Docker engine: clients in containers, runs, strangers, and the loss of a ps."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import port_probe
from support.compose_fleet import COMMAND_SECS, inspected
from support.compose_lab import SECS, Lab, commanded, standing_lab
from support.images import WORKER_IMAGE, docker

import psfleet
from psfleet.manifests.compose.render import network_of, project
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from psfleet.tls import certificates

EXAMPLES = Path(__file__).parents[2] / "examples" / "client"
STRANGER = Path(__file__).parents[1] / "support" / "compose_stranger.py"
NOTICE_SECS = 15.0
"""Issue 13: until clients get an error after a ps was killed."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two ps and a worker."""
    with standing_lab(tmp_path_factory.mktemp("lab"), request.param) as found:
        assert found.up() == f"{found.name}: up, 2 ps and 1 worker\n", "again"
        yield found


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
        expected = [2222] if "client" in name else [2222, 2223, 2226] if "-ps-" in name else [2222, 2223]
        assert inside == ([] if lab.tls else expected), name
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
    lab.kill("ps-1")
    began = time.monotonic()
    assert client.stdout is not None
    assert client.stdout.readline() == "lost\n"
    assert time.monotonic() - began < NOTICE_SECS
    _, errors = client.communicate(timeout=SECS)
    assert client.returncode == 1, errors
    assert re.search(rf"LostPeerError: ps 1 of fleet {lab.name} has gone away", errors), errors
    lab.up()
    assert lab.run(lab.client, "0").returncode == 0
    found = lab.status()
    assert {key: (row["state"], row["restarts"]) for key, row in found.items()} == {
        "ps-0": ("running", 0),
        "ps-1": ("running", 1),
        "worker-0": ("running", 0),
    }


def test_runs_at_the_same_time_train_on_the_ps_of_the_fleet(lab: Lab, tmp_path: Path) -> None:
    """All have workers 0 and 1, which each ps must reach at addresses of their own, and two have a loader 0."""
    variants = [("between_graph", "loaders"), ("between_graph", "loaders"), ("in_graph", "worker")]
    names = [f"test-{uuid.uuid4().hex[:8]}" for _ in variants]

    def up(name: str, variant: tuple[str, str]) -> Report:
        replication, source = variant
        words = ["up", str(EXAMPLES.parent / "linear" / "job.yaml"), "--fleet", lab.name, "--out", str(tmp_path / name)]
        changes = [f"name={name}", "train.steps=200", "fleet.workers=2", f"input.from={source}"]
        changes.append(f"update.replication={replication}")
        commanded(*words, *[f"--set={each}" for each in changes])
        return Report.read(tmp_path / name)

    try:
        with ThreadPoolExecutor() as threads:
            reports = list(threads.map(up, names, variants))
        assert [(report.status, report.final_step, report.restarts) for report in reports] == [("done", 200, 0)] * 3
        logged = commanded("logs", lab.name, "ps-1", "--json").stdout
        assert all(f'"run": "{name}-' in logged for name in names), "its ps has trained"
    finally:
        for name in names:
            commanded("down", name, "--results")
    assert {row["restarts"] for row in lab.status().values() if row["index"] == 0} == {0}


def test_a_handle_starts_a_run_on_the_ps_of_the_fleet(lab: Lab, tmp_path: Path) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    job, changes = EXAMPLES.parent / "linear" / "job.yaml", [f"name={name}", "fleet.workers=2"]
    out = tmp_path / "out"
    try:
        run = psfleet.start(job, out=out, overrides=changes, paused=True, fleet=lab.name, on="compose")
        assert run.train(20).result(SECS) == 20
        run.stop()
        assert run.wait(SECS).final_step == 20
        logged = commanded("logs", lab.name, "ps-1", "--json").stdout
        assert f'"run": "{name}-' in logged, "its ps has trained"
    finally:
        commanded("down", name, "--results")


def test_a_run_of_the_same_name_leaves_the_fleet_as_it_is(lab: Lab) -> None:
    assert "is a fleet that stands" in commanded("down", lab.name, "--results", code=64).stderr
    assert lab.run(lab.client, "0").returncode == 0


def test_strangers_on_the_network_of_a_fleet_with_tls_get_nowhere(lab: Lab, tmp_path: Path) -> None:
    """Not even with a certificate of another fleet; without TLS they do get in."""
    certificates.make(tmp_path / "others")
    hosts = ["ps-0", "ps-1", "worker-0"]
    options = ["--rm", "--entrypoint", "python", "--network", network_of(lab.name)]
    mounts = [
        "--volume",
        f"{STRANGER}:/test/stranger.py:ro",
        "--volume",
        f"{tmp_path / 'others' / 'client'}:/others:ro",
    ]
    words = [*options, *mounts, WORKER_IMAGE, "/test/stranger.py", "/others", "run", *hosts]
    found = json.loads(docker("run", *words).stdout.splitlines()[-1])
    if not lab.tls:
        assert found["tensorflow_ports"] == [f"{host}:2222" for host in hosts]
        assert (found["control"], found["session"]) == (True, True)
        assert found["exchanges"] == ["ps-0", "ps-1"]
        return
    assert found == {
        "tensorflow_ports": [],
        "control": False,
        "control_with_other_certificate": False,
        "tunnels": [],
        "tunnels_with_other_certificate": [],
        "exchanges": [],
        "exchanges_with_other_certificate": [],
        "session": False,
    }
