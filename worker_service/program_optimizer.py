"""The Keras optimizer object of a training program: checked, and traced for the ps."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from psfleet.errors import BadJobError, ProgramError
from psfleet.job.job import Job
from psfleet.job.optimizer import OfProgram
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.user_code import user_code
from psfleet.layout import TensorSpec
from psfleet.tf.traced_update import TracedUpdate
from worker_service import elementwise
from worker_service.optimizer_trace import OptimizerTrace

logger = logging.getLogger("psfleet.worker")


def resolved(
    program: KerasProgram | GraphProgram, job: Job, parameters: Sequence[TensorSpec]
) -> tuple[Job, TracedUpdate | None]:
    """The job with the learning rate of the program's optimizer, unless it has its own, and the update for the ps.

    Args:
        parameters: All trained tensors of the model.

    Returns:
        The job as it is, and None, if its optimizer is not the program's.

    Raises:
        ProgramError: The ps cannot apply the optimizer; the message has the reason.
        BadJobError: Job and optimizer both have a weight decay.
    """
    options, optimizer = job.optimizer, program.optimizer
    if not isinstance(options, OfProgram):
        if optimizer is not None:
            logger.warning(
                "the program's optimizer %s is not used: the job's is %s; use `optimizer: {name: program}` to apply it",
                type(optimizer).__name__,
                ", ".join(rule.name for rule in job.rules.values()),
                extra={"event": "unused_optimizer"},
            )
        return job, None
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        found = f"optimizer of the program is {optimizer!r}"
        raise ProgramError(f"program {job.program!r}: {found}, expected a keras.optimizers.Optimizer")
    name = type(optimizer).__name__
    with user_code(job, f"reading the options of optimizer {name}"):
        for reason in _unsupported(optimizer):
            raise ProgramError(f"program {job.program!r}: optimizer {name} {reason}")
    if options.weight_decay and optimizer.weight_decay:
        raise BadJobError(
            f"optimizer.weight_decay is {options.weight_decay:g}, and the program's optimizer {name} has weight_decay "
            f"{optimizer.weight_decay:g}; expected one of the two"
        )
    rate = options.learning_rate or _learning_rate(optimizer)
    options = options.model_copy(update={"learning_rate": rate})
    return job.model_copy(update={"optimizer": options}), _traced(optimizer, job, parameters)


def _traced(optimizer: Any, job: Job, parameters: Sequence[TensorSpec]) -> TracedUpdate:
    name = type(optimizer).__name__
    with user_code(job, f"tracing an update of optimizer {name}"):
        trace = OptimizerTrace(job.program, optimizer, parameters)
        update = trace.update()
        reason = elementwise.offending_node(update.graph_def) or elementwise.difference(trace, update)
    if reason:
        raise ProgramError(
            f"program {job.program!r}: optimizer {name} is not elementwise: {reason}. Each ps applies it to a part of "
            "all parameters as one vector, where tensors have neither shapes nor names"
        )
    return update


def _learning_rate(optimizer: Any) -> float:
    # By way of its text: the float32 nearest to 0.001 is 0.0010000000474974513.
    return float(str(np.float32(optimizer.learning_rate.numpy())))


def _unsupported(optimizer: Any) -> Iterator[str]:
    """What the ps cannot do of an optimizer's own options, each as the rest of a sentence."""
    instead = {
        "clipnorm": "`clip_norm` of the job file's optimizer, which is the norm over all tensors",
        "global_clipnorm": "`clip_norm` of the job file's optimizer",
        "use_ema": "no average of the weights",
        "gradient_accumulation_steps": "`train.accumulate` of the job file",
        "loss_scale_factor": "a loss that is not scaled",
    }
    for option, expected in instead.items():
        if value := getattr(optimizer, option, None):
            yield f"has {option} {value}, expected {expected}"
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield "scales the loss, which psfleet does not; expected the optimizer in it"
    # Keras 3.12 has none.
    if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
        yield "delegates to several optimizers, expected one"
    if optimizer.built:
        yield "is built already; expected a new object, which no model has used"
    excluded = getattr(optimizer, "_exclude_from_weight_decay", None)
    if optimizer.weight_decay and (excluded or getattr(optimizer, "_exclude_from_weight_decay_pattern", None)):
        yield "excludes tensors from weight decay; expected one that decays all"
    if not isinstance(optimizer._learning_rate, keras.Variable):
        yield "has a schedule of the learning rate, expected a number; the job file has `optimizer.schedule`"
    elif not 0 < (rate := _learning_rate(optimizer)) < math.inf:
        yield f"has learning rate {rate}, expected one above 0"
