"""The silence of a worker: its limits, and a driver that was frozen itself."""

from __future__ import annotations

from pathlib import Path

from support.clock import Clock

from psfleet.driver.silence import Silence, file_time
from psfleet.job.sections import Deadlines
from psfleet.polling import MAX_LOOK_SECS


def silent_looks(silence: Silence, clock: Clock, secs: float) -> bool:
    """Looks each half second for so long; whether the last look finds too long a silence."""
    found = False
    for _ in range(int(2 * secs)):
        clock.now += 0.5
        found = silence.is_too_long()
    return found


def test_a_process_has_longer_for_its_first_sign_than_for_those_that_follow(tmp_path: Path) -> None:
    path, clock = tmp_path / "alive", Clock()
    silence = Silence(file_time(path), Deadlines(start_secs=20, step_secs=5), clock)
    assert not silent_looks(silence, clock, 19)
    path.touch()
    assert not silent_looks(silence, clock, 5)
    assert silent_looks(silence, clock, 1)
    silence.restart()
    assert not silent_looks(silence, clock, 19)
    assert silent_looks(silence, clock, 1)


def test_a_driver_that_was_frozen_itself_finds_no_silence(tmp_path: Path) -> None:
    clock = Clock()
    silence = Silence(file_time(tmp_path / "alive"), Deadlines(start_secs=2 + MAX_LOOK_SECS), clock)
    clock.now += 1000
    assert not silence.is_too_long()
    assert silent_looks(silence, clock, 2)
