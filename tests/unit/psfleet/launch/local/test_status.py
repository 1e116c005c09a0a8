"""The processes of local runs that train, as `psfleet status` shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.program_samples import sample_job
from support.scripted_platform import log

from psfleet.launch.local.status import local_statuses
from psfleet.run_folder import claimed

JOB = sample_job()
ROW: dict[str, Any] = {"index": 0, "step": 7, "rate": 2.5, "alive": True, "restarts": 0, "last_event": ""}
TABLE = {
    "event": "fleet",
    "ps": [ROW],
    "workers": [
        {**ROW, "role": "chief", "address": "a:1"},
        {**ROW, "role": "spare", "index": 1, "address": "a:2", "alive": False, "restarts": 2, "last_event": "killed"},
    ],
}


def test_a_run_that_trains_has_a_row_for_each_process(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        folder.log("worker", 0).write_text(
            "\n".join(log({"event": "fleet", "ps": []}, TABLE, {"event": "fleet", "ps": [7]})) + "\n"
        )
        rows = local_statuses(tmp_path, "sample")
        assert [(row.role, row.index, row.state, row.step, row.rate, row.restarts) for row in rows] == [
            ("ps", 0, "running", 7, 2.5, 0),
            ("chief", 0, "running", 7, 2.5, 0),
            ("spare", 1, "away", 7, None, 2),
        ]
        assert (rows[2].fleet, rows[2].name, rows[2].last_event) == ("sample", f"{tmp_path / 'a'}:worker-1", "killed")
        assert local_statuses(tmp_path, None) == rows
        assert local_statuses(tmp_path, "other") == []


def test_a_run_that_starts_shows_what_its_chief_does(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        assert [(row.role, row.state, row.last_event) for row in local_statuses(tmp_path, None)] == [
            ("chief", "starting", "")
        ]
        folder.log("worker", 0).write_text("\n".join(log({"message": "building the model"})) + "\n")
        assert [row.last_event for row in local_statuses(tmp_path, None)] == ["building the model"]


def test_runs_that_ended_or_are_elsewhere_are_not_shown(tmp_path: Path) -> None:
    with claimed(tmp_path / "ended", JOB, fresh=False):
        pass
    (tmp_path / "mine").mkdir()
    with claimed(tmp_path / "copied", JOB, fresh=False, platform="compose"):
        assert local_statuses(tmp_path, None) == []
    assert local_statuses(tmp_path / "none", None) == []
