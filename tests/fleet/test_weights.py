"""The weights of a run that trains, read and replaced while it does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from support.handled_run import handled
from support.local_fleet import START_SECS
from support.programs.counting_program import NAMES, SIZE

import psfleet
from psfleet.errors import UsageError
from psfleet.polling import wait_until
from psfleet.report.schema import EventLog

RATE = 2.0**-10
"""So that weights are exact."""
READS = 40
ASKS_FOR_MANY = """
import sys
import psfleet
while True:
    try:
        psfleet.attach(sys.argv[1]).gradient(batches=10**9)
    except psfleet.errors.UsageError:
        pass  # a call of the test is in progress
"""


def steps_of(tensors: Mapping[str, np.ndarray], name: str, initial: float = 0.0) -> int:
    """The number of steps that all elements of a tensor have made since they had the value `initial`."""
    [value] = np.unique(tensors[name])
    return round((initial - float(value)) / RATE)


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_weights_on_two_ps_are_read_as_of_one_step_and_set_at_one_step_while_training_goes_on(tmp_path: Path) -> None:
    with handled(
        tmp_path,
        step_secs=0.005,
        programs=["counting_program"],
        fleet={"ps": 2, "workers": 2},
        optimizer={"name": "sgd", "learning_rate": RATE},
        train={"steps": 1_000_000},
    ) as run:
        wait_until(lambda: run.step > 0, START_SECS, "the first step")
        seen = []
        for _ in range(READS):
            found = run.weights.get()
            first, second = (steps_of(found, name) for name in NAMES)
            assert first == second, "the ps were read at different steps"
            seen.append(first)
        assert seen == sorted(seen)
        assert len(set(seen)) > READS / 2, "training went on"

        run.weights.set({"second": np.full(SIZE, 8, np.float32)})
        found = run.weights.get()
        [event] = [each for each in EventLog(run.folder / EventLog.FILE_NAME).read() if each.kind == "weights_set"]
        at = re.search(r"at step (\d+)", event.cause)
        assert at is not None
        assert steps_of(found, "first") - steps_of(found, "second", 8.0) == int(at[1]) > seen[-1]


def asked(run: psfleet.Run) -> str:
    """What a held run answers to a call: its metrics, or why it makes none."""
    try:
        return str(run.evaluate().result(START_SECS))
    except UsageError as error:
        return str(error)


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_a_run_is_free_again_when_a_client_is_killed_that_has_asked_for_many_gradients(tmp_path: Path) -> None:
    with handled(tmp_path, paused=True, fleet={"workers": 2}) as run:
        wait_until(lambda: run.status == "held at step 0", START_SECS, "the run to be held")
        client = subprocess.Popen([sys.executable, "-c", ASKS_FOR_MANY, str(run.folder)])
        try:
            busy = f"`gradient` of the handle of process {client.pid} is in progress"
            wait_until(lambda: asked(run), START_SECS, "the call of the client", done=lambda said: busy in said)
        finally:
            client.kill()
            client.wait()
        wait_until(lambda: asked(run), START_SECS, "metrics", done=lambda said: said.startswith("{'loss'"))
        assert run.train(5).result(START_SECS) == 5
