"""A handle on a run in containers: held, trained, evaluated, its weights read and replaced, through a lost chief."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.compose_fleet import END_SECS, START_SECS, Fleet, fleet
from support.images import docker

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import UsageError

CALL_SECS = 60.0


@contextmanager
def held(folder: Path, **sections: object) -> Iterator[tuple[psfleet.Run, Fleet]]:
    """A run that is held at step 0."""
    folder = folder / uuid.uuid4().hex[:8]
    with fleet(folder, step_secs=0.0, train={"steps": 1000}, **sections) as started:
        yield psfleet.start(started.job, out=started.out, paused=True, on="compose"), started


def ports(started: Fleet) -> set[str]:
    """Of the containers that train, those with a port on the machine."""
    found = {name: one for name, one in started.containers().items() if "tensorboard" not in name}
    return {name for name, one in found.items() if any(one["NetworkSettings"]["Ports"].values())}


@pytest.mark.timeout(400)
def test_a_run_is_driven_from_outside_through_the_loss_of_its_chief(tmp_path: Path) -> None:
    with held(tmp_path) as (run, started):
        assert run.train(20).result(START_SECS) == 20
        assert (run.status, run.step) == ("held at step 20", 20)
        before = run.evaluate().result(CALL_SECS)
        loss, gradient = run.gradient()
        assert loss > 0
        assert list(gradient) == run.weights.trained

        weights = run.weights.get()
        zeros = {name: np.zeros_like(value) for name, value in weights.items()}
        run.weights.set(zeros)
        assert run.evaluate().result(CALL_SECS) != before
        with pytest.raises(UsageError, match="no tensor is given"):
            run.weights.set({})

        calls = run.train(20)
        docker("kill", started.container("chief"))
        assert calls.result(START_SECS) == 40, "the steps are made once"
        assert ports(started) == set()

        other = psfleet.attach(started.out)
        saved = Path(started.run("save", started.name, "--on", "compose").strip())
        assert saved.parent == Path("/out/checkpoints")
        other.stop()
        report = other.wait(END_SECS)
        assert (report.status, report.exit_code, report.final_step) == ("stopped", 128 + signal.SIGTERM, 40)
        assert sum(event.steps_lost for event in report.events) == 0
        copied = read_manifest(started.out / "checkpoints" / saved.name)
        assert copied.step == 40
        assert np.any(read_tensors(copied)["w1"]), "trained on from zeros"
        assert "containers" not in started.left(), "the fleet is removed with its end"
        assert run.status == "stopped"


@pytest.mark.timeout(300)
def test_a_relay_has_the_certificate_of_a_fleet_with_tls(tmp_path: Path) -> None:
    with held(tmp_path, tls=True) as (run, _):
        assert run.train(5).result(START_SECS) == 5
        assert set(run.weights.get()) == set(run.weights.names)
        assert list(run.gradient()[1]) == run.weights.trained
        run.stop()
        assert run.wait(END_SECS).final_step == 5
