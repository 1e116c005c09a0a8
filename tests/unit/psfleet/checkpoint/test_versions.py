"""A version of a model is complete or not there, and predicts what its checkpoint's weights do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from psfleet.checkpoint import versions
from psfleet.checkpoint.store import write_initial
from psfleet.checkpoint.versions import export_version
from psfleet.errors import UsageError
from psfleet.layout import Layout, TensorSpec

PROGRAM = """
import keras
from psfleet import GraphProgram, KerasProgram

def keras_program():
    return KerasProgram(
        model=lambda: keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(3, name="dense")], name="net"),
        loss="mse", train=lambda index, count: None,
    )

def graph_program():
    return GraphProgram(loss=lambda batch: None, train=lambda index, count: None)
"""
KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([1, 2, 3], np.float32)
X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def _run(folder: Path, callable_name: str = "keras_program") -> Path:
    """A run folder with a checkpoint of step 0."""
    (folder / "versioned_program.py").write_text(PROGRAM)
    job = {
        "name": "net",
        "program": f"versioned_program:{callable_name}",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1, "batch_size": 1},
    }
    tensors = {"net/dense/kernel": KERNEL, "net/dense/bias": BIAS}
    specs = [TensorSpec(name, value.shape, "float32") for name, value in tensors.items()]
    extra: dict[str, Any] = {"job": job, "program_folder": str(folder)}
    layout = Layout.plan(specs, [], [], 1, 4096)
    write_initial(folder / "checkpoints", layout, tensors, run="r", generation=1, optimizer="sgd", extra=extra)
    return folder


def test_a_saved_model_predicts_with_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    version = export_version(_run(tmp_path), tmp_path / "out", "saved_model")
    assert version.folder == tmp_path / "out" / "0"
    assert (version.folder / "saved_model.pb").is_file()
    served = tf.saved_model.load(version.folder).signatures["serving_default"]
    (name,) = served.structured_input_signature[1]
    (found,) = served(**{name: X}).values()
    np.testing.assert_allclose(found, X @ KERNEL + BIAS, rtol=1e-6)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["0"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, which loads a model
def test_a_keras_model_predicts_with_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    version = export_version(_run(tmp_path), tmp_path / "out", "keras", step=0)
    model = keras.models.load_model(version.folder / "model.keras")
    np.testing.assert_allclose(model(X).numpy(), X @ KERNEL + BIAS, rtol=1e-6)


def test_a_version_that_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out" / "0").mkdir(parents=True)
    with pytest.raises(UsageError, match="version 0 exists"):
        export_version(_run(tmp_path), tmp_path / "out", "keras")


def test_a_full_disk_leaves_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: Any, path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", full)
    with pytest.raises(UsageError, match="No space left on device"):
        export_version(_run(tmp_path), tmp_path / "out", "keras")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_step_without_a_checkpoint_is_refused_and_the_others_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--step 7: .* expected one of 0"):
        export_version(_run(tmp_path), tmp_path / "out", "keras", step=7)


def test_a_run_without_a_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    for step in (None, 7):
        with pytest.raises(UsageError, match="no checkpoint there"):
            export_version(tmp_path, tmp_path / "out", "keras", step=step)


@pytest.mark.parametrize("kind", versions.FORMATS)
def test_a_graph_program_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match="has no Keras model, expected a KerasProgram"):
        export_version(_run(tmp_path, "graph_program"), tmp_path / "out", kind)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--format onnx: expected one of saved_model, keras"):
        export_version(tmp_path, tmp_path / "out", "onnx")
