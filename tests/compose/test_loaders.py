"""Loaders in containers: a killed, added or removed one changes no weight; one that is lost for good is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compose_fleet import START_SECS, Fleet, fleet
from support.images import WORKER_IMAGE, docker

import psfleet
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import LOST_PEERS, USAGE
from psfleet.job.job import load_job
from psfleet.launch.status import statuses
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose.render import FLEET
from psfleet.platforms.compose.platform import Compose
from psfleet.report.schema import Report
from psfleet.tls import certificates

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = SUPPORT / "programs" / "loaded_program.py"
STEPS = 1500
PACE_SECS = 0.03
"""For each of the four examples of a batch, until the test calls `hurry`."""
JOB: dict[str, Any] = {
    "program": "loaded_program:build",
    "optimizer": {"name": "sgd", "learning_rate": 0.05},
    "train": {"steps": STEPS, "batch_size": 4, "shuffle": 16, "seed": 7},
    "device": {"intra_op_threads": 1},
}
STRANGER = """
import json, sys
from pathlib import Path
sys.path.append("/support")
from compose_stranger import PORTS, is_open, tunnels
host, *owners = sys.argv[1:]
found = {owner: tunnels([host], Path("/certificates", owner)) for owner in owners}
found["without"] = tunnels([host], None)
found["ports"] = [port for port in PORTS if is_open(host, port)]
print(json.dumps(found))
"""

pytestmark = pytest.mark.timeout(600)


def weights(out: Path) -> np.ndarray:
    checkpoint = newest(out / "checkpoints")
    assert checkpoint is not None
    return read_tensors(checkpoint)["w"]


def unloaded(folder: Path, seen: Fleet) -> np.ndarray:
    """The weights of the same job on this machine, whose workers read themselves."""
    fields = load_job(seen.job).model_dump(mode="json", exclude_unset=True)
    job = {**fields, "input": {"from": "worker"}, "options": {}}
    report = psfleet.train(job, out=folder, program_folder=seen.folder)
    assert report.status == "done", report.error
    return weights(folder)


def reached(seen: Fleet, owners: dict[str, Path]) -> dict[str, list[object]]:
    """What a container on the fleet's own network reaches of loader 0: ports, and tunnels by owner of a certificate."""
    folders = {"/support": SUPPORT, **{f"/certificates/{owner}": folder for owner, folder in owners.items()}}
    mounts = [word for target, folder in folders.items() for word in ("--volume", f"{folder}:{target}:ro")]
    options = ("--rm", "--network", seen.network(FLEET), "--entrypoint", "python", *mounts)
    words = ("-c", STRANGER, f"{seen.name}-loader-0", *owners)
    found = docker("run", *options, WORKER_IMAGE, *words, timeout_secs=START_SECS)
    return dict(json.loads(found.stdout.splitlines()[-1]))


def restarts(seen: Fleet, name: str) -> int:
    """Processes that a container has had beyond its first."""
    return len(seen.entries("starting", name)) - 1


@pytest.mark.core
def test_killed_loaders_cost_no_step_and_the_run_ends_with_all_its_containers(tmp_path: Path) -> None:
    job = {**JOB, "fleet": {"ps": 1, "workers": 2}, "input": {"from": "loaders", "loaders": 2}}
    with fleet(tmp_path / "job", PACE_SECS, programs=(PROGRAM,), **job) as seen:
        seen.up()
        seen.wait_for_step(5)
        rows = [row for row in statuses(Compose(), seen.name) if row.role == "loader"]
        seen.kill_inside("loader-0")
        docker("kill", seen.container("loader-1"))
        for name in ("loader-0", "loader-1"):
            seen.wait_for(lambda name=name: restarts(seen, name), START_SECS, f"{name} to start again")
        seen.wait_for(lambda: len(seen.entries("restarted")) == 2, START_SECS, "the chief to find both")
        seen.hurry()
        assert seen.end() == 0, seen.tails()
        report, log = Report.read(seen.out), (seen.out / "logs" / "loader-0.log").read_text()
        codes = {name: state["State"]["ExitCode"] for name, state in seen.containers().items() if "loader" in name}
        expected = unloaded(tmp_path / "unloaded", seen)
    assert [(row.index, row.state, row.step) for row in rows] == [(0, "running", None), (1, "running", None)]
    found = sorted((event.role, event.index, event.kind) for event in report.events if event.role == "loader")
    assert found == [("loader", 0, "restarted"), ("loader", 1, "restarted")]
    assert (report.gradients.pushed, report.gradients.used) == (2 * STEPS, 2 * STEPS)
    assert list(codes.values()) in ([], [0, 0]), codes
    assert f"loader is ready at {seen.name}-loader-0:2222" in log
    np.testing.assert_allclose(weights(seen.out), expected, rtol=0, atol=1e-6)


