"""A version of a model is complete or not there, and predicts what its checkpoint's weights do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.exported_run import BIAS, KERNEL, X, trained

from psfleet.checkpoint import versions
from psfleet.checkpoint.store import write_initial
from psfleet.checkpoint.versions import Request, Version
from psfleet.errors import NoCheckpointError, ProgramError, UsageError
from psfleet.layout import EmbeddingSpec, Layout, TensorSpec, initial_rows
from worker_service import export as service
from worker_service.predictions.graph_model import GraphModel


def export_version(source: Path, out: Path, kind: str, step: int | None = None) -> Version:
    """Exports in this process."""
    checkpoint = versions.find(source, step)
    request = Request(checkpoint=str(checkpoint.folder), kind=kind)
    return versions.export_version(checkpoint, out, lambda folder: service.write(request, folder))


def test_a_saved_model_predicts_with_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    version = export_version(trained(tmp_path), tmp_path / "out", "saved_model")
    assert version.folder == tmp_path / "out" / "0"
    assert (version.folder / "saved_model.pb").is_file()
    served = tf.saved_model.load(version.folder).signatures["serving_default"]
    (name,) = served.structured_input_signature[1]
    (found,) = served(**{name: X}).values()
    np.testing.assert_allclose(found, X @ KERNEL + BIAS, rtol=1e-6)
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["0"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, which loads a model
def test_a_keras_model_predicts_with_the_weights_of_the_checkpoint(tmp_path: Path) -> None:
    version = export_version(trained(tmp_path), tmp_path / "out", "keras", step=0)
    model = keras.models.load_model(version.folder / "model.keras")
    np.testing.assert_allclose(model(X).numpy(), X @ KERNEL + BIAS, rtol=1e-6)


def test_a_version_that_exists_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out" / "0").mkdir(parents=True)
    with pytest.raises(UsageError, match="version 0 exists"):
        export_version(trained(tmp_path), tmp_path / "out", "keras")


def test_a_full_disk_leaves_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: Any, path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", full)
    with pytest.raises(UsageError, match="No space left on device"):
        export_version(trained(tmp_path), tmp_path / "out", "keras")
    assert not (tmp_path / "out").exists()


def test_a_step_without_a_checkpoint_is_refused_and_the_others_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--step 7: .* expected one of 0"):
        export_version(trained(tmp_path), tmp_path / "out", "keras", step=7)


def test_a_run_without_a_checkpoint_has_exit_code_65(tmp_path: Path) -> None:
    for step in (None, 7):
        with pytest.raises(NoCheckpointError, match="no checkpoint there"):
            export_version(tmp_path, tmp_path / "out", "keras", step=step)


def test_the_best_checkpoint_excludes_a_step(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--step 0 and --best exclude each other"):
        versions.find(trained(tmp_path), 0, best=True)
    with pytest.raises(UsageError, match=r"has no checkpoint\.best"):
        versions.find(tmp_path, best=True)


def test_a_saved_model_that_predicts_other_values_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(archive: Any, folder: Path, **options: Any) -> None:
        _, bias = archive._tf_trackable.variables
        bias.assign_add([0, 0, 1])
        written(archive, folder, **options)
        bias.assign_sub([0, 0, 1])

    archives = type(keras.export.ExportArchive())
    written = archives.write_out
    monkeypatch.setattr(archives, "write_out", changed)
    with pytest.raises(ProgramError, match="differ by up to 1 from those of the model"):
        export_version(trained(tmp_path), tmp_path / "out", "saved_model")
    assert not (tmp_path / "out").exists()


def test_a_model_that_tensorflow_cannot_save_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(archive: Any, folder: Path, **options: Any) -> None:
        raise ValueError("no signature\nfurther lines")

    monkeypatch.setattr(type(keras.export.ExportArchive()), "write_out", fails)
    with pytest.raises(ProgramError, match=r"exporting the model raised ValueError: no signature$"):
        export_version(trained(tmp_path), tmp_path / "out", "saved_model")


def test_a_graph_program_is_exported_with_its_predictions(tmp_path: Path) -> None:
    version = export_version(trained(tmp_path, "predicting_program"), tmp_path / "out", "saved_model")
    assert version.summary == "predictions of 1 examples verified"
    served = tf.saved_model.load(version.folder).signatures["serving_default"]
    found = served(x=tf.constant(X), scale=tf.constant([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found["logits"], (X @ KERNEL + BIAS) * [[1], [2], [3]], rtol=1e-6)
    assert found["label"].numpy().tolist() == [9, 9, 9]


def test_a_saved_graph_that_predicts_other_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(model: GraphModel, features: Any) -> dict[str, np.ndarray]:
        return {name: value + 1 for name, value in predict(model, features).items()}

    predict = GraphModel.predict
    monkeypatch.setattr(GraphModel, "predict", changed)
    with pytest.raises(ProgramError, match="differ by up to 1 from those of the model"):
        export_version(trained(tmp_path, "predicting_program"), tmp_path / "out", "saved_model")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "program", "expected"),
    [
        ("keras", "predicting_program", r"--format keras: .* is a GraphProgram, expected --format saved_model"),
        ("litert", "predicting_program", r"--format litert: .* is a GraphProgram, expected --format saved_model"),
        ("saved_model", "graph_program", r"has no predictions, expected GraphProgram\(predict=\.\.\.\)"),
    ],
)
def test_what_a_graph_program_has_not_is_refused(tmp_path: Path, kind: str, program: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        export_version(trained(tmp_path, program), tmp_path / "out", kind)


ROWS_PROGRAM = """
import tensorflow as tf
from psfleet import GraphProgram

