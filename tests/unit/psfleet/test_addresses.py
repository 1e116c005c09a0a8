"""Addresses, and TF_CONFIG in and out."""

from __future__ import annotations

import json

import pytest
from support.tiny_job import job

from psfleet.addresses import Address, TfConfig, container_addresses, parse_tf_config, tf_config
from psfleet.errors import BadJobError, UsageError


@pytest.mark.parametrize("text", ["ps-0:2222", "127.0.0.1:1", "[::1]:65531", "a.b-c.svc:2222"])
def test_an_address_reads_what_it_writes(text: str) -> None:
    assert Address.parse(text).data == text


def test_the_control_port_is_the_one_behind_tensorflows() -> None:
    assert Address.parse("ps-0:2222").control == "ps-0:2223"


@pytest.mark.parametrize(
    "text", ["", "ps-0", "ps-0:", ":2222", "ps-0:x", "ps-0:0", "ps-0:-1", "ps-0:65532", "ps-0:1.5"]
)
def test_what_is_no_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(BadJobError) as caught:
        Address.parse(text)
    assert str(caught.value) == f"address {text!r}: expected host:port with port below 65532"


def test_containers_have_the_names_of_their_roles() -> None:
    ps, workers = container_addresses(job(fleet={"ps": 2, "workers": 2, "spares": 1}))
    assert [at.data for at in ps] == ["ps-0:2222", "ps-1:2222"]
    assert [at.data for at in workers] == ["worker-0:2222", "worker-1:2222", "worker-2:2222"]


def test_parameter_servers_that_run_already_are_where_the_job_says() -> None:
    ps, _ = container_addresses(job(fleet={"ps": 2, "ps_addresses": ["a:1000", "b:2000"]}))
    assert ps == [Address("a", 1000), Address("b", 2000)]


@pytest.mark.parametrize(
    ("task", "role", "index"), [("ps:1", "ps", 1), ("worker:0", "worker", 0), ("worker:2", "worker", 2)]
)
def test_the_tf_config_of_a_task_reads_back_as_that_task(task: str, role: str, index: int) -> None:
    fleet = job(fleet={"ps": 2, "workers": 2, "spares": 1})
    ps, workers = container_addresses(fleet)
    config = tf_config(fleet, task)
    assert config["task"] == {"type": role, "index": index}
    address = (ps if role == "ps" else workers)[index]
    assert parse_tf_config(json.dumps(config)) == TfConfig(tuple(ps), role, index, address)


def test_the_tf_config_of_no_task_has_the_cluster_alone() -> None:
    fleet = job()
    config = tf_config(fleet, None)
    assert config == {"cluster": {"ps": ["ps-0:2222"], "worker": ["worker-0:2222"]}}
    assert parse_tf_config(json.dumps(config)) == TfConfig((Address("ps-0", 2222),))


@pytest.mark.parametrize(("kind", "index", "host"), [("chief", 0, "c"), ("worker", 1, "a"), ("worker", 2, "b")])
def test_a_chief_in_tf_config_is_worker_0_and_the_workers_follow(kind: str, index: int, host: str) -> None:
    """`tf.estimator` and Kubeflow's TFJob count workers beside the chief from 0."""
    cluster = {"chief": ["c:1"], "ps": ["p:1"], "worker": ["a:1", "b:1"]}
    task = {"type": kind, "index": index - (kind == "worker")}
    found = parse_tf_config(json.dumps({"cluster": cluster, "task": task}))
    assert found == TfConfig((Address("p", 1),), "worker", index, Address(host, 1))


@pytest.mark.parametrize(("kind", "index"), [("worker", -1), ("ps", -1), ("chief", 1), ("master", -1)])
def test_no_other_task_of_tf_config_becomes_the_chief_by_its_index(kind: str, index: int) -> None:
    """With a chief in the cluster, worker -1 would be worker 0."""
    config = {"cluster": {"ps": ["p:1"], "chief": ["c:1"], "worker": ["a:1"]}, "task": {"type": kind, "index": index}}
    with pytest.raises(BadJobError, match=rf"TF_CONFIG: task index of {kind} is {index}, expected (0|a whole number)"):
        parse_tf_config(json.dumps(config))


def test_an_index_may_be_a_text_and_its_address_may_be_missing() -> None:
    config = {"cluster": {"ps": ["p:1"]}, "task": {"type": "worker", "index": "3"}}
    assert parse_tf_config(json.dumps(config)) == TfConfig((Address("p", 1),), "worker", 3)


def test_the_tf_config_of_a_tool_without_ps_has_none() -> None:
    config = {"cluster": {"worker": ["a"]}, "task": {"type": "evaluator", "index": 0}}
    assert parse_tf_config(json.dumps(config)) == TfConfig(())


@pytest.mark.parametrize("task", ["", "ps", "ps:", "ps:1", "ps:-1", "ps:x", "worker:3", "chief:0", "worker:0:0", ":0"])
def test_a_task_that_does_not_exist_is_refused_with_those_that_do(task: str) -> None:
    with pytest.raises(UsageError) as caught:
        tf_config(job(fleet={"ps": 1, "workers": 2, "spares": 1}), task)
    assert str(caught.value) == f"--task {task!r}: expected one of ps:0 to ps:0, worker:0 to worker:2"


@pytest.mark.parametrize(
    "text",
    [
        "ps-0:2222",
        "[]",
        "3",
        "{}",
        '{"cluster": null}',
        '{"cluster": {"ps": null}}',
        '{"cluster": {"ps": [3]}}',
        '{"cluster": {"ps": ["a:1"]}, "task": null}',
    ],
)
def test_what_is_no_tf_config_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadJobError, match=r"^TF_CONFIG is not JSON with cluster\.ps and task$"):
        parse_tf_config(text)
