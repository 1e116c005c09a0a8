"""The chief's training graph for TensorBoard."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.run_folder import GRAPH_WRITTEN
from worker_service.chief.board import Board
from worker_service.session import WorkerSession

logger = logging.getLogger("psfleet.chief")

MAX_CONSTANT_BYTES: Final = 1024
"""The values of larger constants are left out: TensorBoard shows none of them."""
MAX_GRAPH_BYTES: Final = 16 * 1024 * 1024
"""A larger graph is not written: a browser cannot lay it out."""


class GraphSummary:
    """Writes the graph of the chief's first session, once for each start of a run, if the job asks for it.

    Args of the constructor:
        is_asked: Whether it does.
        out: The run's folder, whose marker says that a chief before has written it.
    """

    def __init__(self, board: Board, is_asked: bool, out: Path) -> None:
        self._board = board
        self._marker = out / GRAPH_WRITTEN
        self._is_due = is_asked and not self._marker.exists()

    def write(self, session: WorkerSession, global_step: int) -> None:
        """Has the graph written, soon; only the first call does."""
        if not self._is_due:
            return
        self._is_due = False
        graph_def = graph_summary(session.graph)
        if graph_def is not None:
            self._board.write(global_step, lambda: self._write(graph_def))

    def _write(self, graph_def: v1.GraphDef) -> None:
        tf.summary.graph(graph_def)
        tf.summary.flush()
        self._marker.touch()


def graph_summary(graph: tf.Graph) -> v1.GraphDef | None:
    """A graph as it is written for TensorBoard, without the values of large constants.

    Returns:
        None: it has more than `MAX_GRAPH_BYTES`, and the log says so.
    """
    graph_def = graph.as_graph_def()
    functions = (node for function in graph_def.library.function for node in function.node_def)
    for node in (*graph_def.node, *functions):
        if node.op == "Const" and node.attr["value"].ByteSize() > MAX_CONSTANT_BYTES:
            del node.attr["value"]
    num_bytes = graph_def.ByteSize()
    if num_bytes <= MAX_GRAPH_BYTES:
        return graph_def
    logger.info(
        "the training graph has %d bytes, expected at most %d: it is not written for TensorBoard",
        num_bytes,
        MAX_GRAPH_BYTES,
        extra={"event": "no_graph_summary"},
    )
    return None
