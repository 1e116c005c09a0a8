"""Checks whether the containers of a standing fleet serve, by the health check of each."""

from __future__ import annotations

from collections.abc import Sequence

from docker.errors import APIError
from docker.models.containers import Container

from psfleet.errors import PERMANENT_CODES, LostPeerError
from psfleet.manifests.compose.render import HEALTH_COMMAND
from psfleet.platforms.compose.containers import CONFLICT, SERVICE
from psfleet.service.lasting_failure import PREFIX
from psfleet.service.logs import last_failure

FAILURE_LINES = 50
"""Lines at the end of a container's log in which its failure is looked for."""


def not_serving(containers: Sequence[Container]) -> str:
    """The first process that does not answer, and why; empty: all do.

    Raises:
        LostPeerError: One has failed, and would fail again.
    """
    for each in containers:
        each.reload()
        state, service = each.attrs["State"], each.labels[SERVICE]
        code = int(state["ExitCode"])
        if state["Status"] != "running":
            if code in PERMANENT_CODES:
                raise LostPeerError(f"{service} failed: {_failure(each, code)}")
            return f"{service} is {state['Status']}" + (f": {_failure(each, code)}" if code else "")
        try:
            found = each.exec_run(list(HEALTH_COMMAND))
        except APIError as error:
            if error.status_code != CONFLICT:
                raise
            return f"{service} has ended"
        if found.exit_code != 0:
            output = found.output.decode(errors="replace").strip()
            if output.startswith(PREFIX):
                raise LostPeerError(f"{service} {output}")
            return f"{service}: {output}"
    return ""


def has_failed(container: Container) -> bool:
    """Whether the process of a container that runs has failed for good, and waits to be started again."""
    if container.attrs["State"].get("Health", {}).get("Status") == "healthy":
        return False
    try:
        found = container.exec_run(list(HEALTH_COMMAND))
    except APIError as error:
        if error.status_code != CONFLICT:
            raise
        return False
    return bool(found.output.decode(errors="replace").startswith(PREFIX))


def _failure(container: Container, code: int) -> str:
    """Why a process has ended."""
    lines = container.logs(tail=FAILURE_LINES).decode(errors="replace").splitlines()
    logged = last_failure(lines, code)
    return f"{logged['message']} (exit code {code})" if logged is not None else f"exit code {code}"
