"""A worker's TensorFlow session with every ps: opened, run with deadlines, closed without ever hanging."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.python.client import pywrap_tf_session as tf_session

from psfleet.addresses import Address
from psfleet.errors import LostPeerError, ProgramError
from psfleet.job.job import Job
from psfleet.layout import Layout
from psfleet.tf.server import session_config
from worker_service.step import NAN_LOSS, StepGraph

CLOSE_SECS = 2.0
HEADING = re.compile(r"=+$|([A-Z_]+: )?From /job:")
"""Lines of TensorFlow's messages that frame the reason, or say where it was met."""
PROGRAM_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.ResourceExhaustedError)
"""What only the training program causes. All other errors of a run can come from a peer that died or restarted."""


@dataclass(frozen=True)
class Start:
    """What a worker finds when it attaches.

    Attributes:
        progress: Version and target of each shard, int64 `[num_ps, 2]`.
        local_steps: Label of this worker's newest gradient on each shard, int64 `[num_ps]`; -1: none.
    """

    progress: np.ndarray
    local_steps: np.ndarray

    @property
    def global_step(self) -> int:
        """The lowest global_step among the shards."""
        return int(self.progress[:, 0].min())


class _Call:
    """One run of a session that is made again and again.

    With feeds, `Session.make_callable` is `Session.run`, which checks and converts all anew: 0.4 ms of a step. This is
    the call below it, as BaseSession._do_run makes it in TensorFlow 2.21.
    """

    def __init__(
        self, session: v1.Session, fetches: Sequence[tf.Tensor], feeds: Sequence[tf.Tensor], options: v1.RunOptions
    ) -> None:
        session._extend_graph()
        self._session = session
        self._fetches = [tensor._as_tf_output() for tensor in fetches]
        self._feeds = [tensor._as_tf_output() for tensor in feeds]
        self._options = tf_session.TF_NewBufferFromString(options.SerializeToString())

    def __call__(self, *values: np.ndarray | np.generic) -> list[Any]:
        """The fetches as NumPy values; the feeds have to be of the placeholders' types."""
        fed = {feed: np.asarray(value) for feed, value in zip(self._feeds, values, strict=True)}
        fetched: list[Any] = self._session._call_tf_sessionrun(self._options, fed, self._fetches, [], None)
        return fetched


