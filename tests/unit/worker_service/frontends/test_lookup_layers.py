"""Models with lookup layers train as in Keras, without the layers being moved into the data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from support.graph_fleet import graph_fleet
from support.program_samples import Stepper, sample_job
from support.rows import first_rows

from psfleet.checkpoint.export import export
from psfleet.checkpoint.store import write_initial
from psfleet.errors import ProgramError
from psfleet.job.job import parse_job
from psfleet.job.program import KerasProgram, load_program
from psfleet.layout import APPROXIMATE, Layout
from psfleet.processes.ports import free_addresses
from psfleet.tf.program_data import built_model
from psfleet.tf.server import boot
from worker_service.frontends import FrontEnd, front_end
from worker_service.validation import check

WORDS = ["cat", "dog", "bird", "fish", "unknown to all"]
COLORS = np.array([[WORDS[number % 5]] for number in range(12)])
TEXTS = np.array([f"{WORDS[number % 4]} and a {WORDS[number % 3]}" for number in range(12)])
NUMBERS = np.random.default_rng(9).normal(size=(12, 3)).astype(np.float32)
TOKENS = np.arange(12, dtype=np.int64)[:, None] % 7 + 40
Y = np.random.default_rng(10).normal(size=(12, 1)).astype(np.float32)
RATE, STEPS, BATCH = 0.1, 3, 4


def behind(inputs: Any, *hidden: Any) -> keras.Model:
    x = inputs
    for layer in hidden:
        x = layer(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def texts() -> keras.Model:
    split = layers.TextVectorization(max_tokens=20, output_sequence_length=5)
    split.adapt(TEXTS)
    return behind(keras.Input((), dtype="string"), split, layers.Embedding(20, 3), layers.Flatten())


def weighted_texts() -> keras.Model:
    split = layers.TextVectorization(max_tokens=20, output_mode="tf_idf", pad_to_max_tokens=True)
    split.adapt(TEXTS)
    return behind(keras.Input((), dtype="string"), split)


def words() -> keras.Model:
    lookup = layers.StringLookup(vocabulary=WORDS[:4], num_oov_indices=2, output_mode="one_hot")
    return behind(keras.Input((1,), dtype="string"), lookup)


def tokens() -> keras.Model:
    lookup = layers.IntegerLookup(mask_token=0)
    lookup.adapt(TOKENS)
    return behind(keras.Input((1,), dtype="int64"), lookup, layers.Embedding(10, 3), layers.Flatten())


def there_and_back() -> keras.Model:
    """Two tables, one of which returns text."""
    names = layers.StringLookup(vocabulary=WORDS[:4], invert=True)
    numbers = layers.StringLookup(vocabulary=WORDS[:4], output_mode="multi_hot")
    return behind(keras.Input((1,), dtype="int64"), names, numbers)


def twice() -> keras.Model:
    """Two tables with the same content."""
    inputs = keras.Input((1,), dtype="string")
    columns = [layers.StringLookup(vocabulary=WORDS[:4], output_mode="one_hot")(inputs) for _ in range(2)]
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(columns)))


def scaled() -> keras.Model:
    scale, steps = layers.Normalization(), layers.Discretization(num_bins=4, output_mode="one_hot")
    scale.adapt(NUMBERS)
    steps.adapt(NUMBERS)
    inputs = keras.Input((3,))
    flat = layers.Flatten()(keras.ops.cast(steps(inputs), "float32"))
    return keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([scale(inputs), flat])))


STYLES: dict[str, tuple[Callable[[], keras.Model], np.ndarray]] = {
    "text_vectorization": (texts, TEXTS),
    "tf_idf": (weighted_texts, TEXTS),
    "string_lookup": (words, COLORS),
    "integer_lookup": (tokens, TOKENS),
    "twice": (twice, COLORS),
    "inverted": (there_and_back, TOKENS % 6),
    "normalization_and_discretization": (scaled, NUMBERS),
}


def program_of(style: str) -> KerasProgram:
    model, x = STYLES[style]
    data = tf.data.Dataset.from_tensor_slices((x, Y))
    return KerasProgram(model=model, loss="mse", train=lambda shard, shards: data, evaluate=lambda: data)


def front_of(style: str) -> FrontEnd:
    return front_end(program_of(style), sample_job(), 1, 0)


def rows(style: str, step: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = slice(step * BATCH, (step + 1) * BATCH)
    return STYLES[style][1][chosen], Y[chosen]


def trained_by_keras(style: str) -> tuple[list[float], keras.Model]:
    model = built_model(program_of(style), sample_job())
    model.compile(keras.optimizers.SGD(RATE), loss="mse", run_eagerly=True)
    losses = []
    for step in range(STEPS):
        x, y = rows(style, step)
        losses.append(float(model.train_on_batch(tf.constant(x), y)))
        model.reset_metrics()
    return losses, model


@pytest.mark.parametrize("style", first_rows(STYLES, 2))
def test_losses_weights_and_evaluation_are_those_of_keras(style: str) -> None:
    expected_losses, model = trained_by_keras(style)
    stepper = Stepper.of(front_of(style))
    values, losses = stepper.front.initial_values(), []
    for step in range(STEPS):
        loss, gradients = stepper.run([stepper.graph.loss, stepper.graph.gradients], rows(style, step), values, step)
        losses.append(float(loss))
        for spec, gradient in zip(stepper.front.parameters, gradients, strict=True):
            values[spec.name] = values[spec.name] - np.float32(RATE) * gradient.reshape(spec.shape)
    np.testing.assert_allclose(losses, expected_losses, rtol=0, atol=1e-5)
    for variable in model.trainable_variables:
        np.testing.assert_allclose(values[variable.path], variable.numpy(), rtol=0, atol=1e-5, err_msg=variable.path)
    data = program_of(style).train(0, 1).batch(BATCH)
    expected = model.evaluate(data, return_dict=True, verbose=0)
    assert stepper.front.evaluate(values, lambda batch: 1 / 0)["loss"] == pytest.approx(expected["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("text_vectorization", ["text_vectorization"]),
        ("twice", ["string_lookup", "string_lookup_1"]),
        ("inverted", ["string_lookup", "string_lookup_1"]),
        ("normalization_and_discretization", []),
    ],
)
def test_tables_have_the_names_of_their_layers(style: str, names: list[str]) -> None:
    assert [name for name, content in front_of(style).tables if not content.startswith(APPROXIMATE)] == names


def test_tables_of_other_keys_or_values_differ() -> None:
    """A program that adapts on its shard of the data gives each worker other words."""

    def digest_of(*vocabulary: str) -> str:
        lookup = layers.StringLookup(vocabulary=[*vocabulary], output_mode="one_hot")
        data = tf.data.Dataset.from_tensor_slices((COLORS, Y))
        program = KerasProgram(
            model=lambda: behind(keras.Input((1,), dtype="string"), lookup), loss="mse", train=lambda *_: data
        )
        [(name, digest)] = front_end(program, sample_job(), 1, 0).tables
        assert name == lookup.name
        return digest

    digests = [digest_of(*words) for words in (["cat", "dog"], ["dog", "cat"], ["cat", "cow"], ["cat"])]
    assert len(set(digests)) == 4
    assert digest_of("cat", "dog") == digests[0]


def test_each_session_of_a_fleet_has_the_tables() -> None:
    style = "string_lookup"
    expected_losses, _ = trained_by_keras(style)
    front = front_of(style)
    train = {"steps": 20, "batch_size": BATCH, "seed": 7}
    optimizer = {"name": "sgd", "learning_rate": RATE}
    with graph_fleet(2, front, front.initial_values(), optimizer=optimizer, train=train) as fleet:
        losses = []
        for step in range(2):
            with fleet.worker(0) as worker:
                x, y = rows(style, step)
                pushed = worker.threads.submit(worker.session.train, (x.astype(object), y), step, step)
                fleet.advance()
                losses.append(pushed.result(30)[0])
    np.testing.assert_allclose(losses, expected_losses[:2], rtol=0, atol=1e-5)


def test_a_server_may_have_the_tables_of_an_earlier_session() -> None:
    """A worker builds its step anew for each generation; tables of one name stay on its server."""
    (own,) = free_addresses(1)
    boot(own, None)
    front = front_of("inverted")
    steppers = [Stepper.of(front, f"grpc://{own.data}") for _ in range(2)]
    names = [
        {op.get_attr("shared_name") for op in stepper.session.graph.get_operations() if op.type == "HashTableV2"}
        for stepper in steppers
    ]
    assert len(names[0]) == 2
    assert names[0] == names[1], "expected no other tables on the server in the next generation"
    losses = [float(stepper.run(stepper.graph.loss, rows("inverted", 0))) for stepper in (*steppers, steppers[0])]
    assert len(set(losses)) == 1
    other = Stepper.of(front_of("string_lookup"), f"grpc://{own.data}")
    assert float(other.run(other.graph.loss, rows("string_lookup", 0))) == pytest.approx(
        trained_by_keras("string_lookup")[0][0], abs=1e-5
    )


PROGRAM = """\
import keras, psfleet, tensorflow as tf

