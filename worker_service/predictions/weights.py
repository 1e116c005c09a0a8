"""The weights of a trained model: those in a checkpoint, or in the file of a trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import safetensors.numpy

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.model_tensors import require_shapes, require_tables
from psfleet.checkpoint.tensors import read_values
from psfleet.errors import NoCheckpointError
from psfleet.job.job import parse_job
from psfleet.job.program_files import PROGRAM_DIGEST
from psfleet.layout import EmbeddingSpec, TensorSpec
from psfleet.layout.embedding import IDS, ROWS


@dataclass(frozen=True)
class Weights:
    """Tensors of a model.

    Attributes:
        step: After so many steps.
        values: By name; of tables the rows that were updated, as `read_values` returns them.
        source: Where they are from, for errors.
        embeddings: The tables.
        origin: See `origin_of`; empty: a trial.
        frozen: Specs of the tensors that have their initial values; of a trial none.
        program: See `program_of`; empty: a trial.
        divisor: See `divisor_of`.
    """

    step: int
    values: Mapping[str, np.ndarray]
    source: str
    embeddings: Sequence[EmbeddingSpec] = ()
    origin: str = ""
    frozen: Sequence[TensorSpec] = ()
    program: str = ""
    divisor: int = 1

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """Those of `values` that are no rows of tables."""
        rows = self.rows
        return {name: value for name, value in self.values.items() if name not in rows}

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Those of `values` that are rows of tables."""
        names = [f"{table.name}{suffix}" for table in self.embeddings for suffix in (IDS, ROWS)]
        return {name: self.values[name] for name in names if name in self.values}

    def require(self, shapes: Mapping[str, Sequence[int]], embeddings: Sequence[EmbeddingSpec]) -> None:
        """Checks that these are the weights of a model.

        Args:
            shapes: Of its variables, by name.
            embeddings: Its tables.

        Raises:
            BadJobError: They are of another one; names a tensor or table that differs.
        """
        require_shapes(self.source, {name: value.shape for name, value in self.tensors.items()}, shapes)
        require_tables(self.source, self.embeddings, embeddings)


def of_checkpoint(checkpoint: Checkpoint) -> Weights:
    """Those in a checkpoint; raises as `read_values`."""
    values, source, layout = read_values(checkpoint), f"checkpoint {checkpoint.folder}", checkpoint.layout
    origin, frozen = origin_of(checkpoint), layout.frozen.specs
    program, divisor = program_of(checkpoint), divisor_of(checkpoint)
    return Weights(checkpoint.step, values, source, layout.embeddings, origin, frozen, program, divisor)


def of_trial(file: str, step: int) -> Weights:
    """Those in the file of a trial.

    Raises:
        NoCheckpointError: It cannot be read.
    """
    try:
        return Weights(step, safetensors.numpy.load_file(file), file)
    except (OSError, safetensors.SafetensorError) as error:
        raise NoCheckpointError(f"{file} cannot be read: {error}") from error


def origin_of(checkpoint: Checkpoint) -> str:
    """What distinguishes a checkpoint from others in its run folder, also after `psfleet train --fresh`."""
    return f"{checkpoint.run} {checkpoint.folder}"


def program_of(checkpoint: Checkpoint) -> str:
    """What makes a model predict as it does, but for weights and tables: those of another program may fit it.

    Raises:
        BadJobError: The recorded job is none of this version.
    """
    if checkpoint.job is None:
        return ""
    job = parse_job(checkpoint.job, f"job of checkpoint {checkpoint.folder}")
    return json.dumps([job.program, job.options, checkpoint.extra.get(PROGRAM_DIGEST)], sort_keys=True)


def divisor_of(checkpoint: Checkpoint) -> int:
    """By what a graph program divides the step: a job without a quorum by the number of its workers.

    Raises:
        BadJobError: As `program_of`.
    """
    if checkpoint.job is None:
        return 1
    job = parse_job(checkpoint.job, f"job of checkpoint {checkpoint.folder}")
    return 1 if job.update.has_quorum else job.fleet.replicas
