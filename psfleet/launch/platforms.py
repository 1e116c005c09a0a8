"""The platforms that there are, by name; each is loaded when it is asked for."""

from __future__ import annotations

from psfleet.errors import UsageError
from psfleet.launch.platform import Platform

COMPOSE, KUBERNETES = "compose", "kubernetes"
NAMES = (COMPOSE, KUBERNETES)


def platform(name: str) -> Platform:
    """The platform of a name.

    Raises:
        UsageError: There is none of this name.
    """
    if name == COMPOSE:
        from psfleet.launch.compose.fleets import Compose

        return Compose()
    if name == KUBERNETES:
        from psfleet.launch.kubernetes.fleets import Kubernetes

        return Kubernetes()
    raise UsageError(f"--on {name!r}: expected one of {', '.join(NAMES)}")
