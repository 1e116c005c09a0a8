"""A run that is to be started on a Docker engine: what it needs there, and its compose file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import docker
from docker.models.containers import Container
from docker.models.volumes import Volume

from psfleet.checkpoint.location import CHECKPOINTS
from psfleet.job.service_plan import PlannedModel
from psfleet.launch.platform import Request
from psfleet.manifests.compose import driven, service
from psfleet.manifests.compose.on_fleet import require_no_way_out
from psfleet.manifests.compose.render import file_text
from psfleet.manifests.compose.store_access import require_closed
from psfleet.manifests.on_fleet import OnFleet
from psfleet.platforms.compose import engine
from psfleet.platforms.compose.activities import require_kind
from psfleet.platforms.compose.containers import require_readable, require_run
from psfleet.platforms.compose.store_environment import require_usable


def require_startable(
    client: docker.DockerClient, request: Request, containers: Sequence[Container], volumes: Sequence[Volume]
) -> None:
    """See `Platform.check`; containers and volumes are those of the run's name."""
    job = request.job
    require_closed(job)
    engine.require_plugin()
    engine.require_images(client, [job.container.ps_image, job.container.worker_image])
    if request.fleet:
        require_no_way_out(job, request.fleet)
    if job.container.program == "mount":
        for folder in _program_folders(request):
            require_readable(folder)
    if request.activity is not None and request.activity.model_folder:
        require_readable(Path(request.activity.model_folder), "**/*")
    if request.activity is not None and request.activity.service is not None:
        for model in request.activity.service.models:
            _require_readable_model(model)
    require_usable(job)
    require_run(job.name, containers)
    require_kind(job.name, request.activity, containers, volumes)


def _program_folders(request: Request) -> list[Path]:
    """The folders of programs that containers mount: one, or of a service that of each model."""
    plan = request.activity.service if request.activity is not None else None
    if plan is None:
        return [request.job_file.parent.resolve()]
    return [Path(folder) for folder in dict.fromkeys(model.program_folder for model in plan.models)]


def _require_readable_model(model: PlannedModel) -> None:
    """Checks that members can read a checkpoint, a run folder, or a folder with weights."""
    if model.folder:
        folder = Path(model.folder)
        require_readable(folder, CHECKPOINTS)
        require_readable(folder / CHECKPOINTS if (folder / CHECKPOINTS).is_dir() else folder, "**/*")


def text_of(request: Request) -> str:
    """The compose file of a request."""
    job, job_file = request.job, request.job_file
    if request.activity is not None and request.activity.service is not None:
        return service.file_text(job, request.activity, request.activity.service)
    if request.activity is not None:
        return driven.file_text(job, request.activity, job_file)
    place = OnFleet.of_new_run(job, request.fleet) if request.fleet else None
    return file_text(job, job_file, None, "psfleet up", paused=request.paused, place=place)
