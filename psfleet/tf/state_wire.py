"""The state of one shard on the wire, between a worker and its ps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from psfleet.layout import StateRange
from psfleet.tf.byte_vectors import as_bytes, from_bytes


class StateWire:
    """Packs state for the wire, and unpacks it.

    A worker sends its floating point state with its gradient, of which the ps takes the mean, and receives the shard's
    with the parameters. All other state (seeds, counters) is the worker's own; the chief sends it too. Nothing is
    rounded: tensors of the wire type only carry the bits.

    A state is uint8 `[state shard size]`. In lists there is one tensor, or none if there is nothing to send.

    Args of the constructor:
        ranges: Of the shard's state.
        is_chief: Whether the worker is the chief.
        wire: Type of the buckets on the wire.
    """

    def __init__(self, ranges: Sequence[StateRange], is_chief: bool, wire: tf.DType) -> None:
        self._ranges = ranges
        self._averaged = [part for part in ranges if part.float_dtype]
        self._pushed = list(ranges) if is_chief else self._averaged
        self._wire = wire

    @property
    def push_sizes(self) -> list[int]:
        """The size of what `push` returns."""
        return self._sizes(self._pushed)

    @property
    def pull_sizes(self) -> list[int]:
        """The size of what `pull` returns."""
        return self._sizes(self._averaged)

    def push(self, state: tf.Tensor) -> list[tf.Tensor]:
        """On the worker: what it sends of its state after the forward pass, in the wire type."""
        return self._sent(state, self._pushed)

    def pushed(self, received: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """On the ps: the state that a vector begins with, zeros where the worker keeps its own; and the rest."""
        return self._split(received, self._pushed, lambda part: tf.zeros([part.num_bytes], tf.uint8))

    def pull(self, state: tf.Tensor) -> list[tf.Tensor]:
        """On the ps: what it sends of the shard's state after an update, in the wire type."""
        return self._sent(state, self._averaged)

    def pulled(self, received: tf.Tensor, own: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """On the worker: the averages that a vector begins with, its `own` state for the others; and the rest."""
        return self._split(received, self._averaged, lambda part: own[part.start : part.stop])

    def _sizes(self, parts: Sequence[StateRange]) -> list[int]:
        return [sum(part.num_bytes for part in parts) // self._wire.size] if parts else []

    def _sent(self, state: tf.Tensor, parts: Sequence[StateRange]) -> list[tf.Tensor]:
        slices = [state[part.start : part.stop] for part in parts]
        return [from_bytes(tf.concat(slices, 0) if len(slices) > 1 else slices[0], self._wire)] if slices else []

    def _split(
        self, received: tf.Tensor, sent: Sequence[StateRange], other: Callable[[StateRange], tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        if not self._ranges:
            return [], received
        num_units = sum(part.num_bytes for part in sent) // self._wire.size
        raw, at = as_bytes(received[:num_units]), 0
        parts = []
        for part in self._ranges:
            if part in sent:
                parts.append(raw[at : at + part.num_bytes])
                at += part.num_bytes
            else:
                parts.append(other(part))
        return [tf.concat(parts, 0)] if len(parts) > 1 else parts, received[num_units:]
