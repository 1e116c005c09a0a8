"""The settings that a service reads from its environment, and the errors for invalid variables."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from psfleet.addresses import Address, tf_config
from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.service import process_environment, settings


@pytest.fixture
def job() -> Job:
    return parse_job(
        {
            "name": "tiny",
            "program": "program:build",
            "fleet": {"ps": 2, "workers": 2},
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 10, "batch_size": 4},
        }
    )


def test_without_any_variable_a_process_is_a_ps_that_serves_any_run() -> None:
    read = settings.read({})
    assert (read.job, read.run, read.ps, read.index) == (None, "", (), -1)
    assert read.address == Address(os.uname().nodename, 2222)
    assert (read.program_folder, read.out, read.parent_pid, read.cause) == (Path(), Path(), 0, "")


def test_the_job_may_be_given_as_json(job: Job) -> None:
    assert settings.read({"PSFLEET_JOB": job.model_dump_json()}).job == job
    with pytest.raises(BadJobError, match="PSFLEET_JOB: expected a resolved job as JSON"):
        settings.read({"PSFLEET_JOB": "{name"})


def test_every_variable_sets_its_field(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(job.model_dump_json())
    read = settings.read(
        {
            "PSFLEET_JOB": str(path),
            "PSFLEET_PROGRAM_FOLDER": "/program",
            "PSFLEET_RUN": "tiny-12ab",
            "PSFLEET_INDEX": "3",
            "PSFLEET_PS": "a:1000,b:2000",
            "PSFLEET_ADDRESS": "127.0.0.1:3000",
            "PSFLEET_OUT": "/out",
            "PSFLEET_PARENT_PID": "17",
            "PSFLEET_CAUSE": "killed by SIGKILL",
            "PSFLEET_METRICS_PORT": "2224",
            "PSFLEET_TLS": "/tls",
        }
    )
    assert read == settings.Settings(
        job=job,
        program_folder=Path("/program"),
        run="tiny-12ab",
        index=3,
        ps=(Address("a", 1000), Address("b", 2000)),
        address=Address("127.0.0.1", 3000),
        out=Path("/out"),
        parent_pid=17,
        cause="killed by SIGKILL",
        metrics_port=2224,
        tls=Path("/tls"),
    )


def test_variables_that_are_empty_are_as_if_they_were_not_there() -> None:
    names = ("PSFLEET_JOB", "PSFLEET_INDEX", "PSFLEET_PS", "PSFLEET_ADDRESS", "PSFLEET_PARENT_PID", "TF_CONFIG")
    assert settings.read(dict.fromkeys(names, "")) == settings.read({})


def test_tf_config_gives_the_ps_and_the_index(job: Job) -> None:
    read = settings.read({"TF_CONFIG": json.dumps(tf_config(job, "worker:1"))})
    assert read.ps == (Address("ps-0", 2222), Address("ps-1", 2222))
    assert read.index == 1


def test_the_projects_own_variables_come_before_those_of_the_platform(job: Job) -> None:
    config = json.dumps(tf_config(job, "worker:1"))
    assert settings.read({"JOB_COMPLETION_INDEX": "4"}).index == 4
    assert settings.read({"JOB_COMPLETION_INDEX": "4", "TF_CONFIG": config}).index == 4
    read = settings.read({"PSFLEET_INDEX": "0", "PSFLEET_PS": "a:1", "JOB_COMPLETION_INDEX": "4", "TF_CONFIG": config})
    assert (read.index, read.ps) == (0, (Address("a", 1),))


def test_the_index_of_a_job_may_begin_after_those_of_other_jobs() -> None:
    assert settings.read({"JOB_COMPLETION_INDEX": "4", "PSFLEET_FIRST_INDEX": "1"}).index == 5
    assert settings.read({"PSFLEET_INDEX": "4", "PSFLEET_FIRST_INDEX": "1"}).index == 4, "of the fleet, not of a Job"
    with pytest.raises(BadJobError, match=r"^PSFLEET_FIRST_INDEX is 'one', expected a whole number"):
        settings.read({"JOB_COMPLETION_INDEX": "4", "PSFLEET_FIRST_INDEX": "one"})


def test_a_tf_config_of_another_tool_says_nothing_to_a_process_with_ps_addresses() -> None:
    """MultiWorkerMirroredStrategy has a cluster without ps, in which another process may have index 0."""
    config = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    read = settings.read({"TF_CONFIG": config, "PSFLEET_PS": "ps-0:2222"})
    assert (read.ps, read.index, read.address.host) == ((Address("ps-0", 2222),), -1, os.uname().nodename)
    with pytest.raises(BadJobError, match=r"^TF_CONFIG has no cluster\.ps, expected it or PSFLEET_PS$"):
        settings.read({"TF_CONFIG": config})


def test_a_process_is_at_the_address_that_tf_config_names(job: Job) -> None:
    config = json.dumps(tf_config(job, "worker:1"))
    assert settings.read({"TF_CONFIG": config}).address == Address("worker-1", 2222)
    own = settings.read({"TF_CONFIG": config, "PSFLEET_ADDRESS": "10.0.0.1:3000"})
    assert own.address == Address("10.0.0.1", 3000)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PSFLEET_JOB", "/no/such/job.json", "No such file or directory"),
        ("PSFLEET_JOB", "/", "Is a directory"),
        ("PSFLEET_INDEX", "first", "'first', expected a whole number"),
        ("PSFLEET_INDEX", "1.5", "'1.5', expected a whole number"),
        ("PSFLEET_INDEX", "--1", "'--1', expected a whole number"),
        ("JOB_COMPLETION_INDEX", "last", "'last', expected a whole number"),
        ("PSFLEET_PARENT_PID", "init", "'init', expected a whole number"),
        ("PSFLEET_PS", "ps-0:2222,ps-1", "'ps-1': expected host:port"),
        ("PSFLEET_ADDRESS", "ps-0", "'ps-0': expected host:port"),
        ("TF_CONFIG", "{", "not JSON with cluster.ps and task"),
        ("TF_CONFIG", '{"cluster": {"ps": ["ps-0"]}}', "'ps-0': expected host:port"),
        (
            "TF_CONFIG",
            '{"cluster": {"ps": ["ps-0:1"]}, "task": {"type": "evaluator", "index": 0}}',
            "task type is 'evaluator', expected ps, worker or chief",
        ),
        ("PSFLEET_ON_SIGTERM", "stay", "'stay', expected leave or nothing"),
        ("PSFLEET_RUN", "my_run", "'my_run'"),
    ],
)
def test_a_variable_that_is_wrong_is_named_with_its_value(name: str, value: str, expected: str) -> None:
    """The run's name becomes that of a TensorFlow container, in which there is no underscore."""
    with pytest.raises(BadJobError) as caught:
        settings.read({name: value})
    assert name in str(caught.value)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "name: tiny", "[1]", "3", "null", '"tiny"', "\ufeff{}"])
