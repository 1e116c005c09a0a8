"""Names the file of a broken TFRecord: TensorFlow's error has only the position in it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import tensorflow as tf

from psfleet.errors import ProgramError

_POSITION = re.compile(r"(?:corrupted|truncated) record at \d+")
"""In TensorFlow's message; see record_reader.cc."""
_COMPRESSIONS = ("GZIP", "ZLIB")
_SEARCH_SECS = 20.0
"""How long the files of a data set are read again: the other workers wait for this one."""
_NUM_AT_ONCE = 1024
"""Records between two looks at the clock."""


@contextmanager
def broken_file_named(dataset: tf.data.Dataset) -> Iterator[None]:
    """Adds the file to a ProgramError of the block about a broken record that was read by a data set."""
    try:
        yield
    except ProgramError as error:
        found = _POSITION.search(str(error)) if isinstance(error.__cause__, tf.errors.DataLossError) else None
        path = "" if found is None else _broken_file(dataset, found[0])
        if not path:
            raise
        raise ProgramError(f"{error} of {path}", error.details) from error


def _broken_file(dataset: tf.data.Dataset, position: str) -> str:
    """The file of a data set with a broken record at this position; empty if it is not found in time."""
    deadline = time.monotonic() + _SEARCH_SECS
    with suppress(tf.errors.OpError, TimeoutError):
        texts = _texts(dataset)
        compression = next((text for text in texts if text in _COMPRESSIONS), "")
        for text in texts:
            if _is_file(text) and _breaks_at(text, compression, position, deadline):
                return text
    return ""


def _texts(dataset: tf.data.Dataset) -> list[str]:
    """The strings in the graph of a data set, each once: among them are the names of the files that it reads."""
    graph = tf.compat.v1.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    values = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    tensors = [tf.io.parse_tensor(value.SerializeToString(), tf.string) for value in values if value.dtype == tf.string]
    found = [text for tensor in tensors for text in tf.reshape(tensor, [-1]).numpy().tolist()]
    return [text.decode(errors="replace") for text in dict.fromkeys(found)]


def _is_file(text: str) -> bool:
    try:
        return bool(text) and tf.io.gfile.exists(text) and not tf.io.gfile.isdir(text)
    except tf.errors.OpError:
        # Of a file system that TensorFlow does not know.
        return False


def _breaks_at(path: str, compression: str, position: str, deadline: float) -> bool:
    """Whether the first broken record of a file is at this position.

    Raises:
        TimeoutError: That is not known by the deadline.
    """
    try:
        for _ in tf.data.TFRecordDataset(path, compression).batch(_NUM_AT_ONCE):
            if time.monotonic() > deadline:
                raise TimeoutError
    except tf.errors.DataLossError as error:
        found = _POSITION.search(error.message)
        return found is not None and found[0] == position
    return False
