"""The signs of life of a worker of a study, and the deadline of what it does."""

from __future__ import annotations

import os
from pathlib import Path

from worker_service.trial.signs_of_life import SignsOfLife


def test_the_process_ends_when_what_it_waits_for_takes_too_long(tmp_path: Path) -> None:
    path, codes = tmp_path / "alive", list[int]()
    life = SignsOfLife.in_file(path, codes.append)
    life.begin("a batch")
    for _ in range(9):
        life.beat()
    life.begin("step 4", 2)
    for _ in range(3):
        life.beat()
    assert not codes
    os.utime(path, (1, 1))
    life.beat()
    assert codes == [75]
    assert path.stat().st_mtime == 1, "no sign of life any more"


def test_a_folder_that_is_gone_ends_no_signs(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "alive"
    life = SignsOfLife.in_file(path)
    life.beat()
    path.parent.mkdir()
    life.beat()
    assert path.exists()
