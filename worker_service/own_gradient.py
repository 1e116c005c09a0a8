"""A worker's gradient of given weights, while the run is held: in a graph of its own, without the ps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import grpc
import numpy as np
import tensorflow.compat.v1 as v1

import psfleet
from psfleet.checkpoint.replacement import specs_of
from psfleet.control import run_control_pb2 as pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.prompt_stream import prompt
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import LostPeerError, PsfleetError, TemporaryError, UsageError
from psfleet.layout import TensorSpec
from psfleet.tensor_checks import check_all
from psfleet.tf.server import session_config
from worker_service.accumulation import microbatches
from worker_service.batches import Batches
from worker_service.errands import Errands, awaited
from worker_service.frontends.interface import FrontEnd
from worker_service.local_step import LocalStep
from worker_service.progress import TrainingProgress
from worker_service.run_context import RunContext
from worker_service.session_errors import translate_errors

Gradient = tuple[float, dict[str, np.ndarray]]


class OwnGradient:
    """Computes gradients on the thread that trains; the graph is built at the first one.

    Args of the constructor:
        before_build: Waits until nothing else uses the program; see `Worker.before_build`.
    """

    def __init__(
        self,
        context: RunContext,
        front_end: FrontEnd,
        batches: Batches,
        progress: TrainingProgress,
        before_build: Callable[[], object],
    ) -> None:
        self._context = context
        self._front_end = front_end
        self._batches = batches
        self._progress = progress
        self._before_build = before_build
        self._opened: tuple[LocalStep, v1.Session] | None = None

    def check_specs(self, given: Mapping[str, TensorSpec]) -> None:
        """Checks that these are all tensors of the model that checkpoints hold; raises `UsageError`."""
        check_all(specs_of(self._context.layout), given)

    def compute(
        self, values: Mapping[str, np.ndarray], num_batches: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> Gradient:
        """Loss and gradient, each the mean over the next batches, of which none is consumed.

        Args:
            values: Every tensor of the model that checkpoints hold; state that they do not hold is zeros.
            num_batches: At least 1.
            is_wanted: Returns whether the caller still waits; called before each batch.

        Returns:
            The loss; for each trained tensor its gradient before it is clipped, float32 of the tensor's shape.

        Raises:
            ProgramError: The program failed.
            LostPeerError: The run ends before the graph is built, or nobody waits for the gradient any more.
        """
        layout = self._context.layout
        step, session = self._opened = self._opened or self._open()
        unsaved = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in layout.state.specs if not spec.is_saved}
        feeds = step.feeds({**unsaved, **values})
        first = self._batches.numbers.next(self._progress.step)
        losses, sums = [], [np.zeros(spec.size, np.float64) for spec in layout.parameters.specs]
        for number in range(first, first + num_batches):
            if self._context.stop.event.is_set() or not is_wanted():
                raise LostPeerError(f"nobody waits for the gradient, which is left after {number - first} batches")
            for at, batch in self._microbatches(number):
                with translate_errors(f"worker {self._context.index}: "):
                    fed = feeds | step.batch(batch, at)
                    loss, gradients = session.run([step.training.loss, list(step.training.gradients)], fed)
                losses.append(float(loss))
                for total, gradient in zip(sums, gradients, strict=True):
                    total += np.reshape(gradient, -1)
        specs = zip(layout.parameters.specs, sums, strict=True)
        means = {spec.name: (total / len(losses)).astype(np.float32).reshape(spec.shape) for spec, total in specs}
        return float(np.mean(losses)), means

    def _microbatches(self, number: int) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Those of a batch, with their numbers."""
        count = self._context.job.train.accumulate
        parts = microbatches(self._batches.at(number), count)
        return ((number * count + at, part) for at, part in enumerate(parts))

    def _open(self) -> tuple[LocalStep, v1.Session]:
        self._before_build()
        step = LocalStep(self._front_end, self._context.layout)
        session = v1.Session(graph=step.graph, config=session_config(self._context.job.device))
        session.run(step.initializer)
        return step, session


Bound = tuple[OwnGradient, Errands]


class WorkerControlServicer(run_control_pb2_grpc.WorkerControlServicer):
    """Serves a worker's gradient to the chief of its run; until `bind` it answers that the worker starts."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._bound: Bound | None = None

    def bind(self, gradient: OwnGradient, errands: Errands) -> None:
        """Serves a worker from now on."""
        self._bound = gradient, errands

    def OwnGradient(
        self, request_iterator: Iterator[pb.TensorMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.TensorMessage]:
        """See run_control.proto."""
        try:
            messages = prompt(request_iterator, context.cancel)
            first = next(messages, pb.TensorMessage())
            gradient, errands = self._checked(first.caller)
            head, values = receiving(itertools.chain([first], messages), gradient.check_specs)
            result = errands.submit(lambda: gradient.compute(values, head.batches, context.is_active))
            loss, mean = awaited(result, lambda: _check_active(context))
        except TemporaryError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except PsfleetError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        yield from sending(head.caller, mean, loss=loss)

    def _checked(self, call: pb.RunCall) -> Bound:
        if (call.run, call.version) != (self._run, psfleet.__version__):
            raise UsageError(f"expected a call for run {self._run}")
        if self._bound is None:
            raise LostPeerError("this worker starts")
        return self._bound


def _check_active(context: grpc.ServicerContext) -> None:
    if not context.is_active():
        raise LostPeerError("the caller has gone")