def model():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    return keras.Sequential([keras.Input((1,), dtype="string"), lookup, keras.layers.Dense(1)])

def build():
    data = tf.data.Dataset.from_tensor_slices(([["a"], ["b"], ["c"], ["a"]], [[1.0]] * 4))
    return psfleet.KerasProgram(model=model, loss="mse", train=lambda shard, shards: data)
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning:keras")  # Keras 3.15 with NumPy 2.
def test_a_program_with_tables_is_validated_and_its_checkpoints_exported_with_them(tmp_path: Path) -> None:
    (tmp_path / "words_program.py").write_text(PROGRAM)
    content = {"name": "sample", "program": "words_program:build", "train": {"steps": 1, "batch_size": 4}}
    job = parse_job({**content, "optimizer": {"name": "sgd", "learning_rate": 0.1}})
    assert "4 parameters in 2 tensors" in check(job, tmp_path)
    front = front_end(load_program(job, tmp_path), job, 1, 0)
    values = {spec.name: np.arange(spec.size, dtype=np.float32).reshape(spec.shape) + 1 for spec in front.parameters}
    layout = Layout.plan(front.parameters, front.state, front.frozen, 2, 4096)
    extra = {"job": job.model_dump(mode="json"), "program_folder": str(tmp_path)}
    write_initial(tmp_path, layout, values, run="run", generation=1, optimizer="sgd", extra=extra)
    assert export(tmp_path, tmp_path / "model.keras") == 2
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.ravel(loaded(tf.constant([["c"], ["a"], ["b"]]))).tolist() == [2.0, 3.0, 4.0]