def build():
    data = lambda *shard: tf.data.Dataset.from_tensor_slices(([[1, 2], [7, 7]], [0, 0]))
    return GraphProgram(loss=lambda batch: None, train=data, predict=predict)

def predict(ids):
    table = tf.compat.v1.get_variable("user", [50, 2])
    return [tf.nn.embedding_lookup(table, ids), ids + 1]
"""


def test_a_graph_program_is_exported_with_all_rows_of_its_tables(tmp_path: Path) -> None:
    (tmp_path / "rows_program.py").write_text(ROWS_PROGRAM)
    job = {
        "name": "rows",
        "program": "rows_program:build",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1, "batch_size": 2},
        "tables": {"user": {"rows": 50}},
    }
    table = EmbeddingSpec("user", "user", 50, 2, "uniform", 0.5, 1)
    layout = Layout.plan([TensorSpec("bias", (3,), "float32")], [], [], 1, 4096, embeddings=(table,))
    values = {"run": "r", "generation": 1, "optimizer": "sgd", "extra": {"job": job, "program_folder": str(tmp_path)}}
    write_initial(tmp_path / "checkpoints", layout, {"bias": BIAS}, **values)  # type: ignore[arg-type]
    version = export_version(tmp_path, tmp_path / "out", "saved_model")
    assert version.summary == "predictions of 2 examples verified"
    served = tf.saved_model.load(version.folder).signatures["serving_default"]
    found = served(inputs=tf.constant([[3, 49], [0, 3]]))
    expected = initial_rows(table, np.array([3, 49, 0, 3])).reshape([2, 2, 2])
    np.testing.assert_array_equal(found["predictions_0"], expected)
    assert found["predictions_1"].numpy().tolist() == [[4, 50], [1, 4]]


TEXT_PROGRAM = """
import tensorflow as tf
from psfleet import GraphProgram

def build():
    data = lambda *shard: tf.data.Dataset.from_tensor_slices(["ann", "bob"])
    return GraphProgram(loss=lambda batch: None, train=data, predict=tf.strings.upper)
"""


def text_run(folder: Path, module: str, program: str) -> Path:
    """A run folder with a checkpoint of a program whose features are texts."""
    (folder / f"{module}.py").write_text(program)
    job = {
        "name": "text",
        "program": f"{module}:build",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 1, "batch_size": 2},
    }
    layout = Layout.plan([TensorSpec("bias", (3,), "float32")], [], [], 1, 4096)
    values = {"run": "r", "generation": 1, "optimizer": "sgd", "extra": {"job": job, "program_folder": str(folder)}}
    write_initial(folder / "checkpoints", layout, {"bias": BIAS}, **values)  # type: ignore[arg-type]
    return folder


def test_a_graph_program_that_predicts_strings_is_exported(tmp_path: Path) -> None:
    version = export_version(text_run(tmp_path, "text_program", TEXT_PROGRAM), tmp_path / "out", "saved_model")
    served = tf.saved_model.load(version.folder).signatures["serving_default"]
    assert served(inputs=tf.constant(["eve"]))["predictions"].numpy().tolist() == [b"EVE"]


VOCABULARY_PROGRAM = """
import pathlib
import tensorflow as tf
from psfleet import GraphProgram

def build():
    data = lambda *shard: tf.data.Dataset.from_tensor_slices(["ann", "bob"])
    return GraphProgram(loss=lambda batch: None, train=data, predict=predict)

def predict(words):
    file = str(pathlib.Path(__file__).with_name("words.txt"))
    key, value = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    content = tf.lookup.TextFileInitializer(file, tf.string, key, tf.int64, value)
    return tf.lookup.StaticHashTable(content, -1).lookup(words)
"""


def test_a_graph_program_is_exported_with_the_files_of_its_vocabularies(tmp_path: Path) -> None:
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("eve\nann\n")
    run = text_run(tmp_path, "vocabulary_program", VOCABULARY_PROGRAM)
    version = export_version(run, tmp_path / "out", "saved_model")
    vocabulary.unlink()
    elsewhere = version.folder.rename(tmp_path / "elsewhere")
    served = tf.saved_model.load(elsewhere).signatures["serving_default"]
    assert served(inputs=tf.constant(["ann", "bob", "eve"]))["predictions"].numpy().tolist() == [1, -1, 0]


@pytest.mark.parametrize("kind", versions.FORMATS)
def test_a_table_whose_rows_are_hashes_is_refused(tmp_path: Path, kind: str) -> None:
    table = EmbeddingSpec("user", "user/embeddings", 50, 2, "zeros", 0.0, 1, is_hashed=True)
    layout = Layout.plan([TensorSpec("bias", (3,), "float32")], [], [], 1, 4096, embeddings=(table,))
    values = {"run": "r", "generation": 1, "optimizer": "sgd", "extra": {}}
    write_initial(tmp_path / "checkpoints", layout, {"bias": BIAS}, **values)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=rf"--format {kind}: tables\.user\.hash is true"):
        export_version(tmp_path, tmp_path / "out", kind)
