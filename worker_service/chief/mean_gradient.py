"""The mean gradient over the workers of a run that is held, for a handle on it; nothing is applied."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from psfleet.addresses import Address
from psfleet.checkpoint.replacement import specs_of
from psfleet.checkpoint.tensors import read_tensors
from psfleet.control import control_pb2 as pb
from psfleet.control import run_control_pb2 as run_pb
from psfleet.control import run_control_pb2_grpc
from psfleet.control.run_client import RunClient
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import LostPeerError, UsageError
from psfleet.layout import TensorSpec
from psfleet.tensor_checks import check_all, check_specs
from worker_service.chief.holding import Holding
from worker_service.chief.operations import Operations

logger = logging.getLogger("psfleet.chief")

IsActive = Callable[[], bool]
Gradient = tuple[float, dict[str, np.ndarray]]


class MeanGradient:
    """Asks every worker of the job, spares left out, for its gradient."""

    def __init__(self, operations: Operations, holding: Holding) -> None:
        self._operations = operations
        self._context = operations.context
        self._holding = holding

    def check_specs(self, given: Mapping[str, TensorSpec]) -> None:
        """Checks names, shapes and types of weights, or that there are none; raises `UsageError`."""
        if self._context.layout.embeddings:
            raise UsageError("`gradient` is for a job without tables: the rows of a table are not among its tensors")
        if given:
            check_specs(self._trained(), given)

    def mean(self, request: run_pb.TensorMessage, weights: Mapping[str, np.ndarray], is_active: IsActive) -> Gradient:
        """The mean over the workers; a worker that is lost meanwhile is asked again once it is back.

        Args:
            request: The first message, with the number of batches of each worker.
            weights: Trained tensors; the others are those at the step at which the run is held.
            is_active: Returns whether the caller still waits.

        Raises:
            UsageError: The run is not one that is held, the program failed, or a worker was away, or gave none, for
                `deadlines.stall_secs`: a frozen one is not started again by its platform.
        """
        if self._holding.record is None:
            raise UsageError("`gradient` is for a run that is held, and this one is not: start it with paused=True")
        if self._context.job.optimizers:
            raise UsageError("`gradient` is for a program with one loss, and this one has several")
        if request.batches < 1:
            raise UsageError(f"gradient(batches={request.batches}): expected at least 1")
        if request.batches > 1 and self._context.job.input.is_dynamic:
            # A worker keeps the batch that it has asked for, and no more.
            raise UsageError(f"gradient(batches={request.batches}): expected 1 with input.sharding dynamic")
        limit, deadline = self._context.job.deadlines.stall_secs, float("inf")
        while True:
            self._operations.check_active(is_active)
            self._operations.require_running("gradient")
            values = {**read_tensors(self._operations.await_held(is_active)), **weights}
            began = time.monotonic()
            try:
                return self._asked(self._workers(), request, values, is_active)
            except LostPeerError as error:
                logger.debug("a worker has no gradient, it is asked again: %s", error)
                now = time.monotonic()
                # The workers may have computed for longer than the deadline of a worker that does not answer.
                deadline = now + limit if now - began >= limit else min(deadline, now + limit)
                if now >= deadline:
                    reason = f"no gradient of all workers within deadlines.stall_secs = {limit:g} s: {error}"
                    raise UsageError(f"{reason}; nothing has changed") from error
            self._operations.pause()

    def _asked(
        self,
        addresses: Sequence[Address],
        request: run_pb.TensorMessage,
        values: Mapping[str, np.ndarray],
        is_active: IsActive,
    ) -> Gradient:
        def ask(address: Address) -> Gradient:
            stub = run_control_pb2_grpc.WorkerControlStub
            client = RunClient(address.control, stub, self._context.identity, "worker")
            try:
                return client.call(
                    "OwnGradient",
                    lambda: sending(request.caller, values, batches=request.batches),
                    lambda: self._check(address, is_active),
                    consume=self._received,
                )
            finally:
                client.close()

        with ThreadPoolExecutor(len(addresses)) as pool:
            found = list(pool.map(ask, addresses))
        losses, gradients = [loss for loss, _ in found], [gradient for _, gradient in found]
        mean = {name: np.mean([each[name] for each in gradients], 0, np.float64) for name in gradients[0]}
        return float(np.mean(losses)), {name: np.asarray(value, np.float32) for name, value in mean.items()}

    def _workers(self) -> list[Address]:
        """The addresses of the workers of the job; raises `LostPeerError` if one is away."""
        states = self._context.fleet.describe()
        workers = {} if states[0] is None else _present(states[0])
        wanted = range(self._context.job.fleet.regular_replicas)
        missing = [index for index in wanted if index not in workers]
        if missing:
            raise LostPeerError(f"worker {missing[0]} is away")
        return [workers[index] for index in wanted]

    def _check(self, address: Address, is_active: IsActive) -> None:
        """Raises if the caller does not wait any more, the run is over, or no worker is at an address any more.

        The connection to one that is frozen, or whose machine is lost, does not break by itself.
        """
        self._operations.check_active(is_active)
        self._operations.require_running("gradient")
        state = self._operations.states[0]
        if state is not None and address not in _present(state).values():
            raise LostPeerError(f"the worker at {address.data} is away")

    def _received(self, answers: Iterator[run_pb.TensorMessage]) -> Gradient:
        head, gradient = receiving(answers, lambda given: check_all(self._trained(), given))
        return head.loss, gradient

    def _trained(self) -> dict[str, TensorSpec]:
        trained = {spec.name for spec in self._context.layout.parameters.specs}
        return {name: spec for name, spec in specs_of(self._context.layout).items() if name in trained}


def _present(state: pb.ShardState) -> dict[int, Address]:
    """The addresses of the workers that are alive, as ps 0 knows them, by index."""
    return {each.index: Address.parse(each.address) for each in state.workers if each.is_alive}