class WorkerSession:
    """A session on the resources of one generation.

    Its ClusterSpec names every ps and this worker alone, and travels with the session: no process waits for a worker
    that is not there.

    Raises (from every method):
        LostPeerError: A ps went away or forgot the generation.
        ProgramError: The training program failed.
    """

    def __init__(
        self, step: StepGraph, job: Job, layout: Layout, ps: Sequence[Address], own: Address, index: int
    ) -> None:
        cluster = tf.train.ClusterSpec({"ps": [at.data for at in ps], step.worker_job: {index: own.data}})
        config = session_config(job.device)
        config.cluster_def.CopyFrom(cluster.as_cluster_def())
        config.experimental.share_session_state_in_clusterspec_propagation = True
        self._step = step
        self._layout = layout
        self._step_secs = job.deadlines.step_secs
        self._options = v1.RunOptions(timeout_in_ms=int(self._step_secs * 1000))
        self._opened: Future[None] = Future()
        self._session = v1.Session(f"grpc://{own.data}", graph=step.graph, config=config)
        self._closing = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After a loss there is nobody to say goodbye to, and the rest of the fleet waits.
        self.close(wait_secs=0.0 if isinstance(error, LostPeerError) else CLOSE_SECS)

    def start(self) -> Start:
        """Opens the session, and copies state and parameters from the ps."""
        threading.Thread(target=self._open, name="open-session", daemon=True).start()
        with _translated():
            try:
                self._opened.result(self._step_secs)
            except (CancelledError, TimeoutError) as error:
                raise LostPeerError("a ps went away while a session was opened") from error
            self._step.load_state(self._session, self._layout, self._options)
            local_steps = self._session.run(self._step.look, options=self._options)[:, 1]
            progress = self._session.run(self._step.pull, options=self._options)
        step = self._step
        self._train = _Call(self._session, step.step, [*step.feeds, step.local_step], self._options)
        self._await = _Call(self._session, [step.await_step], [step.local_step], self._options)
        return Start(progress, local_steps)

    def _open(self) -> None:
        """Makes the first call of the session, which opens it.

        TensorFlow waits then for every task of the ClusterSpec until it answers, and heeds neither the deadline of the
        call, nor `ConfigProto.operation_timeout_in_ms`, nor that the session is closed: a thread that waits for a ps
        which is gone is left behind, and ends when another takes its address.
        """
        with suppress(InvalidStateError):
            try:
                self._session.run(self._step.initializer)
            except Exception as error:
                self._opened.set_exception(error)
            else:
                self._opened.set_result(None)

    def train(self, batch: Sequence[np.ndarray], local_step: int) -> tuple[float, np.ndarray]:
        """One step: the loss of the batch; global_step and target of each shard afterwards, int64 `[num_ps, 2]`."""
        with _translated():
            loss, progress = self._train(*batch, np.int64(local_step))
        return float(loss), progress

    def await_step(self, local_step: int) -> np.ndarray:
        """Waits for the end of a step whose gradient was pushed before; as `train` without the loss."""
        with _translated():
            (progress,) = self._await(np.int64(local_step))
        return progress

    def loss(self, batch: Sequence[np.ndarray]) -> float:
        """The loss of a batch under the local parameters."""
        with _translated():
            feeds = dict(zip(self._step.feeds, batch, strict=True))
            return float(self._session.run(self._step.loss, feeds, options=self._options))

    def summaries(self, batch: Sequence[np.ndarray]) -> bytes | None:
        """The program's own summaries of a batch; None if it has none."""
        if self._step.summaries is None:
            return None
        with _translated():
            feeds = dict(zip(self._step.feeds, batch, strict=True))
            serialized: bytes = self._session.run(self._step.summaries, feeds, options=self._options)
        return serialized

    def parameters(self) -> np.ndarray:
        """The local parameters, float32 `[layout.parameters.size]`."""
        with _translated():
            values: np.ndarray = self._session.run(self._step.parameters)
        return values

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """State and frozen weights as the ps hold them, uint8 vectors."""
        with _translated():
            state, frozen = self._session.run(self._step.remote_state, options=self._options)
        return state, frozen

    def close(self, wait_secs: float = CLOSE_SECS) -> None:
        """Ends what is running with an error, and the session; from any thread, as often as one likes."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._opened.cancel()
        # Closing waits for the peers, without limit after one died: it is left behind then.
        closer = threading.Thread(target=self._session.close, name="close-session", daemon=True)
        closer.start()
        closer.join(wait_secs)


@contextmanager
def _translated() -> Iterator[None]:
    """TensorFlow's errors as psfleet's."""
    try:
        yield
    except PROGRAM_ERRORS as error:
        if NAN_LOSS in error.message:
            what = "NaN" if "NaN" in error.message.replace(NAN_LOSS, "") else "infinite"
            raise ProgramError(f"the loss is {what}, expected a finite number") from error
        raise ProgramError(f"the program failed in TensorFlow: {_reason(error)}", error.message) from error
    except tf.errors.OpError as error:
        raise LostPeerError(f"{type(error).__name__}: {_reason(error)}") from error
    except RuntimeError as error:
        # What a session says that another thread closed.
        raise LostPeerError(f"the session is closed: {error}") from error


def _reason(error: Any) -> str:
    """The line of an error that says what happened; Python's wrapper puts headings before it."""
    told = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
    lines = [line.strip() for line in str(told.message).splitlines()]
    return next((line for line in lines if line and not HEADING.match(line)), type(error).__name__)
