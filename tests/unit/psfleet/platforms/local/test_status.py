"""The processes of local runs that train, as `psfleet status` shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.program_samples import sample_job
from support.scripted_platform import log

from psfleet.job.fleet import Fleet
from psfleet.job.input import Input
from psfleet.platforms.local.logs import run_folder_of
from psfleet.platforms.local.status import local_statuses
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


LARGER = JOB.model_copy(update={"fleet": Fleet(ps=2, workers=2, spares=1)})


def test_a_run_that_starts_has_a_row_for_each_process_with_what_it_does(tmp_path: Path) -> None:
    with claimed(tmp_path / "a", LARGER, fresh=False) as folder:
        assert [(row.role, row.index, row.state) for row in local_statuses(tmp_path, None)] == [
            ("ps", 0, "starting"),
            ("ps", 1, "starting"),
            ("chief", 0, "starting"),
            ("worker", 1, "starting"),
            ("spare", 2, "starting"),
        ]
        folder.log("worker", 0).write_text("\n".join(log({"message": "building the model"})) + "\n")
        folder.log("ps", 1).write_text("\n".join(log({"message": "waiting for the chief"})) + "\n")
        rows = local_statuses(tmp_path, None)
        assert [row.last_event for row in rows] == ["", "waiting for the chief", "building the model", "", ""]


def test_processes_that_the_chief_does_not_know_yet_start(tmp_path: Path) -> None:
    table = {
        "event": "fleet",
        "ps": [ROW, {**ROW, "index": 1}],
        "workers": [{**ROW, "role": "chief", "address": "a:1"}],
    }
    with claimed(tmp_path / "a", LARGER, fresh=False) as folder:
        folder.log("worker", 0).write_text("\n".join(log(table)) + "\n")
        assert [(row.role, row.index, row.state) for row in local_statuses(tmp_path, None)] == [
            ("ps", 0, "running"),
            ("ps", 1, "running"),
            ("chief", 0, "running"),
            ("worker", 1, "starting"),
            ("spare", 2, "starting"),
        ]


def test_loaders_have_rows_with_their_newest_messages(tmp_path: Path) -> None:
    job = LARGER.model_copy(update={"input": Input.model_validate({"from": "loaders", "loaders": 2})})
    with claimed(tmp_path / "a", job, fresh=False) as folder:
        folder.log("worker", 0).write_text("\n".join(log(TABLE)) + "\n")
        folder.log("loader", 1).write_text("\n".join(log({"message": "loader is ready"})) + "\n")
        rows = [row for row in local_statuses(tmp_path, None) if row.role == "loader"]
    assert [(row.index, row.state, row.last_event) for row in rows] == [
        (0, "running", ""),
        (1, "running", "loader is ready"),
    ]


def test_a_run_on_running_ps_starts_none(tmp_path: Path) -> None:
    fleet = Fleet(ps=1, workers=1, ps_addresses=["host:2222"])
    with claimed(tmp_path / "a", JOB.model_copy(update={"fleet": fleet}), fresh=False):
        assert [row.role for row in local_statuses(tmp_path, None)] == ["chief"]


@pytest.mark.parametrize("content", ["{", '{"name": "sample"}'])
def test_a_run_whose_job_cannot_be_read_shows_its_chief(tmp_path: Path, content: str) -> None:
    with claimed(tmp_path / "a", JOB, fresh=False) as folder:
        folder.job.write_text(content)
        assert [(row.role, row.state) for row in local_statuses(tmp_path, None)] == [("chief", "starting")]


def test_runs_that_ended_or_are_elsewhere_are_not_shown(tmp_path: Path) -> None:
    with claimed(tmp_path / "ended", JOB, fresh=False):
        pass
    (tmp_path / "mine").mkdir()
    with claimed(tmp_path / "copied", JOB, fresh=False, platform="compose"):
        assert local_statuses(tmp_path, None) == []
    assert local_statuses(tmp_path / "none", None) == []


def test_ps_within_workers_have_no_rows(tmp_path: Path) -> None:
    job = JOB.model_copy(update={"fleet": Fleet(workers=2, ps=2, colocate=True)})
    with claimed(tmp_path / "a", job, fresh=False) as folder:
        folder.log("worker", 0).write_text("\n".join(log(TABLE)) + "\n")
        assert [(row.role, row.index) for row in local_statuses(tmp_path, None)] == [("chief", 0), ("spare", 1)]


def test_a_folder_of_runs_that_cannot_be_read_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert local_statuses(tmp_path, None) == []
    assert run_folder_of("sample", tmp_path) is None
