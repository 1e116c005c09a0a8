"""The job file's `kubernetes` section: what it takes, and what ps and workers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from psfleet.errors import BadJobError
from psfleet.job.job import Job, parse_job
from psfleet.job.kubernetes import OWN_ENV, OWN_FOLDERS, SHARED_FOLDER, Pods
from psfleet.manifests import container
from psfleet.manifests.kubernetes.pod_template import TMP
from psfleet.service import settings

SPOT = {"key": "spot", "operator": "Exists"}
GPU = {"key": "nvidia.com/gpu", "operator": "Exists"}


def job(mounts: Sequence[str] = (), **kubernetes: Any) -> Job:
    """A job with this section, and with these mounts of data."""
    content: dict[str, Any] = {
        "name": "small",
        "program": "program:build",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
    }
    content |= {"train": {"steps": 10, "batch_size": 4}, "container": {"mounts": list(mounts)}}
    return parse_job({**content, "kubernetes": kubernetes})


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
    shared: dict[str, Any] = {"nodeAffinity": {"x": 1}, "podAffinity": {"y": [2]}}
    own: dict[str, Any] = {"podAffinity": {"z": [3]}}
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
        ({"env": {"JOB_COMPLETION_INDEX": "0"}}, "kubernetes.env: 'JOB_COMPLETION_INDEX' is in it, expected names of"),
        (
            {"env": {"A": "1"}, "secret_env": {"A": "s:k"}},
            "kubernetes: A is in env and in secret_env of ps, expected in",
        ),
        (
            {"env": {"A": "1"}, "worker": {"secret_env": {"A": "s:k"}}},
            "kubernetes: A is in env and in secret_env of worker, expected in one of them",
        ),
        ({"labels": {"team": "a b"}}, "kubernetes.labels: 'a b' is in it, expected values of labels"),
        ({"job_labels": {"team": "a" * 64}}, "kubernetes.job_labels: 'a+' is in it, expected values of labels"),
        ({"resources": {"nvidia.com/gpu": -1}}, "kubernetes.resources.nvidia.com/gpu"),
        ({"resources": {"a gpu": 1}}, "kubernetes.resources: 'a gpu' is in it, expected names of resources"),
        ({"env": {"A": 1}}, "kubernetes.env.A is 1: Input should be a valid string"),
        ({"ps": {"secret_env": {"A": "key"}}}, "kubernetes.ps.secret_env: 'key' is in it, expected SECRET:KEY"),
        ({"secret_files": ["s3:keys"]}, "'s3:keys' is in it, expected SECRET:FOLDER with an absolute FOLDER"),
        ({"resources": {"memory": "1Gi"}}, "memory is in it, expected in the section container, by role"),
        ({"resources": {"nvidia.com/gpu": True}}, "kubernetes.resources.nvidia.com/gpu"),
        ({"tolerations": ["spot"]}, "kubernetes.tolerations.0 is 'spot': Input should be a mapping"),
        ({"affinity": []}, r"kubernetes.affinity is \[\]: Input should be a mapping"),
        ({"affinity": {"podAffinity": "near"}}, "kubernetes.affinity: podAffinity is 'near', expected a mapping"),
        (
            {"ps": {"affinity": {"podAffinity": {"x": {}}}}},
            "kubernetes.ps.affinity: podAffinity.x is {}, expected a list",
        ),
        ({"image_pull_secrets": ["My Secret"]}, "kubernetes.image_pull_secrets.0 is 'My Secret'"),
        ({"image_pull_policy": "never"}, "kubernetes.image_pull_policy is 'never'"),
        ({"nodeSelector": {}}, "kubernetes.nodeSelector: unknown key; did you mean node_selector"),
        ({"egress": {"ports": []}}, "kubernetes.egress is"),
    ],
)
def test_what_is_wrong_is_named_with_its_field(section: dict[str, Any], message: str) -> None:
    with pytest.raises(BadJobError, match=message):
        job(**section)


def test_annotations_and_labels_may_have_the_values_that_kubernetes_allows() -> None:
    section = job(annotations={"example.com/note": "any text, 100 %"}, labels={"team": "", "a": "b-c_d.E"}).kubernetes
    assert (section.annotations["example.com/note"], section.labels["team"]) == ("any text, 100 %", "")


@pytest.mark.parametrize(
    ("section", "mounts", "folder"),
    [
        ({"secret_files": ["keys:/tmp/"]}, [], "/tmp"),
        ({"secret_files": ["keys:/out/keys"]}, [], "/out/keys"),
        ({"worker": {"secret_files": ["keys:/etc/psfleet"]}}, [], "/etc/psfleet"),
        ({"secret_files": ["keys:/keys"], "ps": {"secret_files": ["others:/keys"]}}, [], "/keys"),
        ({"secret_files": ["keys:/data//"]}, ["numbers:/data"], "/data"),
    ],
)
def test_a_folder_of_a_secret_has_nothing_else(section: dict[str, Any], mounts: list[str], folder: str) -> None:
    """The API answers two mounts of one folder with an error that looks temporary, after the last fleet was removed."""
    with pytest.raises(BadJobError, match=f"kubernetes: secret_files has {folder}, which has other files, expected a"):
        job(mounts, **section)


def test_files_of_secrets_may_lie_beside_those_of_psfleet_and_of_the_program() -> None:
    files = ["keys:/tmp/keys", "others:/output", "more:/data/keys"]
    assert job(["numbers:/data"], secret_files=files).kubernetes.secret_files == files


def test_the_own_folders_are_those_of_the_containers() -> None:
    own = {container.OUT, container.PROGRAM, container.TLS, container.JOB.rpartition("/")[0], TMP}
    assert {*OWN_FOLDERS, SHARED_FOLDER} == own
    assert settings.COMPLETION_INDEX in OWN_ENV
