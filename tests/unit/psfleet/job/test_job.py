"""The job file: defaults, overrides, and each optimizer and schedule."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from psfleet.errors import BadJobError, UsageError
from psfleet.job.differences import changes, differing, is_same
from psfleet.job.job import Job, load_job, parse_job
from psfleet.job.optimizer import Adam, Constant, Exponential, Piecewise, Sgd
from psfleet.job.update import Stale

MINIMAL = """
name: lenet
program: program:build
optimizer: {name: sgd, learning_rate: 0.1}
train: {steps: 10, batch_size: 4}
"""


def minimal(**fields: Any) -> dict[str, Any]:
    """The smallest job with fields replaced or added."""
    content: dict[str, Any] = yaml.safe_load(MINIMAL)
    return content | fields


def sgd(**fields: Any) -> dict[str, Any]:
    return {"name": "sgd", "learning_rate": 0.1, **fields}


def load(folder: Path, *overrides: str, text: str = MINIMAL) -> Job:
    path = folder / "job.yaml"
    path.write_text(textwrap.dedent(text))
    return load_job(path, overrides)


def test_the_smallest_job_gets_all_defaults(tmp_path: Path) -> None:
    job = load(tmp_path)
    assert (job.fleet.ps, job.fleet.workers, job.fleet.spares, job.fleet.worker_limit) == (1, 1, 0, 2)
    assert (job.update.mode, job.update.quorum, job.quorum, job.update.wire) == ("sync", None, 1, "float32")
    assert job.update.stale == Stale(policy="apply", bound=10)
    assert job.optimizer == Sgd(name="sgd", learning_rate=0.1, schedule=Constant(), clip_norm=None)
    assert (job.train.shuffle, job.train.seed) == (0, 0)
    assert (job.checkpoint.every_steps, job.checkpoint.every_secs, job.checkpoint.keep) == (None, None, 5)
    assert job.options == {}


def test_the_quorum_is_as_many_as_workers_unless_given() -> None:
    assert parse_job(minimal(fleet={"workers": 3, "spares": 1})).quorum == 3
    assert parse_job(minimal(fleet={"workers": 3, "spares": 1}, update={"quorum": 4})).quorum == 4


def test_a_job_never_changes() -> None:
    job = parse_job(minimal())
    for field in Job.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(job, field, None)


def test_a_job_written_as_json_is_the_same_job_when_read() -> None:
    job = parse_job(minimal(optimizer=sgd(schedule={"kind": "cosine", "decay_steps": 5})))
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("override", "section", "field", "value"),
    [
        ("train.steps=20", "train", "steps", 20),
        ("fleet.spares=2", "fleet", "spares", 2),
        ("update.wire=bfloat16", "update", "wire", "bfloat16"),
        ("summaries.histograms=true", "summaries", "histograms", True),
        ("fleet.ps_addresses=['a:1']", "fleet", "ps_addresses", ["a:1"]),
        ("checkpoint.every_steps=null", "checkpoint", "every_steps", None),
        ("checkpoint.every_secs=2.5", "checkpoint", "every_secs", 2.5),
    ],
)
def test_a_dotted_override_sets_a_field_of_a_section(
    tmp_path: Path, override: str, section: str, field: str, value: object
) -> None:
    assert getattr(getattr(load(tmp_path, override), section), field) == value


@pytest.mark.parametrize("value", [float("inf"), {"rates": [0.5, float("nan")]}])
def test_options_that_do_not_reach_other_processes_are_refused(value: object) -> None:
    """They would arrive as null."""
    for where in ({"options": {"a": value}}, {"callbacks": [{"use": "mlflow", "options": {"a": value}}]}):
        with pytest.raises(BadJobError, match=r"options.*(inf|nan) is in it, expected finite numbers"):
            parse_job(minimal(**where))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{weights: {0: 1.0, 1: 5.0}}", "the key 0 is in it, expected text (in quotes) as keys"),
        ("{names: {yes: 1}}", "the key True is in it, expected text (in quotes) as keys"),
        ("{days: [{first: 2020-01-02}]}", "a date, 2020-01-02, is in it, expected text (in quotes) or a list"),
        ("{at: 2020-01-02 03:04:05}", "a datetime, 2020-01-02 03:04:05, is in it"),
        ("{all: !!set {a, b}}", "a set, "),
        ("{raw: !!binary aGk=}", "a bytes, b'hi', is in it"),
    ],
)
def test_options_that_would_change_on_their_way_to_other_processes_are_refused(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(BadJobError, match=f"options.*{re.escape(expected)}"):
        load(tmp_path, text=MINIMAL + f"options: {text}\n")


def test_overrides_set_nested_options_and_keep_the_others(tmp_path: Path) -> None:
    text = MINIMAL + "options: {data: {folder: a, limit: 5}}\n"
    job = load(tmp_path, "options.data.folder=/b=c", "options.new.key=[1, x]", text=text)
    assert job.options == {"data": {"folder": "/b=c", "limit": 5}, "new": {"key": [1, "x"]}}


def test_the_last_override_wins_and_an_override_can_replace_a_section(tmp_path: Path) -> None:
    job = load(tmp_path, "train.steps=1", "train.steps=2", "optimizer={name: adam, learning_rate: 1}")
    assert job.train.steps == 2
    assert isinstance(job.optimizer, Adam)


def test_an_override_replaces_an_empty_section(tmp_path: Path) -> None:
    assert load(tmp_path, "fleet.ps=3", text=MINIMAL + "fleet:\n").fleet.ps == 3


def test_overrides_do_not_change_the_file(tmp_path: Path) -> None:
    load(tmp_path, "train.steps=20")
    assert (tmp_path / "job.yaml").read_text() == MINIMAL


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.steps", "expected key=value"),
        ("=5", "expected key=value"),
        ("name.first=5", "name is not a section"),
        ("train.steps=[1", "the value is not YAML"),
    ],
)
def test_an_invalid_override_is_a_usage_error(tmp_path: Path, override: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        load(tmp_path, override)
    assert repr(override) in str(caught.value)


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("1E-3", 1e-3), ("1.0e-3", 1e-3), ("2", 2.0)])
def test_a_number_may_have_a_notation_that_yaml_1_1_reads_as_text(tmp_path: Path, text: str, value: float) -> None:
    assert load(tmp_path, f"optimizer.learning_rate={text}").optimizer.learning_rate == value


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sgd", {}),
        ("momentum", {"momentum": 0.8, "nesterov": True}),
        ("adam", {"beta1": 0.8, "beta2": 0.99, "epsilon": "1e-7"}),
        ("adamw", {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-7, "weight_decay": 0.1}),
        ("adagrad", {"initial_accumulator": 0, "epsilon": 1e-6}),
        ("rmsprop", {"decay": 0.8, "momentum": 0.1, "epsilon": 1e-5, "centered": True}),
        ("ftrl", {"learning_rate_power": -1, "initial_accumulator": 0, "l1": 1, "l2": 2}),
    ],
)
def test_each_optimizer_takes_its_own_fields(name: str, fields: dict[str, Any]) -> None:
    common = {"name": name, "learning_rate": 0.1}
    assert parse_job(minimal(optimizer=common)).optimizer.name == name
    optimizer = parse_job(minimal(optimizer={**common, "clip_norm": 5, **fields})).optimizer
    assert optimizer.clip_norm == 5
    assert {key: getattr(optimizer, key) for key in fields} == {
        key: float(value) if isinstance(value, str) else value for key, value in fields.items()
    }


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "constant"},
        {"kind": "exponential", "decay_steps": 10, "decay_rate": 0.5, "staircase": True},
        {"kind": "piecewise", "boundaries": [5, 8], "factors": [1, 0.1, "1e-2"]},
        {"kind": "cosine", "decay_steps": 10, "final_factor": 0.1},
    ],
)
def test_each_schedule_goes_with_linear_warm_up(schedule: dict[str, Any]) -> None:
    chosen = parse_job(minimal(optimizer=sgd(schedule=schedule | {"warmup_steps": 3}))).optimizer.schedule
    assert (chosen.kind, chosen.warmup_steps) == (schedule["kind"], 3)


def test_a_schedule_without_a_choice_has_its_defaults() -> None:
    schedule = {"kind": "exponential", "decay_steps": 10, "decay_rate": 0.5}
    chosen = parse_job(minimal(optimizer=sgd(schedule=schedule))).optimizer.schedule
    assert chosen == Exponential(kind="exponential", decay_steps=10, decay_rate=0.5, staircase=False, warmup_steps=0)
    pieces = {"kind": "piecewise", "boundaries": [5], "factors": [1, 0.5]}
    chosen = parse_job(minimal(optimizer=sgd(schedule=pieces))).optimizer.schedule
    assert chosen == Piecewise(kind="piecewise", boundaries=[5], factors=[1.0, 0.5], warmup_steps=0)


def test_the_changes_between_two_jobs_are_named_by_field() -> None:
    before = parse_job(minimal())
    assert changes(before.model_dump(mode="json"), before) == []
    after = parse_job(minimal(fleet={"ps": 2}, options={"rate": 0.5}, train={"steps": 20, "batch_size": 4}))
    found = changes(before.model_dump(mode="json"), after)
    assert {"fleet.ps 1 -> 2", "options.rate nothing -> 0.5", "train.steps 10 -> 20"} <= set(found)


def test_a_section_that_is_removed_or_of_another_kind_is_one_change() -> None:
    watched = {"metric": "auc", "patience": 2}
    plateau = {"kind": "plateau", "metric": "auc"}
    fields = minimal(
        optimizer={"name": "adam", "learning_rate": 0.1, "schedule": plateau},
        evaluate={"every_steps": 5, "stop": watched},
    )
    now = parse_job(minimal(optimizer={"name": "lion", "learning_rate": 0.1}, evaluate={"every_steps": 5}))
    assert changes(fields, now) == [
        "optimizer.schedule.kind plateau -> constant",
        "optimizer.name adam -> lion",
        "optimizer.beta2 0.999 -> 0.99",
        "evaluate.stop {metric: auc, direction: maximize, patience: 2, min_delta: 0.0} -> null",
    ]
    assert "evaluate.stop.patience nothing -> 2" in changes(now.model_dump(mode="json"), parse_job(fields))


def test_the_learning_rate_of_the_programs_optimizer_is_no_change_of_a_job_that_leaves_it_out() -> None:
    """Checkpoints have the job with the object's learning rate."""
    left_out = parse_job(minimal(optimizer={"name": "program"}))
    trained_by = minimal(optimizer={"name": "program", "learning_rate": 0.05})
    assert changes(trained_by, left_out) == []
    faster = parse_job(minimal(optimizer={"name": "program", "learning_rate": 0.1}))
    assert changes(trained_by, faster) == ["optimizer.learning_rate 0.05 -> 0.1"]
    assert "optimizer.learning_rate 1.0 -> null" in changes(minimal(optimizer=sgd(learning_rate=1)), left_out)


