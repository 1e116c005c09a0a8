"""Embedding tables on the ps are trained as a dense layer, also through faults and with other numbers of ps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file
from support.local_fleet import Fleet, training
from support.numpy_optimizers import rule
from support.programs import table_program
from support.programs.table_program import NAME, SEEN, WIDTH
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


@pytest.mark.extended
def test_whatever_is_killed_the_table_is_that_of_a_run_without_a_fault(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"random seed {seed}")
    chance = random.Random(seed)
    content = job("keras", "adagrad", 2, 2, STEPS, checkpoint={"every_steps": 5})
    sections = {name: content[name] for name in ("tables", "fleet", "optimizer", "train", "checkpoint")}
    with training(tmp_path, step_secs=0.005, programs=["table_program"], **sections) as fleet:
        fleet.wait_for_step(5)
        for role, index in chance.sample([("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1)], 3):
            fleet.wait_for_step(fleet.step() + chance.randint(1, 6))
            kill(fleet, role, index)
        fleet.gates.hurry()
        fleet.done()
    assert_same(exported(fleet.out), replayed("adagrad", STEPS, 2))


def kill(fleet: Fleet, role: str, index: int) -> None:
    """Kills a process, and waits until the fleet trains again."""
    pid = fleet.pid(role, index)
    fleet.kill(role, index)
    fleet.wait_for(lambda: fleet.pid(role, index) not in (None, pid), 60, f"{role} {index} to be there again")
    fleet.wait_for_progress()


@pytest.mark.extended
def test_an_id_out_of_range_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    content = job("keras", "sgd", 1, 1, STEPS)
    content["options"]["largest"] = ROWS
    report = psfleet.train(content, out=tmp_path, program_folder=PROGRAMS)
    assert (report.status, report.exit_code) == ("failed", 70)
    assert report.error is not None
    assert f"table user is read at ids from 1 to {ROWS}, expected 0 to {ROWS - 1}" in report.error
