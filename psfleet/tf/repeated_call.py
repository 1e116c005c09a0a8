"""A session's run at the lowest price: fetches and feeds are resolved once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.python.client import pywrap_tf_session as tf_session


class RepeatedCall:
    """A repeated run of a session with fixed fetches and feeds.

    With feeds, `Session.make_callable` is `Session.run`, which checks and converts everything at each call: 0.4 ms of a
    step. This makes the call below it, like BaseSession._do_run of TensorFlow 2.21.

    Args of the constructor:
        fetches, feeds: Of the session's graph, or of the one whose copy it is: found by their names.
        targets: Operations that have to end, too.
    """

    def __init__(
        self,
        session: v1.Session,
        fetches: Sequence[tf.Tensor],
        feeds: Sequence[tf.Tensor],
        options: v1.RunOptions,
        targets: Sequence[tf.Operation] = (),
    ) -> None:
        session._extend_graph()
        self._session = session
        find = session.graph.get_tensor_by_name
        self._fetches = [find(tensor.name)._as_tf_output() for tensor in fetches]
        self._feeds = [find(tensor.name)._as_tf_output() for tensor in feeds]
        self._targets = [session.graph.get_operation_by_name(operation.name)._c_op for operation in targets]
        self._options = tf_session.TF_NewBufferFromString(options.SerializeToString())

    def __call__(self, *values: np.ndarray | np.generic) -> list[Any]:
        """The fetches as NumPy values; the feeds must have the placeholders' types."""
        fed = {feed: np.asarray(value) for feed, value in zip(self._feeds, values, strict=True)}
        fetched: list[Any] = self._session._call_tf_sessionrun(self._options, fed, self._fetches, self._targets, None)
        return fetched
