"""Calls of a handle while the process of the chief is frozen."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.handled_run import handled
from support.local_fleet import START_SECS, processes

import psfleet
from psfleet.control import liveness
from psfleet.errors import NoAnswerError
from psfleet.polling import wait_until

ANSWER_SECS = 6.0
"""Instead of 30: a connection that a frozen process does not accept fails after 5."""
SLACK_SECS = 10.0
CALLS: list[Callable[[psfleet.Run], Any]] = [
    lambda run: run.save(),
    lambda run: run.train(5).result(START_SECS),
    lambda run: run.evaluate().result(START_SECS),
    lambda run: run.gradient(),
    lambda run: run.weights.get(),
    lambda run: run.weights.set({"weight": np.zeros(1)}),
]


def failure(folder: Path, call: Callable[[psfleet.Run], Any]) -> tuple[float, str]:
    """Makes a call; after how many seconds and why it was given up."""
    began = time.monotonic()
    with pytest.raises(NoAnswerError) as caught:
        call(psfleet.attach(folder))
    return time.monotonic() - began, str(caught.value)


@pytest.mark.extended
@pytest.mark.usefixtures("launches_forked")
def test_every_call_ends_in_time_and_the_run_takes_calls_again_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with handled(tmp_path, paused=True, fleet={"workers": 2}) as run:
        wait_until(lambda: run.status == "held at step 0", START_SECS, "the run to be held")
        assert run.train(5).result(START_SECS) == 5
        # What is known of a chief that is frozen is in its log.
        wait_until(run._channel.logged_step, START_SECS, "the step in the log", done=lambda step: step == 5)
        monkeypatch.setattr(liveness, "ANSWER_SECS", ANSWER_SECS)
        found = [pid for pid in processes(run.folder) if os.readlink(f"/proc/{pid}/fd/1").endswith("worker-0.log")]
        [chief] = [pid for pid in found if os.getsid(pid) == pid]
        os.kill(chief, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(len(CALLS)) as pool:
                for secs, message in pool.map(lambda call: failure(run.folder, call), CALLS):
                    assert re.search(r"the chief \(worker 0\) at 127\.0\.0\.1:\d+ does not answer", message)
                    assert secs < ANSWER_SECS + SLACK_SECS
            assert (run.status, run.step) == ("no answer from the chief", 5)
        finally:
            os.kill(chief, signal.SIGCONT)
        wait_until(lambda: run.status, START_SECS, "a chief that answers", done=lambda status: "held" in status)
        assert run.train(5).result(START_SECS) == 10
