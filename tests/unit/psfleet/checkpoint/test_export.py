"""Exports contain the checkpoint's tensors by name, in the format of the suffix, and are written atomically."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from support.checkpoint_samples import random_values, save

from psfleet.checkpoint import evaluated
from psfleet.checkpoint.export import export, export_keras, export_safetensors
from psfleet.checkpoint.keras_names import keras_names
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import write_initial
from psfleet.errors import BadJobError, NoCheckpointError, UsageError
from psfleet.job.job import parse_job
from psfleet.job.program import KerasProgram, load_program
from psfleet.layout import Layout, TensorSpec
from psfleet.tf.program_data import built_model

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)
PROGRAM = """
import keras
from psfleet import GraphProgram, KerasProgram

def model():
    layers = [keras.layers.Input([2]), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Dropout(0.5)], name="net")

def keras_program():
    return KerasProgram(model=model, loss="mse", train=lambda index, count: None)

def graph_program():
    return GraphProgram(loss=lambda batch: None, train=lambda index, count: None)
"""


@dataclass
class FakeVariable:
    path: str
    shape: tuple[int, ...]
    value: np.ndarray | None = None

    def assign(self, value: np.ndarray) -> None:
        self.value = value


@dataclass
class FakeModel:
    """Saves only which way it was saved."""

    trainable_variables: list[FakeVariable]
    non_trainable_variables: list[FakeVariable] = field(default_factory=list)

    def save(self, filepath: Path) -> None:
        filepath.write_text("model")

    def save_weights(self, filepath: Path) -> None:
        filepath.write_text("weights")


def _checkpoint(root: Path, tensors: dict[str, np.ndarray], extra: dict[str, Any] | None = None) -> Checkpoint:
    """A checkpoint whose float32 tensors are parameters, all others state."""
    specs = [TensorSpec(name, value.shape, value.dtype.name) for name, value in tensors.items()]
    parameters = [spec for spec in specs if spec.dtype == "float32"]
    layout = Layout.plan(parameters, [spec for spec in specs if spec not in parameters], [], 2, 4096)
    return write_initial(root, layout, tensors, run="r", generation=1, optimizer="sgd", extra=extra or {})


def _extra(folder: Path, callable_name: str) -> dict[str, Any]:
    (folder / "exported_program.py").write_text(PROGRAM)
    job = {
        "name": "net",
        "program": f"exported_program:{callable_name}",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1, "batch_size": 1},
    }
    return {"job": job, "program_folder": str(folder)}


def test_a_named_checkpoint_with_other_bytes_than_its_manifest_says_is_not_exported(tmp_path: Path) -> None:
    [part] = save(tmp_path / "checkpoints", 20).folder.glob("ps-0-of-*")
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(NoCheckpointError, match=rf"{part.name} has SHA-256 .*, expected"):
        export(part.parent, tmp_path / "out.safetensors")


def test_names_are_paths_and_duplicates_are_numbered_in_order() -> None:
    variables = [FakeVariable(path, ()) for path in ("a/b", "c", "a/b", "a/b", "c")]
    assert keras_names(variables) == ["a/b", "c", "a/b#2", "a/b#3", "c#2"]


def test_a_path_that_looks_like_a_numbered_one_stays_unique() -> None:
    names = keras_names([FakeVariable(path, ()) for path in ("a", "a#2", "a", "a#2")])
    assert names == ["a", "a#2", "a#3", "a#2#2"]


@pytest.mark.parametrize("source", ["", "checkpoints", "checkpoints/00000020-g1"])
def test_a_run_its_checkpoints_or_one_of_them_can_be_exported(tmp_path: Path, source: str) -> None:
    save(tmp_path / "checkpoints", 10, seed=10)
    save(tmp_path / "checkpoints", 20, seed=20)
    out = tmp_path / "out.safetensors"
    expected = random_values(20)
    assert export(tmp_path / source, out) == len(expected)
    tensors = safetensors.numpy.load_file(out)
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        assert (tensors[name].shape, tensors[name].dtype) == (value.shape, value.dtype)
        assert tensors[name].tobytes() == value.tobytes()


def test_an_older_checkpoint_is_exported_when_it_is_named(tmp_path: Path) -> None:
    older = save(tmp_path, 10, seed=10)
    save(tmp_path, 20, seed=20)
    export(older.folder, tmp_path / "out.safetensors")
    tensors = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    assert tensors["dense/kernel"].tobytes() == random_values(10)["dense/kernel"].tobytes()


def test_a_named_checkpoint_that_is_invalid_is_not_replaced_by_another(tmp_path: Path) -> None:
    save(tmp_path, 10)
    broken = save(tmp_path, 20).folder
    (broken / "manifest.json").unlink()
    with pytest.raises(NoCheckpointError, match="00000020-g1"):
        export(broken, tmp_path / "out.safetensors")


def test_a_folder_without_checkpoints_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint there"):
        export(tmp_path, tmp_path / "out.safetensors")


@pytest.mark.parametrize("name", ["out.h5", "out.npz", "out"])
def test_another_suffix_is_refused_and_the_three_are_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, 10)
    with pytest.raises(UsageError, match=r"\.safetensors, \.weights\.h5 or \.keras"):
        export(tmp_path, tmp_path / name)


def test_a_missing_output_folder_is_a_usage_error(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(UsageError, match="folder that exists"):
        export(tmp_path, tmp_path / "missing" / "out.safetensors")


def test_an_export_follows_no_link_that_another_user_has_left_beside_it(tmp_path: Path) -> None:
    """As in a folder for temporary files."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".tmp-out.safetensors").symlink_to(victim)
    checkpoint = _checkpoint(tmp_path / "checkpoints", {"dense/kernel": KERNEL})
    assert export_safetensors(checkpoint, tmp_path / "out.safetensors") == 1
    assert victim.read_text() == "mine"
    assert not (tmp_path / "out.safetensors").is_symlink()


