"""Two processes with one worker index: the newer one trains, the older one ends, and the run is done."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.control_calls import beat, join
from support.local_fleet import JOB, PROGRAM
from support.service_process import START_SECS, Service, running

from psfleet import errors
from psfleet.checkpoint import store
from psfleet.control import control_pb2 as pb
from psfleet.errors import LostPeerError
from psfleet.job.job import parse_job
from psfleet.polling import wait_until
from psfleet.report.schema import Report

T = TypeVar("T")

RUN = "fenced"
STEPS = 100
"""More than are made, at `STEP_SECS` each, before the worker is frozen; then none is made."""
STEP_SECS = 0.05


@pytest.mark.extended
def test_a_frozen_worker_and_an_older_chief_end_and_the_run_is_done(tmp_path: Path) -> None:
    """A newcomer gets the index of the frozen worker; a second chief replaces the first."""
    with ExitStack() as stack:
        start = starter(stack, tmp_path)
        ps = start("ps", INDEX="0").serving()
        chief, frozen = start("worker", INDEX="0", PS=ps.address.data), start("worker", INDEX="-1", PS=ps.address.data)
        wait_for_state(ps, "5 steps", lambda state: state.step >= 5)
        frozen.process.send_signal(signal.SIGSTOP)
        newer_chief = start("worker", INDEX="0", PS=ps.address.data, CAUSE="moved")
        assert chief.exit_code(START_SECS) == errors.LOST_PEERS
        assert "was replaced by the process at" in chief.failures()[0]["message"]
        wait_for_state(ps, "worker 1 to be silent", lambda state: not state.workers[1].is_alive)
        newcomer = start("worker", INDEX="-1", PS=ps.address.data)
        after = wait_for_state(ps, "the newcomer to join", lambda state: state.workers[1].joins == 2)
        assert [(worker.index, worker.incarnation) for worker in after.workers] == [(0, 3), (1, 4)]
        frozen.process.send_signal(signal.SIGCONT)
        assert frozen.exit_code(START_SECS) == errors.LOST_PEERS
        assert "was replaced by the process at" in frozen.failures()[0]["message"]
        (tmp_path / "gates" / "pace").unlink()
        assert [each.exit_code(START_SECS) for each in (newer_chief, newcomer, ps)] == [0, 0, 0]
        report = Report.read(tmp_path)
        assert (report.status, report.final_step, report.generation) == ("done", STEPS, 1)
        newest = store.newest(tmp_path / "checkpoints")
        assert newest is not None
        assert newest.extra["incarnation"] == 3, "the manifest is that of the newer chief"
        lost = [entry for entry in newcomer.entries() if entry.get("event") == "lost_peer"]
        assert len(lost) <= 1, "the two evicted each other"


def test_a_ps_that_was_killed_learns_who_has_which_index_before_it_leases_one(tmp_path: Path) -> None:
    with running("ps", tmp_path, RUN=RUN, INDEX="0") as killed, killed.serving().client(RUN) as owner:
        assert join(owner, "owner") == (1, 1)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
        with (
            running("ps", tmp_path, killed.address, RUN=RUN, INDEX="0", CAUSE="killed by SIGKILL") as ps,
            ps.serving().client(RUN) as newcomer,
        ):
            wait_until(partial(attempt, beat, owner), START_SECS, "the owner to be known")
            known = owner.describe().workers
            assert [(worker.index, worker.process, worker.joins) for worker in known] == [(1, "owner", 1)]

            def lease() -> tuple[int, int] | None:
                beat(owner)
                return attempt(join, newcomer, "newcomer")

            assert wait_until(lease, START_SECS, "an index to be leased") == (2, 1)
            states = newcomer.describe().workers
            assert [(worker.index, worker.incarnation) for worker in states] == [(1, 1), (2, 2)]


def attempt(call: Callable[..., T], *arguments: Any) -> T | None:
    """What a call of a ps returns; None if it cannot reply now."""
    try:
        return call(*arguments)
    except LostPeerError:
        return None


def starter(stack: ExitStack, folder: Path) -> Callable[..., Service]:
    """Starts a service of one run, which trains at an even pace until `gates/pace` is removed."""
    (folder / "gates").mkdir()
    (folder / "gates" / "pace").touch()
    shutil.copy(PROGRAM, folder)
    options = {"gates": str(folder / "gates"), "step_secs": STEP_SECS}
    job = parse_job({**JOB, "options": options, "train": {**JOB["train"], "steps": STEPS}}).model_dump_json()

    def start(role: str, **settings: str) -> Service:
        known = {"JOB": job, "RUN": RUN, "PROGRAM_FOLDER": str(folder)}
        return stack.enter_context(running(role, folder, **known, **settings))

    return start


def wait_for_state(ps: Service, what: str, done: Callable[[pb.ShardState], bool]) -> pb.ShardState:
    """The state of the ps once it is as expected."""
    return wait_until(partial(state, ps), START_SECS, what, done=done)


def state(ps: Service) -> pb.ShardState:
    with ps.client(RUN) as client:
        return client.describe()
