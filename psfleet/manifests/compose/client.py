"""The container of a client of a standing fleet, as arguments of the docker package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests.compose.limits import limit_options
from psfleet.manifests.compose.render import ROLE, network_of, project
from psfleet.manifests.compose.standing import STANDING
from psfleet.manifests.container import PROGRAM, TLS
from psfleet.service import settings

CLIENT = "client"
"""Role of such a container."""
LABELS = {"com.docker.compose.service": CLIENT, "com.docker.compose.oneoff": "True"}
"""Those of `docker compose run`: compose takes it for no service of the project."""


def container_name(fleet: str, index: int) -> str:
    """The name of a client's container, which is its host name, too."""
    return f"{project(fleet)}-{CLIENT}-{index}"


def client_options(
    file: FleetFile, access: FleetAccess, index: int, script: str, arguments: Sequence[str]
) -> Mapping[str, Any]:
    """Arguments of `docker.containers.create`, mounts aside: the script's folder at /program, certificates at /tls.

    Args:
        index: Which no other client of the fleet has at the same time.
        script: Its name in that folder.
    """
    name = container_name(file.name, index)
    return {
        "image": file.container.worker_image,
        "name": name,
        "hostname": name,
        "entrypoint": ["/usr/bin/tini", "--"],
        "command": ["python", "-m", "psfleet.processes.attended", f"{PROGRAM}/{script}", *arguments],
        "working_dir": PROGRAM,
        "environment": {
            settings.FLEET: access.model_dump_json(),
            settings.INDEX: str(index),
            **({settings.TLS: TLS} if file.tls else {}),
            # The script's folder is searched for its modules, and what it prints is printed at once.
            "PYTHONSAFEPATH": "",
            "PYTHONUNBUFFERED": "1",
        },
        "labels": {
            ROLE: CLIENT,
            STANDING: file.model_dump_json(),
            "com.docker.compose.project": project(file.name),
            "com.docker.compose.container-number": str(index),
            **LABELS,
        },
        "network": network_of(file.name),
        "stdin_open": True,
        "auto_remove": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
        "tmpfs": {"/tmp": ""},
        "log_config": {"type": "json-file", "config": {"max-size": "20m", "max-file": "5"}},
        **limit_options(file.container.worker),
    }
