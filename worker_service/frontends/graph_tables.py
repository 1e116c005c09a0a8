"""Variables of a graph program whose rows are on the ps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.layout import EmbeddingSpec

Lookup = Callable[[tf.Tensor], tf.Tensor]
"""Returns the rows of ids: float32 `[*ids.shape, width]`."""


class TableVariable(BaseResourceVariable):
    """What `get_variable` returns for a table: `tf.gather` and `tf.nn.embedding_lookup` read rows of it, nothing else.

    Its handle is that of a variable that nobody initializes: TensorFlow colocates the rows with it.
    """

    def __init__(self, key: str, shape: tuple[int, int], lookup: Lookup) -> None:
        with tf.name_scope(""):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=key, name=key)
        super().__init__(
            handle=handle,
            handle_name=key,
            unique_id=key,
            shape=shape,
            dtype=tf.float32,
            trainable=True,
            in_graph_mode=True,
        )
        self._key = key
        self._lookup = lookup

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Is called by `tf.gather`."""
        del name
        # Not where the handle is: the rows come from every ps.
        with tf.compat.v1.get_default_graph().colocate_with(None, ignore_existing=True):
            return self._lookup(indices)

    def value(self) -> tf.Tensor:
        """Refused."""
        raise ProgramError(
            f"table {self._key} is read as a whole, expected tf.gather or tf.nn.embedding_lookup with its ids"
        )

    read_value = value

    def _dense_var_to_tensor(self, *_: Any, **__: Any) -> tf.Tensor:
        return self.value()


class GraphTables:
    """The variables that `tables` of the job names.

    Attributes:
        specs: Of the tables, in the order of the job; complete after `complete`.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._keys = list(job.tables)
        self._widths: dict[str, int] = {}
        self._found: dict[str, TableVariable] = {}
        self._read: set[str] = set()
        self.specs: tuple[EmbeddingSpec, ...] = ()

    def variable(self, name: str, options: Mapping[str, Any]) -> TableVariable | None:
        """The variable of a name while the losses are built for the first time; None if it is no table.

        Args:
            options: Of `get_variable`.

        Raises:
            ProgramError: A ps cannot have the rows of the variable.
        """
        if name not in self._job.tables:
            return None
        if name not in self._found:
            width = self._width(name, options)
            self._widths[name] = width

            def zeros(ids: tf.Tensor) -> tf.Tensor:
                self._read.add(name)
                rows = tf.zeros(tf.concat([tf.shape(ids), [width]], 0))
                return tf.ensure_shape(rows, tf.TensorShape(ids.shape).concatenate(width))

            self._found[name] = TableVariable(name, (self._job.tables[name].rows, width), zeros)
        return self._found[name]

    def complete(self) -> tuple[EmbeddingSpec, ...]:
        """The tables once the losses are built.

        Raises:
            ProgramError: A table is not a variable of the program, or is not read.
        """
        for key in self._keys:
            if key not in self._read:
                what = "gets no variable of this name" if key not in self._found else "reads no rows of it"
                raise self._error(f"loss(batch) {what}: table {key}")
        seed = self._job.train.seed
        self.specs = tuple(
            EmbeddingSpec(key, key, table.rows, self._widths[key], table.init, table.init_scale, seed, table.hash)
            for key, table in self._job.tables.items()
        )
        return self.specs

    def given(self, lookup: Callable[[int, tf.Tensor], tf.Tensor]) -> dict[str, TableVariable]:
        """The variables by name in the graph of a step, whose rows `lookup` returns by the index of their table."""

        def of_table(index: int) -> Lookup:
            return lambda ids: lookup(index, ids)

        return {
            spec.name: TableVariable(spec.name, (spec.rows, spec.width), of_table(index))
            for index, spec in enumerate(self.specs)
        }

    def _width(self, name: str, options: Mapping[str, Any]) -> int:
        rows = self._job.tables[name].rows
        shape = tf.TensorShape(options.get("shape"))
        if shape.rank != 2 or shape[0] != rows or shape[1] is None:
            raise self._error(f"variable {name} of a table has shape {shape}, expected [{rows}, width] as in tables")
        dtype = tf.dtypes.as_dtype(options.get("dtype") or tf.float32)
        if dtype != tf.float32:
            raise self._error(f"variable {name} of a table is {dtype.name}, expected float32")
        for what in ("regularizer", "constraint"):
            if options.get(what) is not None:
                raise self._error(f"variable {name} of a table has a {what}, which no ps applies to single rows")
        if options.get("trainable") is False:
            raise self._error(f"variable {name} of a table has trainable=False, expected a trainable variable")
        return int(shape[1])

    def _error(self, message: str) -> ProgramError:
        return ProgramError(f"program {self._job.program!r}: {message}")