def test_a_resolved_job_that_is_no_json_object_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(BadJobError, match=f"PSFLEET_JOB is {path}: expected a resolved job as JSON"):
        settings.read({"PSFLEET_JOB": str(path)})


def test_a_resolved_job_with_a_wrong_field_is_refused_as_a_job_file_is(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**job.model_dump(mode="json"), "colour": "red"}))
    with pytest.raises(BadJobError, match=f"^PSFLEET_JOB is {path}: colour: unknown key$"):
        settings.read({"PSFLEET_JOB": str(path)})


def test_variables_of_tensorflow_are_set_unless_the_user_has_set_them() -> None:
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    process_environment.prepare_tensorflow(environ)
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert environ["KERAS_BACKEND"] == "tensorflow"
    options = dict(option.split("=") for option in environ["TF_GRPC_DEFAULT_OPTIONS"].split(","))
    assert (options["grpc.keepalive_time_ms"], options["grpc.keepalive_timeout_ms"]) == ("10000", "5000")
    assert options["grpc.enable_http_proxy"] == "0"


@pytest.mark.parametrize(
    ("machine", "given", "expected"),
    [
        ("x86_64", {}, "1"),
        ("x86_64", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "0"),
        ("aarch64", {}, None),
        ("aarch64", {"TF_ENABLE_ONEDNN_OPTS": "1"}, "1"),
    ],
)
def test_tensorflow_computes_with_onednn_on_x86_unless_the_user_says_no(
    monkeypatch: pytest.MonkeyPatch, machine: str, given: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    environ = dict(given)
    process_environment.prepare_tensorflow(environ)
    assert environ.get("TF_ENABLE_ONEDNN_OPTS") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "127.0.0.1,127.0.0.2,a-loader-0"),
        ({"no_proxy": "intern"}, "intern,127.0.0.1,127.0.0.2,a-loader-0"),
        ({"no_proxy": "intern", "no_grpc_proxy": "own"}, "own,127.0.0.1,127.0.0.2,a-loader-0"),
    ],
)
def test_loaders_are_reached_without_the_proxy_that_other_connections_use(given: dict[str, str], expected: str) -> None:
    environ = {**given, settings.LOADERS: "a-loader-0:2222"}
    process_environment.prepare_tensorflow(environ)
    assert environ["no_grpc_proxy"] == expected
    assert environ.get("no_proxy") == given.get("no_proxy")
    process_environment.prepare_tensorflow(without := dict(given))
    assert without.get("no_grpc_proxy") == given.get("no_grpc_proxy")
