"""What a pull carries: buckets in the wire type, and behind a small first one averaged state and numbers as bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from psfleet.layout.segments import Segment
from psfleet.tf import ShardVariables
from psfleet.tf.ps_half import rounded
from psfleet.tf.state_wire import StateWire
from worker_service.bucket_wire import bits, numbers
from worker_service.pulled import Pulled, split


@dataclass(frozen=True)
class Sent:
    """What a ps sends, on its device.

    Attributes:
        values: `ShardVariables.exchanged` in the wire type; a small first bucket is followed by averages and progress.
        averages: Of floating point state, in a list; empty: there is none, or all of the state is sent.
        state: uint8 `[state shard size]`.
        progress: int64: global step, final step, and the optimizer's scalars.
    """

    values: Sequence[tf.Tensor]
    averages: Sequence[tf.Tensor]
    state: tf.Tensor
    progress: tf.Tensor


class PullWire:
    """The wire of the pulls of one segment.

    Args of the constructor:
        own_device: The worker's.
        wire: Type of the buckets on the wire.
        is_small: Whether the first bucket carries averages and progress.
    """

    def __init__(
        self,
        variables: ShardVariables,
        segment: Segment,
        state_wire: StateWire,
        own_device: str,
        wire: tf.DType,
        is_small: bool,
    ) -> None:
        self._variables = variables
        self._segment = segment
        self._state_wire = state_wire
        self._own_device = own_device
        self._wire = wire
        self._is_small = is_small

    def sent(
        self, progress: tf.Tensor, values: Sequence[tf.Tensor], state: tf.Tensor, words: tf.Tensor, has_own_state: bool
    ) -> Sent:
        """On the ps, from what was read there.

        Args:
            has_own_state: Whether the worker keeps its own state but for the averages.
        """
        with tf.device(self._variables.device):
            averages = self._state_wire.pull(state) if has_own_state else []
            sent = rounded(self._variables, values, self._wire)
            progress = tf.concat([progress, words], 0) if self._variables.scalars else progress
            if self._is_small:
                sent[0] = tf.concat([sent[0], *averages, bits(progress, self._wire)], 0)
            return Sent(sent, averages, state, progress)

    def received(self, sent: Sent, own_state: tf.Tensor | None) -> Pulled:
        """On the worker.

        Args:
            own_state: uint8 `[state shard size]`, which it keeps but for the averages; None: it takes all of the state.
        """
        with tf.device(self._own_device):
            first = self._segment.buckets[0].size
            received = [tf.cast(bucket, tf.float32) for bucket in sent.values]
            received[0] = received[0][:first]
            rest = sent.values[0][first:]
            if not self._is_small:
                rest = sent.averages[0] if sent.averages else tf.zeros([0], self._wire)
            state, progress = sent.state, sent.progress
            if own_state is not None:
                states, rest = self._state_wire.pulled(rest, own_state)
                state = states[0] if states else own_state
            if self._is_small:
                progress = numbers(rest, 2 + len(self._variables.scalars))
            received, slots = self.split(received)
            return Pulled(progress[:2], received, self.own_state(state), slots, progress[2:])

    def own_state(self, state: tf.Tensor) -> tf.Tensor:
        """The state on the worker; only the first segment has one, and an empty tensor would be a message, too."""
        return tf.identity(state) if self._segment.is_first else tf.zeros([0], tf.uint8)

    def split(self, received: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The buckets of what was received, and each slot as `[shard_size]`."""
        return split(received, len(self._variables.buckets))
