"""The interface of a platform of standing fleets, and the choice of one by `--on`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.launch.platform import COMPOSE, KUBERNETES
from psfleet.launch.shown import ShownPlatform
from psfleet.platforms.choice import require_known, require_no_cluster


class StandingPlatform(ShownPlatform, Protocol):
    """Keeps fleets up, each under its name. `members` and `log` show standing fleets only.

    Raises (every method):
        UsageError: The platform cannot be reached, or has no such fleet; says what to do.
        LostPeerError: The platform, or a process of the fleet, does not answer in time.
    """

    def up(self, file: FleetFile) -> FleetAccess:
        """Starts a fleet, and returns once all its processes serve; one that is up already stays as it is.

        Raises:
            UsageError: The fleet is up with other settings, or a run has its name, or as above.
            BadJobError: The platform cannot honour a field of the file.
        """

    def down(self, name: str) -> None:
        """Ends a fleet with all its processes and clients, and deletes what is kept there."""

    def access(self, name: str) -> FleetAccess:
        """What runs and clients know of a fleet that is up."""

    def run(self, name: str, client: Path, arguments: Sequence[str]) -> int:
        """Runs a Python script where it reaches the fleet, with this process's output; returns its exit code.

        The script ends with this process, and at its SIGINT and SIGTERM; in a pod, within 190 s if this process is
        killed. The local platform replaces this process by the script instead of returning.
        """


def standing_platform(
    on: str | None = None, context: str | None = None, namespace: str | None = None
) -> StandingPlatform:
    """The platform of standing fleets of a name; its module is imported on demand.

    Args:
        on: compose or kubernetes; None: processes of this machine.
        context: Of the kubeconfig file, on Kubernetes; None: the current one.
        namespace: On Kubernetes; None: that of the context.

    Raises:
        UsageError: There is none of this name, or a context or namespace is given elsewhere than on Kubernetes.
    """
    if on is not None:
        require_known(on)
    if on == KUBERNETES:
        from psfleet.platforms.kubernetes.standing import KubernetesFleets

        return KubernetesFleets(context, namespace)
    require_no_cluster(context, namespace)
    if on == COMPOSE:
        from psfleet.platforms.compose.standing import ComposeFleets

        return ComposeFleets()
    from psfleet.platforms.standing.local import LocalFleets

    return LocalFleets()


def with_standing(
    place: ShownPlatform, on: str | None, context: str | None = None, namespace: str | None = None
) -> ShownPlatform:
    """A platform that shows standing fleets beside those of runs; that of Docker does so without help.

    Args:
        place: The platform of a name for runs.
        on, context, namespace: As for `standing_platform`.
    """
    if on != KUBERNETES:
        return place
    from psfleet.platforms.kubernetes.all_fleets import AllFleets

    return AllFleets(place, standing_platform(on, context, namespace))
