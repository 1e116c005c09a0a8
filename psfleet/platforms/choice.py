"""Chooses the platform of a run by its name."""

from __future__ import annotations

from psfleet.errors import UsageError
from psfleet.launch.platform import COMPOSE, KUBERNETES, Platform


def platform(name: str, context: str | None = None, namespace: str | None = None) -> Platform:
    """The platform of a name; its module is imported on demand.

    Args:
        context: Of the kubeconfig file, on Kubernetes; None: the current one.
        namespace: On Kubernetes; None: that of the context.

    Raises:
        UsageError: There is none of this name, or a context or namespace is given elsewhere than on Kubernetes.
    """
    require_known(name)
    if name == COMPOSE:
        require_no_cluster(context, namespace)
        from psfleet.platforms.compose.platform import Compose

        return Compose()
    from psfleet.platforms.kubernetes.platform import Kubernetes

    return Kubernetes(context, namespace)


def require_known(name: str) -> None:
    """Checks the name of a platform.

    Raises:
        UsageError: There is none of this name.
    """
    if name not in (COMPOSE, KUBERNETES):
        raise UsageError(f"platform {name!r}: expected one of {COMPOSE}, {KUBERNETES}")


def require_no_cluster(context: str | None, namespace: str | None) -> None:
    """Checks that neither is given, as everywhere but on Kubernetes.

    Raises:
        UsageError: One is.
    """
    for option, value in (("--context", context), ("--namespace", namespace)):
        if value is not None:
            raise UsageError(f"{option} {value}: expected only with --on {KUBERNETES}")
