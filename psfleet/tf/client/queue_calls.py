"""The operations behind the calls of a shared queue, all on the queue's task, so that each is one remote call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.errors import UsageError
from psfleet.tf.client.queue_kind import QueueKind
from psfleet.tf.client.session import FleetSession


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
            UsageError: The number of values is not that of the components.
        """
        return dict(zip(self._one, self._components(values), strict=True))

    def feeds_of_many(self, values: Any) -> dict[tf.Tensor, Any]:
        """The feeds of `enqueue_many`.

        Raises:
            UsageError: As in `feeds`, the numbers of elements differ, or the queue has no shapes.
        """
        if self.enqueue_many is None:
            raise UsageError(f"queue {self._kind.name!r}: enqueue_many without shapes, expected `enqueue`")
        components = [np.asarray(part) for part in self._components(values)]
        sizes = {part.shape[:1] for part in components}
        if len(sizes) != 1 or sizes == {()}:
            raise UsageError(
                f"queue {self._kind.name!r}: components of shapes {[part.shape for part in components]}, expected "
                "one first dimension for all"
            )
        return dict(zip(self._many, components, strict=True))

    def _components(self, values: Any) -> Sequence[Any]:
        if len(self._one) == 1:
            return [values]
        if not isinstance(values, list | tuple) or len(values) != len(self._one):
            found = len(values) if isinstance(values, list | tuple) else repr(values)
            raise UsageError(f"queue {self._kind.name!r}: {found} values, expected {len(self._one)} components")
        return values
