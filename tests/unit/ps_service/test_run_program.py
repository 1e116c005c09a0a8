"""All processes of a run have the same training program; the test is the clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ps_service.fleet_view import RELEARN_SECS, FleetView
from ps_service.worker_record import Member
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError
from psfleet.job.program_files import digest

NOW = 1000.0
FILES = {"layers.py": "1111", "program.py": "2222"}
CHANGED = {"layers.py": "1111", "program.py": "3333"}


def join(view: FleetView, process: str, index: int, files: Mapping[str, str], now: float = NOW) -> Member:
    request = pb.JoinRequest(
        index=index, process=process, worker_limit=3, address=f"{process}:2222", program=digest(files),
        program_files=files,
    )  # fmt: skip
    reply = view.join(request, now)
    return Member(reply.index, reply.incarnation, process)


def heartbeat(member: Member, files: Mapping[str, str]) -> pb.HeartbeatRequest:
    caller = pb.Caller(member=pb.Member(index=member.index, incarnation=member.incarnation, process=member.process))
    return pb.HeartbeatRequest(caller=caller, beat=1, program=digest(files))


@pytest.mark.parametrize("index", [-1, 0, 1])
def test_a_process_with_another_program_is_refused_and_disturbs_nobody(index: int) -> None:
    view = FleetView()
    join(view, "chief", 0, FILES)
    join(view, "worker", 1, FILES)
    with pytest.raises(BadJobError) as caught:
        join(view, "restarted", index, CHANGED)
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
    view = FleetView(relearn_until=NOW + RELEARN_SECS)
    with pytest.raises(LostPeerError, match="does not know the run's program yet"):
        join(view, "worker", 1, CHANGED)
    view.heartbeat(heartbeat(chief, FILES), NOW + 1)
    with pytest.raises(BadJobError, match=f"expected {digest(FILES)}, which the run was started with; stop"):
        join(view, "worker", 1, CHANGED, NOW + 1)
    assert join(view, "worker", 1, FILES, NOW + 1).index == 1
    with pytest.raises(BadJobError, match=r"program\.py differs"):
        join(view, "other", 2, CHANGED, NOW + 1)


def test_a_restarted_ps_learns_the_program_from_what_others_know() -> None:
    other = FleetView()
    join(other, "chief", 0, FILES)
    view = FleetView(relearn_until=NOW + RELEARN_SECS)
    request = pb.JoinRequest(index=1, process="a", worker_limit=3, program=digest(CHANGED), program_files=CHANGED)
    request.known.extend(worker.state(NOW) for worker in other.workers.values())
    with pytest.raises(BadJobError):
        view.join(request, NOW)


def test_a_fleet_that_was_restarted_as_a_whole_may_have_a_changed_program() -> None:
    view = FleetView(relearn_until=NOW + RELEARN_SECS)
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
