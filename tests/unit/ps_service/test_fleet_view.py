"""What a ps decides about joins, heartbeats and the end of a run; the test is the clock."""

from __future__ import annotations

from typing import Any

import pytest

from ps_service.fleet_view import LINGER_SECS, FleetView
from ps_service.relearning import RELEARN_SECS, Relearning
from ps_service.worker_record import LEASE_SECS, Member
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, ReplacedError

NOW = 1000.0
LATE = NOW + LEASE_SECS
"""When a lease renewed at NOW has expired."""


def join(view: FleetView, process: str, index: int = -1, now: float = NOW, **more: Any) -> Member:
    """A worker joins ps 0 and gets an index."""
    fields: dict[str, Any] = {"worker_limit": 3, "address": f"{process}:2222"}
    request = pb.JoinRequest(index=index, process=process, **fields | more)
    reply = view.join(request, now)
    return Member(reply.index, reply.incarnation, process)


def message(member: Member, **report: Any) -> pb.HeartbeatRequest:
    """A heartbeat of a worker, the first one unless a number is given."""
    caller = pb.Caller(member=pb.Member(index=member.index, incarnation=member.incarnation, process=member.process))
    fields: dict[str, Any] = {"beat": 1, "generation": -1}
    return pb.HeartbeatRequest(caller=caller, **fields | report)


def owners(view: FleetView) -> dict[int, str]:
    """By index, the process that has it."""
    return {index: worker.owner.process for index, worker in view.workers.items()}


def test_each_process_that_joins_has_a_higher_incarnation() -> None:
    view = FleetView()
    members = [join(view, "chief", 0), join(view, "a"), join(view, "b"), join(view, "new chief", 0)]
    assert [member.incarnation for member in members] == [1, 2, 3, 4]
    assert [member.index for member in members] == [0, 1, 2, 0]
    assert view.epoch == 4


def test_an_index_is_leased_again_once_its_lease_has_expired_and_the_late_owner_is_refused() -> None:
    view = FleetView()
    frozen = join(view, "frozen")
    view.heartbeat(message(frozen), NOW)
    assert join(view, "early", now=LATE - 0.1).index == 2
    successor = join(view, "successor", now=LATE)
    assert successor.index == frozen.index
    for _ in range(2):
        with pytest.raises(ReplacedError, match="worker 1 with incarnation 1 was replaced by the process at successor"):
            view.heartbeat(message(frozen, beat=2), LATE + 1)
    assert view.heartbeat(message(successor), LATE + 1)
    assert owners(view)[1] == "successor"


def test_a_worker_that_was_silent_keeps_an_index_that_nobody_took() -> None:
    view = FleetView()
    frozen = join(view, "frozen")
    assert view.heartbeat(message(frozen), LATE + 100)
    assert view.workers[1].is_alive(LATE + 100)


@pytest.mark.parametrize("index", [0, 1])
def test_an_index_of_the_platform_is_granted_at_once_and_the_older_process_is_refused(index: int) -> None:
    view = FleetView()
    older, newer = join(view, "older", index), join(view, "newer", index)
    assert view.workers[index].joins == 2
    assert view.heartbeat(message(newer), NOW)
    with pytest.raises(ReplacedError):
        view.heartbeat(message(older), NOW)
    with pytest.raises(ReplacedError):
        join(view, "older", index)


def test_of_two_chiefs_only_the_newer_may_configure_schedule_and_finish() -> None:
    view = FleetView()
    older, newer = join(view, "older", 0), join(view, "newer", 0)
    view.admit_chief(newer, NOW)
    for caller in (older, Member()):
        with pytest.raises(ReplacedError):
            view.admit_chief(caller, NOW)
        with pytest.raises(ReplacedError):
            view.admit(caller, NOW)
    with pytest.raises(BadJobError, match="called by worker 1, expected the chief"):
        view.admit_chief(join(view, "worker", 1), NOW)


def test_a_repeated_join_is_the_same_join_and_renews_the_lease() -> None:
    view = FleetView()
    first = join(view, "a")
    assert join(view, "a", now=NOW + 4) == first
    assert (view.epoch, view.workers[1].joins) == (1, 1)
    assert view.workers[1].is_alive(LATE + 3)