def test_a_loader_whose_restarts_are_used_up_ends_the_run_and_is_named(tmp_path: Path) -> None:
    job = {**JOB, "fleet": {"ps": 1, "workers": 1, "max_restarts": 0}, "input": {"from": "loaders"}}
    with fleet(tmp_path / "job", PACE_SECS, programs=(PROGRAM,), **job) as seen:
        seen.up()
        seen.wait_for_step(5)
        seen.kill_inside("loader-0")
        assert seen.end() == LOST_PEERS, seen.tails()
        assert f"container {seen.container('loader-0')} is gone for good" in seen.screen.read_text(), seen.tails()


def test_with_tls_only_workers_get_into_a_loader_and_a_killed_one_costs_no_step(tmp_path: Path) -> None:
    certificates.make(tmp_path / "others")
    job = {**JOB, "tls": True, "fleet": {"ps": 1, "workers": 2}, "input": {"from": "loaders", "loaders": 2}}
    with fleet(tmp_path / "job", PACE_SECS, programs=(PROGRAM,), **job) as seen:
        seen.up()
        seen.wait_for_step(5)
        own = certificates_folder(seen.name)
        owners = {"others": tmp_path / "others" / "worker", "loader": own / "loader", "worker": own / "worker"}
        seen.kill_inside("loader-0")
        seen.wait_for(lambda: len(seen.entries("restarted")) == 1, START_SECS, "the chief to find the new process")
        found = reached(seen, owners)
        seen.hurry()
        assert seen.end() == 0, seen.tails()
        report = Report.read(seen.out)
        logs = [(seen.out / "logs" / f"worker-{index}.log").read_text() for index in range(2)]
        expected = unloaded(tmp_path / "unloaded", seen)
    both = [f"{seen.name}-loader-0"] * 2
    assert found == {"others": [], "loader": [], "worker": both, "without": [], "ports": []}
    assert "".join(logs).count('"event": "loader_lost"') == 1
    assert (report.gradients.pushed, report.gradients.used) == (2 * STEPS, 2 * STEPS)
    np.testing.assert_allclose(weights(seen.out), expected, rtol=0, atol=1e-6)


def test_the_number_of_loaders_changes_during_training_and_no_weight_does(tmp_path: Path) -> None:
    job = {**JOB, "tls": True, "fleet": {"ps": 1, "workers": 2}, "input": {"from": "loaders"}}
    with fleet(tmp_path / "job", PACE_SECS, programs=(PROGRAM,), **job) as seen:
        seen.up()
        seen.wait_for_step(5)
        seen.run("scale", seen.name, "--loaders", "2")
        seen.wait_for(lambda: seen.entries("loader_changed", "worker"), START_SECS, "worker 1 to change its loader")
        rows = [(row.index, row.state) for row in statuses(Compose(), seen.name) if row.role == "loader"]
        seen.run("scale", seen.name, "--loaders", "1")
        seen.wait_for(lambda: seen.entries("loader_lost", "worker"), START_SECS, "worker 1 to lose that loader")
        left = [row.index for row in statuses(Compose(), seen.name) if row.role == "loader"]
        assert "expected 1 to 4, fleet.max_workers" in seen.run("scale", seen.name, "--loaders", "5", code=USAGE)
        seen.hurry()
        assert seen.end() == 0, seen.tails()
        report = Report.read(seen.out)
        changed = [*seen.entries("loader_changed"), *seen.entries("loader_lost")]
        expected = unloaded(tmp_path / "unloaded", seen)
    assert (rows, left) == ([(0, "running"), (1, "running")], [0])
    assert not changed, "the chief keeps loader 0"
    assert (report.gradients.pushed, report.gradients.used) == (2 * STEPS, 2 * STEPS)
    np.testing.assert_allclose(weights(seen.out), expected, rtol=0, atol=1e-6)
