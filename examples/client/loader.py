"""Loads points of a line into the queue that `trainer.py` reads, and closes it after the last one.

`psfleet run examples/client/loader.py --fleet lab --points 2000`
"""

from __future__ import annotations

import argparse

import numpy as np
from line_queue import line_queue

import psfleet

SLOPE, OFFSET, NOISE = 2.0, 1.0, 0.1
BATCH_SIZE = 50


def main(num_points: int, keeps_open: bool) -> None:
    """Adds points (x, y) with x uniform in [-1, 1) and y = SLOPE x + OFFSET + noise."""
    queue = line_queue(psfleet.connect())
    random = np.random.default_rng(1)
    for start in range(0, num_points, BATCH_SIZE):
        x = random.uniform(-1, 1, min(BATCH_SIZE, num_points - start))
        y = SLOPE * x + OFFSET + random.normal(0, NOISE, len(x))
        # Waits while the queue is full: the trainer is slower.
        queue.enqueue_many((x, y))
    print(f"{num_points} points loaded", flush=True)
    if not keeps_open:
        queue.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--keep-open", action="store_true", help="do not close the queue: another loader continues")
    options = parser.parse_args()
    main(options.points, options.keep_open)
