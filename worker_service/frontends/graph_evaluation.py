"""Evaluates a graph program: the mean losses of its examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from psfleet.job.job import Job
from worker_service.frontends.evaluation_errors import evaluating, require_examples
from worker_service.input_pipeline import read


def mean_losses(
    data: tf.data.Dataset, job: Job, names: Sequence[str], run: Callable[[Sequence[np.ndarray]], Sequence[float]]
) -> dict[str, float]:
    """The mean of each loss over all examples: `loss`, or `NAME_loss` of each of several.

    Args:
        data: Batches, which need not be of one size.
        names: Of the losses, in the order in which `run` returns them; that of the only one is empty.
        run: Returns the mean losses of a batch.

    Raises:
        ProgramError: Reading the data, or the program, failed, or the data are empty.
    """
    metrics = [f"{name}_loss" if name else "loss" for name in names]
    totals, num_examples = np.zeros(len(metrics)), 0
    with tf.init_scope():
        for batch in read(data, job, "reading the evaluation data"):
            with evaluating(job):
                losses = run(batch)
            totals += np.multiply(losses, len(batch[0]))
            num_examples += len(batch[0])
    require_examples(job, num_examples > 0)
    return dict(zip(metrics, (totals / num_examples).tolist(), strict=True))
