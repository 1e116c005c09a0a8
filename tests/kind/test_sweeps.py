"""`psfleet sweep --on kubernetes`: the driver of a study and its workers as pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.numpy
import yaml
from support.compose_lab import commanded
from support.kind_fleet import COMMAND_SECS, RECOVERY_SECS, START_SECS, Space
from support.swept_study import SweptStudy

from psfleet.polling import wait_until

pytestmark = pytest.mark.timeout(900)

SPACE = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}
HELD = """\
import pathlib

pathlib.Path("/tmp/hold").touch()

from swept_program import build
"""
"""A program whose steps are held in each new process, until the file is removed."""


def made(space: Space, module: str = "swept_program", **sections: object) -> SweptStudy:
    """A study of two trials on two workers; sections are those of the job."""
    folder = space.folder / "study"
    folder.mkdir()
    study = SweptStudy.make(folder, SPACE, {"folder": "/tmp"}, fleet={"workers": 2})
    (folder / "held.py").write_text(HELD)
    job = yaml.safe_load((folder / "job.yaml").read_text())
    limits = {"ps": {"memory": "1Gi"}, "worker": {"memory": "1Gi"}}
    (folder / "job.yaml").write_text(
        yaml.safe_dump({**job, "program": f"{module}:build", "container": limits, **sections})
    )
    return study


def weights(folder: Path) -> dict[str, object]:
    """The weights of each trial."""
    return {path.name: safetensors.numpy.load_file(path) for path in sorted((folder / "weights").iterdir())}


def ended(space: Space, process: object) -> int:
    """The exit code of a started command, once it has ended."""
    code = wait_until(process.poll, START_SECS + RECOVERY_SECS, "psfleet sweep to end", done=lambda it: it is not None)  # type: ignore[attr-defined]
    return int(code)


def begun(space: Space) -> dict[str, str]:
    """The pods of workers that train a trial, by name, with their uids."""
    pods = [pod["metadata"] for pod in space.pods("worker") if pod["status"]["phase"] == "Running"]
    return {
        each["name"]: each["uid"]
        for each in pods
        if any(entry.get("event") == "trial" for entry in space.entries(each["name"]))
    }


def test_a_study_in_pods_equals_one_on_processes(space: Space, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    here = SweptStudy.make(tmp_path / "here", SPACE, fleet={"workers": 2})
    commanded("sweep", str(here.folder / "study.yaml"), "--out", str(here.out))
    study = made(space, tls=True)
    process = space.start("sweep", str(study.folder / "study.yaml"))
    assert ended(space, process) == 0, space.printed(process)
    out = space.folder / "studies" / "swept"
    assert weights(out) == weights(here.out)
    assert "2 of 2: trial" in space.printed(process)
    assert {path.name for path in (out / "logs").iterdir()} == {"driver.log", "worker-0.log", "worker-1.log"}
    assert space.kubectl("get", "jobs,pods,services,networkpolicies,secrets", "-o", "name").split() == []
    job = study.folder / "other.yaml"
    job.write_text((study.folder / "job.yaml").read_text())
    assert "is in namespace" in space.psfleet("up", str(job), code=64), "as a study"
    space.psfleet("down", "swept", "--results")


def test_killed_pods_and_a_command_that_detached_cost_no_trial(space: Space) -> None:
    study = made(space, "held")
    process = space.start("sweep", str(study.folder / "study.yaml"))
    wait_until(lambda: len(begun(space)) == 2, START_SECS, "a trial on each worker", poll_secs=1)
    process.send_signal(2)
    assert process.wait(COMMAND_SECS) == 130
    assert "detached; the study continues" in space.printed(process)
    rows = json.loads(space.psfleet("status", "swept", "--json"))
    assert [(row["role"], row["index"], row["state"]) for row in rows] == [
        ("chief", 0, "running"), ("worker", 0, "running"), ("worker", 1, "running")
    ]  # fmt: skip
    assert "trial" in space.psfleet("logs", "swept", "worker-1")
    before = begun(space)
    space.kubectl("delete", "pod", sorted(before)[0], "--wait=false")
    chief = space.pod("chief", 0)["metadata"]["name"]
    space.kubectl("exec", chief, "--", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)", check=False)
    wait_until(
        lambda: len(begun(space)) == 2 and set(begun(space).values()) != set(before.values()),
        RECOVERY_SECS, "the repetition of the trials in a new pod", poll_secs=1,
    )  # fmt: skip
    process = space.start("sweep", str(study.folder / "study.yaml"))
    for name in begun(space):
        space.kubectl("exec", name, "--", "rm", "/tmp/hold")
    assert ended(space, process) == 0, space.printed(process)
    out = space.folder / "studies" / "swept"
    assert len(weights(out)) == 2
    states = [line.split(",")[1] for line in (out / "trials.csv").read_text().splitlines()[1:]]
    assert states == ["complete"] * 2


FROZEN = {
    # The process of the worker is the child of that which process 1 has started.
    0: "read parent < /proc/1/task/1/children; kill -STOP $(cat /proc/$parent/task/*/children)",
    1: "kill -STOP -1",
}
"""By worker, what freezes its process, or all of its pod."""


def test_frozen_pods_are_replaced(space: Space) -> None:
    study = made(space, "held", deadlines={"step_secs": 5})
    process = space.start("sweep", str(study.folder / "study.yaml"))
    wait_until(lambda: len(begun(space)) == 2, START_SECS, "a trial on each worker", poll_secs=1)
    before = begun(space)
    for name, (_, freeze) in zip(sorted(before), sorted(FROZEN.items()), strict=True):
        space.kubectl("exec", name, "--", "sh", "-c", freeze)
    wait_until(
        lambda: len(begun(space)) == 2 and not set(begun(space).values()) & set(before.values()),
        RECOVERY_SECS, "the trials in new pods", poll_secs=1,
    )  # fmt: skip
    for name in begun(space):
        space.kubectl("exec", name, "--", "rm", "/tmp/hold")
    assert ended(space, process) == 0, space.printed(process)
    assert "died (no sign of life for 5 s" in space.printed(process)
    states = [line.split(",")[1] for line in (space.folder / "studies/swept/trials.csv").read_text().splitlines()[1:]]
    assert states == ["complete"] * 2