def test_a_late_heartbeat_changes_nothing() -> None:
    view = FleetView()
    member = join(view, "a")
    assert view.heartbeat(message(member, beat=2, step=7, leaving=True), NOW)
    assert not view.heartbeat(message(member, beat=1, step=6, generation=1), NOW)
    worker = view.workers[1]
    assert (worker.step, worker.has_left, worker.has_session) == (7, True, False)


def test_a_repeated_heartbeat_renews_no_lease() -> None:
    view = FleetView()
    member = join(view, "a")
    assert view.heartbeat(message(member), NOW)
    assert not view.heartbeat(message(member), LATE - 1)
    assert not view.workers[1].is_alive(LATE)


def test_a_worker_that_has_not_joined_is_refused() -> None:
    with pytest.raises(BadJobError, match="heartbeat of worker 2 without an incarnation"):
        FleetView().heartbeat(message(Member(2)), NOW)


def test_a_restarted_ps_leases_nothing_until_the_owners_have_reported() -> None:
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    with pytest.raises(LostPeerError, match=r"this ps was restarted and leases no worker index for another 5\.0 s"):
        join(view, "newcomer")
    assert view.heartbeat(message(Member(1, 7, "owner"), joins=3, address="owner:2222"), NOW + 3)
    with pytest.raises(LostPeerError):
        join(view, "newcomer", now=NOW + RELEARN_SECS - 0.1)
    assert join(view, "newcomer", now=NOW + RELEARN_SECS) == Member(2, 8, "newcomer")
    assert view.workers[1].joins == 3, "restarts are counted on"


def test_a_restarted_ps_grants_at_once_what_can_have_no_other_owner() -> None:
    """The index of the platform, and that of the same address."""
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    assert join(view, "chief", 0).index == 0
    view.heartbeat(message(Member(2, 7, "before"), address="same:2222"), NOW)
    assert join(view, "after", address="same:2222") == Member(2, 8, "after")


def test_a_restarted_ps_lets_nobody_end_the_run_until_a_newer_owner_must_have_reported() -> None:
    """A chief that was frozen wakes up, and its heartbeat comes before that of the chief that leads the run now."""
    frozen, chief = Member(0, 1, "frozen"), Member(0, 2, "chief")
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    assert view.heartbeat(message(frozen), NOW)
    for caller in (frozen, chief, Member()):
        with pytest.raises((LostPeerError, ReplacedError)) as caught:
            view.admit_finish(caller, NOW + 0.5)
        if caller == frozen:
            assert getattr(caught.value, "retry_secs", 0) == RELEARN_SECS - 0.5
    assert view.heartbeat(message(chief), NOW + 1)
    with pytest.raises(ReplacedError):
        view.admit_finish(frozen, NOW + RELEARN_SECS)
    view.admit_finish(chief, NOW + RELEARN_SECS)
    assert view.finish(pb.Outcome(exit_code=0), NOW + RELEARN_SECS)


@pytest.mark.parametrize("says", ["a heartbeat", "its end", "what another ps knows"])
def test_a_ps_notices_that_it_was_restarted_where_no_platform_says_so(says: str) -> None:
    """As on Kubernetes. Who calls has registered before, but not with this process."""
    view, chief = FleetView(Relearning(settled_at=NOW + RELEARN_SECS)), Member(0, 2, "chief")
    if says == "a heartbeat":
        assert view.heartbeat(message(chief), NOW)
    elif says == "what another ps knows":
        known = [pb.WorkerState(index=0, incarnation=2, process="chief", is_alive=True)]
        with pytest.raises(LostPeerError, match="this ps was restarted and leases no worker index"):
            join(view, "newcomer", known=known)
    with pytest.raises(LostPeerError, match="this ps was restarted and lets no process end the run"):
        view.admit_finish(chief, NOW)
    view.admit_finish(chief, NOW + RELEARN_SECS)


def test_a_ps_that_was_not_restarted_waits_for_nobody() -> None:
    """A program that fails at once ends the run at once."""
    view, other = (
        FleetView(Relearning(settled_at=NOW + RELEARN_SECS)),
        FleetView(Relearning(settled_at=NOW + RELEARN_SECS)),
    )
    chief = join(view, "chief", 0)
    other.join(pb.JoinRequest(index=0, process="chief", incarnation=chief.incarnation), NOW)
    for each in (view, other):
        assert each.heartbeat(message(chief), NOW)
        each.admit_finish(chief, NOW)
    assert join(view, "newcomer", known=[worker.state(NOW) for worker in other.workers.values()]).index == 1


