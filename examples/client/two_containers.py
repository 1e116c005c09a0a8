"""One client with two containers: each has a variable named `x`, and a reset of one leaves the other as it is.

`psfleet run examples/client/two_containers.py --fleet lab`
"""

from __future__ import annotations

import tensorflow as tf

import psfleet

VALUES = {"problem_1": 1.0, "problem_2": 2.0}


def main() -> None:
    """Keeps a value in each container, drops the first one, and reads both."""
    fleet = psfleet.connect()
    variables = {}
    for name, value in VALUES.items():
        # A graph each: one graph would name the second variable x_1.
        with tf.Graph().as_default() as graph, fleet.container(name), tf.device(fleet.device("ps", 0)):
            variables[name] = graph, tf.compat.v1.get_variable("x", initializer=value)
    for name, (graph, x) in variables.items():
        with fleet.session(graph) as session:
            session.run(x.initializer)
            print(f"{name}: {x.op.name} is {session.run(x):g}")
    fleet.reset("problem_1")
    for name, (graph, x) in variables.items():
        with graph.as_default():
            is_there = tf.compat.v1.is_variable_initialized(x)
        with fleet.session(graph) as session:
            found = f"{session.run(x):g}" if session.run(is_there) else "gone"
            print(f"{name} after the reset of problem_1: {found}")
    fleet.reset("problem_2")


if __name__ == "__main__":
    main()
