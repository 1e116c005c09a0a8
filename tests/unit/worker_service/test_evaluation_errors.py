"""An evaluation that TensorFlow ends with an error fails as the program's, and says why in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.programs import table_program
from support.programs.table_program import NAME

from psfleet.errors import ProgramError
from psfleet.job.job import parse_job
from psfleet.job.program import GraphProgram, KerasProgram
from worker_service.evaluation import Evaluator
from worker_service.frontends import front_end, planned

ROWS = 100


def failure(program: KerasProgram | GraphProgram, **sections: Any) -> str:
    """The message with which the evaluation of its initial values ends."""
    fields = {"name": "a", "program": "p:b", "optimizer": {"name": "sgd", "learning_rate": 0.1}}
    job = parse_job({**fields, "train": {"steps": 10, "batch_size": 8}, **sections})
    front = front_end(program, job, 1, 0)
    with pytest.raises(ProgramError) as raised:
        Evaluator(front, planned(front, job), job.device).evaluate(front.initial_values())
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
