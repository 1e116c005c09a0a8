"""All processes of a run have the same training program; the test is the clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ps_service.fleet_view import FleetView
from ps_service.relearning import RELEARN_SECS, Relearning
from ps_service.worker_record import LEASE_SECS, Member
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, ReplacedError
from psfleet.job.program_files import digest

NOW = 1000.0
FILES = {"layers.py": "1111", "program.py": "2222"}
CHANGED = {"layers.py": "1111", "program.py": "3333"}
LATE = NOW + LEASE_SECS
"""When a lease renewed at NOW has expired."""


def join(view: FleetView, process: str, index: int, files: Mapping[str, str], now: float = NOW) -> Member:
    request = pb.JoinRequest(
        index=index, process=process, worker_limit=3, address=f"{process}:2222", program=digest(files),
        program_files=files, caller=pb.Caller(run="small"),
    )  # fmt: skip
    reply = view.join(request, now)
    return Member(reply.index, reply.incarnation, process)


def heartbeat(member: Member, files: Mapping[str, str], beat: int = 1) -> pb.HeartbeatRequest:
    caller = pb.Caller(member=pb.Member(index=member.index, incarnation=member.incarnation, process=member.process))
    return pb.HeartbeatRequest(caller=caller, beat=beat, program=digest(files))


@pytest.mark.parametrize("index", [-1, 0, 1])
def test_a_process_with_another_program_is_refused_and_disturbs_nobody(index: int) -> None:
    view = FleetView()
    chief = join(view, "chief", 0, FILES)
    join(view, "worker", 1, FILES)
    with pytest.raises(LostPeerError, match="waiting for a heartbeat of its workers, which may be gone"):
        join(view, "restarted", index, CHANGED)
    view.heartbeat(heartbeat(chief, FILES), NOW + 1)
    with pytest.raises(BadJobError) as caught:
        join(view, "restarted", index, CHANGED, NOW + 1)
    message = str(caught.value)
    assert f"process at restarted:2222 has digest {digest(CHANGED)}, expected {digest(FILES)}" in message
    assert "program.py differs" in message
    assert {index: worker.owner.process for index, worker in view.workers.items()} == {0: "chief", 1: "worker"}


def test_a_restarted_process_with_the_same_program_joins_again() -> None:
    view = FleetView()
    join(view, "chief", 0, FILES)
    assert join(view, "restarted chief", 0, FILES).incarnation == 2


def test_a_restarted_ps_waits_until_it_knows_the_program_from_a_heartbeat() -> None:
    before = FleetView()
    chief = join(before, "chief", 0, FILES)
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    with pytest.raises(LostPeerError, match="does not know the run's program yet"):
        join(view, "worker", 1, CHANGED)
    view.heartbeat(heartbeat(chief, FILES), NOW + 1)
    with pytest.raises(BadJobError, match=f"expected {digest(FILES)}, which the run was started with; stop"):
        join(view, "worker", 1, CHANGED, NOW + 1)
    assert join(view, "worker", 1, FILES, NOW + 1).index == 1
    with pytest.raises(LostPeerError, match=r"program\.py differs"):
        join(view, "other", 2, CHANGED, NOW + 1)


def test_a_restarted_ps_learns_the_program_from_what_others_know() -> None:
    other = FleetView()
    join(other, "chief", 0, FILES)
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    request = pb.JoinRequest(index=1, process="a", worker_limit=3, program=digest(CHANGED), program_files=CHANGED)
    request.known.extend(worker.state(NOW) for worker in other.workers.values())
    with pytest.raises(LostPeerError, match=f"expected {digest(FILES)}"):
        view.join(request, NOW)


def test_a_fleet_that_was_restarted_as_a_whole_may_have_a_changed_program() -> None:
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    assert join(view, "chief", 0, CHANGED, NOW + RELEARN_SECS).index == 0


def test_a_run_that_is_over_tells_its_outcome_to_any_program() -> None:
    view = FleetView()
    join(view, "chief", 0, FILES)
    view.finish(pb.Outcome(exit_code=70), NOW)
    assert join(view, "worker", 1, CHANGED).index == 1


def test_a_process_that_does_not_say_its_program_is_admitted() -> None:
    view = FleetView()
    join(view, "chief", 0, {})
    join(view, "worker", 1, FILES)
    assert view.program.digest == digest(FILES)


def test_a_chief_resumes_a_run_without_a_live_worker_with_a_changed_program() -> None:
    """The launcher was killed, and the ps that serve several runs have not forgotten this one."""
    view = FleetView()
    join(view, "chief", 0, FILES)
    join(view, "worker", 1, FILES)
    with pytest.raises(LostPeerError, match="which may be gone"):
        join(view, "new chief", 0, CHANGED, LATE - 0.1)
    with pytest.raises(LostPeerError, match="until its chief joins"):
        join(view, "new worker", 1, CHANGED, LATE)
    assert view.program.digest == digest(FILES)
    assert join(view, "new chief", 0, CHANGED, LATE).index == 0
    assert (view.program.digest, view.program.files) == (digest(CHANGED), CHANGED)
    worker = join(view, "new worker", 1, CHANGED, LATE)
    assert worker.index == 1
    with pytest.raises(LostPeerError):
        join(view, "spare", 2, FILES, LATE)
    view.heartbeat(heartbeat(worker, CHANGED), LATE + 1)
    with pytest.raises(
        BadJobError, match=r"program\.py differs.* or delete .*: `psfleet reset small --ps HOST:PORT …`"
    ):
        join(view, "spare", 2, FILES, LATE + 1)


def test_another_ps_takes_over_the_changed_program_from_the_chief_that_ps_0_has_admitted() -> None:
    other = FleetView()
    join(other, "chief", 0, FILES)
    request = pb.JoinRequest(index=0, process="new", incarnation=7, program=digest(CHANGED), program_files=CHANGED)
    for _ in range(2):
        assert other.join(request, LATE).incarnation == 7
        assert other.program.digest == digest(CHANGED)


def test_a_worker_that_lives_on_another_ps_keeps_the_program() -> None:
    """Its lease expires at another time there."""
    view, other = FleetView(), FleetView()
    chief = join(view, "chief", 0, FILES)
    join(other, "chief", 0, FILES, NOW + 1)
    request = pb.JoinRequest(index=0, process="new", worker_limit=3, program=digest(CHANGED), program_files=CHANGED)
    request.known.extend(worker.state(LATE) for worker in other.workers.values())
    with pytest.raises(LostPeerError):
        view.join(request, LATE)
    assert (view.workers[0].owner, view.program.digest) == (chief, digest(FILES))


def test_a_ps_does_not_learn_the_program_of_a_worker_that_is_gone() -> None:
    other = FleetView()
    join(other, "chief", 0, FILES)
    view = FleetView()
    request = pb.JoinRequest(index=0, process="new", worker_limit=3, program=digest(CHANGED), program_files=CHANGED)
    request.known.extend(worker.state(LATE) for worker in other.workers.values())
    view.join(request, LATE)
    assert view.program.digest == digest(CHANGED)


def test_a_frozen_worker_with_the_former_program_is_replaced_when_it_wakes() -> None:
    view = FleetView()
    join(view, "chief", 0, FILES)
    frozen = join(view, "frozen", 1, FILES)
    join(view, "new chief", 0, CHANGED, LATE)
    with pytest.raises(ReplacedError, match="the run was resumed with another training program"):
        view.heartbeat(heartbeat(frozen, FILES), LATE)
    assert not view.workers[1].is_alive(LATE)
    view.finish(pb.Outcome(exit_code=0), LATE)
    assert view.heartbeat(heartbeat(frozen, FILES), LATE), "it gets the outcome"


def test_a_frozen_worker_with_the_former_program_ends_no_run_before_its_first_heartbeat() -> None:
    """It wakes up in its step, whose failure it reports at once."""
    view = FleetView()
    join(view, "chief", 0, FILES)
    frozen = join(view, "frozen", 1, FILES)
    chief = join(view, "new chief", 0, CHANGED, LATE)
    with pytest.raises(ReplacedError, match="the run was resumed with another training program"):
        view.admit(frozen, LATE)
    view.admit(chief, LATE)
    view.finish(pb.Outcome(exit_code=0), LATE)
    view.admit(frozen, LATE)


def test_a_restarted_ps_learns_the_program_of_the_chief_whatever_a_frozen_worker_says_first() -> None:
    view = FleetView(Relearning(NOW + RELEARN_SECS))
    chief, frozen = Member(0, 7, "chief"), Member(1, 3, "frozen")
    view.heartbeat(heartbeat(frozen, FILES), NOW)
    view.heartbeat(heartbeat(chief, CHANGED), NOW)
    assert view.program.digest == digest(CHANGED)
    with pytest.raises(ReplacedError):
        view.heartbeat(heartbeat(frozen, FILES, beat=2), NOW)


def test_a_chief_keeps_its_run_where_a_restarted_ps_has_learnt_another_program_first() -> None:
    other, view = FleetView(), FleetView()
    chief = join(other, "chief", 0, FILES)
    request = pb.JoinRequest(index=1, process="new", worker_limit=3, program=digest(CHANGED), program_files=CHANGED)
    request.known.extend(worker.state(LATE) for worker in other.workers.values())
    view.join(request, LATE)
    view.heartbeat(heartbeat(chief, FILES), LATE + 1)
    view.admit_chief(chief, LATE + 1)
    assert view.program.digest == digest(FILES)


def test_a_process_that_is_not_admitted_does_not_set_the_program() -> None:
    view = FleetView()
    with pytest.raises(BadJobError, match="all 3 of"):
        join(view, "late", 3, CHANGED)
    assert not view.program.digest
    member = Member(1, 7, "owner")
    view.admit(member, NOW)
    request = pb.JoinRequest(index=1, process="older", incarnation=3, program=digest(CHANGED), program_files=CHANGED)
    with pytest.raises(ReplacedError):
        view.join(request, NOW)
    with pytest.raises(ReplacedError):
        view.heartbeat(heartbeat(Member(1, 3, "older"), CHANGED), NOW)
    assert not view.program.digest
    assert join(view, "chief", 0, FILES).index == 0
