"""The sessions of a worker's graph: one on its server, with every ps, and the one that runs its steps."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.exchange.connection import SILENT_SECS
from psfleet.job.job import Job
from worker_service.direct import options_of_step
from worker_service.in_graph.merged import ReplicaStep
from worker_service.session_errors import UnreachableError
from worker_service.step import StepGraph
from worker_service.step_watch import StepWatch

GONE = "a peer went away while a session was opened"
Element: TypeAlias = "tf.Tensor | tf.Operation | tf.Variable"


class StepSessions:
    """The sessions of a graph. Elements of it are found in both of them.

    Args of the constructor:
        target: `grpc://host:port` of this worker's server.
        config: With the cluster.
        options: Of a call that waits for nobody else's step.

    Attributes:
        server: The session on the server.
        own: That of the steps, and of what a worker reads of its variables: a direct one if the graph has such a part
            and once `begin` was called, or else the one on the server.
    """

    def __init__(
        self,
        target: str,
        step: StepGraph | ReplicaStep,
        job: Job,
        config: v1.ConfigProto,
        options: v1.RunOptions,
    ) -> None:
        self._step, self._job, self._options = step, job, options
        self.server = self.own = v1.Session(target, graph=step.graph, config=config)
        self._is_over = threading.Event()
        self._opened: Future[np.ndarray] = Future()

    def open(self) -> None:
        """Opens the session on the server, on a thread of its own; see `opened`."""
        threading.Thread(target=self._open, name="open-session", daemon=True).start()

    def opened(self, timeout_secs: float) -> np.ndarray:
        """Waits until that session is open; returns `StepGraph.shard_steps`. From any thread, any number of times.

        Raises:
            UnreachableError: A peer does not answer in time, or `close` was called.
            Exception: What the session has raised.
        """
        try:
            return self._opened.result(timeout_secs)
        except CancelledError as error:
            raise UnreachableError(GONE) from error
        except TimeoutError as error:
            raise UnreachableError(f"{GONE}: no answer in {timeout_secs:g} s") from error

    def _open(self) -> None:
        """Makes the first call of the session, which opens it.

        TensorFlow then waits until every task of the ClusterSpec answers. It ignores the deadline of the call,
        `ConfigProto.operation_timeout_in_ms` and the closing of the session: a thread that waits for a lost ps is
        abandoned, and ends when another process listens at that address.
        """
        step = self._step
        # In one call: TensorFlow prepares the graph anew for each set of operations.
        first = [step.shard_steps, *([] if step.direct is not None else [step.initializer])]
        with suppress(InvalidStateError):
            try:
                shard_steps, *_ = self.server.run(first)
            except Exception as error:
                self._opened.set_exception(error)
            else:
                self._opened.set_result(shard_steps)

    def begin(self, *writers: Element) -> None:
        """Opens the session of steps, see `take`."""
        if self._step.direct is not None:
            self.own = self._step.direct.open(self._job, self._operations(), self._step.initializer)
            self.take(*writers)

    def take(self, *writers: Element) -> None:
        """Moves to the session of steps what these elements have written on the server."""
        if self._step.direct is not None:
            operations = [each if isinstance(each, tf.Operation) else each.op for each in writers]
            self._step.direct.take(self.own, self.server, operations, self._options)

    def watch(self) -> StepWatch:
        """A new one, for the calls of steps of one thread."""
        # A step waits for its ps for as long as it may itself take; a ps that is silent is given up later.
        watch = StepWatch(2 * (self._job.round_secs + SILENT_SECS), self._is_over)
        watch.start()
        return watch

    def of_steps(self, options: v1.RunOptions) -> v1.RunOptions:
        """The options of a call of `own`."""
        return options if self.own is self.server else options_of_step(self._job)

    def run(
        self,
        fetched: Element | Sequence[Element],
        feeds: Mapping[tf.Tensor, np.ndarray | int] | None = None,
        options: v1.RunOptions | None = None,
    ) -> Any:
        """Runs elements of the graph in `own`; raises as `tf.compat.v1.Session.run`."""
        names = [self._name(each) for each in fetched] if isinstance(fetched, Sequence) else self._name(fetched)
        fed = {self._name(placeholder): value for placeholder, value in (feeds or {}).items()}
        return self.own.run(names, fed, options)

    def close(self) -> None:
        """Cancels what runs, and closes both; from any thread. The one on the server can wait for peers forever."""
        self._is_over.set()
        self._opened.cancel()
        if self.own is not self.server:
            self.own.close()
        self.server.close()

    def _name(self, element: Element) -> str:
        return str(self._step.graph.as_graph_element(element).name)

    def _operations(self) -> list[tf.Operation]:
        """What runs in the session of steps."""
        step = self._step
        found = [*(tensor for each in step.steps for tensor in each), *step.accumulate, *step.gradients, *step.feeds]
        found += [*step.parameters, step.state, step.frozen, step.local_step, step.number, step.microbatch]
        found += [step.local_update, step.summaries, step.gradient_norm, step.wants_norm, step.session_number]
        return [step.graph.as_graph_element(each).op for each in found if each is not None]
