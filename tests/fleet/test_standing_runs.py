"""Runs at the same time on one standing fleet: neither disturbs the other, and both survive the loss of a ps."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.local_fleet import START_SECS, Fleet, training
from support.programs.counting_program import NAMES
from support.standing_folder import state_of

import psfleet
from psfleet.checkpoint.tensors import read_tensors
from psfleet.errors import LostPeerError
from psfleet.platforms.standing import commands
from psfleet.platforms.standing.fleet_folder import FleetFolder, find
from psfleet.processes.identity import send_signal
from psfleet.service import settings

NOTICE_SECS = 15.0
"""Issue 13: until clients get an error after a ps was killed."""
STEPS = 200
EVERY_STEPS = 25
RATES = {"one": 2.0**-10, "two": 2.0**-9}
"""By run, so that weights are exact and say whose steps they have made."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetFolder]:
    """Two ps that stand."""
    file = tmp_path / "fleet.yaml"
    file.write_text("name: lab\nfleet: {ps: 2}\n")
    monkeypatch.setenv(settings.STATE, str(tmp_path / "state"))
    up = [sys.executable, "-P", "-m", "psfleet", "fleet", "up", str(file)]
    subprocess.run(up, check=True, capture_output=True)
    yield find("lab")
    commands.down("lab")


def has_come_back(fleet: Fleet) -> bool:
    return any(entry["generation"] == 2 for entry in fleet.entries("progress"))


@pytest.mark.extended
@pytest.mark.parametrize("lost", [0, 1])
def test_two_runs_on_one_fleet_go_back_to_their_checkpoints_when_a_ps_dies_and_end_with_their_own_weights(
    lab: FleetFolder, tmp_path: Path, lost: int
) -> None:
    folders = {name: tmp_path / name for name in RATES}
    for folder in folders.values():
        folder.mkdir()

    def run_of(name: str, workers: int) -> AbstractContextManager[Fleet]:
        return training(
            folders[name],
            "--fleet",
            "lab",
            step_secs=0.1,
            programs=["counting_program"],
            fleet={"ps": 1, "workers": workers},
            optimizer={"name": "sgd", "learning_rate": RATES[name]},
            train={"steps": STEPS, "batch_size": 1},
            checkpoint={"every_steps": EVERY_STEPS},
        )

    with (
        run_of("one", 2) as one,
        run_of("two", 1) as two,
        psfleet.connect("lab") as client,
        ThreadPoolExecutor(1) as threads,
    ):
        for each in (one, two):
            each.wait_for(lambda each=each: each.entries("checkpoint"), START_SECS, "a checkpoint")
        assert not has_come_back(one)
        assert not has_come_back(two)
        queue = client.queue("waits", [tf.int64], [[]], device=client.device("ps", lost))
        waiting = threads.submit(queue.dequeue)
        queue.size()
        task = state_of(lab).tasks[lost]
        send_signal(task.pid, task.identity)
        killed = time.monotonic()
        with pytest.raises(LostPeerError, match=rf"ps {lost} (of fleet lab has gone away|at .*refused)"):
            waiting.result(NOTICE_SECS)
        assert time.monotonic() - killed < NOTICE_SECS
        for each in (one, two):
            each.wait_for(lambda each=each: has_come_back(each), START_SECS, "a step of the next generation")
            each.gates.hurry()
        for name, each in (("one", one), ("two", two)):
            report = each.done()
            [event] = [event for event in report.events if event.role == "ps"]
            assert (event.index, event.kind, report.generation) == (lost, "restarted", 2)
            assert 0 <= event.steps_lost <= 2 * EVERY_STEPS
            tensors = read_tensors(each.checkpoint())
            for tensor in NAMES:
                np.testing.assert_array_equal(np.unique(tensors[tensor]), [-STEPS * RATES[name]], err_msg=name)
    assert [task.restarts for task in state_of(lab).tasks] == [int(index == lost) for index in range(2)]
