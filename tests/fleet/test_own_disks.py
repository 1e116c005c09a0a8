"""A fleet whose processes share no folder: only the chief has checkpoints, and the weights are exact through losses."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.control_calls import JOB
from support.local_fleet import PROGRAM
from support.replay import assert_perceptron
from support.service_process import START_SECS, Service, running

from psfleet.addresses import Address
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors
from psfleet.control import control_pb2 as pb
from psfleet.job.job import parse_job
from psfleet.polling import wait_until
from psfleet.report.schema import Report

WORKERS = 2
BATCH_SIZE = 4
EVERY_STEPS = 10
STEP_SECS = 0.15
"""Leaves 2 s between the commit of a checkpoint and the end of the run."""
OPTIMIZER: dict[str, Any] = {"name": "momentum", "learning_rate": 0.05}


class Fleet:
    """Services with a folder each; the run is the chief's folder."""

    def __init__(self, stack: ExitStack, folder: Path, num_ps: int, steps: int) -> None:
        self._stack, self._folder, self._run = stack, folder, f"run-{num_ps}"
        self.out = folder / "chief"
        options = {"gates": str(folder / "gates"), "step_secs": STEP_SECS}
        content = JOB | {
            "program": "paced_exact_program:build",
            "options": options | {"front_end": "graph", "batch_size": BATCH_SIZE},
            "fleet": {"ps": num_ps, "workers": WORKERS},
            "optimizer": OPTIMIZER,
            "train": {"steps": steps, "batch_size": BATCH_SIZE},
            "checkpoint": {"every_steps": EVERY_STEPS},
        }
        self._job = parse_job(content).model_dump_json()
        self._ps: list[Address] = []
        self.ps = [self.start_ps(shard) for shard in range(num_ps)]
        self._ps = [ps.serving().address for ps in self.ps]
        self.chief, self.worker = self.start_worker(0), self.start_worker(1)

    def start_ps(self, shard: int, **settings: str) -> Service:
        """Starts a ps, at the address of the one before."""
        return self._start("ps", f"ps-{shard}", self._ps[shard] if self._ps else None, INDEX=str(shard), **settings)

    def start_worker(self, index: int, **settings: str) -> Service:
        """Starts the chief or the worker."""
        addresses = ",".join(address.data for address in self._ps)
        name = "worker" if index else "chief"
        return self._start("worker", name, None, INDEX=str(index), PS=addresses, **settings)

    def wait_for_states(self, what: str, done: Callable[[list[pb.ShardState]], bool]) -> list[pb.ShardState]:
        """The states of the ps once they are as expected."""
        with ExitStack() as stack:
            clients = [stack.enter_context(ps.client(self._run)) for ps in self.ps]

            def look() -> list[pb.ShardState]:
                return [client.describe() for client in clients]

            return wait_until(look, START_SECS, what, done=done, poll_secs=0.05)

    def wait_for_checkpoint(self, step: int) -> None:
        """Waits until a checkpoint of at least a step is committed."""
        found = partial(store.newest_committed, self.out / "checkpoints")
        wait_until(
            found, START_SECS, f"a checkpoint of step {step}", done=lambda at: at is not None and at.step >= step
        )

    def _start(self, role: str, name: str, address: Address | None, **settings: str) -> Service:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        known = {"JOB": self._job, "RUN": self._run, "PROGRAM_FOLDER": str(self._folder)}
        return self._stack.enter_context(running(role, folder, address, **known, **settings))


def kill(service: Service) -> None:
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()


@pytest.mark.extended
def test_through_a_lost_ps_a_chief_killed_while_it_saves_and_a_resume_on_other_ps(tmp_path: Path) -> None:
    (tmp_path / "gates").mkdir()
    (tmp_path / "gates" / "pace").touch()
    for name in ("paced_exact_program", "exact_graph_program", "exact_keras_program"):
        shutil.copy(PROGRAM.with_name(f"{name}.py"), tmp_path)
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, num_ps=2, steps=30)
        fleet.wait_for_checkpoint(EVERY_STEPS)
        kill(fleet.ps[1])
        fleet.ps[1] = fleet.start_ps(1, CAUSE="killed by SIGKILL").serving()
        fleet.wait_for_states(
            "every ps to have a part of the second generation",
            lambda states: all(state.generation == 2 and state.parts for state in states),
        )
        kill(fleet.chief)
        fleet.chief = fleet.start_worker(0, CAUSE="killed by SIGKILL")
        (tmp_path / "gates" / "pace").unlink()
        services = (fleet.chief, fleet.worker, *fleet.ps)
        assert [each.exit_code(START_SECS) for each in services] == [0] * 4, fleet.chief.entries()
    report = Report.read(fleet.out)
    assert (report.status, report.final_step, report.generation) == ("done", 30, 2)
    assert [event.kind for event in report.events] == ["restarted", "restarted"], report.events
    assert_exact(fleet.out, 30)
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, num_ps=1, steps=40)
        assert [each.exit_code(START_SECS) for each in (fleet.chief, fleet.worker, *fleet.ps)] == [0] * 3
    assert_exact(fleet.out, 40)
    assert not list(tmp_path.glob("ps-*/checkpoints")), "a ps has written a file"


def assert_exact(out: Path, steps: int) -> None:
    """The newest checkpoint has the weights of one process that makes those steps."""
    newest = store.newest(out / "checkpoints")
    assert newest is not None
    assert newest.step == steps
    assert_perceptron(read_tensors(newest), OPTIMIZER, workers=WORKERS, batch_size=BATCH_SIZE, steps=steps)
