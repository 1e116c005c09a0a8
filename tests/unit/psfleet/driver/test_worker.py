"""Who ended a worker of a study: its training program, or something else."""

from __future__ import annotations

import signal

import pytest

from psfleet import errors
from psfleet.driver.worker import is_end_by_program


@pytest.mark.parametrize(
    ("code", "is_logged", "expected"),
    [
        (errors.PROGRAM_FAILED, False, True),
        (errors.DONE, False, True),
        (errors.PROGRAM_FAILED, True, False),
        (errors.LOST_PEERS, False, False),
        (errors.SIGNAL_BASE + signal.SIGKILL, False, False),
    ],
)
def test_an_end_that_the_worker_did_not_log_is_the_programs(code: int, is_logged: bool, expected: bool) -> None:
    assert is_end_by_program(code, is_logged) is expected
