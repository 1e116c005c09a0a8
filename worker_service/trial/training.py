"""One trial: trains its job to the final step, evaluates, and returns weights and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from psfleet.errors import BadJobError
from psfleet.job.job import Job
from psfleet.job.program import GraphProgram, KerasProgram
from psfleet.job.trial_access import TrialAccess
from psfleet.service.process import Stop
from worker_service.batches import Batches, BatchNumbers
from worker_service.evaluation import Evaluator
from worker_service.frontends import front_end, planned
from worker_service.frontends.finite import checked_values
from worker_service.frontends.graph_variables import values_at_step
from worker_service.program_optimizer import resolved
from worker_service.progress import TrainingProgress
from worker_service.training_data import TrainingData
from worker_service.trial.local_training import LocalTraining
from worker_service.trial.signs_of_life import SignsOfLife

Observer = Callable[[int, dict[str, float]], None]
"""Called with a step and the metrics at that step; an exception of it ends the trial."""


@dataclass(frozen=True)
class Trained:
    """The result of a trial.

    Attributes:
        values: Every tensor of the model that checkpoints hold, by name; TensorFlow's global step is that of them.
        metrics: Of the last evaluation, by name.
    """

    values: dict[str, np.ndarray]
    metrics: dict[str, float]


def train(
    program: KerasProgram | GraphProgram,
    job: Job,
    access: TrialAccess,
    stop: Stop,
    on_first: Callable[[], None],
    on: Observer,
    life: SignsOfLife,
    before_step: Callable[[], object] = lambda: None,
) -> Trained:
    """Trains a job whose fleet is one worker; evaluates as often as the job and the study say, and at the end.

    Args:
        access: Has the metric that each evaluation must have.
        on_first, on: Called after the first step, and after each evaluation.
        life: Learns what this trial waits for, with the deadlines of the job.
        before_step: Called before each step; an exception of it ends the trial.

    Raises:
        ProgramError: The program failed, or a tensor is not finite.
        BadJobError: The program does not report the metric.
        StoppedError: A signal came.
    """
    front = front_end(program, job, 1, 0)
    job, update = resolved(program, job, front.parameters)
    layout = planned(front, job)
    evaluator = Evaluator(front, layout, job)
    values = front.initial_values()
    batches = Batches(
        TrainingData.of_worker(program, job, 0), BatchNumbers(True, 1), job.deadlines, 0, TrainingProgress()
    )
    every, steps = [each for each in (job.evaluate.every_steps, access.prune_steps) if each], job.train.steps
    metrics: dict[str, float] = {}
    try:
        with LocalTraining(front, job, layout, values, update) as training:
            for number in range(steps):
                if stop.event.is_set():
                    raise stop.error()
                before_step()
                # The wait for a batch has deadlines of its own.
                life.begin(f"batch {number + 1}")
                batch = batches.at(number)
                life.begin(f"step {number + 1}", job.deadlines.stall_secs)
                training.step(batch, number)
                if number == 0:
                    on_first()
                step = number + 1
                if step == steps or any(step % each == 0 for each in every):
                    values = checked_values(job.program, training.values())
                    life.begin(f"the evaluation of step {step}", job.deadlines.first_secs)
                    metrics = evaluator.evaluate(values, step)
                    life.begin(f"the results of step {step} to be stored", job.deadlines.stall_secs)
                    require_metric(job, access.metric, metrics)
                    on(step, metrics)
    finally:
        batches.close()
    if isinstance(program, GraphProgram):
        values = values_at_step(front.frozen, values, job.batch_number(steps))
    unsaved = {spec.name for spec in layout.state.specs if not spec.is_saved}
    return Trained({name: value for name, value in values.items() if name not in unsaved}, metrics)


def require_metric(job: Job, metric: str, metrics: dict[str, float]) -> None:
    """Raises BadJobError if the objective is not among the metrics of an evaluation."""
    if metric not in metrics:
        found = f"expected one of {', '.join(metrics)}" if metrics else "it has no evaluation data"
        raise BadJobError(f"objective.metric is {metric!r}, which program {job.program!r} does not report: {found}")
