"""Containers of fleet `small`, as an engine would show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from docker.models.containers import Container


def container(
    role: str, log: str = "", get_archive: Callable[[str], Any] | None = None, **attributes: Any
) -> Container:
    """The first container of a role.

    Args:
        log: All that it has logged.
        get_archive: Stands for the container's method of this name.
        attributes: Of the container, `State` among them; beside those that all have.
    """
    service = "ps-0" if role == "ps" else role
    state = {
        "Status": "running",
        "ExitCode": 0,
        "OOMKilled": False,
        "Error": "",
        "StartedAt": "2026-11-20T10:00:00Z",
        **attributes.pop("State", {}),
    }

    def logs(
        tail: object = "all", stream: bool = False, follow: bool | None = None, since: float | None = None
    ) -> bytes | Iterator[bytes]:
        # docker's own default, by which a log that is streamed has no end while its container runs.
        follows = stream if follow is None else follow
        return _chunks(log, follows and state["Status"] == "running") if stream else log.encode()

    return SimpleNamespace(
        id=f"id-{role}",
        name=f"psfleet-small-{service}-1",
        status=state["Status"],
        labels={
            "psfleet.role": role,
            "com.docker.compose.project": "psfleet-small",
            "com.docker.compose.service": service,
            "com.docker.compose.container-number": "1",
        },
        attrs={
            "State": state,
            "Config": {"Hostname": f"host-{role}"},
            "HostConfig": {"Memory": 1 << 30},
            "RestartCount": 0,
            "Created": "2026-11-20T09:59:00Z",
            **attributes,
        },
        logs=logs,
        get_archive=get_archive,
    )


def _chunks(log: str, is_endless: bool) -> Iterator[bytes]:
    yield log.encode()
    assert not is_endless, "waits for the end of a container that runs"
