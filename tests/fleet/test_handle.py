"""A handle on a run of real processes: held at a step, trained and evaluated by calls, through losses of processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.handled_run import handled
from support.local_fleet import START_SECS, processes

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.polling import wait_until
from psfleet.report.schema import Report


@pytest.fixture
def run(tmp_path: Path, launches_forked: None) -> Iterator[psfleet.Run]:
    """A run that is held at step 0, and ends with the test."""
    del launches_forked
    with handled(tmp_path, paused=True, fleet={"ps": 2}, train={"steps": 1000}) as run:
        yield run


def kill(run: psfleet.Run, name: str) -> None:
    """Kills a service by the name of its log."""
    found = [pid for pid in processes(run.folder) if os.readlink(f"/proc/{pid}/fd/1").endswith(name)]
    services = [pid for pid in found if os.getsid(pid) == pid]
    assert services, f"no process writes {name}"
    os.kill(services[0], signal.SIGKILL)


def await_status(run: psfleet.Run, status: str) -> None:
    wait_until(lambda: run.status, START_SECS, f"a run that is {status}", done=lambda found: found == status)


def test_a_held_run_does_what_it_is_asked_whatever_dies(run: psfleet.Run) -> None:
    await_status(run, "held at step 0")
    initial = read_manifest(run.save())
    assert (initial.step, initial.generation) == (0, 1)
    assert run.train(5).result(START_SECS) == 5
    before = run.evaluate().result(START_SECS)

    loss, gradient = run.gradient()
    assert loss > 0
    assert list(gradient) == run.weights.trained

    zeros = np.zeros_like(run.weights.get_flat())
    run.weights.set_flat(zeros)
    assert (run.status, run.step) == ("held at step 5", 5)
    changed = run.evaluate().result(START_SECS)
    assert changed != before

    kill(run, "ps-1.log")
    np.testing.assert_array_equal(run.weights.get_flat(), zeros, err_msg="a rollback has undone the change")

    kill(run, "worker-0.log")
    # Completes once there is a chief again, and makes the steps once.
    assert run.train(5).result(START_SECS) == 10
    await_status(run, "held at step 10")
    assert np.any(run.weights.get_flat())

    other = psfleet.attach(run.folder)
    assert read_manifest(other.save()).step == 10
    other.stop()
    report: Report = run.wait(START_SECS)
    assert (report.status, report.exit_code, report.final_step) == ("stopped", 128 + signal.SIGTERM, 10)
    assert sum(event.steps_lost for event in report.events) == 0
    assert [event.kind for event in report.events].count("weights_set") == 1