def test_the_outcome_that_a_restarted_ps_has_already_is_no_matter_of_owners() -> None:
    """The shard itself failed."""
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    view.finish(pb.Outcome(exit_code=70), NOW)
    view.admit_finish(Member(0, 2, "chief"), NOW)


def test_a_restarted_ps_learns_from_what_the_other_ps_know() -> None:
    view = FleetView()
    known = [
        pb.WorkerState(index=1, incarnation=9, process="owner", is_alive=True, joins=2),
        pb.WorkerState(index=2, incarnation=4, process="gone", is_alive=False, joins=5),
    ]
    assert join(view, "newcomer", known=known) == Member(2, 10, "newcomer")
    assert owners(view) == {1: "owner", 2: "newcomer"}
    assert [view.workers[index].joins for index in (1, 2)] == [2, 6]


def test_another_ps_registers_the_newest_owner_only() -> None:
    other = FleetView()
    for process, incarnation, joins in (("a", 3, 1), ("b", 5, 2), ("b", 5, 2)):
        reply = other.join(pb.JoinRequest(index=1, process=process, incarnation=incarnation, joins=joins), NOW)
        assert (reply.index, reply.incarnation, reply.joins) == (1, incarnation, joins)
    with pytest.raises(ReplacedError):
        other.join(pb.JoinRequest(index=1, process="a", incarnation=3), NOW)
    assert (owners(other), other.epoch) == ({1: "b"}, 5)


def test_equal_incarnations_of_two_processes_have_the_same_owner_on_every_ps() -> None:
    first, second = Member(1, 3, "a"), Member(1, 3, "b")
    for order in ((first, second), (second, first)):
        view = FleetView()
        for member in order:
            try:
                view.admit(member, NOW)
            except ReplacedError:
                assert member == first
        assert view.workers[1].owner == second


def test_a_replaced_worker_gets_the_outcome_and_a_replaced_chief_does_not() -> None:
    view = FleetView()
    chief, worker = join(view, "chief", 0), join(view, "worker", 1)
    join(view, "new chief", 0)
    join(view, "new worker", 1)
    assert view.finish(pb.Outcome(exit_code=0), NOW)
    assert not view.heartbeat(message(worker), NOW)
    with pytest.raises(ReplacedError):
        view.heartbeat(message(chief), NOW)


def test_the_first_outcome_stays_and_nothing_is_configured_after_it() -> None:
    view = FleetView()
    chief = join(view, "chief", 0)
    assert view.finish(pb.Outcome(exit_code=70, message="the loss is NaN"), NOW)
    assert not view.finish(pb.Outcome(exit_code=0), NOW + 1)
    with pytest.raises(LostPeerError, match="the run is over: the loss is NaN"):
        view.admit_chief(chief, NOW)
    assert not view.is_over(NOW + 1), "the chief has not received the outcome"
    assert view.heartbeat(message(chief), NOW)
    assert view.is_over(NOW)


def test_a_ps_waits_only_so_long_for_a_worker_that_does_not_leave() -> None:
    view = FleetView()
    worker = join(view, "worker", 1)
    view.finish(pb.Outcome(exit_code=75), NOW)
    for secs in range(int(LINGER_SECS) + 1):
        view.heartbeat(message(worker, beat=secs + 1, generation=1), NOW + secs)
        assert not view.is_over(NOW + secs)
    assert view.is_over(NOW + LINGER_SECS + 0.1)


def test_without_a_free_index_a_worker_is_refused() -> None:
    view = FleetView()
    assert [join(view, process).index for process in "ab"] == [1, 2]
    with pytest.raises(BadJobError, match=r"index -1 requested, all 3 of fleet\.max_workers are taken"):
        join(view, "c")
    assert join(view, "c", now=LATE).index == 1


def test_generations_only_grow_and_a_chief_that_asks_for_an_older_one_tries_again() -> None:
    view = FleetView()
    view.configured(2, quorum=3)
    view.check_generation(2)
    with pytest.raises(LostPeerError, match="generation 1 requested, expected one above 2"):
        view.check_generation(1)
