"""Sync mode gives the weights of one process that averages the same gradients: 100 steps, within 1e-5 in float32.

With either replication, each front end makes all the steps with two and three workers, on one and two ps. Further runs
meet every pair of front end and optimizer, and of front end and number of ps; a difference shows there in fewer steps.
What a worker and a ps exchange does not depend on the other workers, so most of these have one. Model parallelism, with
replicas of two workers, makes all the steps in both replications. All runs share three standing ps, or have colocated
ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.losses import lost_peers
from support.numpy_optimizers import rule
from support.programs import exact_graph_program, exact_keras_program
from support.replay import KerasReplica, Weights, perceptron_gradient, replay
from support.rows import first_rows
from support.standing_ps import standing_ps

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.tensors import read_tensors

pytestmark = pytest.mark.usefixtures("launches_forked")
PROGRAMS = Path(__file__).parents[1] / "support" / "programs"

STEPS = 100
FEWER_STEPS = 20
BATCH_SIZE = 16
BUCKET_BYTES = 4096
STATE_BYTES = 64
"""On each ps: the moving average of the graph program has fewer bytes."""
MAX_DIFFERENCE = 1e-5
WIRE_DIFFERENCE = 0.01
"""How far bfloat16, with its 8 bits, may lead from float32: as a part of the way that training went."""

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.2, "clip_norm": 0.5},
    "momentum": {
        "name": "momentum",
        "learning_rate": 0.05,
        "schedule": {"kind": "exponential", "decay_steps": 40, "decay_rate": 0.5, "warmup_steps": 10},
    },
    "adam": {"name": "adam", "learning_rate": 0.01},
}
"""A norm that clips, and a rate that changes, belong to the promise: one optimizer has each of them."""


@dataclass(frozen=True)
class Case:
    """One run."""

    front_end: str
    optimizer: str
    num_ps: int
    workers: int
    steps: int = FEWER_STEPS
    replication: str = "between_graph"
    parts: int = 1
    is_colocated: bool = False

    def __str__(self) -> str:
        shown = f"{self.front_end}-{self.optimizer}-{self.num_ps}ps-{self.workers}workers"
        shown = shown if self.replication == "between_graph" else f"{shown}-{self.replication}"
        shown = f"{shown}-colocated" if self.is_colocated else shown
        return shown if self.parts == 1 else f"{shown}-{self.parts}parts"

    def fleet(self, ps_addresses: list[str]) -> dict[str, Any]:
        """The section of the job."""
        workers = {"workers": self.workers * self.parts, "parts": self.parts}
        if self.is_colocated:
            return {"colocate": True, **workers}
        return {"ps": self.num_ps, "ps_addresses": ps_addresses[: self.num_ps], **workers}

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        base: float = OPTIMIZERS[self.optimizer]["learning_rate"]
        return base * 0.5 ** (step / 40) * min(1.0, (step + 1) / 10) if self.optimizer == "momentum" else base


FIRST_CASES = [
    Case("graph", "sgd", 1, 2, STEPS),
    Case("graph", "sgd", 2, 3, STEPS, "in_graph"),
    Case("graph", "sgd", 2, 2, STEPS, is_colocated=True),
]
ALL_STEPS = [
    Case(front_end, "sgd", num_ps, workers, STEPS, replication)
    for num_ps, workers in ((2, 3), (1, 2), (1, 3), (2, 2))
    for front_end in ("graph", "keras")
    for replication in ("between_graph", "in_graph")
]
CASES = [
    *FIRST_CASES,
    *[case for case in ALL_STEPS if case not in FIRST_CASES],
    *[
        Case(front_end, "sgd", num_ps, workers, STEPS, replication, parts=2)
        for num_ps, workers, replication in ((2, 1, "between_graph"), (1, 2, "between_graph"), (1, 2, "in_graph"))
        for front_end in ("graph", "keras")
    ],
    Case("keras", "momentum", 1, 2, STEPS),
    Case("keras", "adam", 3, 3, STEPS, is_colocated=True),
    Case("keras", "momentum", 1, 1, is_colocated=True),
    Case("graph", "adam", 2, 3),
    Case("graph", "momentum", 3, 1),
    Case("keras", "sgd", 2, 1),
    Case("keras", "adam", 3, 1),
]


@pytest.fixture(scope="module")
def ps_addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with standing_ps(3, tmp_path_factory.mktemp("ps")) as addresses:
        yield addresses


@pytest.mark.parametrize("case", first_rows(CASES, len(FIRST_CASES)), ids=str)
def test_the_weights_are_those_of_one_process_that_averages_the_same_gradients(
    case: Case, ps_addresses: list[str], tmp_path: Path
) -> None:
    report = trained(case, ps_addresses, tmp_path)
    gradients = report.gradients
    assert gradients.pushed == gradients.used == case.steps * case.workers
    assert {at: worker.used for at, worker in gradients.per_worker.items()} == {
        str(worker): case.steps if worker < case.workers else 0 for worker in range(case.workers * case.parts)
    }
    expected = replayed(case)
    difference = distance(weights_of(tmp_path, case.steps), expected)
    moved = distance(expected, initial_weights(case))
    assert moved > 100 * MAX_DIFFERENCE, f"{case} hardly trained: the weights moved by {moved:.1e}"
    assert difference <= MAX_DIFFERENCE, f"{case} is off by {difference:.1e}, and trained by {moved:.1e}"
    assert report.placement.max_over_mean == 1.0
    if (case.front_end, case.num_ps) == ("graph", 3):
        check_equal_shards(case, report, tmp_path)


@pytest.mark.extended
def test_bfloat16_on_the_wire_leads_near_the_weights_of_float32(ps_addresses: list[str], tmp_path: Path) -> None:
    case = Case("graph", "momentum", 1, 1)
    trained(case, ps_addresses, tmp_path, wire="bfloat16")
    expected, initial = replayed(case), initial_weights(case)
    difference, moved = distance(weights_of(tmp_path, case.steps), expected), distance(expected, initial)
    assert MAX_DIFFERENCE < difference < WIRE_DIFFERENCE * moved, f"off by {difference:.1e}, and trained by {moved:.1e}"


def check_equal_shards(case: Case, report: psfleet.Report, out: Path) -> None:
    """Every ps has as many bytes of parameters, in its memory and in its part of a checkpoint."""
    stored = stored_bytes(out)
    assert sum(stored) == 4 * sum(value.size for value in exact_graph_program.initial_weights().values())
    assert max(stored) < 1.01 * sum(stored) / case.num_ps, f"bytes of parameters in the parts: {stored}"
    assert report.placement.ps == [max(stored) + STATE_BYTES] * case.num_ps


def trained(case: Case, ps_addresses: list[str], out: Path, wire: str = "float32") -> psfleet.Report:
    """Runs the case to its end; the report."""
    job = {
        "name": str(case).replace("_", "-"),
        "program": f"exact_{case.front_end}_program:build",
        "fleet": case.fleet(ps_addresses),
        "update": {"mode": "sync", "replication": case.replication, "wire": wire, "bucket_bytes": BUCKET_BYTES},
        "optimizer": OPTIMIZERS[case.optimizer],
        "train": {"steps": case.steps, "batch_size": BATCH_SIZE},
        "device": {"intra_op_threads": 1},
    }
    report = psfleet.train(job, out=out, program_folder=PROGRAMS)
    assert (report.status, report.final_step) == ("done", case.steps), report.error
    assert not lost_peers(out)
    return report


def weights_of(out: Path, step: int) -> Weights:
    """All tensors of the run's newest checkpoint, verified."""
    newest = store.newest(out / "checkpoints")
    assert newest is not None
    assert newest.step == step
    return read_tensors(newest)


