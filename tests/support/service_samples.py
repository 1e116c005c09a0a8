"""A service of two models in containers, for tests that render or start one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from psfleet.job.service_access import FrontOptions, MemberSource
from psfleet.job.service_plan import PlannedModel, ServicePlan
from psfleet.launch.platform import Request
from psfleet.serving.on_platform import service_request
from psfleet.serving.platform_sources import PlatformSources
from support.scripted_platform import job

OPTIONS = FrontOptions(
    host="127.0.0.1", rest_port=8080, grpc_port=8081, timeout_secs=1.0, max_batch_rows=64, linger_secs=0.002,
    max_query_bytes=1000, max_connections=10,
)  # fmt: skip
MODELS = (
    PlannedModel(source=MemberSource(run="/model"), program_folder="/home/one", folder="/runs/one"),
    PlannedModel(source=MemberSource(run="/model", best=True), program_folder="/home/two", fleet="two"),
)


def request(
    replicas: int = 1,
    metrics_port: int = 0,
    tls: bool = False,
    container: Mapping[str, Any] | None = None,
    **options: Any,
) -> Request:
    """Of a service of the model `digits`.

    Args:
        tls, container: Of the job.
        options: Of the front.
    """
    described = job(tls=tls, container=container or {"mounts": ["data:/data"]})
    sources = PlatformSources("digits", described.model_dump(mode="json"), MODELS)
    return service_request(sources, "between_graph", replicas, OPTIONS.model_copy(update=options), metrics_port)


def of_cluster(folder: Path, replicas: int = 1, **options: Any) -> Request:
    """As `request`, of models that are the results of fleets on a cluster; each has a program of its own."""
    models = []
    for name in ("one", "two"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "program.py").write_text(f"NAME = '{name}'\n")
        source = MemberSource(run="/model", best=name == "two")
        models.append(PlannedModel(source=source, program_folder=str(folder / name), fleet=name))
    return with_plan(request(replicas, **options), models=tuple(models))


def briefly(made: Request) -> Request:
    """A service whose deadlines expire soon."""
    deadlines = made.job.deadlines.model_copy(update={"start_secs": 0.1, "first_batch_secs": 0.1, "stall_secs": 0.1})
    return replace(made, job=made.job.model_copy(update={"deadlines": deadlines}))


def with_plan(made: Request, **changes: Any) -> Request:
    """A request whose plan has other fields."""
    assert made.activity is not None
    plan = plan_of(made).model_copy(update=changes)
    return replace(made, activity=made.activity.model_copy(update={"service": plan}))


def plan_of(made: Request) -> ServicePlan:
    """The plan of a request."""
    assert made.activity is not None
    assert made.activity.service is not None
    return made.activity.service


def with_token(folder: Path) -> dict[str, str]:
    """The option for a file with a token."""
    file = folder / "token"
    file.write_text("a-token-of-many-characters\n")
    return {"token_file": str(file)}
