"""Loaders as pods of a real cluster: a lost one costs no step and changes no weight, and they reach nobody."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.kind_fleet import COMMAND_SECS, PROGRAM, RECOVERY_SECS, START_SECS, Object, Space

import psfleet
from psfleet.checkpoint.store import newest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.job.job import load_job
from psfleet.polling import wait_until
from psfleet.report.schema import Report

STEPS = 400
PACE_SECS = 0.06
"""For each of the four examples of a batch: a run of two minutes."""
LOADED = PROGRAM.with_name("loaded_program.py")
KILL = ("sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")
CONNECT = """
import socket
try:
    socket.create_connection(("{host}", {port}), 5)
    print("open")
except OSError as error:
    print(error)
"""

pytestmark = pytest.mark.timeout(START_SECS + 4 * RECOVERY_SECS)


def weights(out: Path) -> np.ndarray:
    checkpoint = newest(out / "checkpoints")
    assert checkpoint is not None
    return read_tensors(checkpoint)["w"]


def job_file(space: Space, name: str, **sections: Any) -> str:
    path = space.job_file(
        name,
        {"step_secs": PACE_SECS},
        input={"from": "loaders", "loaders": 2},
        train={"steps": STEPS, "batch_size": 4, "shuffle": 16, "seed": 7},
        device={"intra_op_threads": 1},
        container={"loader": {"memory": "1Gi"}},
        **sections,
    )
    shutil.copy(LOADED, Path(path).with_name("program.py"))
    return path


def unloaded(folder: Path, path: str) -> np.ndarray:
    """The weights of the same job on this machine, whose workers read themselves."""
    fields = load_job(Path(path)).model_dump(mode="json", exclude_unset=True)
    job = {**fields, "input": {"from": "worker"}, "options": {}}
    report = psfleet.train(job, out=folder, program_folder=Path(path).parent)
    assert report.status == "done", report.error
    return weights(folder)


def loader_events(space: Space) -> list[Object]:
    """What the chief has logged of restarted loaders."""
    entries = space.entries(space.pods("chief")[-1]["metadata"]["name"])
    return [entry for entry in entries if entry.get("event") == "restarted"]


def lost_loaders(space: Space) -> list[Object]:
    """What worker 1 has logged of loaders that it has lost."""
    entries = space.entries(space.pods("worker")[-1]["metadata"]["name"])
    return [entry for entry in entries if entry.get("event") == "loader_lost"]


def reaches(space: Space, component: str, host: str, port: int) -> bool:
    """Whether a pod of a component gets a connection."""
    pod = space.pods(component)[0]["metadata"]["name"]
    script = CONNECT.format(host=host, port=port)
    return space.kubectl("exec", pod, "-c", component, "--", "python", "-c", script).strip() == "open"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_lost_loader_costs_no_step_and_all_pods_end_well(space: Space, tmp_path: Path, tls: bool) -> None:
    name = "tls" if tls else "plain"
    path = job_file(space, name, tls=tls)
    up = space.start("up", path)
    space.wait_for_step(name, 5, START_SECS)
    old = space.pod("loader", 0)["metadata"]["name"]
    if tls:
        space.kubectl("exec", old, "-c", "loader", "--", *KILL, check=False)
    else:
        port = 2222
        found = {who: reaches(space, who, f"{name}-loader-1.{name}", port) for who in ("worker", "ps", "loader")}
        assert found == {"worker": True, "ps": False, "loader": False}
        assert not [each for each in (port, 2226) if reaches(space, "loader", f"{name}-ps-0.{name}", each)]
        space.kubectl("delete", "pod", old, "--wait=false")
    wait_until(lambda: loader_events(space), RECOVERY_SECS, "the chief to find the new pod", poll_secs=1)
    assert up.wait(RECOVERY_SECS + COMMAND_SECS) == 0, space.printed(up)
    out = space.folder / "runs" / name
    report = Report.read(out)
    restarts = [(event.role, event.index, event.cause) for event in report.events if event.kind == "restarted"]
    assert restarts == [("loader", 0, "it was replaced")]
    assert (report.gradients.pushed, report.gradients.used) == (2 * STEPS, 2 * STEPS)
    np.testing.assert_allclose(weights(out), unloaded(tmp_path / "unloaded", path), rtol=0, atol=1e-6)
    assert "loader is ready" in (out / "logs" / "loader-0.log").read_text()


def test_the_number_of_loaders_changes_during_training_and_no_weight_does(space: Space, tmp_path: Path) -> None:
    path = job_file(space, "scaled")
    up = space.start("up", path)
    space.wait_for_step("scaled", 5, START_SECS)
    space.psfleet("scale", "scaled", "--loaders", "1")
    wait_until(lambda: lost_loaders(space), RECOVERY_SECS, "worker 1 to lose its loader", poll_secs=1)
    space.psfleet("scale", "scaled", "--loaders", "3")
    wait_until(lambda: len(space.pods("loader")) >= 3, RECOVERY_SECS, "the pods of loaders", poll_secs=1)
    assert up.wait(RECOVERY_SECS + COMMAND_SECS) == 0, space.printed(up)
    out = space.folder / "runs" / "scaled"
    report = Report.read(out)
    assert (report.gradients.pushed, report.gradients.used) == (2 * STEPS, 2 * STEPS)
    np.testing.assert_allclose(weights(out), unloaded(tmp_path / "unloaded", path), rtol=0, atol=1e-6)
