"""The job file's `kubernetes` section: what it takes, and what ps and workers share."""

from __future__ import annotations

from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.kubernetes import Pods

SPOT = {"key": "spot", "operator": "Exists"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}


def job(**kubernetes: Any) -> Job:
    """A job with this section."""
    content = {"name": "small", "program": "program:build", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    return parse_job({**content, "train": {"steps": 10, "batch_size": 4}, "kubernetes": kubernetes})


def test_settings_of_a_role_are_added_to_those_of_both() -> None:
    section = job(
        env={"A": "1", "B": "2"},
        tolerations=[SPOT],
        priority_class="low",
        worker={"env": {"B": "3"}, "tolerations": [GPU], "priority_class": "high"},
    ).kubernetes
    worker, ps = section.of_role("worker"), section.of_role("ps")
    assert (worker.env, worker.tolerations, worker.priority_class) == ({"A": "1", "B": "3"}, [SPOT, GPU], "high")
    assert (ps.env, ps.tolerations, ps.priority_class) == ({"A": "1", "B": "2"}, [SPOT], "low")


def test_a_kind_of_affinity_of_a_role_replaces_that_of_both() -> None:
    shared: dict[str, Any] = {"nodeAffinity": {"x": 1}, "podAffinity": {"y": 2}}
    own: dict[str, Any] = {"podAffinity": {"z": 3}}
    section = job(affinity=shared, ps={"affinity": own}).kubernetes
    assert (section.of_role("ps").affinity, section.of_role("worker").affinity) == ({**shared, **own}, shared)


def test_without_the_section_pods_have_no_settings() -> None:
    assert job().kubernetes.of_role("ps") == Pods()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"labels": {"app.kubernetes.io/instance": "other"}}, "kubernetes.labels: 'app.kubernetes.io/instance' is in"),
        ({"job_labels": {"a b": ""}}, "kubernetes.job_labels: 'a b' is in it, expected names of labels"),
        ({"env": {"PSFLEET_PS": "a:1"}}, "kubernetes.env: 'PSFLEET_PS' is in it, expected names of variables"),
        ({"env": {"A": 1}}, "kubernetes.env.A is 1: Input should be a valid string"),
        ({"ps": {"secret_env": {"A": "key"}}}, "kubernetes.ps.secret_env: 'key' is in it, expected SECRET:KEY"),
        ({"secret_files": ["s3:keys"]}, "'s3:keys' is in it, expected SECRET:FOLDER with an absolute FOLDER"),
        ({"resources": {"memory": "1Gi"}}, "memory is in it, expected in container.ps and container.worker"),
        ({"resources": {"nvidia.com/gpu": True}}, "kubernetes.resources.nvidia.com/gpu"),
        ({"tolerations": ["spot"]}, "kubernetes.tolerations.0 is 'spot': Input should be a valid dictionary"),
        ({"affinity": []}, r"kubernetes.affinity is \[\]: Input should be a valid dictionary"),
        ({"image_pull_secrets": ["My Secret"]}, "kubernetes.image_pull_secrets.0 is 'My Secret'"),
        ({"image_pull_policy": "never"}, "kubernetes.image_pull_policy is 'never'"),
        ({"nodeSelector": {}}, "kubernetes.nodeSelector: unknown key; did you mean node_selector"),
        ({"egress": {"ports": []}}, "kubernetes.egress is"),
    ],
)
def test_what_is_wrong_is_named_with_its_field(section: dict[str, Any], message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        job(**section)
