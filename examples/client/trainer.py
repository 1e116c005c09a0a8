"""Fits a line to the points that `loader.py` loads, until the loader closes the queue; then ends by itself.

`psfleet run examples/client/trainer.py --fleet lab`
"""

from __future__ import annotations

import tensorflow as tf
from line_queue import CONTAINER, line_queue

import psfleet

BATCH_SIZE = 20
LEARNING_RATE = 0.1
PATIENCE_SECS = 60


def main() -> None:
    """Trains w and b, which lie on ps 0; the queue's operation is part of the graph, so points pass no Python code."""
    fleet = psfleet.connect()
    queue = line_queue(fleet)
    with tf.Graph().as_default() as graph:
        x, y = queue.op.dequeue_up_to(BATCH_SIZE)
        with fleet.container(CONTAINER), tf.device(fleet.device("ps", 0)):
            w = tf.compat.v1.get_variable("w", [], initializer=tf.zeros_initializer())
            b = tf.compat.v1.get_variable("b", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w * x + b - y))
        train = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss)
        initialize = tf.compat.v1.global_variables_initializer()
    with fleet.session(graph) as session:
        session.run(initialize)
        # Without a loader, the queue stays empty; then TensorFlow raises DeadlineExceededError.
        patience = tf.compat.v1.RunOptions(timeout_in_ms=PATIENCE_SECS * 1000)
        steps = 0
        try:
            while True:
                session.run(train, options=patience)
                steps += 1
        except tf.errors.OutOfRangeError:
            # The queue is closed, and all its points are used.
            print(f"{steps} steps, w is {session.run(w):.2f} and b is {session.run(b):.2f}")
    fleet.reset(CONTAINER)


if __name__ == "__main__":
    main()
