"""A bad job file gets one line that names the field, its value and what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psfleet.errors import BadJobError, UsageError
from psfleet.job.job import job_from_json, load_job, parse_job
from psfleet.job.reading import override, read_mapping


def minimal(**fields: Any) -> dict[str, Any]:
    """The smallest job with fields replaced or added."""
    content = {
        "name": "lenet",
        "program": "program:build",
        "optimizer": sgd(),
        "train": {"steps": 10, "batch_size": 4},
    }
    return content | fields


def sgd(**fields: Any) -> dict[str, Any]:
    return {"name": "sgd", "learning_rate": 0.1, **fields}


BAD = [
    ({"nmae": "x"}, "nmae: unknown key; did you mean name?"),
    ({"fleet": {"pss": 1}}, "fleet.pss: unknown key; did you mean ps?"),
    ({"learning_rate": 0.1}, "learning_rate: unknown key; did you mean optimizer.learning_rate?"),
    (
        {"train": {"steps": 1, "batch_size": 1, "batchsize": 2}},
        "train.batchsize: unknown key; did you mean batch_size?",
    ),
    ({"optimizer": {"name": "sgd", "lerning_rate": 1}}, "optimizer.lerning_rate: unknown key; did you mean learning_r"),
    ({"xyzzy": 1}, "xyzzy: unknown key"),
    ({"optimizer": {"name": "sgd", "lr": 1}}, "optimizer.lr: unknown key; did you mean learning_rate?"),
    ({"train": {"epochs": 3, "batch_size": 1}}, "train.epochs: unknown key; did you mean steps?"),
    ({"optimizer": sgd(momentum=0.9)}, "optimizer.momentum: unknown key; sgd has no such field, only momentum"),
    ({"optimizer": sgd(beta1=0.9)}, "beta1: unknown key; sgd has no such field, only adam, adamw, lion, lamb"),
    ({"optimizer": sgd(schedule={"kind": "cosine", "decay_steps": 1, "staircase": True})}, "only exponential"),
    ({"name": "Le Net"}, "name is 'Le Net': String should match pattern"),
    ({"name": "x" * 41}, "String should have at most 40 characters"),
    ({"program": "program.build"}, "program is 'program.build': String should match pattern"),
    ({"options": [1]}, "options is [1]: Input should be a mapping"),
    ({"fleet": {"ps": 0}}, "fleet.ps is 0: Input should be greater than or equal to 1"),
    ({"fleet": {"workers": -2}}, "fleet.workers is -2: Input should be greater than or equal to 1"),
    ({"fleet": {"spares": 1.5}}, "fleet.spares is 1.5: Input should be a valid integer"),
    ({"fleet": {"ps": "2"}}, "fleet.ps is '2': Input should be a valid integer"),
    ({"fleet": {"ps": True}}, "fleet.ps is True: Input should be a valid integer"),
    ({"fleet": 3}, "fleet is 3: Input should be a mapping"),
    ({"fleet": {"workers": 4, "max_workers": 3}}, "fleet: max_workers is 3, expected at least workers + spares = 4"),
    ({"fleet": {"ps": 2, "ps_addresses": ["a:1"]}}, "ps_addresses has 1 entries, expected as many as ps = 2"),
    ({"fleet": {"ps_addresses": ["a"]}}, "ps_addresses has 'a', expected host:port with port below 65532"),
    ({"fleet": {"ps_addresses": ["a:65532"]}}, "ps_addresses has 'a:65532', expected host:port"),
    ({"update": {"mode": "ssync"}}, "update.mode is 'ssync': Input should be 'sync', 'averaging', 'ssp' or 'async'"),
    ({"update": {"quorum": 2}}, "update.quorum is 2, expected at most fleet.workers + fleet.spares = 1"),
    ({"update": {"mode": "async", "quorum": 1}}, "update.quorum is 1, expected null in mode async"),
    ({"update": {"warmup_steps": 5}}, "update.warmup_steps is 5, expected 0 in mode sync"),
    ({"update": {"stale": {"policy": "drop"}}}, "update.stale is set, expected only in modes async and ssp"),
    ({"update": {"stale": {"policy": "scale", "bound": 0}}}, "update.stale: bound is 0, expected at least 1"),
    ({"update": {"wire": "float16"}}, "update.wire is 'float16': Input should be 'float32' or 'bfloat16'"),
    ({"optimizer": {"name": "nadam", "learning_rate": 1}}, "optimizer.name is 'nadam', expected one of 'sgd', 'm"),
    ({"optimizer": {"name": "lamp", "learning_rate": 1}}, "'program'; did you mean lamb?"),
    ({"optimizer": {"learning_rate": 1}}, "optimizer.name: missing, expected a value"),
    ({"optimizer": {"name": "sgd"}}, "optimizer.learning_rate: missing, expected a value"),
    ({"optimizer": sgd(learning_rate=0)}, "optimizer.learning_rate is 0: Input should be greater than 0"),
    ({"optimizer": sgd(learning_rate="fast")}, "optimizer.learning_rate is 'fast': Input should be a valid number"),
    ({"optimizer": sgd(learning_rate=float("nan"))}, "optimizer.learning_rate is nan: Input should be a finite"),
    ({"optimizer": sgd(clip_norm=-1)}, "optimizer.clip_norm is -1: Input should be greater than 0"),
    ({"optimizer": {"name": "adam", "learning_rate": 1, "beta2": 1}}, "optimizer.beta2 is 1: Input should be less"),
    ({"optimizer": sgd(schedule={"kind": "step"})}, "optimizer.schedule.kind is 'step', expected one of 'constant', "),
    (
        {"optimizer": sgd(schedule={"kind": "cosine", "decay_steps": 0})},
        "optimizer.schedule.decay_steps is 0: Input should be greater than or equal to 1",
    ),
    (
        {"optimizer": sgd(schedule={"kind": "piecewise", "boundaries": [5], "factors": [1]})},
        "optimizer.schedule: factors has 1 entries, expected 2",
    ),
    (
        {"optimizer": sgd(schedule={"kind": "piecewise", "boundaries": [5, 5], "factors": [1, 1, 1]})},
        "optimizer.schedule: boundaries is [5, 5], expected ascending steps",
    ),
    ({"train": {"steps": 5}}, "train.batch_size: missing, expected a value"),
    ({"train": {"steps": -5, "batch_size": 1}}, "train.steps is -5: Input should be greater than or equal to 1"),
    ({"checkpoint": {"keep": 0}}, "checkpoint.keep is 0: Input should be greater than or equal to 1"),
    ({"device": {"gpu_memory_fraction": 1.5}}, "device.gpu_memory_fraction is 1.5: Input should be less than or equal"),
    ({"device": {"visible_gpus": {"worker": [[0, 0]]}}}, "worker 0 has [0, 0], expected each GPU once"),
    ({"device": {"visible_gpus": {"ps": [[0]]}}}, "device.visible_gpus.ps"),
    (
        {"device": {"visible_gpus": {"worker": [[0], [1]]}}},
        "visible_gpus.worker has 2 lists, expected at most one for each worker: fleet.workers + fleet.spares = 1",
    ),
    (
        {"device": {"visible_gpus": {"worker": [[0]] * 4}}, "fleet": {"workers": 2, "max_workers": 3}},
        "has 4 lists, expected at most one for each worker: fleet.max_workers = 3",
    ),
    ({"device": {"replicas": 0}}, "device.replicas: 0, expected auto or an integer of at least 1"),
    ({"device": {"replicas": -2}}, "device.replicas: -2, expected auto or an integer of at least 1"),
    ({"device": {"replicas": "all"}}, "device.replicas: 'all', expected auto or an integer of at least 1"),
    ({"device": {"replicas": True}}, "device.replicas: True, expected auto or an integer of at least 1"),
    ({"device": {"replicas": 2.0}}, "device.replicas: 2.0, expected auto or an integer of at least 1"),
    ({"device": {"virtual_cpus": 0}}, "device.virtual_cpus is 0: Input should be greater than or equal to 1"),
    ({"device": {"replicas": 3}}, "train.batch_size is 4, expected a multiple of device.replicas = 3"),
    (
        {"device": {"replicas": "auto", "virtual_cpus": 3}},
        "train.batch_size is 4, expected a multiple of device.virtual_cpus = 3 with device.replicas auto",
    ),
    (
        {"device": {"replicas": 4, "virtual_cpus": 2}},
        "device.replicas is 4, expected at most the number of devices, device.virtual_cpus = 2",
    ),
    (
        {"device": {"replicas": 2, "visible_gpus": {"worker": [[0, 1], [2]]}}, "fleet": {"workers": 2}},
        "device.replicas is 2, expected at most the number of devices: device.visible_gpus gives worker 1 1 GPUs",
    ),
    (
        {"device": {"replicas": 2, "visible_gpus": {"worker": [[0, 1]]}}, "fleet": {"workers": 2}},
        "device.visible_gpus gives worker 1 0 GPUs",
    ),
    (
        {"device": {"replicas": "auto"}, "update": {"replication": "in_graph"}},
        "device.replicas is auto, expected a number with update.replication in_graph: worker 0 builds the",
    ),
    ({"deadlines": {"step_secs": 0}}, "deadlines.step_secs is 0: Input should be greater than 0"),
]


@pytest.mark.parametrize(("fields", "expected"), BAD, ids=[expected[:50] for _, expected in BAD])
def test_a_bad_field_is_named_with_its_value_and_what_was_expected(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadJobError) as caught:
        parse_job(minimal(**fields), source="job.yaml")
    message = str(caught.value)
    assert message.startswith("job.yaml: ")
    assert expected in message
    assert "\n" not in message
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("device", "fleet"),
    [
        ({"replicas": "auto", "visible_gpus": {"worker": [[0, 1], []]}}, {"workers": 1, "spares": 1}),
        ({"replicas": 2, "visible_gpus": {"worker": [[0, 1], [2, 3]]}}, {"workers": 1, "max_workers": 2}),
        ({"replicas": 4, "virtual_cpus": 4, "visible_gpus": {"worker": [[]]}}, {}),
        ({"replicas": 4}, {}),
    ],
)
def test_devices_that_fit_are_accepted(device: dict[str, Any], fleet: dict[str, Any]) -> None:
    job = parse_job(minimal(device=device, fleet=fleet))
    assert parse_job(job.model_dump()).device.replicas == job_from_json(job.model_dump_json()).device.replicas
    assert job.device.replicas == device["replicas"]


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(BadJobError, match=r"fleet\.ps is 0: .*; train\.steps is 0: .*; colour: unknown key"):
        parse_job(minimal(fleet={"ps": 0}, train={"steps": 0, "batch_size": 1}, colour="red"))


@pytest.mark.parametrize("field", ["name", "program", "optimizer", "train"])
def test_what_has_no_default_must_be_there(field: str) -> None:
    content = minimal()
    del content[field]
    with pytest.raises(BadJobError, match=f"{field}: missing, expected a value"):
        parse_job(content)


def test_a_value_instead_of_a_section_is_refused_without_words_of_python() -> None:
    with pytest.raises(BadJobError, match=r"checkpoint.best is 'accuracy': Input should be a mapping$"):
        parse_job(minimal(checkpoint={"best": "accuracy"}))
    with pytest.raises(BadJobError, match=r"optimizer is 'adam': Input should be a mapping$"):
        parse_job(minimal(optimizer="adam"), "job.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: [a", "is not YAML"),
        ("- a\n- b\n", "holds list, expected a mapping"),
        ("", "holds NoneType, expected"),
        ("name: a\noptions: {day: 2024-02-30}", "is not YAML: day is out of range for month .*, line 2, column 16"),
        ("train: {steps: 0b_}", "is not YAML: invalid literal .*, line 1"),
    ],
)
def test_a_file_that_is_no_yaml_or_no_mapping_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(BadJobError, match=expected) as caught:
        load_job(tmp_path / "job.yaml")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "job.yaml") in str(caught.value)


@pytest.mark.parametrize(
    "text", ["name: a\nname: b\n", "train: {steps: 1}\noptions:\n  rate: 1\n  rate: 2\n", "x: [{y: 1, 'y': 2}]"]
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(BadJobError, match=r"is not YAML: found the key '\w+' twice, expected it once .*, line \d"):
        load_job(tmp_path / "job.yaml")
    with pytest.raises(UsageError, match="the value is not YAML"):
        override({}, "optimizer={name: sgd, name: adam}")


@pytest.mark.parametrize("value", ["2024-02-30", "[0b_]", "{a: 1", "{a: 2024-01-01T25:00:00Z}"])
def test_an_override_that_is_no_yaml_is_a_usage_error(value: str) -> None:
    with pytest.raises(UsageError, match=r"--set .*: the value is not YAML"):
        override({}, f"options.day={value}")


@pytest.mark.parametrize(
    "text",
    [
        "options: &o {self: *o}",
        "options: {list: &l [1, {inner: *l}]}",
        "callbacks: [{use: mlflow, options: &o {self: *o}}]",
    ],
)
def test_options_that_contain_themselves_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "some.yaml").write_text(text)
    content = read_mapping(tmp_path / "some.yaml", "file")
    with pytest.raises(BadJobError, match="options: a mapping or list that contains itself is in it, expected values"):
        parse_job(minimal(**content))


def test_options_may_have_one_value_twice(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("options: {one: &o {inner: [1]}, other: [*o, *o]}")
    content = read_mapping(tmp_path / "some.yaml", "file")
    assert parse_job(minimal(**content)).options["other"] == [{"inner": [1]}] * 2


def test_what_is_merged_may_be_there_twice(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("a: {b: &b {x: 1}}\nc: &c {<<: *b, x: 2}\nd: {<<: *c, y: 3}\ne: [*c, *c]\n")
    content = read_mapping(tmp_path / "some.yaml", "file")
    assert content["d"] == {"x": 2, "y": 3}
    (tmp_path / "merged.yaml").write_text("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n")
    assert read_mapping(tmp_path / "merged.yaml", "file")["c"] == {"x": 1, "y": 2}
    assert content["e"] == [{"x": 2}] * 2


def test_a_file_of_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(BadJobError, match="is not YAML"):
        load_job(tmp_path / "job.yaml")


@pytest.mark.parametrize(("name", "expected"), [("none.yaml", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        load_job(tmp_path / name)


@pytest.mark.parametrize("text", ["", "{", "name: tiny", "[1]", "3", "null", '"tiny"'])
def test_a_text_that_is_no_json_object_is_no_resolved_job(text: str) -> None:
    with pytest.raises(BadJobError, match=r"^ConfigMap tiny: expected a resolved job as JSON$"):
        job_from_json(text, "ConfigMap tiny")


def test_a_resolved_job_is_checked_as_a_job_file_is() -> None:
    with pytest.raises(BadJobError, match=r"^job: .*colour: unknown key"):
        job_from_json('{"colour": "red"}')
