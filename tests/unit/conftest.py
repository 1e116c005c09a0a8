"""For unit tests: TensorFlow runs their graphs as they were built."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_graph_optimizers() -> Iterator[None]:
    """Turns TensorFlow's graph optimizers off: they take half of the time of a graph that runs a few times.

    Fleet tests run with them.
    """
    if "tensorflow" not in sys.modules:
        yield
        return
    import tensorflow as tf

    def open_session(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        unoptimized = tf.compat.v1.ConfigProto()
        unoptimized.CopyFrom(config or unoptimized)
        unoptimized.graph_options.rewrite_options.disable_meta_optimizer = True
        opens(self, target, graph, unoptimized)

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with pytest.MonkeyPatch.context() as patch:
        opens = tf.compat.v1.Session.__init__
        patch.setattr(tf.compat.v1.Session, "__init__", open_session)
        yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