def test_a_failing_disk_is_a_usage_error_and_keeps_the_older_export(tmp_path: Path) -> None:
    class FullDisk(FakeModel):
        def save_weights(self, filepath: Path) -> None:
            filepath.write_text("half")
            raise OSError(28, "No space left on device")

    out = tmp_path / "out.weights.h5"
    out.write_text("older")
    checkpoint = _checkpoint(tmp_path / "checkpoints", {"dense/kernel": KERNEL})
    with pytest.raises(UsageError, match="No space left on device"):
        export_keras(checkpoint, out, FullDisk([FakeVariable("dense/kernel", (2, 3))]))
    assert out.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "out.weights.h5"]


@pytest.mark.parametrize(("name", "how"), [("out.weights.h5", "weights"), ("out.keras", "model")])
def test_keras_variables_get_their_tensors_trained_ones_first(tmp_path: Path, name: str, how: str) -> None:
    tensors: dict[str, np.ndarray] = {"dense/kernel": KERNEL, "dense/kernel#2": np.array([7], np.int64)}
    checkpoint = _checkpoint(tmp_path / "checkpoints", tensors)
    trained, other = FakeVariable("dense/kernel", (2, 3)), FakeVariable("dense/kernel", (1,))
    assert export_keras(checkpoint, tmp_path / name, FakeModel([trained], [other])) == 2
    np.testing.assert_array_equal(trained.value, KERNEL)
    np.testing.assert_array_equal(other.value, [7])
    assert (tmp_path / name).read_text() == how


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ([FakeVariable("dense/kernel", (3, 2))], r"'dense/kernel' is \[2, 3\] in .* \[3, 2\]"),
        ([FakeVariable("dense/other", (2, 3))], r"'dense/kernel' is \[2, 3\] in .* missing"),
        ([FakeVariable("dense/kernel", (2, 3)), FakeVariable("new", (1,))], r"'new' is missing in .* \[1\]"),
    ],
)
def test_a_model_of_other_variables_is_refused_before_any_is_set(
    tmp_path: Path, variables: list[FakeVariable], problem: str
) -> None:
    checkpoint = _checkpoint(tmp_path / "checkpoints", {"dense/kernel": KERNEL})
    with pytest.raises(BadJobError, match=problem):
        export_keras(checkpoint, tmp_path / "out.keras", FakeModel(variables))
    assert all(variable.value is None for variable in variables)
    assert not (tmp_path / "out.keras").exists()


def test_a_checkpoint_that_names_no_program_has_no_keras_export(tmp_path: Path) -> None:
    save(tmp_path, 10)
    with pytest.raises(UsageError, match="names no program"):
        export(tmp_path, tmp_path / "out.keras")


