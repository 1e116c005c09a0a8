"""`python -m worker_service.validation`: checks without a fleet that a program can be trained.

Reads a resolved job on standard input, and writes a `Verdict` to a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.callbacks.loading import load_callbacks
from psfleet.errors import ProgramError
from psfleet.job.job import Job, job_from_json
from psfleet.job.program import GraphProgram, KerasProgram, load_program
from psfleet.job.watched_metrics import require_metrics
from psfleet.layout import Layout
from psfleet.layout.buckets import loss_names
from psfleet.plurals import counted
from psfleet.report.verdict import end_at_once, write_verdict
from psfleet.service.parent import end_with_parent
from psfleet.tf.batching import training_batches
from psfleet.tf.program_data import read_within_deadline, training_data
from psfleet.tf.server import session_config
from worker_service import program_optimizer
from worker_service.accumulation import microbatches
from worker_service.data_shard import least_examples
from worker_service.dynamic_data import check_dynamic
from worker_service.evaluation import Evaluator
from worker_service.examples_in_memory import check_preload
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.input_pipeline import read
from worker_service.loader_stream import check_loadable
from worker_service.local_step import LocalStep
from worker_service.session_errors import translate_errors

SUM_TOLERANCE = 1e-4
"""Relative difference of two losses that are taken for equal."""


def check(job: Job, folder: Path) -> str:
    """Builds the program as the chief does, computes the gradient of one batch, and evaluates one batch.

    Returns:
        What was found, in one line: parameters, shards, embedding tables, and the loss of the batch.

    Raises:
        ProgramError: The program cannot be loaded, built, trained or evaluated.
        BadJobError: The job watches a metric, or applies an optimizer, that the program does not have.
        DataStallError: Its data set gave no batch in `deadlines.first_batch_secs`.
    """
    job = job.model_copy(update={"device": job.device.model_copy(update={"log_placement": False})})
    program = load_program(job, folder)
    load_callbacks(job)
    front = front_end(_with_one_batch(program, job), job, job.fleet.replicas, 0)
    program_optimizer.resolved(program, job, front.parameters)
    layout = planned(front, job)
    values = front.initial_values()
    has_sums = isinstance(program, GraphProgram) and program.loss_weight is None
    losses = _losses(front, job, layout, values, _first_batch(program, job), has_sums)
    with translate_errors():
        metrics = Evaluator(front, layout, job).evaluate(values, 0)
    require_metrics(job, metrics)
    number = sum(spec.size for spec in layout.parameters.specs)
    tensors = counted(len(layout.parameters.specs), "tensor")
    tables = counted(len(layout.embeddings), "table")
    rows = sum(table.rows for table in layout.embeddings)
    return (
        f"{type(program).__name__} {job.name}: {number:,} parameters in {tensors}, "
        f"{layout.num_ps} x {layout.parameters.shard_size * 4:,} bytes"
        f"{f', and {tables} with {rows:,} rows' if rows else ''}; {losses}"
    )


def _with_one_batch(program: KerasProgram | GraphProgram, job: Job) -> KerasProgram | GraphProgram:
    """The program with an evaluation of one batch."""
    evaluate = program.evaluate
    if evaluate is None:
        return program

    def first_examples() -> tf.data.Dataset:
        dataset = evaluate()
        if not isinstance(dataset, tf.data.Dataset) or dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            return dataset
        return dataset.take(job.evaluate.batch_size or job.train.batch_size)

    return replace(program, evaluate=first_examples)


def _first_batch(program: KerasProgram | GraphProgram, job: Job) -> tuple[np.ndarray, ...]:
    """The first batch of data shard 0: `train.batch_size` of the examples of the first gradient."""
    num_shards = job.input.num_loaders if job.input.is_dynamic else job.fleet.replicas
    examples = training_data(program, job, 0, num_shards)
    if job.input.source == "preload":
        check_preload(examples, job, 0)
    if job.input.source == "loaders":
        check = check_dynamic if job.input.is_dynamic else check_loadable
        check(examples, job, "reading the training data of shard 0")
    dataset = training_batches(examples, job)
    what = "reading the first training batch"
    batch = read_within_deadline(job, what, lambda: next(read(dataset, job, what), None))
    if batch is None:
        where = "" if job.input.bucket_boundaries is None else " in each of the buckets of input.bucket_boundaries"
        raise ProgramError(
            f"program {job.program!r}: the training data of shard 0 of {num_shards} has fewer examples than "
            f"{least_examples(job)}{where}, expected at least one batch"
        )
    return tuple(array[: job.train.batch_size] for array in batch)


def _losses(
    front: FrontEnd,
    job: Job,
    layout: Layout,
    values: dict[str, np.ndarray],
    batch: tuple[np.ndarray, ...],
    may_be_sums: bool,
) -> str:
    """The losses of a batch as text; computes gradients and state as well, and checks that all are finite.

    Args:
        may_be_sums: Whether nothing is known about how the losses of examples are reduced.
    """
    step = LocalStep(front, layout, checks_finite=True)
    feeds = step.feeds(values) | step.batch(batch)
    config = session_config(job.device)
    found = []
    with v1.Session(graph=step.graph, config=config) as session, translate_errors("the first batch: "):
        session.run(step.initializer)
        for name, training in zip(loss_names(layout.parameters), step.training.each, strict=True):
            fetches = [training.loss, *training.gradients, *training.new_state, *training.updates]
            loss = float(session.run(fetches, feeds)[0])
            found.append(f"{name} loss of the first batch {loss:.4g}".strip())
            if may_be_sums and isinstance(job.device.replicas, int) and job.device.replicas > 1:
                parts = [step.batch(part) for part in microbatches(batch, job.device.replicas)]
                of_parts = [float(session.run(training.loss, feeds | part)) for part in parts]
                _check_mean(job.program, name, loss, of_parts)
    return ", ".join(found)


def _check_mean(program: str, name: str, loss: float, of_parts: Sequence[float]) -> None:
    """Refuses a loss that is a sum over the batch: the mean over towers would be a part of it.

    Args:
        name: Of the loss; empty if it is the only one.
        loss: Of a batch.
        of_parts: Of the batch's parts, one for each tower.

    Raises:
        ProgramError: The loss is the sum of those of the parts.
    """
    if math.isclose(loss, sum(of_parts), rel_tol=SUM_TOLERANCE) and loss:
        raise ProgramError(
            f"program {program!r}: {f'{name}: loss(batch)' if name else 'loss(batch)'} of the first batch is "
            f"{loss:.4g}, the sum of those of its {len(of_parts)} parts, expected their mean with device.replicas = "
            f"{len(of_parts)}: divide it by the number of examples"
        )


def main() -> None:
    """Checks the program in the folder of the first argument; the second one names the file of the verdict."""
    write_verdict(lambda job, folder: check(job_from_json(job), Path(folder)))


if __name__ == "__main__":
    end_with_parent()
    main()
    end_at_once()
