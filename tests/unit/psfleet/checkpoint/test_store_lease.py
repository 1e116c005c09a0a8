"""The lease on a prefix of a store: one owner at a time, by the clock of the process that waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.clock import Clock
from support.s3_server import BROKEN, S3Server

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.store_lease import LEASE_SECS, OWNERS, RENEW_SECS, WRITE_SECS, StoreLease
from psfleet.errors import BadJobError


@pytest.fixture
def clock() -> Clock:
    """The clock of all processes."""
    return Clock()


@pytest.fixture
def lease_of(bucket: StoreFolder, clock: Clock) -> Callable[[str], StoreLease]:
    """Makes the lease of a process, by the name of its fleet."""
    return lambda fleet: StoreLease(bucket / "run", fleet, f"host-of-{fleet}", clock)


LeaseOf = Callable[[str], StoreLease]


def test_a_second_fleet_is_refused_while_the_first_one_renews(lease_of: LeaseOf, clock: Clock) -> None:
    first, second = lease_of("a"), lease_of("b")
    assert first.try_acquire()
    assert not second.try_acquire()
    clock.now += RENEW_SECS
    first.renew()
    with pytest.raises(BadJobError, match=r"another fleet trains on s3://.*/run \(its chief is on host-of-a\)"):
        second.try_acquire()
    first.require()


def test_a_fleet_that_is_gone_is_followed_after_its_lease_and_not_before(lease_of: LeaseOf, clock: Clock) -> None:
    first, second = lease_of("a"), lease_of("b")
    assert first.try_acquire()
    clock.now += 10 * LEASE_SECS
    assert not second.try_acquire(), "when the first one has renewed its lease is not known"
    clock.now += LEASE_SECS - 1
    assert not second.try_acquire()
    clock.now += 1
    assert second.try_acquire()
    second.require()


def test_an_owner_that_was_frozen_finds_that_it_is_none(lease_of: LeaseOf, clock: Clock, bucket: StoreFolder) -> None:
    first, second = lease_of("a"), lease_of("b")
    assert first.try_acquire()
    assert not second.try_acquire()
    clock.now += LEASE_SECS
    assert second.try_acquire()
    with pytest.raises(StoreError, match=f"not renewed for {WRITE_SECS:g} s"):
        first.require()
    first.renew()
    assert first.taken_by is not None
    assert first.taken_by.host == "host-of-b"
    with pytest.raises(StoreError, match="on host-of-b, has the prefix now"):
        first.require()
    first.release()
    assert set((bucket / "run" / OWNERS).sizes()) == {"00000002"}, "it touches nothing of its successor's"


def test_one_of_two_that_wait_gets_the_prefix(lease_of: LeaseOf, clock: Clock) -> None:
    gone, *waiting = lease_of("a"), lease_of("b"), lease_of("c")
    assert gone.try_acquire()
    assert not any(lease.try_acquire() for lease in waiting)
    clock.now += LEASE_SECS
    assert [lease.try_acquire() for lease in waiting] == [True, False]


def test_one_that_is_slower_by_one_request_does_not_get_the_prefix(
    s3: S3Server, lease_of: LeaseOf, clock: Clock
) -> None:
    first, second = lease_of("a"), lease_of("b")
    begun = iter([True])

    def overtake(method: str, path: str) -> None:
        """The first one creates its object when the second one has seen that there is none."""
        if method == "PUT" and next(begun, False):
            assert first.try_acquire()

    s3.fault = overtake
    assert not second.try_acquire()
    first.require()


def test_of_two_fleets_that_follow_one_that_has_ended_the_later_one_takes_nothing(
    s3: S3Server, lease_of: LeaseOf
) -> None:
    gone, first, second = lease_of("a"), lease_of("b"), lease_of("c")
    assert gone.try_acquire()
    gone.release()
    begun = iter([True])

    def overtake(method: str, path: str) -> None:
        """The first one follows while the second one reads that the owner has ended."""
        if path.endswith("00000001") and method == "GET" and next(begun, False):
            assert first.try_acquire()

    s3.fault = overtake
    assert not second.try_acquire()
    first.renew()
    assert first.taken_by is None
    first.require()


def test_an_owner_that_comes_back_at_the_end_of_its_lease_shares_it_with_nobody(
    s3: S3Server, lease_of: LeaseOf, clock: Clock
) -> None:
    first, second = lease_of("a"), lease_of("b")
    assert first.try_acquire()
    assert not second.try_acquire()
    clock.now += LEASE_SECS
    begun = iter([True])

    def come_back(method: str, path: str) -> None:
        """The first one renews its lease when the second one is about to create its object."""
        if method == "PUT" and next(begun, False):
            first.renew()

    s3.fault = come_back
    assert not second.try_acquire()
    first.require()
    with pytest.raises(BadJobError, match="another fleet trains"):
        second.try_acquire()


def test_a_renewal_that_the_store_takes_too_late_does_not_count(s3: S3Server, lease_of: LeaseOf, clock: Clock) -> None:
    """Another process may have read the prefix before."""
    lease = lease_of("a")
    assert lease.try_acquire()
    clock.now += RENEW_SECS

    def delay(method: str, path: str) -> None:
        clock.now += WRITE_SECS - RENEW_SECS if method == "PUT" else 0

    s3.fault = delay
    lease.renew()
    with pytest.raises(StoreError, match=f"not renewed for {WRITE_SECS:g} s"):
        lease.require()


def test_an_owner_whose_lease_has_ended_renews_it_although_an_answer_was_lost(
    s3: S3Server, lease_of: LeaseOf, clock: Clock, bucket: StoreFolder
) -> None:
    lease = lease_of("a")
    assert lease.try_acquire()
    clock.now += LEASE_SECS
    owners = bucket / "run" / OWNERS
    created = json.loads((owners / "00000001").read_bytes()) | {"number": 2}
    (owners / "00000002").write_bytes(json.dumps(created).encode())
    s3.fault = lambda method, path: BROKEN if method == "PUT" else None
    with pytest.raises(StoreError):
        lease.renew()
    s3.fault = lambda method, path: None
    lease.renew()
    assert lease.taken_by is None
    lease.require()
    assert len(owners.sizes()) == 1


def test_the_next_process_of_a_fleet_and_the_next_fleet_after_an_end_do_not_wait(lease_of: LeaseOf) -> None:
    chief, next_chief, other = lease_of("a"), lease_of("a"), lease_of("b")
    assert chief.try_acquire()
    assert next_chief.try_acquire()
    chief.renew()
    assert chief.taken_by is not None
    next_chief.release()
    assert other.try_acquire()


def test_a_store_that_is_down_makes_nobody_silent(s3: S3Server, lease_of: LeaseOf, clock: Clock) -> None:
    first, second = lease_of("a"), lease_of("b")
    assert first.try_acquire()
    assert not second.try_acquire()
    s3.fault = lambda method, path: BROKEN
    clock.now += LEASE_SECS
    with pytest.raises(StoreError):
        second.try_acquire()
    s3.fault = lambda method, path: None
    assert not second.try_acquire(), "the first one could not renew its lease either"


def test_an_owner_that_cannot_be_read_is_one_all_the_same(lease_of: LeaseOf, clock: Clock, bucket: StoreFolder) -> None:
    (bucket / "run" / OWNERS / "00000007").write_bytes(b"?")
    lease = lease_of("a")
    assert not lease.try_acquire()
    clock.now += LEASE_SECS
    assert lease.try_acquire()
