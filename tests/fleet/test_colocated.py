"""Fleets whose workers are their ps, too: what each end of a process costs, and that a run always ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.local_fleet import START_SECS, Fleet, training

from psfleet.report.schema import Report

ROUND = 5
COLOCATED: dict[str, Any] = {"ps": 2, "workers": 2, "colocate": True}
OF_MODE: dict[str, dict[str, int]] = {"ssp": {"bound": 3}, "averaging": {"local_steps": ROUND}}
OFTEN: dict[str, Any] = {"every_steps": 10, "keep": 2}


@pytest.mark.extended
@pytest.mark.parametrize(("mode", "index"), [("async", 0), ("ssp", 1), ("averaging", 1), ("sync", 0), ("async", 1)])
def test_a_killed_worker_costs_the_steps_since_the_last_checkpoint_in_each_mode(
    mode: str, index: int, tmp_path: Path
) -> None:
    with training(
        tmp_path,
        fleet=COLOCATED,
        update={"mode": mode, **OF_MODE.get(mode, {})},
        checkpoint=OFTEN,
        train={"steps": 120},
    ) as fleet:
        fleet.wait_for_step(25)
        assert {log.stem for log in (fleet.out / "logs").iterdir()} == {"worker-0", "worker-1"}, "no other ps"
        fleet.kill("worker", index)
        fleet.wait_for(lambda: len(events(fleet)) > 0, START_SECS, f"the chief to note the loss of worker {index}")
        fleet.wait_for_progress()
        fleet.gates.hurry()
        report = fleet.done()
    assert report.generation >= 2, "the shard of the killed process is restored"
    role = "worker" if index else "chief"
    assert [(event.role, event.index, event.kind) for event in report.events] == [(role, index, "restarted")]
    assert report.restarts == 1
    resumed = report.gradients.since_step
    assert resumed is not None
    assert 0 < resumed <= 120
    for ps in report.gradients.per_ps:
        assert ps.pushed == ps.used + ps.dropped
    check_used(report, mode, 120 - resumed)


def check_used(report: Report, mode: str, steps: int) -> None:
    """Each step since the checkpoint is made of as many gradients as the mode says."""
    each = {"sync": 2 * steps, "averaging": 2 * steps // ROUND}.get(mode, steps)
    assert [ps.used for ps in report.gradients.per_ps] == [each, each]


@pytest.mark.extended
def test_when_all_processes_are_killed_at_once_the_report_says_what_that_cost(tmp_path: Path) -> None:
    """No process is left that knows how many steps were made."""
    with training(tmp_path, fleet=COLOCATED, checkpoint={"every_steps": 1000}, train={"steps": 60}) as fleet:
        fleet.wait_for_step(25)
        pids = [fleet.pid("worker", index) for index in (0, 1)]
        for pid in pids:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        fleet.wait_for(lambda: len(events(fleet)) > 1, START_SECS, "the new chief to note what was lost")
        fleet.gates.hurry()
        report = fleet.done()
    first, second = report.events
    assert (first.role, first.index, second.role, second.index) == ("chief", 0, "worker", 1)
    assert 25 <= first.steps_lost < 60, "all since step 0"
    assert second.steps_lost == 0
    assert report.restarts == 2


def test_a_stopped_run_saves_its_step_and_resumes_there(tmp_path: Path) -> None:
    with training(tmp_path, fleet=COLOCATED, train={"steps": 60}) as fleet:
        fleet.wait_for_step(15)
        fleet.launcher.send_signal(signal.SIGINT)
        assert fleet.end() == 128 + signal.SIGINT
        stopped = fleet.report()
        assert stopped.status == "stopped"
        assert stopped.checkpoint is not None
        assert stopped.checkpoint.step == stopped.final_step >= 15
    with training(tmp_path, fleet=COLOCATED, train={"steps": 60}) as fleet:
        fleet.gates.hurry()
        report = fleet.done()
    assert [ps.used for ps in report.gradients.per_ps] == [2 * (60 - stopped.final_step)] * 2


@pytest.mark.extended
def test_a_worker_whose_restarts_are_used_up_ends_the_run_even_in_async_mode(tmp_path: Path) -> None:
    fleet_of_two = {**COLOCATED, "max_restarts": 0}
    with training(tmp_path, fleet=fleet_of_two, update={"mode": "async"}, checkpoint=OFTEN) as fleet:
        fleet.wait_for_step(15)
        fleet.kill("worker", 1)
        assert fleet.end() == 75
        error = fleet.report().error
    assert error is not None
    assert "worker 1" in error


@pytest.mark.extended
def test_a_worker_that_stays_frozen_ends_the_run_which_names_its_ps(tmp_path: Path) -> None:
    """No other process has its shard. One that is thawed in time is in test_exact_through_faults.py."""
    deadlines = {"step_secs": 1.5, "stall_secs": 8}
    with training(tmp_path, fleet=COLOCATED, train={"steps": 60}, checkpoint=OFTEN, deadlines=deadlines) as fleet:
        fleet.wait_for_step(15)
        frozen = fleet.pid("worker", 1)
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        assert fleet.end() == 75
        error = fleet.report().error
    assert error is not None
    assert "ps 1 does not answer" in error


def events(fleet: Fleet) -> list[dict[str, Any]]:
    """What the chief, or its successor, has logged about restarts."""
    return fleet.entries("restarted")
