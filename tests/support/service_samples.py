"""A service of two models in containers, for tests that render or start one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psfleet.job.service_access import FrontOptions, MemberSource
from psfleet.job.service_plan import PlannedModel
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


def with_token(folder: Path) -> dict[str, str]:
    """The option for a file with a token."""
    file = folder / "token"
    file.write_text("a-token-of-many-characters\n")
    return {"token_file": str(file)}
