"""Programs with several losses on real fleets: exact over a resume, and in every mode that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gan_replay import replayed
from support.programs import tiny_gan_program as tiny
from support.rows import first_rows

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.tensors import read_tensors
from psfleet.report.history import History
from psfleet.report.schema import EvaluationLog

pytestmark = pytest.mark.usefixtures("launches_forked")
PROGRAMS = Path(__file__).parents[1] / "support" / "programs"

BATCH_SIZE = 8
OPTIMIZERS = {
    "discriminator": {"name": "adam", "learning_rate": 0.02},
    "generator": {"name": "momentum", "learning_rate": 0.05},
}
MAX_DIFFERENCE = 1e-5


def job(steps: int, **fleet: int) -> dict[str, Any]:
    return {
        "name": "tiny-gan",
        "program": "tiny_gan_program:build",
        "fleet": {"ps": 1, "workers": 2, **fleet},
        "optimizers": OPTIMIZERS,
        "train": {"steps": steps, "batch_size": BATCH_SIZE, "alternate": tiny.ALTERNATE},
        "device": {"intra_op_threads": 1},
    }


def test_a_run_that_resumes_within_a_cycle_on_other_ps_makes_the_steps_of_one_without_a_stop(tmp_path: Path) -> None:
    """Step 8 is the second of the discriminator; the second ps has no weights of it, but its optimizer's scalars."""
    for steps, num_ps in ((7, 2), (20, 1)):
        report = psfleet.train(job(steps, ps=num_ps), out=tmp_path, program_folder=PROGRAMS)
        assert (report.status, report.final_step) == ("done", steps), report.error
    newest = check_replayed(tmp_path, 20)
    assert newest.optimizer == "discriminator adam, generator momentum"
    assert report.attempts[-1].first_step == 7
    names = {"discriminator_loss", "generator_loss"}
    assert report.eval.keys() == EvaluationLog(tmp_path / EvaluationLog.FILE_NAME).curve()[-1].metrics.keys() == names
    last = History(tmp_path / History.FILE_NAME).curve()[-1]
    assert last.losses == report.losses
    assert last.losses.keys() == {"discriminator", "generator"}
    assert last.loss == last.losses["discriminator"], "step 20 is one of the discriminator"


IN_GRAPH = {"update": {"mode": "sync", "replication": "in_graph"}}
TOWERS = {"device": {"replicas": 2, "virtual_cpus": 2, "intra_op_threads": 1}}


@pytest.mark.extended
@pytest.mark.parametrize("sections", [IN_GRAPH, IN_GRAPH | TOWERS, TOWERS], ids=["in_graph", "both", "towers"])
def test_one_graph_over_all_workers_and_towers_make_the_same_steps(sections: dict[str, Any], tmp_path: Path) -> None:
    report = psfleet.train({**job(10, ps=2), **sections}, out=tmp_path, program_folder=PROGRAMS)
    assert (report.status, report.final_step) == ("done", 10), report.error
    check_replayed(tmp_path, 10)


def check_replayed(out: Path, steps: int) -> Checkpoint:
    """Compares the newest checkpoint with the steps in NumPy; returns it."""
    newest = store.newest(out / "checkpoints")
    assert newest is not None
    found, expected = read_tensors(newest), replayed(OPTIMIZERS, tiny.ALTERNATE, 2, BATCH_SIZE, steps)
    assert found.keys() == expected.keys()
    assert {name for name in expected if np.abs(found[name] - expected[name]).max() > MAX_DIFFERENCE} == set()
    return newest


MODES: list[dict[str, Any]] = [
    {"update": {"mode": "async"}},
    {"update": {"mode": "ssp", "bound": 1}},
    {"update": {"mode": "sync", "quorum": 2}, "fleet": {"ps": 2, "workers": 2, "spares": 1}},
    {"update": {"mode": "sync", "quorum": 1, "wire": "bfloat16"}, "fleet": {"ps": 2, "workers": 2}},
]


@pytest.mark.parametrize("sections", first_rows(MODES, 0), ids=["async", "ssp", "spare", "quorum"])
def test_every_mode_with_several_losses_trains_all_of_them(sections: dict[str, Any], tmp_path: Path) -> None:
    steps = 60
    report = psfleet.train({**job(steps), **sections}, out=tmp_path, program_folder=PROGRAMS)
    assert (report.status, report.final_step) == ("done", steps), report.error
    newest = store.newest(tmp_path / "checkpoints")
    assert newest is not None
    found = read_tensors(newest)
    moved = {name: float(np.abs(found[name] - value).max()) for name, value in tiny.initial_weights().items()}
    assert min(moved.values()) > 0.05
    assert report.gradients.used >= steps
