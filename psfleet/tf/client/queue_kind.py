"""The kinds of queues that clients share, and their elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from psfleet.errors import UsageError
from psfleet.plurals import counted
from psfleet.tf.client.names import check_name

Kind = Literal["fifo", "shuffle", "padding", "priority"]
Shapes = Sequence[Sequence[int | None]]


@dataclass(frozen=True)
class QueueKind:
    """What a queue holds, and in which order it is read; two queues of one name must agree in all of it.

    Attributes:
        name: Shared by the clients.
        kind: fifo; shuffle: in random order; padding: fifo with elements of different sizes, which are padded with
            zeros in a batch; priority: the lowest int64 first, which is an additional first component.
        dtypes: Of the components of an element.
        shapes: Of the components; None: any, and no graph can read several elements at once. With `padding` a
            dimension may be None.
        capacity: Maximum number of elements.
        min_after_dequeue: With `shuffle`: elements that stay in the queue until it is closed, so that they mix.
    """

    name: str
    kind: Kind
    dtypes: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...] | None
    capacity: int
    min_after_dequeue: int

    @classmethod
    def of(
        cls, name: str, dtypes: Sequence[Any], shapes: Shapes | None, kind: str, capacity: int, min_after_dequeue: int
    ) -> QueueKind:
        """Validates what a caller asks for.

        Raises:
            UsageError: It is no queue that TensorFlow has.
        """
        check_name("queue", name)
        if kind not in get_args(Kind):
            raise UsageError(f"queue {name!r}: kind is {kind!r}, expected one of {', '.join(get_args(Kind))}")
        if kind in ("padding", "priority") and shapes is None:
            raise UsageError(f"queue {name!r}: shapes is None, expected shapes with kind {kind!r}")
        if min_after_dequeue and kind != "shuffle":
            raise UsageError(f"queue {name!r}: min_after_dequeue is {min_after_dequeue}, expected 0 with kind {kind!r}")
        if not all(isinstance(number, Integral) for number in (capacity, min_after_dequeue)):
            raise UsageError(
                f"queue {name!r}: capacity is {capacity!r} and min_after_dequeue {min_after_dequeue!r}, expected whole "
                "numbers"
            )
        if capacity < 1 or not 0 <= min_after_dequeue < capacity:
            raise UsageError(
                f"queue {name!r}: capacity is {capacity} and min_after_dequeue {min_after_dequeue}, expected at least "
                "one element of capacity, and more than min_after_dequeue"
            )
        try:
            types = tuple(map(tf.dtypes.as_dtype, dtypes))
            sizes = None if shapes is None else tuple(map(tf.TensorShape, shapes))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"queue {name!r}: dtypes {dtypes!r} and shapes {shapes!r}, expected lists ({error})"
            ) from error
        if not types or (sizes is not None and len(sizes) != len(types)):
            found = f"{counted(len(types), 'dtype')} and {counted(len(sizes or ()), 'shape')}"
            raise UsageError(f"queue {name!r}: {found}, expected one of each for each component")
        if kind != "padding" and sizes is not None and not all(size.is_fully_defined() for size in sizes):
            raise UsageError(f"queue {name!r}: shapes {shapes!r}, expected sizes of all dimensions with kind {kind!r}")
        return cls(name, kind, types, sizes, capacity, min_after_dequeue)  # type: ignore[arg-type]

    def make(self) -> tf.queue.QueueBase:
        """TensorFlow's queue, in the graph, container and device of the caller."""
        shared = {"shared_name": self.name, "name": "queue"}
        types, shapes = list(self.dtypes), None if self.shapes is None else list(self.shapes)
        if self.kind == "shuffle":
            return tf.queue.RandomShuffleQueue(self.capacity, self.min_after_dequeue, types, shapes, **shared)
        if self.kind == "padding":
            return tf.queue.PaddingFIFOQueue(self.capacity, types, shapes, **shared)
        if self.kind == "priority":
            return tf.queue.PriorityQueue(self.capacity, types, shapes, **shared)
        return tf.queue.FIFOQueue(self.capacity, types, shapes, **shared)

    def stack(self, elements: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """A batch of elements: each component with a first dimension of their number.

        Raises:
            UsageError: Elements have different shapes, and the queue does not pad.
        """
        components = [[np.asarray(part) for part in parts] for parts in zip(*elements, strict=True)]
        try:
            return [np.stack(_padded(parts) if self.kind == "padding" else parts) for parts in components]
        except ValueError as error:
            raise UsageError(
                f"queue {self.name!r}: elements of different shapes are no batch, expected `dequeue` ({error})"
            ) from error


def _padded(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays of one rank, enlarged at the end of each dimension to the largest, with zeros or empty texts."""
    shape = np.max([part.shape for part in parts], axis=0).astype(int)
    padded = []
    for part in parts:
        whole = np.full(shape, b"" if part.dtype == object else 0, part.dtype)
        whole[tuple(slice(size) for size in part.shape)] = part
        padded.append(whole)
    return padded
