"""The queue between `loader.py` and `trainer.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from psfleet.tf.client import Fleet, Queue

CONTAINER = "line"


def line_queue(fleet: Fleet) -> Queue:
    """The queue of points (x [], y []) float32; both programs ask for the same one."""
    with fleet.container(CONTAINER):
        return fleet.queue("points", dtypes=[tf.float32, tf.float32], shapes=[[], []], capacity=200)
