"""The containers of fleets on a Docker engine, as members."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from psfleet.errors import PERMANENT_CODES, UsageError, cause_of_end
from psfleet.launch.platform import KILLED, TRAINING, Member, out_of_memory
from psfleet.manifests.compose.driven import ACTIVITY
from psfleet.manifests.compose.on_fleet import ON_FLEET
from psfleet.manifests.compose.render import ROLE, project
from psfleet.manifests.compose.standing import STANDING
from psfleet.manifests.container import USER
from psfleet.manifests.on_fleet import OnFleet
from psfleet.service import settings
from psfleet.service.lasting_failure import PREFIX

PROJECT = "com.docker.compose.project"
WORKING_DIR = "com.docker.compose.project.working_dir"
SERVICE = "com.docker.compose.service"
CONFLICT = 409
"""Status of the engine's answer: a name is taken, or a container is being removed already."""
REMEMBERED_SECS = 3600
"""How far back the engine is asked for containers that ran out of memory; it remembers its last 256 events."""
START_TRIES = 3
"""A busy engine sometimes fails to publish a port or to join a network."""
RESTARTING = "restarting"
"""State of a container that has ended and that Docker is about to start again."""


def member_of(container: Container, starts: int = 0, killed: float | None = None) -> Member:
    """The member that a container is, from its attributes as `docker inspect` shows them.

    Args:
        starts: How often psfleet has restarted it, which the engine does not count.
        killed: When it last ran out of memory, in seconds since 1970.
    """
    state, role = container.attrs["State"], str(container.labels[ROLE])
    status, code, is_out_of_memory = str(state["Status"]), int(state["ExitCode"]), bool(state["OOMKilled"])
    index = index_of(container.labels)
    has_ended = status not in ("running", "created", "paused")
    # After a permanent exit code, a restart ends with the same one.
    is_over = status in ("exited", "dead") or (status == RESTARTING and code in PERMANENT_CODES)
    failed = _lasting_failure(state) if status == "running" else None
    if failed is not None:
        has_ended, is_over, status, code = True, True, "failed", int(failed[1])
    limit = f"{int(container.attrs['HostConfig']['Memory']) / (1 << 30):.2g} GiB"
    when = time.strftime("%H:%M:%S", time.localtime(killed))
    shown = "OOMKilled" if is_out_of_memory else f"{status} ({code})"
    return Member(
        fleet=str(container.labels[PROJECT]).removeprefix(project("")),
        role=role,
        index=index,
        name=str(container.name),
        state=shown if has_ended else status,
        started=max(0.0, seconds(state["StartedAt"])),
        created=seconds(container.attrs["Created"]),
        exit_code=code if has_ended else None,
        cause=failed[2] if failed is not None else _cause(state, limit) if has_ended else "",
        restarts=int(container.attrs["RestartCount"]) + starts,
        is_over=is_over,
        # Docker restarts all containers but those that were killed through it.
        awaits_restart=status == "exited" and code == KILLED and not is_out_of_memory,
        health=str(state.get("Health", {}).get("Status", "")) if status == "running" else "",
        note=f"killed at {when}: out of memory, the limit is {limit}" if killed is not None else "",
        host=str(container.attrs["Config"]["Hostname"]) if role == "worker" and index is None else "",
        url=_url(container.attrs),
        run="" if (place := place_on_fleet(container)) is None else place.run,
        activity=str(container.labels.get(ACTIVITY, "")),
    )


def place_on_fleet(container: Container) -> OnFleet | None:
    """Where the run of a container trains; None: not on a standing fleet."""
    fleet = container.labels.get(ON_FLEET)
    return None if fleet is None else OnFleet(fleet, environment_of(container).get(settings.RUN, ""))


def index_of(labels: Mapping[str, str]) -> int | None:
    """The index of a ps, loader, chief, or worker of its own service; other workers lease theirs."""
    _, _, number = labels[SERVICE].rpartition("-")
    if labels[ROLE] in ("ps", "loader", "worker") and number.isdecimal():
        return int(number)
    return 0 if labels[ROLE] == "chief" else None


def _cause(state: Mapping[str, Any], memory_limit: str) -> str:
    if state["OOMKilled"]:
        return out_of_memory(memory_limit)
    return f"did not start: {state['Error']}" if state["Error"] else cause_of_end(int(state["ExitCode"]))


