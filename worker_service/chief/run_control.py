"""The run control of a chief: a gRPC servicer around its operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

import psfleet
from psfleet.checkpoint.replacement import specs_of
from psfleet.checkpoint.store_client import StoreError
from psfleet.control import run_control_pb2 as run_pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.prompt_stream import prompt
from psfleet.control.tensor_stream import receiving, record_of, sending
from psfleet.errors import PsfleetError, StorageError, TemporaryError
from worker_service.chief.components import ChiefComponents
from worker_service.chief.held_run import HeldRun
from worker_service.chief.mean_gradient import MeanGradient
from worker_service.chief.operations import CallEndedError, Operations
from worker_service.chief.weight_setter import WeightSetter
from worker_service.errands import Errands
from worker_service.heartbeat import Heartbeat
from worker_service.run_context import RunContext


@dataclass(frozen=True)
class ChiefServices:
    """What one chief does for handles."""

    operations: Operations
    weights: WeightSetter
    held: HeldRun
    gradient: MeanGradient

    @classmethod
    def of(
        cls, context: RunContext, heartbeat: Heartbeat, components: ChiefComponents, errands: Errands
    ) -> ChiefServices:
        """Those of a chief with these components, whose training thread does the errands."""
        operations = Operations(context, heartbeat, components.committer)
        return cls(
            operations,
            WeightSetter(operations, components.holding, components.events),
            HeldRun(operations, components.holding, components.recorder, errands),
            MeanGradient(operations, components.holding),
        )


class RunControlServicer(run_control_pb2_grpc.RunControlServicer):
    """Serves the handles on a run from the start of its chief's process; until `bind` it answers that the chief starts.

    Refused are a caller of another run or version, and a second operation while one is in progress: with
    FAILED_PRECONDITION, which says that nothing has changed. After UNAVAILABLE a caller may repeat its call.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._services: ChiefServices | None = None

    def bind(self, services: ChiefServices) -> None:
        """Serves a chief from now on."""
        self._services = services

    def Look(self, request: run_pb.RunCall, context: grpc.ServicerContext) -> run_pb.RunView:
        """See run_control.proto."""
        with self._refusals(context):
            return self._checked(request, context).operations.view()

    def Save(self, request: run_pb.RunCall, context: grpc.ServicerContext) -> run_pb.SavedReply:
        """See run_control.proto."""
        services = self._checked(request, context)
        with self._refusals(context), services.operations.turn(request, "save"):
            saved = services.operations.save(context.is_active)
        return run_pb.SavedReply(folder=str(saved.folder), step=saved.step)

    def DescribeWeights(self, request: run_pb.RunCall, context: grpc.ServicerContext) -> run_pb.TensorMessage:
        """See run_control.proto."""
        services = self._checked(request, context)
        with self._refusals(context):
            changes = services.weights.known_changes()
        layout = services.operations.context.layout
        trained = {spec.name for spec in layout.parameters.specs}
        records = [record_of(spec, name in trained) for name, spec in specs_of(layout).items()]
        return run_pb.TensorMessage(tensors=records, changes=changes)

    def GetWeights(self, request: run_pb.RunCall, context: grpc.ServicerContext) -> Iterator[run_pb.TensorMessage]:
        """See run_control.proto."""
        services = self._checked(request, context)
        with self._refusals(context), services.operations.turn(request, "get"):
            tensors = services.operations.read(context.is_active)
        yield from sending(request, tensors)

    def SetWeights(
        self, request_iterator: Iterator[run_pb.TensorMessage], context: grpc.ServicerContext
    ) -> run_pb.SavedReply:
        """See run_control.proto."""
        messages = prompt(request_iterator, context.cancel)
        first = next(messages, run_pb.TensorMessage())
        services = self._checked(first.caller, context)
        with self._refusals(context), services.operations.turn(first.caller, "set"):
            _, tensors = receiving(itertools.chain([first], messages), services.weights.check_specs)
            made = services.weights.set(first.caller, tensors, first.changes, context.is_active)
        return run_pb.SavedReply(folder=str(made.folder), step=made.step)

    def Train(self, request: run_pb.TrainRequest, context: grpc.ServicerContext) -> run_pb.SteppedReply:
        """See run_control.proto."""
        services = self._checked(request.caller, context)
        with self._refusals(context), services.operations.turn(request.caller, "train"):
            step = services.held.train(request.caller, request.steps, context.is_active)
        return run_pb.SteppedReply(step=step)

    def Evaluate(self, request: run_pb.RunCall, context: grpc.ServicerContext) -> run_pb.EvaluatedReply:
        """See run_control.proto."""
        services = self._checked(request, context)
        with self._refusals(context), services.operations.turn(request, "evaluate"):
            metrics = services.held.evaluate(context.is_active)
        return run_pb.EvaluatedReply(metrics=metrics)

    def Gradient(
        self, request_iterator: Iterator[run_pb.TensorMessage], context: grpc.ServicerContext
    ) -> Iterator[run_pb.TensorMessage]:
        """See run_control.proto."""
        messages = prompt(request_iterator, context.cancel)
        first = next(messages, run_pb.TensorMessage())
        services = self._checked(first.caller, context)
        with self._refusals(context), services.operations.turn(first.caller, "gradient"):
            _, tensors = receiving(itertools.chain([first], messages), services.gradient.check_specs)
            loss, mean = services.gradient.mean(first, tensors, context.is_active)
        yield from sending(first.caller, mean, loss=loss)

    def _checked(self, call: run_pb.RunCall, context: grpc.ServicerContext) -> ChiefServices:
        """The chief's services; ends the call if it cannot be served."""
        expected = self._run, psfleet.__version__
        if (call.run, call.version) != expected:
            found = (
                f"the call is for run {call.run or 'without a name'} and from psfleet {call.version or '(no version)'}"
            )
            message = f"{found}, expected run {expected[0]} and psfleet {expected[1]}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
        if self._services is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the chief starts")
        assert self._services is not None, "abort() raises"
        return self._services

    @contextmanager
    def _refusals(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Ends a call with a status that says whether it may be repeated."""
        try:
            yield
        except CallEndedError:
            context.abort(grpc.StatusCode.CANCELLED, "the caller has gone")
        except TemporaryError as error:
            # What the call waited for has failed for long enough; of a store, whether it has is not known.
            is_refused = isinstance(error, StorageError) and not isinstance(error, StoreError)
            code = grpc.StatusCode.FAILED_PRECONDITION if is_refused else grpc.StatusCode.UNAVAILABLE
            context.abort(code, str(error))
        except PsfleetError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
