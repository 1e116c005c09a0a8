"""TensorFlow's global step in a graph program: that of the batch in training, that of the weights everywhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.graph_fleet import STEP_SECS, graph_fleet

from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from worker_service.frontends import FrontEnd, front_end

X = np.ones([12, 2], np.float32)


def loss(batch: Any) -> tf.Tensor:
    """The global step, whatever the weights are."""
    step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
    v1.summary.scalar("global_step", step)
    return tf.reduce_sum(batch * v1.get_variable("w", [2])) * 0 + step


def data(shard: int, shards: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(X)


def sections(**update: Any) -> dict[str, Any]:
    """Of a job; `accumulate` is that of `train`."""
    train = {"steps": 1000, "batch_size": 2, "accumulate": update.pop("accumulate", 1)}
    return {"train": train, "update": update, "optimizer": {"name": "sgd", "learning_rate": 0.1}}


def front_of(fields: dict[str, Any], **functions: Any) -> tuple[FrontEnd, Job]:
    job = parse_job({"name": "a", "program": "p:b", **fields})
    return front_end(GraphProgram(loss=loss, train=data, **functions), job, 1, 0), job


def summarized(session: Any, batch: list[np.ndarray]) -> float:
    [value] = v1.Summary.FromString(session.summaries(batch)).value
    return float(value.simple_value)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_summaries_are_those_of_the_step_of_their_batch(mode: str, accumulate: int) -> None:
    fields = sections(mode=mode, accumulate=accumulate)
    front, _ = front_of(fields)
    batch = [X[: 2 * accumulate]]
    with graph_fleet(1, front, front.initial_values(), **fields) as fleet, fleet.worker(0) as worker:
        for number in range(2):
            made = worker.threads.submit(worker.session.train, batch, number, number)
            fleet.advance()
            assert made.result(STEP_SECS)[0] == number
            assert summarized(worker.session, batch) == number


def test_summaries_of_a_round_are_those_of_its_last_step() -> None:
    fields = sections(mode="averaging", local_steps=4)
    front, _ = front_of(fields)
    with graph_fleet(1, front, front.initial_values(), **fields) as fleet, fleet.worker(0) as worker:
        for number in range(3):
            assert worker.session.update_locally([X[:2]], number) == number
        assert summarized(worker.session, [X[:2]]) == 2
