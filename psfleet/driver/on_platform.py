"""A fleet with a driver on a platform: started or attached to, followed to its end, and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psfleet.errors import BUG, DONE, LOST_PEERS, SIGNAL_BASE, STOPPED, PsfleetError
from psfleet.job.activity import kind_of
from psfleet.job.job import Job, parse_job
from psfleet.job.reading import without_workers
from psfleet.launch.followers import following
from psfleet.launch.platform import Member, Platform, Request, chief_of
from psfleet.launch.up import remove, start
from psfleet.launch.watcher import FleetWatcher, TakenDownError
from psfleet.service.logs import is_failure

OF_CONTAINERS = frozenset(
    {"program", "options", "optimizer", "optimizers", "train", "evaluate", "device", "deadlines"}
    | {"container", "kubernetes", "tls"}
)
"""Sections of a job that describe its containers, or without which it is not valid."""
SHOWN = frozenset({"trial", "worker_lost", "started", "waits", "member_failed", "gone", "traceback"})
"""Events of the driver's log and of the fleet whose messages are shown."""


def containers_job(content: Mapping[str, Any], name: str, workers: int, store: str = "") -> Job:
    """The job of a fleet of a driver, which can do without any of its workers.

    Args:
        content: Of the job that describes the containers.
        name: Of the fleet.
        store: URL in an object store, to which the driver has access; empty: to none.

    Raises:
        BadJobError: It is not valid.
    """
    sections = without_workers({key: value for key, value in content.items() if key in OF_CONTAINERS})
    if store:
        sections["checkpoint"] = {"store": store}
    return parse_job({**sections, "name": name, "fleet": {"workers": 1, "spares": workers}})


class Driven:
    """The end of a driver.

    Args of the constructor:
        driver: After its end.
        failure: The entry of its log that says how it failed; empty: there is none.

    Attributes:
        exit_code: Of the driver.
    """

    def __init__(self, driver: Member, failure: Mapping[str, Any]) -> None:
        self.exit_code = driver.exit_code if driver.exit_code is not None else BUG
        self._driver = driver
        self._failure = failure

    def require_done(self, what: str) -> None:
        """Raises the driver's error, if it failed.

        Args:
            what: Was driven, for the message.
        """
        code = self.exit_code
        if code != DONE:
            cause = self._failure.get("message") if self._failure.get("exit_code") == code else None
            error = PsfleetError(f"{what}: {cause or f'{self._driver.name}: {self._driver.cause}'}")
            # A killed driver is a lost peer.
            error.exit_code = LOST_PEERS if code > SIGNAL_BASE and code not in STOPPED else code
            raise error


def drive_on(
    platform: Platform,
    request: Request,
    show: Callable[[str], None],
    on_start: Callable[[], None],
    copy: Callable[[Sequence[Member], Driven], bool],
    listen: Callable[[Mapping[str, Any]], None] = lambda entry: None,
) -> Driven:
    """Starts a fleet with an activity, or attaches to it if it is there, and follows it to the end of its driver.

    The fleet is removed, unless another command follows it. An exception leaves it as it is.

    Args:
        show: Called with each line for the user.
        on_start: Called once the fleet is started, or found.
        copy: Called with the members after the end of the driver, to copy results; whether those on the platform are
            deleted then.
        listen: Called with each entry of the driver's log.

    Raises:
        UsageError: As of `start`.
        TakenDownError: The fleet was removed meanwhile.
    """
    name, kind = request.job.name, kind_of(request.activity)
    with following(platform, name) as follower:
        start(platform, request)
        on_start()
        seen = _Seen(show, listen)
        try:
            FleetWatcher(platform, request.job, seen).run()
        except TakenDownError:
            raise TakenDownError(name, kind) from None
        members = platform.members(name)
        driver = chief_of(members)
        if driver is None:
            raise TakenDownError(name, kind)
        driven = Driven(driver, seen.failure)
        is_deleted = copy(members, driven)
        if follower.is_last():
            remove(platform, name, results=is_deleted)
        else:
            show(f"another command follows fleet {name}, and removes it at its own end")
    return driven


class _Seen:
    """Receives the entries of the driver's log; shows some, and remembers how the driver failed."""

    def __init__(self, show: Callable[[str], None], listen: Callable[[Mapping[str, Any]], None]) -> None:
        self._show = show
        self._listen = listen
        self.failure: Mapping[str, Any] = {}

    def __call__(self, entry: Mapping[str, Any]) -> None:
        """Takes an entry."""
        self._listen(entry)
        if is_failure(entry):
            self.failure = entry
        if entry.get("event") in SHOWN and "message" in entry:
            self._show(str(entry["message"]))
