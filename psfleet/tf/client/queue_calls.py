"""The operations behind the calls of a shared queue, all on the queue's task, so that each is one remote call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import UsageError
from psfleet.plurals import counted
from psfleet.tf.client.queue_kind import QueueKind
from psfleet.tf.client.session import FleetSession

MAX_SHOWN = 60
"""Characters of a value in a message."""


class QueueCalls:
    """Operations in the default graph, which is that of the session.

    Attributes:
        session: The session that runs them.
        enqueue, enqueue_many: Add what `feeds` and `feeds_of_many` return.
        dequeue: Takes an element: its components.
        size: int32 scalar.
        close: Closes the queue.
        cancel: As `close`, and ends the waits for room with an error.
    """

    def __init__(self, session: FleetSession, kind: QueueKind) -> None:
        queue = kind.make()
        self.session = session
        self._kind = kind
        # A priority queue has the priority as its first component.
        types = queue.dtypes
        shapes = [shape.as_list() if shape.rank is not None else None for shape in queue.shapes] or [None] * len(types)
        self._one = [v1.placeholder(dtype, shape) for dtype, shape in zip(types, shapes, strict=True)]
        self._many = [
            v1.placeholder(dtype, None if shape is None else [None, *shape])
            for dtype, shape in zip(types, shapes, strict=True)
        ]
        self.enqueue = queue.enqueue(self._one)
        self.enqueue_many = None if kind.shapes is None else queue.enqueue_many(self._many)
        taken = queue.dequeue()
        self.dequeue: list[tf.Tensor] = list(taken) if isinstance(taken, list | tuple) else [taken]
        self.size = queue.size()
        self.close = queue.close()
        self.cancel = queue.close(cancel_pending_enqueues=True)

    def feeds(self, values: Any) -> dict[tf.Tensor, Any]:
        """The feeds of `enqueue`.

        Raises:
            UsageError: The number of values is not that of the components, or a value has another shape or type.
        """
        return self._checked(self._one, self._components(values), "")

    def feeds_of_many(self, values: Any) -> dict[tf.Tensor, Any]:
        """The feeds of `enqueue_many`.

        Raises:
            UsageError: As in `feeds`, the numbers of elements differ, or the queue has no shapes.
        """
        if self.enqueue_many is None:
            raise UsageError(f"queue {self._kind.name!r}: enqueue_many without shapes, expected `enqueue`")
        feeds = self._checked(self._many, self._components(values), " of the elements")
        shapes = [part.shape for part in feeds.values()]
        if len({shape[:1] for shape in shapes}) != 1:
            raise UsageError(
                f"queue {self._kind.name!r}: components of shapes {shapes}, expected one first dimension for all"
            )
        return feeds

    def _checked(self, fed: Sequence[tf.Tensor], values: Sequence[Any], whose: str) -> dict[tf.Tensor, np.ndarray]:
        """Values for placeholders; TensorFlow would name the placeholder in its message, and truncate numbers."""
        feeds = {}
        for at, (placeholder, value) in enumerate(zip(fed, values, strict=True)):
            dtype, shape = placeholder.dtype, placeholder.shape
            expected = f"expected {dtype.name}" + ("" if shape.rank is None else f" {_text(shape.as_list())}")
            what = f"queue {self._kind.name!r}: component {at}{whose}"
            try:
                feeds[placeholder] = np.asarray(value, dtype.as_numpy_dtype)
                # NumPy makes texts and bytes of one list texts, if it can.
                found = feeds[placeholder] if dtype == tf.string else np.asarray(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise UsageError(f"{what} is {_shortened(value)}, {expected}") from error
            if problem := _problem(found, feeds[placeholder]):
                raise UsageError(f"{what} {problem}, {expected}")
            if not shape.is_compatible_with(found.shape):
                raise UsageError(f"{what} has shape {_text(found.shape)}, {expected}")
        return feeds

    def _components(self, values: Any) -> Sequence[Any]:
        if len(self._one) == 1:
            return [values]
        if not isinstance(values, list | tuple) or len(values) != len(self._one):
            found = counted(len(values), "value") if isinstance(values, list | tuple) else _shortened(values)
            raise UsageError(f"queue {self._kind.name!r}: {found}, expected {len(self._one)} components")
        return values


def _problem(found: np.ndarray, converted: np.ndarray) -> str:
    """What is wrong with a value that was converted to the type of a component; empty: nothing.

    Args:
        converted: Of type object for a component of strings.
    """
    if converted.dtype.kind == "O":
        others = [each for each in found.reshape(-1).tolist() if not isinstance(each, str | bytes)]
        return f"has {_shortened(others[0])}" if others else ""
    if found.dtype.kind in "iuO" and converted.dtype.kind in "iu":
        unequal = found[found != converted]
        return f"has {unequal[0]}" if unequal.size else ""
    if found.dtype.kind not in "OUS" and not np.can_cast(found.dtype, converted.dtype, "same_kind"):
        return f"is {found.dtype.name} {_text(found.shape)}"
    return ""


def _text(shape: Sequence[int | None]) -> str:
    """A shape, with `any` for a dimension of any size."""
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _shortened(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
