"""Embedding tables of programs: which layers and variables they are, their gradients, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from keras import layers
from support.programs import table_program
from support.programs.table_program import NAME, WIDTH

from psfleet.errors import ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.layout import initial_rows
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.local_step import LocalStep
from worker_service.session_errors import translate_errors

ROWS, BATCH_SIZE, SEED = 100, 8, 7
KEYS = {"keras": "user", "graph": NAME}


def job_of(**tables: Any) -> Job:
    train = {"steps": 10, "batch_size": BATCH_SIZE, "seed": SEED}
    optimizer = {"name": "sgd", "learning_rate": 0.1}
    return parse_job({"name": "a", "program": "p:b", "optimizer": optimizer, "train": train, "tables": tables})


def job_with(key: str, rows: int = ROWS) -> Job:
    return job_of(**{key: {"rows": rows}})


def first_batch() -> tuple[np.ndarray, np.ndarray]:
    ids, y = table_program.data()
    return ids[:BATCH_SIZE], y[:BATCH_SIZE]


@pytest.mark.parametrize("kind", ["keras", "graph"])
def test_the_gradient_of_a_table_is_that_of_a_dense_layer_and_has_each_row_once(kind: str) -> None:
    job = job_with(KEYS[kind])
    front = front_end(table_program.build(ROWS, kind), job, 1, 0)
    (spec,) = front.embeddings
    assert (spec.key, spec.name, spec.rows, spec.width, spec.seed) == (KEYS[kind], NAME, ROWS, WIDTH, SEED)
    assert [each.name for each in front.parameters] == ["out/kernel", "out/bias"]
    step, rows = LocalStep(front, planned(front, job)), initial_rows(spec, np.arange(ROWS))
    # Saved rows take the place of initial ones.
    rows[3] = 0.5
    values = {**front.initial_values(), f"{NAME}#ids": np.array([3]), f"{NAME}#rows": rows[[3]]}
    (table,) = step.training.tables
    with v1.Session(graph=step.graph) as session:
        fetches = [table.ids, table.values, list(step.training.gradients)]
        ids, found, others = session.run(fetches, step.feeds(values) | step.batch(first_batch()))
    dense = {NAME: rows, "out/kernel": values["out/kernel"], "out/bias": values["out/bias"]}
    expected, _ = table_program.gradient(dense, 0, first_batch())
    assert len(set(ids.tolist())) == len(ids)
    read = first_batch()[0]
    assert set(ids.tolist()) == {*read.reshape(-1).tolist(), *(read[:, 0] + 1).tolist()}
    np.testing.assert_allclose(found, expected[NAME][ids], atol=1e-6)
    np.testing.assert_allclose(others[0], expected["out/kernel"].reshape(-1), atol=1e-6)


def test_a_worker_has_no_memory_for_the_rows_of_a_table() -> None:
    rows = 10**12
    front = front_end(table_program.build(rows), job_with("user", rows), 1, 0)
    assert front.embeddings[0].rows == rows


def test_the_program_of_another_job_is_built_as_before() -> None:
    build = layers.Embedding.build
    front_end(table_program.build(ROWS), job_with("user"), 1, 0)
    assert layers.Embedding.build is build
    front = front_end(table_program.build(ROWS), job_of(), 1, 0)
    assert [each.name for each in front.parameters] == [NAME, "out/kernel", "out/bias"]
    assert front.embeddings == ()


@pytest.mark.parametrize("kind", ["keras", "graph"])
@pytest.mark.parametrize("largest", [ROWS, -1])
def test_an_id_that_is_no_row_is_named(kind: str, largest: int) -> None:
    job = job_with(KEYS[kind])
    front = front_end(table_program.build(ROWS, kind), job, 1, 0)
    step = LocalStep(front, planned(front, job))
    ids, y = first_batch()
    ids = ids.copy()
    ids[2, 1] = largest
    feeds = step.feeds(front.initial_values()) | step.batch((ids, y))
    with (
        v1.Session(graph=step.graph) as session,
        pytest.raises(ProgramError) as refused,
        translate_errors(", step 1: ", 0),
    ):
        session.run(step.training.loss, feeds)
    low, high = int(min(ids.min(), largest)), int(ids.max())
    key = KEYS[kind]
    assert str(refused.value) == f"worker 0, step 1: table {key} is read at ids from {low} to {high}, expected 0 to 99"


class OwnCall(layers.Embedding):
    """An embedding layer with a call of its own."""

    def call(self, inputs: Any) -> Any:
        """See keras.layers.Layer."""
        return super().call(inputs) * 2


def keras_program(table: Callable[[], Any], calls: bool = True, trains: bool = True) -> KerasProgram:
    """A model with a layer made by `table`, which it calls or only has, and which is trained or not."""

    def model() -> keras.Model:
        ids = keras.Input((3,), dtype="int64")
        out = layers.Dense(1, name="out")
        layer = table()
        found = layer(ids)
        if not calls:
            found = keras.ops.cast(ids, "float32")
        built = keras.Model(ids, out(layers.Flatten()(found)))
        built.extra = layer
        layer.trainable = trains
        return built

    return KerasProgram(model=model, loss="mse", train=table_program.build().train)


def embedding(**options: Any) -> Callable[[], Any]:
    return lambda: layers.Embedding(ROWS, WIDTH, name="user", **options)


@pytest.mark.parametrize(
    ("program", "job", "expected"),
    [
        (
            keras_program(embedding()),
            job_with("item"),
            "table item is not the path of an Embedding layer; those of the model are user",
        ),
        (
            keras_program(embedding()),
            job_with("out"),
            "table out is not the path of an Embedding layer; it is that of Dense",
        ),
        (
            keras_program(embedding()),
            job_with("user", 99),
            "tables.user.rows is 99, expected input_dim of its layer, 100",
        ),
        (
            keras_program(embedding(), calls=False),
            job_with("user"),
            "the forward pass does not call layer user, which tables names",
        ),
        (
            keras_program(embedding(embeddings_regularizer="l2")),
            job_with("user"),
            "has embeddings_regularizer, which no ps",
        ),
        (keras_program(embedding(), trains=False), job_with("user"), "layer user of a table has trainable=False"),
        (
            keras_program(lambda: OwnCall(ROWS, WIDTH, name="user")),
            job_with("user"),
            "layer user of a table has a call of its own, expected that of Embedding",
        ),
    ],
)
def test_a_layer_that_cannot_be_a_table_is_refused(program: KerasProgram, job: Job, expected: str) -> None:
    with pytest.raises(ProgramError) as refused:
        front_end(program, job, 1, 0)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_layer_that_was_built_before_is_refused() -> None:
    built = table_program.model(ROWS)
    program = KerasProgram(model=lambda: built, loss="mse", train=table_program.build().train)
    with pytest.raises(ProgramError, match=r"layer user of a table was built before model\(\) was called"):
        front_end(program, job_with("user"), 1, 0)


def graph_program(read: Callable[[Any, tf.Tensor], tf.Tensor], **options: Any) -> GraphProgram:
    """A loss of what `read` returns of the table and ids."""

    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        ids, y = batch
        table = v1.get_variable("user", **{"shape": [ROWS, WIDTH], **options})
        kernel = v1.get_variable("kernel", [WIDTH, 1])
        return tf.reduce_mean(tf.square(tf.reduce_sum(read(table, ids), 1) @ kernel - y))

    return GraphProgram(loss=loss, train=table_program.build().train)


def in_a_loop(table: Any, ids: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: tf.gather(table, row), ids, fn_output_signature=tf.float32)


@pytest.mark.parametrize(
    ("program", "key", "expected"),
    [
        (graph_program(tf.gather), "item", "loss(batch) gets no variable of this name: table item"),
        (graph_program(lambda _, ids: tf.zeros([8, 3, 4])), "user", "loss(batch) reads no rows of it: table user"),
        (
            graph_program(lambda table, _: tf.matmul(table, table, transpose_a=True)),
            "user",
            "table user is read as a whole",
        ),
        (graph_program(tf.gather, shape=[9, 4]), "user", "has shape (9, 4), expected [100, width] as in tables"),
        (graph_program(tf.gather, dtype=tf.float64), "user", "variable user of a table is float64, expected float32"),
        (graph_program(tf.gather, trainable=False), "user", "variable user of a table has trainable=False"),
        (graph_program(tf.gather, regularizer=tf.nn.l2_loss), "user", "variable user of a table has a regularizer"),
    ],
)
def test_a_variable_that_cannot_be_a_table_is_refused(program: GraphProgram, key: str, expected: str) -> None:
    with pytest.raises(ProgramError) as refused:
        front_end(program, job_with(key), 1, 0)
    assert expected in str(refused.value)


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_a_table_in_a_loop_is_refused(version: str) -> None:
    """A worker's graph has control flow v1."""
    (v1.enable_control_flow_v2 if version == "v2" else v1.disable_control_flow_v2)()
    job = job_with("user")
    front: FrontEnd = front_end(graph_program(in_a_loop), job, 1, 0)
    with pytest.raises(ProgramError) as refused:
        LocalStep(front, planned(front, job))
    assert "table user is used in a loop, a branch or a function" in f"{refused.value} {refused.value.details}"


