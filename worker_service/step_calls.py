"""The calls of a training step in a worker's session, each prepared once."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as v1

from psfleet.tf.repeated_call import RepeatedCall
from worker_service.accumulation import microbatches
from worker_service.in_graph.merged import ReplicaStep
from worker_service.step import StepGraph
from worker_service.step_sessions import StepSessions
from worker_service.step_watch import StepWatch


class StepCalls:
    """Runs the step of a graph, with `train.accumulate` in several calls; one thread at a time.

    Args of the constructor:
        sessions: Of the graph, begun.
        watch: Of the thread that makes the calls.
        options: Of a call that waits for nobody else's step.
        barrier: Of one that waits for the steps of others.
        session_number: Fed as `StepGraph.session_number`; None: the graph has none.
    """

    def __init__(
        self,
        sessions: StepSessions,
        watch: StepWatch,
        step: StepGraph | ReplicaStep,
        num_microbatches: int,
        options: v1.RunOptions,
        barrier: v1.RunOptions,
        session_number: int | None = None,
    ) -> None:
        session, self._watch = sessions.own, watch
        options, barrier = sessions.of_steps(options), sessions.of_steps(barrier)
        self._session, self._step, self._barrier = session, step, barrier
        self._session_number = [] if session_number is None else [np.int64(session_number)]
        of_session = [] if step.session_number is None else [step.session_number]
        self._num_microbatches = num_microbatches
        self._order = step.order
        numbers = [step.number, step.microbatch] if step.accumulate else [step.number]
        self._has_flag = step.wants_norm is not None
        self._norm = None
        if step.gradient_norm is not None:
            self._norm = RepeatedCall(session, [step.graph.as_graph_element(step.gradient_norm)], [], options)
        flags = [] if step.wants_norm is None else [step.wants_norm]
        feeds = [*step.feeds, step.microbatch]
        self._accumulate = [RepeatedCall(session, [loss], feeds, options) for loss in step.accumulate]
        if step.local_update is None:
            self._feeds = [*of_session, *step.feeds, step.local_step, *numbers, *flags]
            self._train = [RepeatedCall(session, each, self._feeds, barrier) for each in step.steps]
        else:
            self._update = RepeatedCall(session, [step.local_update], [*step.feeds, *numbers, *flags], options)
            self._exchange = RepeatedCall(session, step.steps[0], [*of_session, step.local_step], barrier)

    def train(
        self, batch: Sequence[np.ndarray], local_step: int, number: int, wants_norm: bool, may_abandon: bool
    ) -> tuple[float, np.ndarray]:
        """See `WorkerSession.train`. With accumulation only the last microbatch exchanges anything with the ps.

        Args:
            may_abandon: Whether the step may end early, see `Abandonment`; only if the graph has one.
        """
        losses, last, numbers = self._accumulated(batch, number)
        train = (self._abandonable if may_abandon else self._train)[self.loss_of(number)]
        flags = self._flags(wants_norm)
        with self._watch:
            loss, shards, *_ = train(*self._session_number, *last, np.int64(local_step), *numbers, *flags)
        return _mean(losses, loss), shards

    @functools.cached_property
    def _abandonable(self) -> list[RepeatedCall]:
        """The steps that may end early, by loss."""
        assert isinstance(self._step, StepGraph), "replicas in one graph have no spares"
        return [
            RepeatedCall(self._session, fetches, self._feeds, self._barrier, ends)
            for fetches, ends in self._step.abandonable
        ]

    def update_locally(self, batch: Sequence[np.ndarray], number: int, wants_norm: bool) -> float:
        """See `WorkerSession.update_locally`."""
        losses, last, numbers = self._accumulated(batch, number)
        with self._watch:
            (loss,) = self._update(*last, *numbers, *self._flags(wants_norm))
        return _mean(losses, loss)

    def exchange(self, local_step: int) -> np.ndarray:
        """See `WorkerSession.exchange`."""
        with self._watch:
            (shards,) = self._exchange(*self._session_number, np.int64(local_step))
        return np.asarray(shards)

    def gradient_norm(self) -> float | None:
        """See `WorkerSession.gradient_norm`."""
        if self._norm is None:
            return None
        (norm,) = self._norm()
        return None if math.isnan(norm) else float(norm)

    def loss_of(self, number: int) -> int:
        """The index of the loss whose gradient a number is of."""
        return self._order[number % len(self._order)]

    def _flags(self, wants_norm: bool) -> list[np.bool_]:
        """What is fed as `StepGraph.wants_norm`, if the graph has it."""
        return [np.bool_(wants_norm)] if self._has_flag else []

    def _accumulated(
        self, batch: Sequence[np.ndarray], number: int
    ) -> tuple[list[float], Sequence[np.ndarray], list[np.int64]]:
        """Adds up the gradients of all microbatches but the last.

        Returns:
            Their losses; the last microbatch; and the numbers that are fed with it.
        """
        if self._num_microbatches == 1:
            return [], batch, [np.int64(number)]
        *others, last = microbatches(batch, self._num_microbatches)
        first = np.int64(number) * self._num_microbatches
        accumulate = self._accumulate[self.loss_of(number)]
        losses = []
        for index, part in enumerate(others):
            with self._watch:
                losses.append(float(accumulate(*part, first + index)[0]))
        return losses, last, [np.int64(number), first + len(others)]


def _mean(losses: Sequence[float], last: float) -> float:
    """The mean of the losses of all microbatches. Not by NumPy, which takes 20 us for a single number."""
    return statistics.fmean([*losses, last]) if losses else float(last)
