"""Which commands of this user start and follow one fleet: one starts it, and the last one that follows it removes it.

They know of each other by locks of files, which end with the process that has them.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO

from psfleet.files import try_lock
from psfleet.launch.platform import Platform
from psfleet.polling import wait_until
from psfleet.service import settings

logger = logging.getLogger("psfleet.launch")

FOLDER = "followed"
"""Folder of the locks in that of psfleet's state."""
REMOVAL_SECS = 300.0
"""How long a command waits for another one that removes the fleet."""


class Follower:
    """A command that follows a fleet; `lock` is its share of the fleet's lock, None if there can be none."""

    def __init__(self, lock: IO[str] | None) -> None:
        self._lock = lock

    def is_last(self) -> bool:
        """Stops following; whether no other command follows the fleet. None begins to do so before the block's end."""
        if self._lock is None:
            return True
        # On NFS a refused request for all of the lock keeps the share: of two commands at once none would be the last.
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return try_lock(self._lock, fcntl.LOCK_EX)


@contextmanager
def following(platform: Platform, name: str) -> Iterator[Follower]:
    """Context manager during which a command follows a fleet, so that no other one removes it at the run's end.

    Raises:
        DeadlineError: Another command has not removed the fleet in time.
        UsageError: The platform cannot be reached.
        LostPeerError: The platform does not answer.
    """
    with _lock_file(platform, name, "followers") as lock:
        if lock is not None:
            what = f"another command to remove fleet {name}"
            wait_until(lambda: try_lock(lock, fcntl.LOCK_SH), REMOVAL_SECS, what)
        yield Follower(lock)


@contextmanager
def starting(platform: Platform, name: str, timeout_secs: float) -> Iterator[None]:
    """Context manager during which no other command of this user starts a fleet, or removes it at a run's end.

    Raises:
        DeadlineError: Another one still starts it after `timeout_secs`, or has not removed it in time.
        UsageError: The platform cannot be reached.
        LostPeerError: The platform does not answer.
    """
    with following(platform, name), _lock_file(platform, name, "start") as lock:
        if lock is not None:
            what = f"another command to start fleet {name}"
            wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), timeout_secs, what)
        yield


@contextmanager
def _lock_file(platform: Platform, name: str, purpose: str) -> Iterator[IO[str] | None]:
    """An open file of a fleet; None where this user has no folder for it, as in some pods, or none that has locks."""
    place = hashlib.sha256(platform.location.encode()).hexdigest()[:16]
    file = None
    try:
        folder = settings.state_folder() / FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # NFS gives shares of a lock to readers only, and all of it to writers only.
        file = (folder / f"{name}-{place}.{purpose}").open("a+")
        if try_lock(file, fcntl.LOCK_SH):
            fcntl.flock(file, fcntl.LOCK_UN)
    except (OSError, RuntimeError) as error:
        # RuntimeError: the user has no home.
        logger.debug("other commands on fleet %s are not noticed: %s", name, error)
        if file is not None:
            file.close()
            file = None
    with file or nullcontext():
        yield file
