"""Predictions of Keras models and graph programs, also with tables whose rows are hashes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.program_samples import sample_job

from psfleet.errors import BadJobError, ProgramError, UsageError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.layout import EmbeddingSpec
from psfleet.layout.embedding import IDS, ROWS
from worker_service.predictions.predictor import predictor
from worker_service.predictions.weights import Weights

X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([1, 2, 3], np.float32)
FEATURES = tf.TensorSpec([None, 2], tf.float32)
USERS = np.array([b"ann", b"bob", b"eve"], object)


def _tables_job() -> Job:
    fields = sample_job().model_dump(mode="json", exclude_defaults=True)
    return parse_job(fields | {"tables": {"user": {"rows": 50, "hash": True, "init": "zeros"}}})


def _weights(values: Mapping[str, np.ndarray], tables: Sequence[EmbeddingSpec] = (), step: int = 1) -> Weights:
    return Weights(step, values, "the weights", tables)


def _data(index: int, count: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, X))


def _graph(predict: Callable[[Any], Any] | None) -> GraphProgram:
    return GraphProgram(loss=lambda batch: tf.constant(0.0), train=_data, predict=predict)


def test_a_keras_model_predicts_with_the_given_weights_and_without_dropout() -> None:
    layers = [keras.layers.Input([2]), keras.layers.Dense(3, name="dense"), keras.layers.Dropout(0.9, name="dropout")]
    program = KerasProgram(model=lambda: keras.Sequential(layers, name="net"), loss="mse", train=_data)
    by_end = {"kernel": KERNEL, "bias": BIAS, "seed_generator_state": np.zeros(2, np.uint32)}
    values = {each.path: by_end[each.path.split("/")[-1]] for each in program.model().variables}
    model = predictor(program, sample_job(), _weights(values), FEATURES)
    for rows in (X, X[:1]):
        np.testing.assert_allclose(model.predict([rows])["predictions"], rows @ KERNEL + BIAS)


def test_variables_that_differ_from_the_weights_are_refused() -> None:
    program = KerasProgram(
        model=lambda: keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(3, name="dense")], name="net"),
        loss="mse",
        train=_data,
    )
    with pytest.raises(BadJobError, match=r"'net/dense/bias' is missing in the weights and \[3\] in the program"):
        predictor(program, sample_job(), _weights({}), FEATURES)


def test_a_graph_program_predicts_with_the_variables_of_its_loss() -> None:
    def predict(x: tf.Tensor) -> dict[str, tf.Tensor]:
        with v1.variable_scope("net"):
            y = x @ v1.get_variable("kernel", [2, 3]) + v1.get_variable("bias", [3])
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1, 2], [7, 8, 9]), 0)
        return {"logits": y, "label": table.lookup(tf.argmax(y, 1, tf.int32))}

    values = {"net/kernel": KERNEL, "net/bias": BIAS, "unused": BIAS}
    found = predictor(_graph(predict), sample_job(), _weights(values), FEATURES).predict([X])
    np.testing.assert_allclose(found["logits"], X @ KERNEL + BIAS)
    assert found["label"].tolist() == [9, 9, 9]


@pytest.mark.parametrize(
    ("predict", "error", "message"),
    [
        (None, UsageError, r"has no predictions, expected GraphProgram\(predict=\.\.\.\)"),
        (lambda x: v1.get_variable("other", [2]), BadJobError, "gets variable other of shape .*, which is missing"),
        (lambda x: v1.get_variable("kernel", [9]), BadJobError, r"of shape \(9,\), which is \[2, 3\] in the weights"),
        (lambda x: 3, ProgramError, "predictions is a int, expected a dense tensor of numbers or strings"),
        (lambda x: {}, ProgramError, "there are no predictions"),
        (lambda x: 1 / 0, ProgramError, r"predict\(features\) raised ZeroDivisionError"),
    ],
)
def test_a_function_that_cannot_predict_is_refused(
    predict: Callable[[Any], Any] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        predictor(_graph(predict), sample_job(), _weights({"kernel": KERNEL}), FEATURES)


def _keras_rows() -> KerasProgram:
    def model() -> keras.Model:
        inputs = keras.Input((), dtype="string")
        rows = keras.layers.Embedding(50, 2, name="user")(inputs)
        return keras.Model(inputs, keras.layers.Dense(2, use_bias=False, name="out")(rows))

    data = tf.data.Dataset.from_tensor_slices((USERS.astype(str), X))
    return KerasProgram(model=model, loss="mse", train=lambda index, count: data)


def _graph_rows() -> GraphProgram:
    return _graph(lambda ids: tf.gather(v1.get_variable("user", [50, 2]), ids))


def _rows_of(name: str, rows: Mapping[bytes, float]) -> tuple[dict[str, np.ndarray], EmbeddingSpec]:
    numbers = {text: int(tf.strings.to_hash_bucket_fast(text, 50)) for text in rows}
    order = sorted(rows, key=lambda text: numbers[text])
    table = _tables_job().tables["user"]
    spec = EmbeddingSpec("user", name, table.rows, 2, table.init, table.init_scale, _tables_job().train.seed, True)
    return {
        f"{name}{IDS}": np.array([numbers[text] for text in order], np.int64),
        f"{name}{ROWS}": np.array([[rows[text]] * 2 for text in order], np.float32),
    }, spec


@pytest.mark.parametrize(
    ("program", "name", "dense"),
    [(_keras_rows(), "user/embeddings", {"out/kernel": np.eye(2, dtype=np.float32)}), (_graph_rows(), "user", {})],
)
def test_rows_of_hashed_tables_are_those_of_the_newest_weights_or_initial_ones(
    program: KerasProgram | GraphProgram, name: str, dense: dict[str, np.ndarray]
) -> None:
    values, spec = _rows_of(name, {b"ann": 0.25, b"bob": 0.5})
    model = predictor(program, _tables_job(), _weights(values | dense, [spec]), tf.TensorSpec([None], tf.string))
    for count in (3, 2):
        found = model.predict([USERS[:count]])["predictions"]
        assert found.tolist() == [[0.25, 0.25], [0.5, 0.5], [0, 0]][:count]
    newer, _ = _rows_of(name, {b"ann": 0.75, b"eve": 1.0})
    model.assign(_weights(newer | dense, [spec]))
    assert model.predict([USERS])["predictions"].tolist() == [[0.75, 0.75], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("program", "name", "dense"),
    [(_keras_rows(), "user/embeddings", {"out/kernel": np.eye(2, dtype=np.float32)}), (_graph_rows(), "user", {})],
)
def test_weights_of_another_model_are_refused_and_those_before_stay(
    program: KerasProgram | GraphProgram, name: str, dense: dict[str, np.ndarray]
) -> None:
    values, spec = _rows_of(name, {b"ann": 0.25})
    model = predictor(program, _tables_job(), _weights(values | dense, [spec]), tf.TensorSpec([None], tf.string))
    newer, _ = _rows_of(name, {b"ann": 0.75})
    for others, table, problem in (
        ({"new": BIAS}, spec, r"tensor 'new' is \[3\] in the weights and missing in the program's model"),
        (
            {},
            replace(spec, seed=8),
            rf"table '{name}' is user, 50 x 2, hashed, zeros 0\S* of seed 8 in the weights and",
        ),
    ):
        with pytest.raises(BadJobError, match=problem):
            model.assign(_weights(newer | dense | others, [table]))
        assert model.predict([USERS[:1]])["predictions"].tolist() == [[0.25, 0.25]]
