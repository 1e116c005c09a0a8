"""The chief's table of the fleet, in virtual time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from psfleet.control import control_pb2 as pb
from psfleet.job.job import parse_job
from worker_service.chief.events import Events
from worker_service.chief.fleet_status import FleetStatusLogger

JOB = parse_job(
    {
        "name": "small",
        "program": "program:build",
        "fleet": {"ps": 2, "workers": 2, "spares": 1},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 100, "batch_size": 8},
    }
)


class Bench:
    """A status logger, its clock, and what it logs."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "psfleet")
        self.caplog = caplog
        self.now = 100.0
        self.events = Events(folder, JOB)
        self.status_logger = FleetStatusLogger(JOB, self.events, clock=lambda: self.now)

    def update(self, step: int, is_alive: bool = True, lost_ps: int | None = None) -> None:
        workers = [
            pb.WorkerState(index=index, step=step, pushed=step, joins=1, is_alive=alive, address=f"host{index}:2222")
            for index, alive in ((0, True), (2, is_alive))
        ]
        states = [pb.ShardState(step=step, workers=workers) for _ in range(2)]
        self.status_logger.update([None if index == lost_ps else state for index, state in enumerate(states)])

    def tables(self) -> list[dict[str, Any]]:
        return [vars(record) for record in self.caplog.records if getattr(record, "event", "") == "fleet"]

    def past(self, role: str) -> list[tuple[int, str]]:
        """Restarts and last event of each row of the newest table."""
        return [(row["restarts"], row["last_event"]) for row in self.tables()[-1][role]]


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(tmp_path, caplog)


def test_a_quiet_fleet_is_logged_every_two_seconds(bench: Bench) -> None:
    for beat in range(7):
        bench.update(step=beat)
        bench.now += 1.0
    assert [table["step"] for table in bench.tables()] == [0, 2, 4, 6]


def test_the_table_has_a_row_for_each_ps_and_worker(bench: Bench) -> None:
    bench.update(step=10)
    bench.now += 2.0
    bench.update(step=30)
    table = bench.tables()[-1]
    assert table["target"] == 100
    assert table["ps"] == [
        {"index": index, "step": 30, "rate": 10.0, "alive": True, "restarts": 0, "last_event": ""} for index in (0, 1)
    ]
    assert table["workers"] == [
        {
            "index": index,
            "role": role,
            "address": f"host{index}:2222",
            "step": 30,
            "rate": 80.0,
            "alive": True,
            "restarts": 0,
            "last_event": "",
        }
        for index, role in ((0, "chief"), (2, "spare"))
    ]


def test_a_worker_that_is_no_longer_alive_is_logged_at_once(bench: Bench) -> None:
    bench.update(step=1)
    bench.now += 0.5
    bench.update(step=2, is_alive=False)
    assert [row["alive"] for row in bench.tables()[-1]["workers"]] == [True, False]
    assert len(bench.tables()) == 2


def test_a_ps_that_is_away_keeps_its_row_and_the_workers_that_it_knew(bench: Bench) -> None:
    bench.update(step=1)
    bench.now += 0.5
    bench.update(step=1, lost_ps=0)
    table = bench.tables()[-1]
    assert [(row["alive"], row["step"]) for row in table["ps"]] == [(False, None), (True, 1)]
    assert [row["index"] for row in table["workers"]] == [0, 2]


def test_a_restart_is_counted_and_logged_with_its_cause(bench: Bench) -> None:
    bench.update(step=1)
    bench.events.add("spare", 2, "restarted", "it was killed")
    bench.now += 0.1
    bench.update(step=1)
    assert bench.past("workers") == [(0, ""), (1, "restarted: it was killed")]


def test_events_from_before_a_restart_of_the_chief_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Bench(tmp_path, caplog)
    before.events.add("ps", 1, "restarted", "it was killed")
    before.events.add("ps", 1, "restarted", "it was killed again", steps_lost=2)
    after = Bench(tmp_path, caplog)
    after.events.add("ps", 0, "restarted", "its machine is gone")
    after.update(step=1)
    assert after.past("ps") == [(1, "restarted: its machine is gone"), (2, "restarted: it was killed again")]
    assert after.past("workers") == [(0, ""), (0, "")]


def test_no_table_reads_what_was_written(bench: Bench, tmp_path: Path) -> None:
    bench.events.add("ps", 1, "restarted", "it was killed")
    (tmp_path / "events.jsonl").unlink()
    bench.update(step=1)
    assert bench.past("ps") == [(0, ""), (1, "restarted: it was killed")]


def test_the_chief_of_a_held_run_says_at_which_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "psfleet.chief")
    state = pb.ShardState(phase=pb.RUNNING, step=40, final_step=100, hold_at=40)
    state.workers.add(index=0, step=40, is_alive=True)
    FleetStatusLogger(JOB, Events(tmp_path, JOB)).update([state])
    [entry] = [
        {**record.__dict__, "message": record.getMessage()}
        for record in caplog.records
        if record.__dict__.get("event") == "fleet"
    ]
    assert entry["workers"][0]["last_event"] == "held at step 40"
    assert entry["message"] == "1 ps and 1 worker at step 40"
