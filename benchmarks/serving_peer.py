"""`python -m benchmarks.serving_peer CHECKPOINTS`: TensorFlow's own predictions, which threads of this process ask for.

Each line of standard input is JSON with the name of a way, a number of threads, and seconds; each line of standard
output is JSON with the latencies in seconds, and the first one with an answer of each way.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.serving_load import example
from psfleet.checkpoint.export import assign, built_model_of
from psfleet.checkpoint.location import parse
from psfleet.checkpoint.versions import find


def main() -> None:
    """Serves lines until the end of standard input."""
    checkpoint = find(parse(sys.argv[1]), None, False, is_live=False)
    model = built_model_of(checkpoint)
    assign(checkpoint, model)
    x = example()
    traced = tf.function(lambda batch: model(batch, training=False))
    ways: dict[str, Callable[[], np.ndarray]] = {
        "model.predict(x)": lambda: model.predict(x, verbose=0),
        "model(x)": lambda: model(x, training=False).numpy(),
        "tf.function(model)(x)": lambda: traced(x).numpy(),
    }
    say({name: way().tolist() for name, way in ways.items()})
    for line in sys.stdin:
        asked = json.loads(line)
        say(latencies(ways[asked["way"]], asked["clients"], asked["secs"]))


def latencies(call: Callable[[], Any], num_threads: int, secs: float) -> list[float]:
    """Seconds of each call that threads make for so long."""
    found: list[float] = []
    until = time.perf_counter() + secs

    def repeat() -> None:
        while (began := time.perf_counter()) < until:
            call()
            found.append(time.perf_counter() - began)

    threads = [threading.Thread(target=repeat) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def say(content: object) -> None:
    """Prints a line."""
    print(json.dumps(content), flush=True)


if __name__ == "__main__":
    main()
