"""The Kubernetes objects of a service under test, and parts of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psfleet.job.job import Job, parse_job
from psfleet.job.service_access import ServiceAccess
from psfleet.launch.platform import Request
from psfleet.manifests.kubernetes.service import render
from support.service_samples import of_cluster, plan_of, with_plan

Object = dict[str, Any]
NAME = "digits-serve"
MEMBERS = (f"{NAME}-member-0", f"{NAME}-member-1")
PODS = (f"{NAME}-front", *MEMBERS)


def objects_of(made: Request, sections: Object | None = None) -> list[Object]:
    """All objects of a request; sections replace those of its job."""
    assert made.activity is not None
    job = described(made.job, **(sections or {}))
    return render(job, made.activity, plan_of(made), made.front_files)


def rendered(folder: Path, sections: Object | None = None, **options: Any) -> list[Object]:
    """As `objects_of`, of a service of results of fleets; options are those of `of_cluster`."""
    return objects_of(of_cluster(folder, **options), sections)


def described(job: Job, **sections: Any) -> Job:
    """A job with other sections."""
    return parse_job({**job.model_dump(mode="json", exclude={"kubernetes"}), **sections})


def only(objects: list[Object], kind: str, name: str) -> Object:
    """The object of a kind and name."""
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod(objects: list[Object], name: str) -> Object:
    """The pod template of a Deployment."""
    found: Object = only(objects, "Deployment", name)["spec"]["template"]
    return found


def own(objects: list[Object], name: str) -> Object:
    """The container of that pod."""
    (found,) = pod(objects, name)["spec"]["containers"]
    return found


def environment(objects: list[Object], name: str) -> dict[str, Any]:
    """The variables of that container that have values."""
    return {each["name"]: each.get("value") for each in own(objects, name)["env"]}


def access(objects: list[Object], name: str) -> ServiceAccess:
    """What that container knows of the service."""
    return ServiceAccess.from_json(environment(objects, name)["PSFLEET_SERVICE"], name)


def with_folder(folder: Path) -> Request:
    """Its second model is on this machine."""
    made = of_cluster(folder, replicas=2)
    one, two = plan_of(made).models
    return with_plan(made, models=(one, two.model_copy(update={"fleet": "", "folder": "/runs/two"})))
