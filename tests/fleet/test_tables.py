"""Embedding tables on the ps are trained as a dense layer, also through faults and with other numbers of ps."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.fleet_faults import cause
from support.local_fleet import START_SECS, training
from support.numpy_optimizers import rule
from support.programs import table_program
from support.programs.table_program import DEATH, NAME, SEEN, WIDTH
from support.replay import Weights, replay
from support.rows import first_rows

import psfleet
from psfleet.checkpoint import store
from psfleet.checkpoint.export import export
from psfleet.checkpoint.tensors import read_tables
from psfleet.layout import EmbeddingSpec, initial_rows

pytestmark = [
    pytest.mark.usefixtures("launches_forked"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning:keras"),  # Keras 3.15 with NumPy 2.
]
PROGRAMS = Path(__file__).parents[1] / "support" / "programs"
ROWS, STEPS, BATCH_SIZE, SEED = 100, 100, 10, 7
MAX_DIFFERENCE = 1e-5
STEP_SECS = 1.5
"""`deadlines.step_secs` of tests with faults: a process that is stopped for longer is taken for lost."""
KEYS = {"keras": "user", "graph": NAME}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "clip_norm": 0.5},
    "adagrad": {"name": "adagrad", "learning_rate": 0.1},
    "adam": {"name": "adam", "learning_rate": 0.01},
}


def initial_table() -> np.ndarray:
    """All rows at the start: `[ROWS, WIDTH]`."""
    spec = EmbeddingSpec("user", NAME, ROWS, WIDTH, "uniform", 0.05, SEED)
    return initial_rows(spec, np.arange(ROWS))


def replayed(optimizer: str, steps: int, workers: int) -> Weights:
    """All tensors after the steps of one process, to which the table is dense."""
    initial = {NAME: initial_table(), "out/kernel": table_program.initial_kernel(), "out/bias": np.zeros(1)}
    options = OPTIMIZERS[optimizer]
    return replay(
        initial,
        table_program.gradient,
        table_program.data(),
        workers=workers,
        batch_size=BATCH_SIZE,
        steps=steps,
        rule=lambda: rule(options),
        rate=lambda step: float(options["learning_rate"]),
        clip_norm=options.get("clip_norm"),
    )


def job(front_end: str, optimizer: str, num_ps: int, workers: int, steps: int, **sections: Any) -> dict[str, Any]:
    """A job that trains the table."""
    return {
        "name": "table",
        "program": "table_program:build",
        "options": {"rows": ROWS, "front_end": front_end},
        "fleet": {"ps": num_ps, "workers": workers},
        "optimizer": OPTIMIZERS[optimizer],
        "tables": {KEYS[front_end]: {"rows": ROWS}},
        "train": {"steps": steps, "batch_size": BATCH_SIZE, "seed": SEED},
        "device": {"intra_op_threads": 1},
        **sections,
    }


def exported(out: Path) -> Weights:
    """All tensors of the newest checkpoint, as `psfleet weights` writes them."""
    assert export(out, out / "all.safetensors") == 3
    return load_file(out / "all.safetensors")


def assert_same(found: Weights, expected: Weights) -> None:
    """The tensors are those of the replay, and rows that no batch has keep the bits of their initial values."""
    moved = float(np.abs(expected[NAME] - initial_table()).max())
    assert moved > 100 * MAX_DIFFERENCE, f"the table moved by {moved:.1e}"
    differences = {name: float(np.abs(found[name] - value).max()) for name, value in expected.items()}
    assert max(differences.values()) <= MAX_DIFFERENCE, differences
    np.testing.assert_array_equal(found[NAME][SEEN + 1 :], initial_table()[SEEN + 1 :])


@pytest.mark.parametrize(
    ("front_end", "optimizer", "num_ps", "workers", "mode"),
    first_rows(
        [
            ("keras", "adagrad", 3, 2, "sync"),
            ("graph", "sgd", 1, 2, "sync"),
            ("keras", "sgd", 1, 2, "sync"),
            ("graph", "adagrad", 3, 1, "sync"),
            # Of one worker every gradient is that of the newest weights.
            ("keras", "adagrad", 2, 1, "async"),
        ]
    ),
)
def test_a_table_is_trained_as_a_dense_layer(
    front_end: str, optimizer: str, num_ps: int, workers: int, mode: str, tmp_path: Path
) -> None:
    sections = {"evaluate": {"every_steps": STEPS // 2}, "update": {"mode": mode}}
    content = job(front_end, optimizer, num_ps, workers, STEPS, **sections)
    report = psfleet.train(content, out=tmp_path, program_folder=PROGRAMS)
    assert (report.status, report.error) == ("done", None)
    found, expected = exported(tmp_path), replayed(optimizer, STEPS, workers)
    assert_same(found, expected)
    ids, y = table_program.data()
    read = np.concatenate([ids, ids[:, :1] + 1], 1)
    features = found[NAME][read].reshape(len(ids), -1)
    error = float(np.mean(np.square(features @ found["out/kernel"] + found["out/bias"] - y)))
    if front_end == "keras":
        assert export(tmp_path, tmp_path / "all.keras") == 3
        layer = keras.models.load_model(tmp_path / "all.keras").get_layer("user")
        np.testing.assert_array_equal(layer.embeddings.numpy(), found[NAME])
    assert report.eval["loss"] == pytest.approx(error, rel=1e-4), "evaluated with other rows than those exported"


def test_the_rows_of_a_hashed_table_are_the_hashes_of_its_ids(tmp_path: Path) -> None:
    content = job("keras", "sgd", 1, 1, table_program.NUM_EXAMPLES // BATCH_SIZE)
    content["tables"]["user"]["hash"] = True
    report = psfleet.train(content, out=tmp_path, program_folder=PROGRAMS)
    assert (report.status, report.error) == ("done", None)
    newest = store.newest(tmp_path / "checkpoints")
    assert newest is not None
    hashes = keras.layers.Hashing(ROWS)(np.arange(SEEN + 1)).numpy()
    assert sorted(read_tables(newest)[NAME].ids.tolist()) == np.unique(hashes).tolist()


@pytest.mark.extended
def test_a_table_continues_with_another_number_of_ps(tmp_path: Path) -> None:
    for steps, num_ps in ((40, 3), (70, 1), (STEPS, 2)):
        content = job("keras", "adagrad", num_ps, 2, steps)
        assert psfleet.train(content, out=tmp_path, program_folder=PROGRAMS).status == "done"
    assert_same(exported(tmp_path), replayed("adagrad", STEPS, 2))
    newest = store.newest(tmp_path / "checkpoints")
    assert newest is not None
    ids = read_tables(newest)[NAME].ids
    assert sorted(ids.tolist()) == list(range(SEEN + 1)), "a part has other rows than those that were updated"


@pytest.mark.extended
def test_adam_is_lazy(tmp_path: Path) -> None:
    """Rows whose gradient is zero in a step keep their moments and do not move; others as in dense Adam at first."""
    assert psfleet.train(job("keras", "adam", 2, 1, 1), out=tmp_path, program_folder=PROGRAMS).status == "done"
    found, expected = exported(tmp_path), replayed("adam", 1, 1)
    assert float(np.abs(found[NAME] - expected[NAME]).max()) <= MAX_DIFFERENCE


def faulty(num_ps: int, workers: int, mode: str = "sync") -> dict[str, Any]:
    """What `training` is given for a graph program whose processes are killed or stopped."""
    content = job("graph", "adagrad", num_ps, workers, STEPS, checkpoint={"every_steps": 5}, update={"mode": mode})
    content |= {"deadlines": {"step_secs": STEP_SECS}, "step_secs": 0.005, "programs": ["table_program"]}
    return {name: value for name, value in content.items() if name not in ("name", "program", "device")}


# Async: of one worker and one ps every gradient is that of the newest weights, also of one that is repeated.
@pytest.mark.extended
@pytest.mark.parametrize(("num_ps", "workers", "mode"), [(2, 2, "sync"), (1, 1, "async")])
def test_whatever_is_killed_or_stopped_the_table_is_that_of_a_run_without_a_fault(
    num_ps: int, workers: int, mode: str, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"random seed {seed}")
    chance = random.Random(seed)
    processes = [("ps", index) for index in range(num_ps)] + [("worker", index) for index in range(workers)]
    faults = [(*process, number) for process in processes for number in (signal.SIGKILL, signal.SIGSTOP)]
    stopped_ps = ("ps", num_ps - 1, signal.SIGSTOP)
    with training(tmp_path, **faulty(num_ps, workers, mode)) as fleet:
        fleet.wait_for_step(5)
        for role, index, number in [stopped_ps, *chance.sample(faults, 2)]:
            fleet.wait_for_step(fleet.step() + chance.randint(1, 6))
            cause(fleet, role, index, number)
        fleet.gates.hurry()
        fleet.done()
    assert_same(exported(fleet.out), replayed("adagrad", STEPS, workers))


@pytest.mark.extended
def test_a_ps_that_dies_with_the_rows_of_one_of_two_workers_costs_no_exactness(tmp_path: Path) -> None:
    """The rows that are staged, also on the ps that lives, belong to a step that is made again from a checkpoint."""
    with training(tmp_path, **faulty(2, 2)) as fleet:
        fleet.wait_for_step(7)
        fleet.gates.hold(1)
        fleet.wait_for(lambda: all(map(has_one_of_two, fleet.shards())), START_SECS, "the push of worker 0 on each ps")
        assert [has_one_of_two(shard) for shard in fleet.shards()] == [True, True]
        pid = fleet.pid("ps", 1)
        fleet.kill("ps", 1)
        fleet.wait_for(lambda: fleet.pid("ps", 1) not in (None, pid), START_SECS, "ps 1 to be there again")
        fleet.gates.release(1)
        fleet.gates.hurry()
        assert fleet.done().generation == 2
    assert_same(exported(fleet.out), replayed("adagrad", STEPS, 2))


def has_one_of_two(shard: Any) -> bool:
    """Whether a ps waits for the gradient of worker 1 only."""
    return [pushed - used for pushed, used in zip(shard.pushed[:2], shard.used[:2], strict=True)] == [1, 0]


@pytest.mark.extended
@pytest.mark.parametrize(("num_ps", "workers", "mode"), [(2, 2, "sync"), (1, 1, "async")])
def test_a_worker_that_dies_after_it_has_read_rows_repeats_its_step(
    num_ps: int, workers: int, mode: str, tmp_path: Path
) -> None:
    with training(tmp_path, **faulty(num_ps, workers, mode)) as fleet:
        for _ in range(3):
            fleet.wait_for_step(fleet.step() + 3)
            (fleet.gates.folder / DEATH).touch()
            fleet.wait_for(lambda: not (fleet.gates.folder / DEATH).exists(), START_SECS, "a worker to die")
            fleet.wait_for_progress()
        fleet.gates.hurry()
        report = fleet.done()
    assert (report.restarts, report.generation) == (3, 1)
    assert_same(exported(fleet.out), replayed("adagrad", STEPS, workers))


@pytest.mark.extended
def test_an_id_out_of_range_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    content = job("keras", "sgd", 1, 1, STEPS)
    content["options"]["largest"] = ROWS
    report = psfleet.train(content, out=tmp_path, program_folder=PROGRAMS)
    assert (report.status, report.exit_code) == ("failed", 70)
    assert report.error is not None
    assert f"table user is read at ids from 1 to {ROWS}, expected 0 to {ROWS - 1}" in report.error
