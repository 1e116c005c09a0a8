"""Model parallelism: where operations of a replica's parts run, what crosses between them, faults and bad programs."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as v1
from support.command_line import Psfleet
from support.graph_fleet import RUN, STEP_SECS, graph_fleet
from support.local_fleet import START_SECS, Fleet, training
from support.program_samples import sample_job
from support.programs import parted_program
from support.rows import first_rows
from support.tiny_job import JOB, PRELUDE

from psfleet.job.job import parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.processes.ports import free_addresses
from psfleet.report.schema import Report
from psfleet.tf.server import boot
from worker_service.frontends import front_end
from worker_service.session import WorkerSession
from worker_service.step import StepGraph

PARTS: dict[str, Any] = {"workers": 2, "parts": 2}
BATCH_SIZE = 4


def partitions(program: KerasProgram | GraphProgram) -> list[list[Any]]:
    """The nodes of each part of a replica, in the graphs that TensorFlow executes for one step."""
    job = parse_job({**sample_job().model_dump(), "fleet": PARTS})
    front = front_end(program, job, 1, 0)
    with graph_fleet(
        front_end=front, values=front.initial_values(), fleet=PARTS, update={"bucket_bytes": 4096}
    ) as fleet:
        own, other = free_addresses(2)
        boot(own, None)
        boot(other, None)
        step = StepGraph(front, fleet.job, fleet.layout, 0, RUN, 1)
        batch = [array[:BATCH_SIZE] for array in parted_program.data()]
        feeds = {step.local_step: 0, step.number: 0, **dict(zip(step.feeds, batch, strict=True))}
        options, metadata = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
        with WorkerSession(step, fleet.job, fleet.ps, own, 0, {1: other.data}) as session:
            session.start()
            made = fleet.threads.submit(session._sessions.server.run, step.steps[0], feeds, options, metadata)
            fleet.advance()
            made.result(STEP_SECS)
    found: list[list[Any]] = [[], []]
    for graph in metadata.partition_graphs:
        for node in graph.node:
            if place := re.search(r"/job:worker.*/task:(\d)/", node.device):
                found[int(place[1])].append(node)
    return found


PROGRAMS = {
    "graph": parted_program.graph,
    "unrolled": parted_program.recurrent,
    "loops": lambda: parted_program.recurrent(unroll=False),
}
MINE = {"graph": r"(^|/)second/", "unrolled": r"functional_\d+/(second|norm|drop|out)_\d+/"}
"""Names of what is built in part 1, and so of its gradients."""


@pytest.mark.parametrize("kind", first_rows(["loops", "unrolled", "graph"]))
def test_every_operation_of_part_1_is_there_and_those_of_its_gradients_too(kind: str) -> None:
    mine = re.compile(MINE.get(kind, MINE["unrolled"]))
    first, second = (
        [node for node in nodes if node.op not in ("_Send", "_Recv")] for nodes in partitions(PROGRAMS[kind]())
    )
    assert not [node.name for node in first if mine.search(node.name)]
    assert not [node.name for node in second if re.search(r"(^|/)(first|shortcut)(_\d+)?/", node.name)]
    for nodes in (first, second):
        products = [node.name for node in nodes if "MatMul" in node.op]
        assert any("gradients/" not in name for name in products), products
        assert any("gradients/" in name for name in products), products


@pytest.mark.extended
def test_a_part_gets_its_parameters_and_not_those_of_others() -> None:
    _, second = partitions(parted_program.recurrent())
    received = {node.attr["tensor_name"].s.decode() for node in second if node.op == "_Recv"}
    for name in ("second/lstm_cell/kernel", "second/lstm_cell/recurrent_kernel", "out/kernel"):
        assert any(re.fullmatch(rf"edge_\d+_{name}", each) for each in received), received
    assert not [
        each for each in received if "parameters" in each or re.match(r"edge_\d+_first", each) or "shortcut" in each
    ]


@pytest.mark.parametrize("replication", first_rows(["between_graph", "in_graph"]))
def test_a_lost_part_is_waited_for_and_costs_no_step(replication: str, tmp_path: Path) -> None:
    update = {"replication": replication}
    with training(tmp_path, fleet=PARTS, update=update, train={"steps": 100}) as fleet:
        fleet.wait_for_step(5)
        # Else worker 1 can be back before its client looks for it.
        fleet.launcher.send_signal(signal.SIGSTOP)
        fleet.kill("worker", 1)
        fleet.wait_for(lambda: is_missed(fleet, 1), START_SECS, "the client of worker 1 to miss it")
        fleet.launcher.send_signal(signal.SIGCONT)
        report = report_after_return(fleet, index=1)
    assert [(event.role, event.index, event.steps_lost) for event in report.events] == [("worker", 1, 0)]
    assert {index: worker.used for index, worker in report.gradients.per_worker.items()} == {"0": 100, "1": 0}
    assert report.generation == 1


@pytest.mark.extended
@pytest.mark.parametrize("replication", ["between_graph", "in_graph"])
def test_a_part_that_stays_frozen_ends_the_run_at_the_deadline_which_names_it(replication: str, tmp_path: Path) -> None:
    deadlines = {"step_secs": 3, "stall_secs": 8, "stop_secs": 3}
    sections: dict[str, Any] = {"update": {"replication": replication}, "train": {"steps": 100}}
    with training(tmp_path, fleet=PARTS, deadlines=deadlines, **sections) as fleet:
        fleet.wait_for_step(5)
        frozen = fleet.pid("worker", 1)
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        assert fleet.end() == 75, fleet.tails()
    assert "workers 1 to lend their devices" in str(fleet.report().error)


@pytest.mark.extended
def test_a_frozen_part_is_waited_for_and_its_replacement_costs_no_step(tmp_path: Path) -> None:
    deadlines = {"step_secs": 3}
    with training(tmp_path, fleet=PARTS, deadlines=deadlines, train={"steps": 100}) as fleet:
        fleet.wait_for_step(5)
        frozen = fleet.pid("worker", 1)
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        fleet.wait_for(lambda: fleet.entries("lending"), START_SECS, "the chief to miss its part")
        report = report_after_loss(fleet, index=1)
    assert [(event.role, event.index, event.steps_lost) for event in report.events] == [("worker", 1, 0)]
    assert {index: worker.used for index, worker in report.gradients.per_worker.items()} == {"0": 100, "1": 0}
    assert report.generation == 1


@pytest.mark.extended
def test_a_killed_chief_takes_its_parts_again(tmp_path: Path) -> None:
    with training(tmp_path, fleet={"workers": 4, "parts": 2}, train={"steps": 100}) as fleet:
        report = report_after_loss(fleet, index=0)
    assert [(event.role, event.index, event.steps_lost) for event in report.events] == [("chief", 0, 0)]
    used = {index: worker.used for index, worker in report.gradients.per_worker.items()}
    assert used == {"0": 100, "1": 100, "2": 0, "3": 0}


@pytest.mark.parametrize(
    ("number", "job", "code", "expected"),
    [
        (5, "{workers: 2, parts: 2}", 70, "psfleet.part(5): expected a number below fleet.parts = 2"),
        (-1, "{workers: 2, parts: 2}", 70, "psfleet.part(-1): expected an integer from 0"),
        (
            0,
            "{workers: 2, parts: 2}",
            70,
            "program 'program:build': part 1 of fleet.parts = 2 has no operations, expected `with psfleet.part(1):` in "
            "the model function or the loss",
        ),
        (1, "{workers: 3, parts: 2}", 78, "job.yaml: fleet.workers is 3, expected a multiple of fleet.parts = 2"),
    ],
    ids=["too high", "negative", "unused", "not divisible"],
)
def test_validate_refuses_in_one_line(
    number: int,
    job: str,
    code: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    psfleet_here: Psfleet,
) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("{ps: 1, workers: 1}", job))
    program = PRELUDE.replace(
        "    return tf.reduce_mean", f"    with psfleet.part({number}):\n        return tf.reduce_mean"
    )
    (tmp_path / "program.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    said = psfleet_here("validate", "job.yaml")
    assert said.code == code, said
    [line] = said.err.splitlines()
    assert line == f"psfleet: {expected}"


def is_missed(fleet: Fleet, index: int) -> bool:
    """Whether the chief has logged that it waits for a worker that lends it its devices."""
    return any(f"worker {index}" in entry["message"] for entry in fleet.entries("lending"))


def report_after_loss(fleet: Fleet, index: int) -> Report:
    """Kills a worker in the middle of training, which must go on once it is back; the report of the run."""
    fleet.wait_for_step(5)
    fleet.kill("worker", index)
    return report_after_return(fleet, index)


def report_after_return(fleet: Fleet, index: int) -> Report:
    """The report of a run in whose training a worker joins again."""
    fleet.wait_for(lambda: fleet.entries("restarted"), START_SECS, f"worker {index} to join again")
    fleet.wait_for_step(fleet.step() + 5)
    fleet.gates.hurry()
    return fleet.done()
