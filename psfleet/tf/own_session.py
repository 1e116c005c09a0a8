"""A session on this process's own server, which repeats the calls that TensorFlow refuses by mistake."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.core.protobuf import config_pb2

logger = logging.getLogger("psfleet.tf")

P = ParamSpec("P")
R = TypeVar("R")

REFUSED = "request was received twice"
MAX_CALLS = 5


def repeat_refused(call: Callable[P, R]) -> Callable[P, R]:
    """Makes a call again that TensorFlow's worker refused as a duplicate, before any part of it ran.

    A request's id is the first output of a generator that each thread seeds with 32 random bits, and TensorFlow's
    master serves each call on a new thread (tsl/platform/random.cc, PosixEnv::SchedClosure). A worker refuses an id
    that is among its last 100,000 (RecentRequestIds). In steady state, one call in 43,000 is refused.

    The call must be a graph that is placed on the own server only: it then has one partition, and did not run at all.
    """

    @wraps(call)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        for _ in range(MAX_CALLS - 1):
            try:
                return call(*args, **kwargs)
            except tf.errors.AbortedError as error:
                if not is_refused(error):
                    raise
                logger.debug("calling again: %s", error.message)
        return call(*args, **kwargs)

    return repeated


def is_refused(error: tf.errors.OpError) -> bool:
    """Whether a task refused a call as a duplicate."""
    return isinstance(error, tf.errors.AbortedError) and REFUSED in error.message


def unoptimized() -> v1.ConfigProto:
    """A configuration without Grappler, which rewrites the whole graph for each set of fetches that a session runs.

    It takes 8 to 15 ms of CPU time for each, and makes the updates of a ps no faster (118 thousand to 1.86 million
    parameters, Adam and momentum).
    """
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


class OwnSession(v1.Session):
    """A `tf.compat.v1.Session` whose calls are repeated as `repeat_refused` says."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """See tf.compat.v1.Session."""
        return repeat_refused(super().run)(*args, **kwargs)

    def make_callable(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """See tf.compat.v1.Session."""
        return repeat_refused(super().make_callable(*args, **kwargs))

    def prepared(self, fetch: tf.Tensor | tf.Operation, *feeds: tf.Tensor) -> Callable[..., list[Any]]:
        """A call for which TensorFlow prepares the graph now, not when it is made first.

        Returns:
            A function of the values of `feeds`, NumPy arrays of their dtypes. It returns the value of a
            tensor in a list, or an empty one for an operation.
        """
        options = config_pb2.CallableOptions(feed=[feed.name for feed in feeds])
        (options.target if isinstance(fetch, tf.Operation) else options.fetch).append(fetch.name)
        return repeat_refused(self._make_callable_from_options(options))
