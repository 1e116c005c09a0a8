"""Which pods mount the results of a run, and where pods may run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from psfleet.job.job import parse_job
from psfleet.manifests.kubernetes.pod_template import reader
from psfleet.manifests.kubernetes.render import render

IMAGE = {"program": "image"}
JOB = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 2, "spares": 1},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 4},
    "container": IMAGE,
}
Object = dict[str, Any]


def by_component(**changes: Any) -> dict[str, Object]:
    """The specs of the pods of ps, chief and workers of a changed job."""
    objects = render(parse_job({**JOB, **changes}), Path("job.yaml"))
    jobs = [each["spec"]["template"] for each in objects if each["kind"] == "Job"]
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"] for each in jobs}


def test_only_the_chief_runs_where_the_disk_is_and_all_run_where_they_may_write() -> None:
    specs = by_component()
    assert ["affinity" in specs[name] for name in ("ps", "worker", "chief")] == [False, False, True]
    assert values_of_affinity(specs["chief"]) == ["chief", "results", "tensorboard"]
    anywhere = by_component(container={**IMAGE, "access_mode": "ReadWriteMany"})
    assert not any("affinity" in spec for spec in anywhere.values())
    for spec in by_component(checkpoint={"shared": True}).values():
        assert values_of_affinity(spec) == ["ps", "chief", "worker", "results", "tensorboard"]


def test_the_chief_and_the_reader_start_beside_a_service_that_mounts_the_disk() -> None:
    """The scheduler does not know that only one node can mount it."""
    made = parse_job(JOB)
    for spec in (by_component()["chief"], reader(made, "reader")["spec"]):
        [near] = spec["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        selected = near["podAffinityTerm"]["labelSelector"]
        assert selected == {"matchLabels": {"psfleet.model-claim": made.name}}


def values_of_affinity(spec: Object) -> list[str]:
    """The components on whose node a pod must run."""
    [term] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [mounting] = term["labelSelector"]["matchExpressions"]
    found: list[str] = mounting["values"]
    return found


def test_pods_that_may_run_on_any_node_spread_over_nodes_if_these_have_room() -> None:
    specs = by_component()
    for name, counted in (("ps", ["ps"]), ("worker", ["chief", "worker"])):
        [rule] = specs[name]["topologySpreadConstraints"]
        assert (rule["topologyKey"], rule["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
        assert rule["labelSelector"]["matchExpressions"][0]["values"] == counted
        assert rule["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "small"
    assert "topologySpreadConstraints" not in specs["chief"], "its node is that of the disk"
    anywhere = by_component(container={**IMAGE, "access_mode": "ReadWriteMany"})
    assert all(spec["topologySpreadConstraints"] for spec in anywhere.values())


@pytest.mark.parametrize("is_shared", [False, True])
def test_only_the_chief_mounts_the_results_unless_the_job_shares_them(is_shared: bool) -> None:
    found = by_component(checkpoint={"shared": is_shared})
    assert sorted(found) == ["chief", "ps", "worker"]
    for name, spec in found.items():
        mounts = is_shared or name == "chief"
        assert ("results" in [volume["name"] for volume in spec["volumes"]]) == mounts
        assert ("/out" in [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]]) == mounts


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_the_claim_is_of_the_kind_that_the_job_names(mode: str) -> None:
    objects = render(parse_job({**JOB, "container": {**IMAGE, "access_mode": mode}}), Path("job.yaml"))
    assert [each["spec"]["accessModes"] for each in objects if each["kind"] == "PersistentVolumeClaim"] == [[mode]]