def _lasting_failure(state: Mapping[str, Any]) -> re.Match[str] | None:
    """Exit code and message in the newest health check of this process; None: the process has not failed for good."""
    log = (state.get("Health") or {}).get("Log") or ()
    # The engine keeps the checks of the process before.
    outputs = [str(each["Output"]) for each in log if seconds(each["Start"]) >= seconds(state["StartedAt"])]
    return re.match(PREFIX + r"(\d+): (.*)", outputs[-1]) if outputs else None


def seconds(text: str) -> float:
    """Converts a time of the engine (ISO 8601) to seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def _url(attributes: Mapping[str, Any]) -> str:
    """The address of the first published port; empty if there is none."""
    for published in attributes.get("NetworkSettings", {}).get("Ports", {}).values():
        for binding in published or ():
            return f"http://{binding['HostIp']}:{binding['HostPort']}"
    return ""


def environment_of(container: Container) -> dict[str, str]:
    """The environment of a container's process."""
    return dict(pair.partition("=")[::2] for pair in container.attrs["Config"]["Env"] or ())


def require_run(name: str, containers: Sequence[Container]) -> None:
    """Checks that the containers of a name are not those of a standing fleet, which only `psfleet fleet` changes.

    Raises:
        UsageError: They are.
    """
    if any(STANDING in each.labels for each in containers):
        raise UsageError(
            f"{name} is a fleet that stands, expected another name for a run: "
            f"`psfleet fleet down {name} --on compose` ends the fleet"
        )


def require_readable(home: Path, pattern: str = "*.py") -> None:
    """Checks that the containers' user can read a folder that is mounted.

    Args:
        pattern: Of what is read in the folder.

    Raises:
        UsageError: The folder or something in it is not readable by all.
    """
    for path in [home, *home.glob(pattern)]:
        # A temporary file may be gone by now.
        with suppress(FileNotFoundError):
            mode = 0o5 if path.is_dir() else 0o4
            if path.stat().st_mode & mode != mode:
                raise UsageError(
                    f"{path} cannot be read by user {USER}, as which containers run: `chmod -R o+rX {home}`"
                )


def start_containers(containers: Sequence[Container], num_threads: int) -> None:
    """Starts these at the same time. Compose would order them, but the services wait for each other.

    Raises:
        UsageError: One does not start.
    """
    left = list(containers)
    for _ in range(START_TRIES):
        with ThreadPoolExecutor(num_threads) as pool:
            starts = [(each, pool.submit(each.start)) for each in left]
        failed = [(each, error) for each, start in starts if (error := start.exception()) is not None]
        if not failed:
            return
        left = [each for each, _ in failed]
    (first, error), *_ = failed
    raise UsageError(f"container {first.name} does not start: {error}") from error


def end_container(each: Container, timeout_secs: int) -> None:
    """Stops a container and removes it; kills it if it does not end in time."""
    with removed_by_others():
        if not member_of(each).is_over:
            each.stop(timeout=timeout_secs)
        each.remove(force=True, v=True)


@contextmanager
def removed_by_others() -> Iterator[None]:
    """Context manager in which it is no error that a container removes itself, or is removed by another command."""
    try:
        yield
    except NotFound:
        return
    except APIError as error:
        if error.status_code != CONFLICT:
            raise


def archives(container: Container, paths: Sequence[str]) -> Iterator[Iterator[bytes]]:
    """Files and folders of a container as tar archives, each a stream of chunks; those that it lacks are left out.

    Raises:
        NotFound: The container was removed meanwhile.
    """
    for path in paths:
        try:
            chunks, _ = container.get_archive(path)
        except NotFound:
            # That the file is missing must not be said of a container that is: its run would have left no report.
            container.reload()
            continue
        yield chunks


def place_of(member: Member) -> tuple[str, int, int, int, str]:
    """Sorts by fleet, role and index; workers have no index here, and their names end with a number."""
    rank = TRAINING.index(member.role) if member.role in TRAINING else len(TRAINING)
    return member.fleet, rank, member.index or 0, len(member.name), member.name


def memory_kills(client: docker.DockerClient) -> dict[str, float]:
    """When containers last ran out of memory, in seconds since 1970, by container id."""
    now = int(time.time())
    filters = {"event": "oom", "label": ROLE}
    events = client.events(since=now - REMEMBERED_SECS, until=now, decode=True, filters=filters)
    return {event["id"]: event["timeNano"] / 1e9 for event in events}
