"""Embedding layers of a Keras model whose rows are on the ps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from psfleet.errors import ProgramError
from psfleet.job.job import Job
from psfleet.layout import EmbeddingSpec, TensorSpec
from worker_service.frontends.table_rows import SavedRows, TableUses


class KerasTables:
    """The layers that `tables` of the job names, by their paths.

    While the model is built, each of these layers gets a variable of one row, which is never read, and another `call`,
    which reads rows where the present use of the model has them.

    Attributes:
        specs: Of the tables, in the order of the job; complete after `bind`.
        saved: Rows of a checkpoint, for evaluations.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._keys = list(job.tables)
        # All that were built, by path: a model that cannot be built for all sizes is made again.
        self._layers: dict[str, list[Any]] = {}
        self.specs: tuple[EmbeddingSpec, ...] = ()
        self.saved = SavedRows(())
        self._uses: TableUses | None = None
        self._used: set[int] = set()
        self._is_evaluating = False

    @contextmanager
    def building(self) -> Iterator[None]:
        """Context manager in which the model is made and built."""
        if not self._keys:
            yield
            return
        original = keras.layers.Embedding.build

        def build(layer: Any, input_shape: Any = None) -> None:
            if layer.built or not self._take_over(layer):
                original(layer, input_shape)
                return
            rows, layer.input_dim = layer.input_dim, 1
            try:
                original(layer, input_shape)
            finally:
                layer.input_dim = rows

        keras.layers.Embedding.build = build
        try:
            yield
        finally:
            keras.layers.Embedding.build = original

    def _take_over(self, layer: Any) -> bool:
        """Whether a layer that is being built is a table; if so, it reads its rows here from now on."""
        if layer.path not in self._keys:
            return False
        self._check(layer)
        self._layers.setdefault(layer.path, []).append(layer)
        layer.call = partial(self._call, layer, self._keys.index(layer.path))
        return True

    def bind(self, model: keras.Model, trained: list[Any], specs: Mapping[int, TensorSpec]) -> list[Any]:
        """Completes the tables once the model is built.

        Args:
            trained: The model's trainable variables.
            specs: Of the model's variables, by id.

        Returns:
            `trained` without the tables.

        Raises:
            ProgramError: A path is not that of an Embedding layer, its layer has another number of rows or is not
                trained, or there are no other trainable variables.
        """
        if not self._keys:
            return trained
        own = model._flatten_layers()
        layers = {layer.path: layer for layer in own if getattr(layer, "path", None)}
        tables = []
        chosen: list[Any] = []
        for key, table in self._job.tables.items():
            built = [layer for layer in self._layers.get(key, ()) if any(layer is each for each in own)]
            if len(built) > 1:
                raise self._error(f"two layers have the path {key} of a table, expected one")
            layer = built[0] if built else None
            if key not in self._layers and isinstance(layers.get(key), keras.layers.Embedding):
                raise self._error(f"layer {key} of a table was built before model() was called, expected by model()")
            if layer is None:
                raise self._error(f"table {key} is not the path of an Embedding layer; {_known(layers, key)}")
            if layer.input_dim != table.rows:
                raise self._error(
                    f"tables.{key}.rows is {table.rows}, expected input_dim of its layer, {layer.input_dim}"
                )
            if all(variable is not layer._embeddings for variable in trained):
                raise self._error(f"layer {key} of a table has trainable=False, expected a trainable layer")
            chosen.append(layer)
            width, scale = layer.output_dim, table.init_scale
            name = specs[id(layer._embeddings)].name
            seed = self._job.train.seed
            tables.append(EmbeddingSpec(key, name, table.rows, width, table.init, scale, seed, table.hash))
        self.specs = tuple(tables)
        # While the model was made, layers may have been called whose results it does not use.
        self._used.clear()
        self.saved = SavedRows(self.specs)
        of_tables = {id(layer._embeddings) for layer in chosen}
        rest = [variable for variable in trained if id(variable) not in of_tables]
        if not rest:
            raise self._error("the model has no trainable parameters without those of tables, expected at least one")
        return rest

    def require_used(self) -> None:
        """Raises ProgramError if the forward pass does not call the layer of a table."""
        unused = [key for index, key in enumerate(self._keys) if index not in self._used]
        if unused:
            raise self._error(f"the forward pass does not call layer {unused[0]}, which tables names")

    @contextmanager
    def reading(self, uses: TableUses) -> Iterator[None]:
        """Context manager in which the step of the model is traced."""
        self._uses = uses
        try:
            yield
        finally:
            self._uses = None

    @contextmanager
    def evaluating(self, values: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Context manager in which the model reads the rows in `values`; see `SavedRows.use`."""
        self.saved.use(values)
        self._is_evaluating = True
        try:
            yield
        finally:
            self._is_evaluating = False

    def _call(self, layer: Any, table: int, inputs: Any) -> Any:
        """In place of `keras.layers.Embedding.call`."""
        is_hashed = self._job.tables[self._keys[table]].hash
        if not is_hashed and inputs.dtype not in ("int32", "int64", "string"):
            # Of a table with more than 2^31 rows, too.
            inputs = keras.ops.cast(inputs, "int64")
        self._used.add(table)
        if self._uses is not None:
            rows = self._uses.lookup(table, inputs)
        elif self._is_evaluating:
            rows = TableUses(self.specs, self.saved, self.saved.at_step).lookup(table, inputs)
        else:
            rows = tf.zeros(tf.concat([tf.shape(inputs), [layer.output_dim]], 0))
            rows = tf.ensure_shape(rows, [*inputs.shape, layer.output_dim])
        return keras.ops.cast(rows, layer.compute_dtype)

    def _check(self, layer: Any) -> None:
        if type(layer).call is not keras.layers.Embedding.call:
            raise self._error(f"layer {layer.path} of a table has a call of its own, expected that of Embedding")
        for what in ("embeddings_regularizer", "embeddings_constraint", "lora_rank", "quantization_mode"):
            if getattr(layer, what, None):
                raise self._error(f"layer {layer.path} of a table has {what}, which no ps applies to single rows")

    def _error(self, message: str) -> ProgramError:
        return ProgramError(f"program {self._job.program!r}: {message}")


def _known(layers: Mapping[str, Any], key: str) -> str:
    """What the model has instead, for a message."""
    if key in layers:
        return f"it is that of {type(layers[key]).__name__}"
    embeddings: Sequence[str] = [path for path, layer in layers.items() if isinstance(layer, keras.layers.Embedding)]
    return f"those of the model are {', '.join(embeddings) or 'none'}"
