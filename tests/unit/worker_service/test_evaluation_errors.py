"""An evaluation that TensorFlow ends with an error, or without examples, fails as the program's, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.programs import table_program
from support.programs.table_program import NAME

from psfleet.errors import ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.evaluation import Evaluator
from worker_service.frontends import front_end, planned

ROWS = 100


def sample_job(**sections: Any) -> Job:
    fields = {"name": "a", "program": "p:b", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    return parse_job({**fields, "train": {"steps": 10, "batch_size": 8}, **sections})


def failure(program: KerasProgram | GraphProgram, **sections: Any) -> str:
    """The message with which the evaluation of its initial values ends."""
    job = sample_job(**sections)
    front = front_end(program, job, 1, 0)
    with pytest.raises(ProgramError) as raised:
        Evaluator(front, planned(front, job), job).evaluate(front.initial_values(), 0)
    return str(raised.value)


@pytest.mark.parametrize(("kind", "key"), [("keras", "user"), ("graph", NAME)])
@pytest.mark.parametrize("wrong", [ROWS, -1])
def test_an_id_out_of_range_is_named(kind: str, key: str, wrong: int) -> None:
    def evaluate() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((np.tile([0, wrong, 1], [10, 1]), np.zeros([10, 1], np.float32)))

    found = failure(replace(table_program.build(ROWS, kind), evaluate=evaluate), tables={key: {"rows": ROWS}})
    expected = f"table {key} is read at ids from {min(0, wrong)} to {max(1, wrong)}, expected 0 to {ROWS - 1}"
    assert found == f"program 'p:b': evaluating the model: {expected}"


def test_the_reason_of_another_error_is_named() -> None:
    def loss(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(batch[0] < 9), ["nine is too much"])]):
            return table_program.loss(batch, ROWS)

    def evaluate() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((np.full([10, 3], 9), np.zeros([10, 1], np.float32)))

    found = failure(replace(table_program.build(ROWS, "graph"), loss=loss, evaluate=evaluate))
    expected = "assertion failed: [nine is too much]"
    assert found == f"program 'p:b': evaluating the model raised InvalidArgumentError: {expected}"


@pytest.mark.parametrize(("kind", "key"), [("keras", "user"), ("graph", NAME)])
def test_data_that_are_empty_in_a_later_evaluation_are_refused(kind: str, key: str) -> None:
    """As those of a generator that is made once."""
    rows = iter([([1, 2, 3], [0.0])] * 20)
    signature = (tf.TensorSpec([3], tf.int64), tf.TensorSpec([1], tf.float32))

    def evaluate() -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(lambda: rows, output_signature=signature)

    job = sample_job(tables={key: {"rows": ROWS}})
    front = front_end(replace(table_program.build(ROWS, kind), evaluate=evaluate), job, 1, 0)
    evaluator, values = Evaluator(front, planned(front, job), job), front.initial_values()
    assert "loss" in evaluator.evaluate(values, 0)
    with pytest.raises(ProgramError, match=r"^program 'p:b': the evaluation data are empty when they are read again"):
        evaluator.evaluate(values, 0)


class OwnEvaluation(keras.Model):
    """A model whose `evaluate` takes no callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """See `keras.Model`."""
        return self.dense(inputs)

    def evaluate(self, data: tf.data.Dataset, return_dict: bool = True, verbose: int = 0) -> dict[str, float]:
        """See `keras.Model`."""
        return {"batches": float(sum(1 for _ in data))}


def test_a_model_may_have_an_evaluation_of_its_own() -> None:
    data = tf.data.Dataset.from_tensor_slices((np.zeros([20, 3], np.float32), np.zeros([20, 1], np.float32)))
    program = KerasProgram(
        model=OwnEvaluation, loss=keras.losses.MeanSquaredError(), train=lambda *_: data, evaluate=lambda: data
    )
    job = sample_job()
    front = front_end(program, job, 1, 0)
    found = Evaluator(front, planned(front, job), job).evaluate(front.initial_values(), 0)
    assert found == {"batches": 3}
