"""Two clients share a variable by its name: each run of this program adds to what the runs before it have left.

`psfleet run examples/client/shared_variable.py --fleet lab 3` adds 3.
"""

from __future__ import annotations

import sys

import tensorflow as tf

import psfleet


def main(amount: float) -> None:
    """Adds an amount to the variable `total`, which lies on ps 0."""
    fleet = psfleet.connect()
    with tf.Graph().as_default() as graph, fleet.container("shared"), tf.device(fleet.device("ps", 0)):
        total = tf.compat.v1.get_variable("total", [], initializer=tf.zeros_initializer())
        is_new = tf.logical_not(tf.compat.v1.is_variable_initialized(total))
        added = total.assign_add(amount)
    with fleet.session(graph) as session:
        # Another client may have made it.
        if session.run(is_new):
            session.run(total.initializer)
        print(f"total is {session.run(added):g}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