def stored_bytes(out: Path) -> list[int]:
    """Bytes of parameters in each ps's part of the newest checkpoint."""
    newest = store.newest(out / "checkpoints")
    assert newest is not None
    parts = [load_file(newest.folder / part.file) for part in newest.parts]
    return [sum(value.nbytes for key, value in part.items() if key.startswith("parameter/")) for part in parts]


@functools.cache
def keras_replica() -> tuple[KerasReplica, Weights]:
    """The plain Keras model, and all its tensors at step 0."""
    replica = KerasReplica(exact_keras_program.model(), exact_keras_program.build().loss)
    return replica, replica.values()


def initial_weights(case: Case) -> Weights:
    """All tensors at step 0."""
    if case.front_end == "graph":
        return exact_graph_program.initial_weights() | exact_graph_program.initial_state()
    return keras_replica()[1]


@functools.cache
def replayed(case: Case) -> Weights:
    """The tensors of the whole model after the steps of one process; moving averages are the mean over the workers."""
    optimizer = OPTIMIZERS[case.optimizer]
    options: dict[str, Any] = {"workers": case.workers, "batch_size": BATCH_SIZE, "steps": case.steps}
    options |= {"rule": lambda: rule(optimizer), "rate": case.rate, "clip_norm": optimizer.get("clip_norm")}
    if case.front_end == "graph":
        return replay(initial_weights(case), perceptron_gradient, exact_graph_program.data(), **options)
    replica, initial = keras_replica()
    return replay(
        initial,
        lambda weights, worker, batch: replica.gradient(weights, batch),
        exact_keras_program.data(),
        **options,
    )


def distance(left: Weights, right: Weights) -> float:
    """The largest difference of two elements; of `left`, what `right` lacks does not count."""
    assert left.keys() >= right.keys()
    return max(float(np.abs(left[name] - right[name]).max()) for name in right)
