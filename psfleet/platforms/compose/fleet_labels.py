"""Labels of the containers of a standing fleet: its file, and the access of its processes and clients."""

from __future__ import annotations

from collections.abc import Sequence

from docker.models.containers import Container
from pydantic import ValidationError

from psfleet.errors import BadJobError, UsageError
from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetDeadlines, FleetFile
from psfleet.manifests.certificates_folder import certificates_folder
from psfleet.manifests.compose.standing import STANDING, addresses
from psfleet.platforms.compose.containers import environment_of
from psfleet.service import settings


def ensure_certificates(name: str) -> None:
    """Creates or renews the certificates of a fleet or run with TLS; its processes take over renewed ones."""
    # Imported here: it takes 80 ms.
    from psfleet.tls import certificates

    certificates.ensure(certificates_folder(name))


def renew_certificates(name: str) -> None:
    """As `ensure_certificates`, of a fleet that is up: new ones would be of another authority than its processes have.

    Raises:
        UsageError: They are not on this machine.
    """
    folder = certificates_folder(name)
    if not folder.is_dir():
        raise UsageError(
            f"fleet {name} has tls: true, and {folder} is missing, expected the certificates that `psfleet fleet up` "
            "made there"
        )
    ensure_certificates(name)


def new_access(file: FleetFile) -> FleetAccess:
    """A new start of a fleet."""
    ps, workers = addresses("ps", file.fleet.ps), addresses("worker", file.fleet.workers)
    return FleetAccess.of_new_start(file, ps, workers)


def access_of(container: Container) -> FleetAccess:
    """What processes and clients know of the fleet of a container."""
    text = environment_of(container).get(settings.FLEET, "")
    return FleetAccess.from_json(text, f"container {container.name}: {settings.FLEET}")


def file_of(container: Container) -> FleetFile:
    """The file of the fleet of a container."""
    try:
        return FleetFile.model_validate_json(container.labels[STANDING])
    except ValidationError as error:
        raise BadJobError(f"container {container.name}: it is of another version of psfleet") from error


def stop_secs(processes: Sequence[Container]) -> float:
    """How long processes may take to end; a fleet of another version must be removable, too."""
    try:
        return file_of(processes[0]).deadlines.stop_secs
    except (BadJobError, IndexError):
        return FleetDeadlines().stop_secs


def require_same(file: FleetFile, found: Sequence[Container]) -> None:
    """Checks that a fleet that is up has the settings of a file."""
    if found and file_of(found[0]) != file:
        raise UsageError(
            f"fleet {file.name} is up with other settings, expected the same, or "
            f"`psfleet fleet down {file.name} --on compose` first"
        )