class Counting(layers.Layer):
    """Changes its table in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        key = tf.constant([0], tf.int64)
        found = self.table.lookup(key)
        with tf.control_dependencies([self.table.insert(key, found + 1.0)]):
            return x * tf.ensure_shape(tf.identity(found), [1])

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_a_table_that_the_model_changes_is_refused() -> None:
    data = tf.data.Dataset.from_tensor_slices((NUMBERS, Y))
    program = KerasProgram(
        model=lambda: keras.Sequential([keras.Input((3,)), layers.Dense(1), Counting()]),
        loss="mse",
        train=lambda shard, shards: data,
    )
    with pytest.raises(ProgramError, match=r"uses a resource in .*; expected lookup tables that it only reads"):
        front_end(program, sample_job(), 1, 0)


@pytest.mark.parametrize("layer", [layers.StringLookup, layers.TextVectorization])
def test_a_lookup_layer_without_a_vocabulary_is_refused(layer: Callable[[], Any]) -> None:
    """Keras' `fit` fails, too: the table is not initialized."""
    data = tf.data.Dataset.from_tensor_slices((COLORS, Y))

    def model() -> keras.Model:
        return behind(keras.Input((1,), dtype="string"), layer(), layers.Embedding(9, 2), layers.GlobalMaxPooling1D())

    program = KerasProgram(model=model, loss="mse", train=lambda shard, shards: data)
    with pytest.raises(ProgramError, match=r"a lookup table .* is empty, expected a layer that has a vocabulary"):
        front_end(program, sample_job(), 1, 0)
