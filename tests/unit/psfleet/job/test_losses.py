"""Jobs and programs with several losses: what is accepted, and what the refusal of anything else says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import BadJobError, ProgramError
from psfleet.job.differences import changes
from psfleet.job.job import Job, job_from_json, parse_job
from psfleet.job.program import GraphProgram, load_program
from psfleet.report.shown_job import shown

SGD = {"name": "sgd", "learning_rate": 0.1}
ADAM = {"name": "adam", "learning_rate": 0.1}
LOSSES = "losses={'critic': (lambda batch: 1, 'critic/'), 'actor': (lambda batch: 2, 'actor')}"


def content(**fields: Any) -> dict[str, Any]:
    """A job with two losses, with sections replaced or added; a section that is None is left out."""
    whole = {
        "name": "sample",
        "program": "program:build",
        "optimizers": {"critic": SGD, "actor": ADAM},
        "train": {"steps": 10, "batch_size": 4, "alternate": ["critic", "critic", "actor"]},
    } | fields
    return {name: section for name, section in whole.items() if section is not None}


def train(*alternate: str) -> dict[str, Any]:
    return {"steps": 10, "batch_size": 4, "alternate": list(alternate)}


def test_a_job_has_the_optimizer_of_each_loss_and_survives_its_resolution() -> None:
    job = parse_job(content())
    assert {name: rule.name for name, rule in job.rules.items()} == {"critic": "sgd", "actor": "adam"}
    assert job_from_json(job.model_dump_json()) == job
    assert {"optimizers.critic.name", "train.alternate"} <= {each.field for each in shown(job.model_dump()).own}
    assert "optimizers.critic.schedule.kind" in {each.field for each in shown(job.model_dump()).defaults}


def test_another_optimizer_of_a_loss_is_a_change_without_the_fields_of_its_own() -> None:
    other = {"name": "lion", "learning_rate": 0.1}
    before = parse_job(content()).model_dump(mode="json")
    assert changes(before, parse_job(content(optimizers={"critic": SGD, "actor": other}))) == [
        "optimizers.actor.name adam -> lion",
        "optimizers.actor.beta2 0.999 -> 0.99",
    ]


BAD: list[tuple[Mapping[str, Any], str]] = [
    ({"optimizers": None, "train": {"steps": 1, "batch_size": 1}}, "optimizer: missing, expected a value"),
    ({"optimizers": {"critic\n": SGD}}, "optimizers.'critic\\n' is 'critic\\n': String should match pattern"),
    ({"optimizer": SGD}, "optimizer and optimizers are set, expected one of the two"),
    ({"optimizers": None, "optimizer": SGD}, "train.alternate is [critic, critic, actor], expected null without opt"),
    (
        {"train": {"steps": 1, "batch_size": 1}},
        "train.alternate is null, expected the order of the losses of optimizers: critic, actor",
    ),
    ({"train": train("critic", "ctor", "actor")}, "train.alternate has 'ctor', expected names of optimizers: critic"),
    ({"train": train("critic")}, "train.alternate is [critic], expected each of optimizers: actor is missing"),
    ({"update": {"mode": "averaging", "local_steps": 2}}, "optimizers is set, expected optimizer in mode averaging: "),
    (
        {"optimizers": {"critic": SGD, "actor": {"name": "program"}}},
        "optimizers.actor.name is program, expected another one: ",
    ),
    (
        {
            "optimizers": {"critic": SGD, "actor": SGD | {"schedule": {"kind": "plateau", "metric": "auc"}}},
            "evaluate": {"every_steps": 5},
        },
        "optimizers.actor.schedule.kind is plateau, expected another schedule with optimizers: ",
    ),
    (
        {"optimizers": {"critic": SGD, "actor": {"name": "lamb", "learning_rate": 1}}, "fleet": {"ps": 2}},
        "fleet.ps is 2, expected 1 with optimizer lamb: ",
    ),
    ({"optimizers": {"critic": SGD | {"lr": 1}, "actor": SGD}}, "optimizers.critic.lr: unknown key; did you mean le"),
    ({"optimizers": {"critic": SGD | {"beta1": 1}}}, "optimizers.critic.beta1: unknown key; sgd has no such field, "),
    ({"optimizers": {"critic": SGD | {"learning_rate": -1}}}, "optimizers.critic.learning_rate is -1: "),
    ({"optimizers": {"critic": {"name": "nadam"}}}, "optimizers.critic.name is 'nadam', expected one of 'sgd', "),
    ({"optimizers": {}}, "optimizers is {}: "),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message[:50] for _, message in BAD])
def test_a_job_whose_optimizers_and_order_do_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadJobError) as raised:
        parse_job(content(**fields))
    assert str(raised.value).startswith(f"job: {message}")
    assert "\n" not in str(raised.value)


def load(job: Job, folder: Path, losses: str) -> Any:
    (folder / "program.py").write_text(
        "from psfleet.job.program import GraphProgram\n"
        f"def build():\n    return GraphProgram({losses}, train=lambda shard, shards: None)\n"
    )
    return load_program(job, folder)


def test_a_program_has_its_losses_by_name_and_the_beginnings_of_their_variables(tmp_path: Path) -> None:
    program = load(parse_job(content()), tmp_path, LOSSES)
    assert {name: function(None) for name, function in program.named_losses.items()} == {"critic": 1, "actor": 2}
    assert program.scopes == {"critic": "critic/", "actor": "actor/"}


ONE = {"optimizers": None, "optimizer": SGD, "train": {"steps": 1, "batch_size": 1}}
ONE_LOSS = "loss=lambda batch: 1"


@pytest.mark.parametrize(
    ("fields", "losses", "message"),
    [
        (
            ONE,
            LOSSES,
            "optimizers is missing, expected an optimizer for each loss of program 'program:build': critic, a",
        ),
        ({}, ONE_LOSS, "optimizers has critic, actor, but program 'program:build' has one loss; expected `optimizer`"),
        (
            {"optimizers": {"critic": SGD, "author": SGD}, "train": train("critic", "author")},
            LOSSES,
            "optimizers has critic, author, expected the losses of program 'program:build': critic, actor",
        ),
    ],
)
def test_optimizers_and_losses_must_have_the_same_names(
    fields: dict[str, Any], losses: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadJobError) as raised:
        load(parse_job(content(**fields)), tmp_path, losses)
    assert str(raised.value).startswith(message)


def loss(batch: object) -> Any:
    return batch


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({}, "GraphProgram.losses is {}, expected a dict of names to (function, scope)"),
        ({"a b": (loss, "a")}, "GraphProgram.losses has the name 'a b', expected letters, digits and underscores"),
        ({"a": loss}, "GraphProgram.losses['a'] is <function loss"),
        ({"a": (loss, "/")}, "GraphProgram.losses['a'] is (<function loss"),
        (
            {"a": (loss, "net"), "b": (loss, "net/head/")},
            "GraphProgram.losses: scope 'net/head/' of b is within scope 'net' of a, expected scopes that do not over",
        ),
        (
            {"a": (loss, "net/"), "b": (loss, "net")},
            "GraphProgram.losses: scope 'net/' of a is within scope 'net' of b",
        ),
    ],
)
def test_losses_that_are_no_functions_with_scopes_of_their_own_are_refused(losses: Any, message: str) -> None:
    with pytest.raises(ProgramError) as raised:
        GraphProgram(losses=losses, train=lambda shard, shards: loss(shard))
    assert str(raised.value).startswith(message)


def test_scopes_whose_names_only_begin_alike_do_not_overlap() -> None:
    program = GraphProgram(losses={"a": (loss, "net"), "b": (loss, "net_2")}, train=lambda shard, shards: loss(shard))
    assert program.scopes == {"a": "net/", "b": "net_2/"}


def test_a_program_has_a_loss_or_losses() -> None:
    with pytest.raises(ProgramError, match="has loss and losses, expected one of the two"):
        GraphProgram(loss=loss, losses={"a": (loss, "a")}, train=lambda shard, shards: loss(shard))
    with pytest.raises(ProgramError, match="loss is None, expected a function"):
        GraphProgram(train=lambda shard, shards: loss(shard))