def unknown_length(shard: int, shards: int) -> tf.data.Dataset:
    specs = tf.TensorSpec([None], tf.int64), tf.TensorSpec([1], tf.float32)
    return tf.data.Dataset.from_generator(lambda: iter([([1, 2], [1.0])] * 16), output_signature=specs)


class NeedsLength(layers.Layer):
    """Makes one weight before it finds that it does not know the length."""

    def build(self, shape: tuple[Any, ...]) -> None:
        self.a = self.add_weight(shape=(3,), name="a")
        self.b = self.add_weight(shape=(shape[1],), name="b")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.a[0] + self.b[0]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [(lambda: layers.GlobalAveragePooling1D(), (None, None)), (NeedsLength, (BATCH_SIZE, 2))],
    ids=["any length", "one length"],
)
def test_a_sequential_model_with_a_table_is_built_for_all_sizes_if_it_can_be(
    layer: Callable[[], Any], expected: tuple[int | None, ...]
) -> None:
    def model() -> keras.Model:
        return keras.Sequential(
            [layers.Embedding(ROWS, WIDTH, name="user"), layer(), layers.Flatten(), layers.Dense(1)]
        )

    program = KerasProgram(model=model, loss="mse", train=unknown_length)
    front = front_end(program, job_with("sequential/user"), 1, 0)
    names = [spec.name for spec in front.parameters]
    assert len(names) == (2 if expected == (None, None) else 4)
    assert not [name for name in names if "#" in name], "weights of an attempt that failed"
    assert tuple(front._model.inputs[0].shape) == expected  # type: ignore[attr-defined]


def test_a_table_in_a_function_that_would_not_train_it_is_refused() -> None:
    class Recomputed(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="net")
            self.rows, self.last = layers.Embedding(ROWS, WIDTH, name="user"), layers.Dense(1)

        def call(self, ids: tf.Tensor) -> tf.Tensor:
            return self.last(tf.recompute_grad(lambda each: tf.reduce_mean(self.rows(each), 1))(ids))

    ids = np.ones((16, 2), np.int64)
    data = tf.data.Dataset.from_tensor_slices((ids, np.ones((16, 1), np.float32)))
    job = job_with("net/user")
    front = front_end(KerasProgram(model=Recomputed, loss="mse", train=lambda *_: data), job, 1, 0)
    with pytest.raises(ProgramError, match=r"net/user.* is used inside of a function with a gradient of its own"):
        LocalStep(front, planned(front, job))
