"""The lease on a prefix of an object store, by which a second fleet that trains there is refused.

The prefix has a folder `owners` with an object for each process that has led a fleet, named by a number that only
grows. The highest one owns the prefix. It is created by a conditional request, so that one process gets each number;
after that its process alone writes it, again and again. An object that does not change for `LEASE_SECS` is of a process
that has ended. The process that waits measures this by its own clock, so the clocks of machines need not agree.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError
from psfleet.errors import BadJobError

OWNERS = "owners"
"""Folder of the owners, beside the checkpoints."""
RENEW_SECS = 15.0
"""Interval of renewals; each is two requests."""
LEASE_SECS = 60.0
"""How long an owner may be silent: a store that is slow or down for some seconds must not end a run."""
LOOK_SECS = 5.0
"""Interval at which a process that waits for the prefix looks at it."""
WRITE_SECS = LEASE_SECS - RENEW_SECS
"""How long after its last renewal an owner may still write: less, because a request takes time."""


@dataclass(frozen=True)
class Owner:
    """A process that owns the prefix, or has owned it: the content of its object.

    Attributes:
        number: The name of the object.
        fleet: Identifier of the fleet, which all processes with one run folder share.
        process: Identifier of the process.
        host: Host name of the process, for messages.
        renewals: How often the process has renewed its lease.
        is_released: Whether the process has given the prefix back.
    """

    number: int
    fleet: str
    process: str
    host: str
    renewals: int = 0
    is_released: bool = False


def elapsed_secs() -> float:
    """A clock that counts the time for which the machine sleeps, too, where the system has one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StoreLease:
    """The lease of one process on a prefix. Its methods raise StoreError if the store refuses a request.

    Args of the constructor:
        store: The prefix.
        fleet: See `Owner`: it takes over at once from a process of its own.
        host: See `Owner`.

    Attributes:
        store: The prefix.
        taken_by: The owner that has taken the prefix from this process; None: none has.
    """

    def __init__(self, store: StoreFolder, fleet: str, host: str, clock: Callable[[], float] = elapsed_secs) -> None:
        self.store = store
        self._folder = store / OWNERS
        self._own = Owner(0, fleet, secrets.token_hex(8), host)
        self._clock = clock
        self._seen: Owner | None = None
        self._seen_at = 0.0
        self._renewed_at = -LEASE_SECS
        self.taken_by: Owner | None = None

    def is_free(self) -> bool:
        """Whether this process may own the prefix; False: an owner has been silent for less than `LEASE_SECS` so far.

        Raises:
            BadJobError: Another fleet trains there: its owner has renewed its lease since the call before.
        """
        return self._free_number() is not None

    def _free_number(self) -> int | None:
        """The number of the newest owner if its lease is over, 0 if there was none; None: see `is_free`."""
        try:
            number = max(self._numbers(), default=0)
            owner = self._read(number) if number else None
        except StoreError:
            # It may not have been able to renew its lease.
            self._seen = None
            raise
        if number and owner is None:
            # The next owner has deleted it meanwhile.
            return None
        if owner is None or owner.is_released or self.is_of_fleet(owner):
            return number
        if self._seen is not None and owner != self._seen and owner.process == self._seen.process:
            raise BadJobError(
                f"checkpoint.store: another fleet trains on {self.store} (its chief is on {owner.host}), expected "
                "another prefix, or the end of that fleet"
            )
        if owner != self._seen:
            self._seen, self._seen_at = owner, self._clock()
        return number if self._clock() - self._seen_at >= LEASE_SECS else None

    def try_acquire(self) -> bool:
        """Makes this process the owner, if the prefix is free; see `is_free`."""
        before = self._free_number()
        return before is not None and self._created(before)

    def _created(self, before: int) -> bool:
        """Creates the object after that of owner number `before`; False: another process has created it."""
        began = self._clock()
        own = replace(self._own, number=before + 1)
        try:
            self._object(own.number).create(_content(own))
        except FileExistsError:
            # Another process was faster, or this request was repeated.
            if self._read(own.number) != own:
                return False
        self._own, self._renewed_at = own, began
        for number in self._numbers():
            if number < own.number:
                self._object(number).unlink(missing_ok=True)
        return True

    def renew(self) -> None:
        """Renews the lease, unless the prefix was taken from this process: see `taken_by`."""
        began = self._clock()
        newest = max(self._numbers(), default=0)
        if newest > self._own.number:
            owner = self._read(newest)
            if owner is None or owner.process != self._own.process:
                self.taken_by = owner
                return
            # Its own request to create it seemed to fail.
            self._own = owner
        self._own = replace(self._own, renewals=self._own.renewals + 1)
        if self._has_lapsed():
            # Another process may have seen that, and be about to create the next object: only one of them can.
            self._created(self._own.number)
            return
        self._object(self._own.number).write_bytes(_content(self._own))
        # An object that was written too late may not have kept another process from taking the prefix.
        if not self._has_lapsed():
            self._renewed_at = began

    def keep(self) -> None:
        """Renews the lease if that is due, and checks it as `require` does; for an owner without a thread for it."""
        if self._clock() - self._renewed_at >= RENEW_SECS:
            self.renew()
        self.require()

    def _has_lapsed(self) -> bool:
        return self._clock() - self._renewed_at >= WRITE_SECS

    def require(self) -> None:
        """Checks that no other process can have taken the prefix.

        Raises:
            StoreError: One has, or can have.
        """
        if self.taken_by is not None:
            raise StoreError(str(self.store), f"another chief, on {self.taken_by.host}, has the prefix now")
        if self._has_lapsed():
            raise StoreError(str(self.store), f"the lease on the prefix was not renewed for {WRITE_SECS:g} s")

    def release(self) -> None:
        """Gives the prefix back, for the next fleet to start at once."""
        if self.taken_by is None and self._own.number:
            self._own = replace(self._own, is_released=True)
            self._object(self._own.number).write_bytes(_content(self._own))

    def is_of_fleet(self, owner: Owner) -> bool:
        """Whether an owner is a process of the same fleet."""
        return owner.fleet == self._own.fleet

    def _numbers(self) -> list[int]:
        return _numbers(self._folder)

    def _read(self, number: int) -> Owner | None:
        return _read(self._object(number), number)

    def _object(self, number: int) -> StoreFolder:
        return _object(self._folder, number)


def has_owner(store: StoreFolder) -> bool:
    """Whether a process owns a prefix, or was killed while it did.

    Raises:
        StoreError: The store refuses a request.
    """
    folder = store / OWNERS
    number = max(_numbers(folder), default=0)
    owner = _read(_object(folder, number), number) if number else None
    return owner is not None and not owner.is_released


def _numbers(folder: StoreFolder) -> list[int]:
    return [int(name) for name in folder.sizes() if name.isdecimal()]


def _object(folder: StoreFolder, number: int) -> StoreFolder:
    return folder / f"{number:08d}"


def _read(owner: StoreFolder, number: int) -> Owner | None:
    """Reads an owner; its fleet and host are unknown if the object cannot be parsed. None: it was deleted meanwhile."""
    try:
        content = owner.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return Owner(number, fleet="", process=content.hex(), host="unknown")


def _content(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode()