def test_a_text_with_the_tag_path_is_relative_to_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    file = tmp_path / "jobs" / "job.yaml"
    options = "options: {data: !path ../data, absolute: !path /data, plain: data}"
    file.write_text(
        f"{options}\nname: a\nprogram: p:b\n"
        "optimizer: {name: sgd, learning_rate: 1}\ntrain: {steps: 1, batch_size: 1}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_job(Path("jobs/job.yaml")).options == {
        "data": f"{tmp_path}/jobs/../data", "absolute": "/data", "plain": "data"
    }  # fmt: skip
    file.write_text("options: {data: !path [a]}")
    with pytest.raises(BadJobError, match="is not YAML: !path needs a text"):
        load_job(file)


def test_a_field_that_an_earlier_version_did_not_have_has_not_changed() -> None:
    """Its checkpoints have the jobs as that version wrote them."""
    before, now = (parse_job(minimal()).model_dump(mode="json") for _ in range(2))
    del before["train"]["accumulate"], before["callbacks"], before["checkpoint"]["best"]
    assert changes(before, parse_job(minimal())) == []
    assert differing([before, now]) == {}
    (change,) = changes({**before, "removed": 1}, parse_job(minimal(callbacks=[])))[-1:]
    assert change == "removed 1 -> nothing", "a job that is not valid any more is compared as it is"


def test_options_that_differ_in_their_type_alone_differ() -> None:
    one, other = (minimal(options={"units": value}) for value in (1, "1"))
    assert changes(one, parse_job(other)) == ['options.units 1 -> "1"']
    assert differing([{"a": "nothing"}, {}]) == {"a": ['"nothing"', "nothing"]}
    assert is_same(one, parse_job(one))
    assert not is_same(one, parse_job(other))
    nested, dotted = (minimal(options=options) for options in ({"a": {"b": 1}}, {"a.b": 1}))
    assert not is_same(nested, parse_job(dotted))


def test_options_that_one_job_has_and_another_has_not_differ_once() -> None:
    without, with_options = (minimal(options=options) for options in ({}, {"size": {"units": 16}}))
    assert differing([without, with_options]) == {"options.size.units": ["nothing", "16"]}
    assert changes(without, parse_job(with_options)) == ["options.size.units nothing -> 16"]
    assert differing([{"a": 5}, {"a": {"b": 1}}]) == {"a": ["5", "nothing"], "a.b": ["nothing", "1"]}
