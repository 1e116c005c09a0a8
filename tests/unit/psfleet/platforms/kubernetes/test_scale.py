"""How the number of workers of a fleet changes: its chief has a Job of its own, and stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.kubernetes_api import Api

from psfleet.job.job import load_job
from psfleet.launch.platform import Request
from psfleet.manifests.kubernetes.render import render
from psfleet.platforms.kubernetes.platform import Kubernetes

JOB = Path(__file__).parents[5] / "examples" / "lenet" / "job.yaml"


LOADERS = ["input.from=loaders", "input.loaders=2"]


def started(**fleet: int) -> Kubernetes:
    """A platform with the fleet of the example, whose section `fleet` is changed."""
    job = load_job(JOB, [f"fleet.{name}={value}" for name, value in fleet.items()])
    platform = Kubernetes()
    platform.apply(Request(job, JOB))
    return platform


def scaled(platform: Kubernetes, workers: int) -> list[int | None]:
    """The indices of the workers after a change of their number."""
    platform.scale(platform.job("lenet"), workers)
    return [member.index for member in platform.members("lenet") if member.role != "ps"]


def spec(api: Api, component: str) -> dict[str, Any]:
    found: dict[str, Any] = api.objects["jobs", f"lenet-{component}"]["spec"]
    return found


def test_workers_are_added_and_removed_and_the_chief_is_one_of_them(api: Api) -> None:
    platform = started()
    chief = dict(spec(api, "chief"))
    assert scaled(platform, 6) == [0, 1, 2, 3, 4, 5]
    assert (spec(api, "worker")["completions"], spec(api, "worker")["parallelism"]) == (5, 5), (
        "one changes with the other"
    )
    assert scaled(platform, 2) == [0, 1]
    assert spec(api, "chief") == chief


def test_a_fleet_that_is_scaled_to_its_chief_can_be_scaled_again(api: Api) -> None:
    platform = started()
    assert scaled(platform, 1) == [0]
    assert spec(api, "worker")["completions"] > 0, "a Job without completions is complete at once"
    assert scaled(platform, 3) == [0, 1, 2]
    assert (spec(api, "worker")["completions"], spec(api, "worker")["parallelism"]) == (2, 2)


def test_a_fleet_that_began_with_its_chief_alone_gets_a_job_of_workers(api: Api) -> None:
    platform = started(workers=1, spares=0, max_workers=4)
    assert ("jobs", "lenet-worker") not in api.objects
    assert scaled(platform, 1) == [0]
    assert ("jobs", "lenet-worker") not in api.objects
    assert scaled(platform, 3) == [0, 1, 2]
    changes = ["fleet.workers=3", "fleet.spares=0", "fleet.max_workers=4", "update.quorum=1"]
    expected = render(load_job(JOB, changes), JOB)
    jobs = {each["metadata"]["name"]: each["spec"] for each in expected if each["kind"] == "Job"}
    assert spec(api, "worker") == jobs["lenet-worker"], "as if the fleet had begun with them"
    (owner,) = api.objects["jobs", "lenet-worker"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", "lenet-chief")
    assert platform.remove("lenet", results=True)
    assert api.objects == {}


def test_loaders_are_added_and_removed(api: Api) -> None:
    platform = Kubernetes()
    platform.apply(Request(load_job(JOB, LOADERS), JOB))
    for loaders in (4, 1):
        platform.scale_loaders(platform.job("lenet"), loaders)
        assert (spec(api, "loader")["completions"], spec(api, "loader")["parallelism"]) == (loaders, loaders)
        found = [member.index for member in platform.members("lenet") if member.role == "loader"]
        assert found == list(range(loaders))