def test_a_graph_program_has_no_keras_export(tmp_path: Path) -> None:
    _checkpoint(tmp_path / "checkpoints", {"w": KERNEL}, _extra(tmp_path, "graph_program"))
    with pytest.raises(UsageError, match="exported_program:graph_program has no Keras model"):
        export(tmp_path, tmp_path / "out.weights.h5")


def _load_model(path: Path, _: Callable[[], Any]) -> Any:
    return importlib.import_module("keras").models.load_model(path)


def _load_weights(path: Path, build: Callable[[], Any]) -> Any:
    model = build()
    model.load_weights(path)
    return model


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning:keras")  # Keras 3.15 with NumPy 2.
@pytest.mark.parametrize(("name", "load"), [("out.keras", _load_model), ("out.weights.h5", _load_weights)])
def test_keras_reads_the_exported_file_with_the_checkpoints_values(
    tmp_path: Path, name: str, load: Callable[[Path, Callable[[], Any]], Any]
) -> None:
    extra = _extra(tmp_path, "keras_program")
    job = parse_job(extra["job"])
    program = load_program(job, tmp_path)
    assert isinstance(program, KerasProgram)
    model = built_model(program, job)
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    tensors = {
        path: np.full(variable.shape, i + 1, variable.dtype)
        for i, (path, variable) in enumerate(zip(keras_names(variables), variables, strict=True))
    }
    _checkpoint(tmp_path / "checkpoints", tensors, extra)
    assert export(tmp_path, tmp_path / name) == len(tensors)
    loaded = load(tmp_path / name, program.model)
    found = [*loaded.trainable_variables, *loaded.non_trainable_variables]
    # Keras writes no seeds of dropout into its files.
    saved = [(pair, variable) for pair, variable in zip(tensors.items(), found, strict=True) if "seed" not in pair[0]]
    assert len(saved) == len(tensors) - 1
    for (path, expected), variable in saved:
        np.testing.assert_array_equal(variable.numpy(), expected, err_msg=path)


def job_with(best: dict[str, str] | None) -> dict[str, Any]:
    content = {
        "name": "kept",
        "program": "program:build",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 30, "batch_size": 4},
        "evaluate": {"every_steps": 10},
        "checkpoint": {"best": best},
    }
    return {"job": parse_job(content).model_dump(mode="json")}


def evaluated_run(root: Path, best: dict[str, str] | None, *values: float) -> Path:
    """A run folder whose checkpoints of steps 10, 20, … have been evaluated."""
    for number, value in enumerate(values, 1):
        checkpoint = save(root / "checkpoints", 10 * number, seed=number, extra=job_with(best))
        evaluated.write(checkpoint, {"accuracy": value})
    return root


@pytest.mark.parametrize(("direction", "seed"), [("maximize", 2), ("minimize", 1)])
@pytest.mark.parametrize("folder", ["", "checkpoints"])
def test_the_best_checkpoint_is_exported_instead_of_the_newest(
    tmp_path: Path, direction: str, seed: int, folder: str
) -> None:
    run = evaluated_run(tmp_path, {"metric": "accuracy", "direction": direction}, 0.5, 0.75, 0.625)
    export(run / folder, tmp_path / "w.safetensors", best=True)
    found = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    assert found["dense/kernel"].tobytes() == random_values(seed)["dense/kernel"].tobytes()


def test_without_a_best_checkpoint_the_export_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "w.safetensors"
    with pytest.raises(UsageError, match="no checkpoint there"):
        export(tmp_path / "none", out, best=True)
    with pytest.raises(UsageError, match=r"has no checkpoint\.best"):
        export(evaluated_run(tmp_path / "unwatched", None, 0.5), out, best=True)
    watched = {"metric": "accuracy", "direction": "maximize"}
    with pytest.raises(UsageError, match="was evaluated with a finite accuracy"):
        export(evaluated_run(tmp_path / "nan", watched, float("nan")), out, best=True)
    damaged = evaluated_run(tmp_path / "damaged", watched, 0.5)
    part = next(damaged.glob("checkpoints/*/ps-0*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(NoCheckpointError, match="SHA-256"):
        export(damaged, out, best=True)
    assert not out.exists()
