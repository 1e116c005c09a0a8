"""The paced program with two more gates: at one a shard takes its container's memory, at the other it raises."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from paced_program import build as build_paced

import psfleet

BYTES = 1 << 27


def build(gates: str, step_secs: float) -> psfleet.GraphProgram:
    """See `paced_program.build`; a file `eat-<shard>` or `fail-<shard>` in `gates` ends that shard's process."""
    paced = build_paced(gates, step_secs)
    folder = Path(gates)

    def train(shard_index: int, num_shards: int) -> tf.data.Dataset:
        dataset = paced.train(shard_index, num_shards)

        def examples() -> Iterator[tuple[Any, Any]]:
            blocks = []
            for x, y in dataset.as_numpy_iterator():
                while (folder / f"eat-{shard_index}").exists():
                    blocks.append(bytearray(b"x") * BYTES)
                if (folder / f"fail-{shard_index}").exists():
                    raise ValueError("the gate says that this must fail")
                yield x, y

        made = tf.data.Dataset.from_generator(examples, output_signature=dataset.element_spec)
        return made.apply(tf.data.experimental.assert_cardinality(dataset.cardinality()))

    return psfleet.GraphProgram(loss=paced.loss, train=train, evaluate=paced.evaluate)
