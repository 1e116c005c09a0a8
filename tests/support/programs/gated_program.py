"""The perceptron of `exact_graph_program`, whose shards wait for each other once, so that all workers train together.

A worker reads its first batch when it has read the weights. So all workers that meet at the gate push gradients of the
same global step, and an async ps finds all but the first stale, however fast or slow each process is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import exact_graph_program
import numpy as np
import tensorflow as tf

import psfleet
from psfleet.errors import DeadlineError
from psfleet.polling import wait_until

GATE_SECS = 60.0
CHANCE_SECS = 2.0
"""Time in which a worker that may not train yet would push, if psfleet let it: about twice what it needs."""

REDUCED_AT = 200


def build(gate: str, alone: int = 0, events: str = "") -> psfleet.GraphProgram:
    """The program.

    Args:
        gate: A folder, in which each shard leaves files that say how far it has come.
        alone: 0: every shard waits at the gate before its first example. Above 0: only shard 0 waits, after so many
            examples; halfway it gives the others `CHANCE_SECS` to come as far, which psfleet must not let them.
        events: The run's `events.jsonl`; empty: none. Every shard waits at its example `REDUCED_AT` for a reduction of
            the learning rate, which evaluations of some of the examples call for.
    """
    files = Path(gate)

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        (files / f"ready-{shard_index}").touch()
        all_shards = range(num_shards)

        def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            x, label = exact_graph_program.data()
            for at, example in enumerate(zip(x[shard_index::num_shards], label[shard_index::num_shards], strict=True)):
                if alone and at == alone // 2:
                    (files / f"halfway-{shard_index}").touch()
                    if shard_index == 0:
                        wait_for([files / f"ready-{shard}" for shard in all_shards], GATE_SECS)
                        with suppress(DeadlineError):
                            wait_for([files / f"halfway-{shard}" for shard in all_shards], CHANCE_SECS)
                if at == (0 if shard_index else alone):
                    (files / f"gate-{shard_index}").touch()
                    if not alone or shard_index == 0:
                        wait_for([files / f"gate-{shard}" for shard in all_shards], GATE_SECS)
                if events and at == REDUCED_AT:
                    text = "the learning rate to be reduced"
                    wait_until(lambda: "learning_rate_reduced" in logged(Path(events)), GATE_SECS, text)
                yield example

        features = tf.TensorSpec([exact_graph_program.FEATURES], tf.float32)
        return tf.data.Dataset.from_generator(examples, output_signature=(features, tf.TensorSpec([], tf.int32)))

    def evaluate() -> tf.data.Dataset:
        x, label = exact_graph_program.data()
        return tf.data.Dataset.from_tensor_slices((x[:8], label[:8]))

    return psfleet.GraphProgram(loss=exact_graph_program.loss, train=train, evaluate=evaluate if events else None)


def logged(file: Path) -> str:
    """The text of a file, which may not be there yet: a worker reads ahead."""
    return file.read_text() if file.exists() else ""


def wait_for(files: list[Path], timeout_secs: float) -> None:
    """Returns once all are there."""

    def missing() -> list[str]:
        return [file.name for file in files if not file.exists()]

    wait_until(missing, timeout_secs, "every shard at the gate", done=lambda names: not names, poll_secs=0.01)
