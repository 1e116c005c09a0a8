"""Jobs with embedding tables: what is accepted, and what the refusal of anything else says."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.differences import changes
from psfleet.job.job import Job, job_from_json, parse_job
from psfleet.job.optimizer import Adagrad, Adam
from psfleet.job.tables import rule_of

ADAM = {"name": "adam", "learning_rate": 0.1, "beta1": 0.5}
ADAMW = {"name": "adamw", "learning_rate": 0.1, "weight_decay": None}


def job(table: Any = None, **sections: Any) -> Job:
    fields = {"name": "t", "program": "p:b", "optimizer": ADAM, "train": {"steps": 9, "batch_size": 1}, **sections}
    return parse_job({**fields, "tables": {"tower/user": {"rows": 10} if table is None else table}})


def test_a_job_with_tables_survives_its_resolution() -> None:
    found = job({"rows": 5, "optimizer": "adagrad", "learning_rate": 1, "init": "zeros"})
    assert job_from_json(found.model_dump_json()) == found
    assert found.tables["tower/user"].rows == 5


def test_the_rule_of_a_table_is_that_of_the_job_unless_it_names_another() -> None:
    for table in ({"rows": 1}, {"rows": 1, "optimizer": "adam"}):
        found = job(table)
        assert rule_of(found.tables["tower/user"], found.rule) == Adam(name="adam", learning_rate=0.1, beta1=0.5)
    other = job({"rows": 1, "optimizer": "adagrad"}, optimizer=ADAMW)
    assert isinstance(rule_of(other.tables["tower/user"], other.rule), Adagrad)


def test_checkpoints_are_evaluated_because_no_worker_has_all_rows() -> None:
    assert job().evaluates_checkpoints
    assert not job().model_copy(update={"tables": {}}).evaluates_checkpoints


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"table": {"rows": 0}}, "tables.tower/user.rows is 0"),
        ({"table": {"rows": 2**63}}, f"tables.tower/user.rows is {2**63}"),
        ({"table": {}}, "tables.tower/user.rows"),
        ({"table": {"rows": 1, "optimizer": "lamb"}}, "tables.tower/user.optimizer is 'lamb'"),
        ({"table": {"rows": 1, "init_scale": 0}}, "tables.tower/user.init_scale is 0"),
        (
            {"update": {"mode": "averaging", "local_steps": 3}},
            "update.mode is averaging, expected sync, async or ssp with tables: a worker keeps no rows for local steps",
        ),
        (
            {"update": {"replication": "in_graph"}},
            "update.replication is in_graph, expected between_graph with tables: each worker reads rows as a client",
        ),
        (
            {"device": {"replicas": 2, "virtual_cpus": 2}, "train": {"steps": 9, "batch_size": 2}},
            "device.replicas is 2, expected 1 with tables: devices average dense gradients only",
        ),
        (
            {"train": {"steps": 9, "batch_size": 1, "accumulate": 2}},
            "train.accumulate is 2, expected 1 with tables: microbatches add up dense gradients only",
        ),
        (
            {"optimizer": {**ADAM, "weight_decay": 0.1}},
            "optimizer.weight_decay is 0.1, expected null with tables: it would move all rows",
        ),
        (
            {"optimizer": ADAMW},
            "tables.tower/user.optimizer is null with optimizer adamw, expected one of sgd, adagrad, adam",
        ),
        (
            {
                "optimizer": None,
                "optimizers": {"a": ADAM},
                "train": {"steps": 9, "batch_size": 1, "alternate": ["a"]},
            },
            "optimizers is set, expected optimizer with tables: all losses would move a row",
        ),
    ],
)
def test_what_does_not_go_with_tables_is_refused(sections: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadJobError) as refused:
        job(**sections)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_table_that_is_removed_is_a_change_in_the_values_of_yaml() -> None:
    rest = job()
    both = {**rest.model_dump(mode="json"), "tables": {"tower/user": {"rows": 10}, "item": {"rows": 5}}}
    removed = "{rows: 5, hash: false, optimizer: null, learning_rate: null, init: uniform, init_scale: 0.05}"
    assert changes(both, rest) == [f"tables.item {removed} -> nothing"]
