"""The modes of `update`: which options each has, and the steps of its rounds."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.update import Update
from psfleet.service.library_variables import MEMORY

PLATEAU = {"kind": "plateau", "metric": "accuracy"}


def job(update: dict[str, Any], **sections: Any) -> Job:
    fields: dict[str, Any] = {"name": "sample", "program": "program:build", "train": {"steps": 60, "batch_size": 1}}
    fields["optimizer"] = {"name": "sgd", "learning_rate": 0.1}
    return parse_job({**fields, "update": update, **sections})


@pytest.mark.parametrize(
    ("update", "has_quorum", "round_steps"),
    [
        ({}, True, 1),
        ({"mode": "averaging", "local_steps": 10, "quorum": 1}, True, 10),
        ({"mode": "ssp", "bound": 0, "warmup_steps": 3, "stale": {"policy": "drop"}}, False, 1),
        ({"mode": "async", "warmup_steps": 3}, False, 1),
    ],
)
def test_each_mode_has_its_options(update: dict[str, Any], has_quorum: bool, round_steps: int) -> None:
    made = job(update)
    assert (made.update.has_quorum, made.update.round_steps) == (has_quorum, round_steps)
    assert made.push_examples == round_steps
    assert job(made.model_dump(mode="json")["update"]) == made


@pytest.mark.parametrize(
    ("update", "sections", "message"),
    [
        ({"mode": "ssp"}, {}, "update.bound is null, expected a number of steps in mode ssp"),
        ({"mode": "ssp", "bound": -1}, {}, "update.bound is -1"),
        ({"mode": "ssp", "bound": 1, "quorum": 1}, {}, "update.quorum is 1, expected null in mode ssp"),
        ({"mode": "ssp", "bound": 1, "local_steps": 2}, {}, "update.local_steps is 2, expected null in mode ssp"),
        ({"mode": "async", "bound": 1}, {}, "update.bound is 1, expected null in mode async"),
        ({"bound": 0}, {}, "update.bound is 0, expected null in mode sync"),
        ({"local_steps": 1}, {}, "update.local_steps is 1, expected null in mode sync"),
        ({"average_slots": False}, {}, "update.average_slots is false, expected true in mode sync"),
        ({"mode": "averaging"}, {}, "update.local_steps is null, expected a number of steps in mode averaging"),
        ({"mode": "averaging", "local_steps": 0}, {}, "update.local_steps is 0"),
        ({"mode": "averaging", "local_steps": 7}, {}, "train.steps is 60, expected a multiple of update.local_steps"),
        (
            {"mode": "averaging", "local_steps": 6},
            {"checkpoint": {"every_steps": 10}},
            "checkpoint.every_steps is 10, expected a multiple of update.local_steps = 6",
        ),
        (
            {"mode": "averaging", "local_steps": 6},
            {"evaluate": {"every_steps": 15}},
            "evaluate.every_steps is 15, expected a multiple of update.local_steps = 6",
        ),
        ({"mode": "averaging", "local_steps": 2, "bound": 1}, {}, "update.bound is 1, expected null in mode averaging"),
        ({"mode": "averaging", "local_steps": 2, "quorum": 2}, {}, "update.quorum is 2, expected at most"),
        (
            {"mode": "averaging", "local_steps": 2, "warmup_steps": 1},
            {},
            "update.warmup_steps is 1, expected 0 in mode averaging",
        ),
        (
            {"mode": "averaging", "local_steps": 2, "stale": {"policy": "drop"}},
            {},
            "update.stale is set, expected only in modes async and ssp",
        ),
        (
            {"replication": "in_graph", "mode": "ssp", "bound": 1},
            {},
            "update.replication is in_graph, expected between_graph in mode ssp: its workers make steps on their own",
        ),
        (
            {"replication": "in_graph", "mode": "averaging", "local_steps": 2},
            {},
            "update.replication is in_graph, expected between_graph in mode averaging",
        ),
        (
            {"replication": "in_graph"},
            {"fleet": {"workers": 2, "spares": 1}},
            "update.replication is in_graph with 3 workers and spares and quorum 2, expected no spares and "
            "update.quorum null in mode sync: one graph waits for all replicas",
        ),
        (
            {"replication": "in_graph", "quorum": 1},
            {"fleet": {"workers": 2}},
            "update.replication is in_graph with 2 workers and spares and quorum 1, expected no spares",
        ),
        (
            {"replication": "in_graph"},
            {"fleet": {"workers": 2, "max_workers": 5}},
            "fleet.max_workers is 5, expected null with update.replication in_graph: the graph has 2 replicas, and the "
            "fleet is not scaled",
        ),
        (
            {"replication": "between"},
            {},
            "update.replication is 'between': Input should be 'between_graph'",
        ),
        (
            {"mode": "averaging", "local_steps": 2},
            {
                "optimizer": {"name": "sgd", "learning_rate": 0.1, "schedule": PLATEAU},
                "evaluate": {"every_steps": 2},
            },
            "optimizer.schedule.kind is plateau, expected another schedule in mode averaging",
        ),
    ],
)
def test_an_option_that_its_mode_does_not_read_is_refused(
    update: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadJobError) as raised:
        job(update, **sections)
    assert message in str(raised.value)


def test_lamb_needs_one_ps_unless_workers_apply_it() -> None:
    lamb = {"optimizer": {"name": "lamb", "learning_rate": 0.1}, "fleet": {"ps": 2}}
    with pytest.raises(BadJobError, match="expected 1 with optimizer lamb"):
        job({}, **lamb)
    assert job({"mode": "averaging", "local_steps": 2}, **lamb).fleet.ps == 2


@pytest.mark.parametrize(
    ("step", "following", "due"), [(0, 10, 0), (1, 10, 10), (9, 10, 10), (10, 20, 10), (13, 20, 20)]
)
def test_a_round_ends_at_the_next_multiple_of_its_steps(step: int, following: int, due: int) -> None:
    """Also one that starts at a checkpoint of another mode."""
    update = job({"mode": "averaging", "local_steps": 10}).update
    assert (update.next_step(step), update.due_step(step)) == (following, due)


def test_without_rounds_every_step_is_due() -> None:
    update = job({}).update
    assert (update.next_step(4), update.due_step(4)) == (5, 4)


@pytest.mark.parametrize("fleet", [{"workers": 3}, {"workers": 2, "spares": 1}])
def test_in_async_mode_every_worker_and_spare_can_have_a_replica_in_one_graph(fleet: dict[str, int]) -> None:
    update = job({"mode": "async", "replication": "in_graph", "warmup_steps": 3}, fleet=fleet).update
    assert update.is_in_graph
    assert not job({}).update.is_in_graph


def test_memory_for_a_bucket_of_the_default_size_is_kept_by_glibc() -> None:
    """Above the threshold each tensor would get new pages, which the kernel clears."""
    bucket_bytes = Update.model_fields["bucket_bytes"].default
    assert bucket_bytes + (1 << 20) < int(MEMORY["MALLOC_MMAP_THRESHOLD_"])
