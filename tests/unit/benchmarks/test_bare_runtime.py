"""The contender `runtime`: its steps average the gradients of both workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from benchmarks.bare_runtime import Worker, update
from benchmarks.training_graph import fed_loss
from benchmarks.workload import LEARNING_RATE, NUM_WORKERS, Workload
from psfleet.processes.ports import free_addresses

WORKLOAD = Workload(0, "sgd", steps=2, warmup_steps=1, batch_size=4, shapes=((3,), (2, 2)))
SECS = 60.0


def gradient(index: int, parameters: np.ndarray) -> np.ndarray:
    """Of a worker: float32 `[parameters]`."""
    with tf.Graph().as_default(), tf.compat.v1.variable_scope("worker", use_resource=False):
        loss, feed = fed_loss(WORKLOAD, index)
        variables = tf.compat.v1.trainable_variables()
        gradients = tf.gradients(loss, variables)
        parts = np.split(parameters, np.cumsum([each.shape.num_elements() for each in variables])[:-1])
        values = {each.value(): part.reshape(each.shape) for each, part in zip(variables, parts, strict=True)}
        with tf.compat.v1.Session() as session:
            return flat(session.run(gradients, {**feed(0), **values}))


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    """The elements of all arrays."""
    return np.concatenate([np.ravel(each) for each in arrays])


def test_a_step_applies_the_average_gradient() -> None:
    ps, *workers = (address.data for address in free_addresses(1 + NUM_WORKERS))
    spec = tf.train.ClusterSpec({"ps": [ps], "worker": workers})
    server = tf.compat.v1.train.Server(spec, job_name="ps", task_index=0)
    targets = [tf.compat.v1.train.Server(spec, "worker", index).target for index in range(NUM_WORKERS)]
    config = tf.compat.v1.ConfigProto()

    def serve() -> None:
        with tf.Graph().as_default():
            update(server.target, config, WORKLOAD)

    def train(index: int) -> tuple[np.ndarray, np.ndarray]:
        with tf.Graph().as_default():
            worker = Worker(targets[index], config, index, WORKLOAD)
        before = flat(worker.session.run(worker.variables))
        for number in range(WORKLOAD.total_steps):
            worker.step(number)
        return before, flat(worker.session.run(worker.variables))

    with ThreadPoolExecutor(1 + NUM_WORKERS) as pool:
        serving = pool.submit(serve)
        trained = [pool.submit(train, index) for index in range(NUM_WORKERS)]
        results = [each.result(SECS) for each in trained]
        serving.result(SECS)
    expected = results[0][0]
    for _ in range(WORKLOAD.total_steps):
        gradients = [gradient(index, expected) for index in range(NUM_WORKERS)]
        assert all(np.any(each) for each in gradients)
        expected = expected - LEARNING_RATE * np.mean(gradients, axis=0)
    for _, parameters in results:
        np.testing.assert_allclose(parameters, expected, rtol=1e-6, atol=1e-8)
    assert np.abs(expected - results[0][0]).max() > 1e-6
