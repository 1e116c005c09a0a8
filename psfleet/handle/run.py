"""The handle on a run: its state, and calls to its chief."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import numpy as np

from psfleet.control import run_control_pb2 as pb
from psfleet.control.tensor_stream import receiving, sending
from psfleet.errors import NoAnswerError
from psfleet.handle.arguments import whole
from psfleet.handle.calls import Calls, require_program
from psfleet.handle.channel import Consume, Request, RunChannel
from psfleet.handle.weights import Weights
from psfleet.polling import wait_until
from psfleet.report.schema import Report
from psfleet.tensor_checks import arrays

POLL_SECS = 0.1


class Run:
    """A handle on a run, live or ended. It holds no connection: any number of handles on one run are independent.

    A run executes one call at a time. A call of this handle waits for those before it; a call of another handle
    meanwhile raises `UsageError` and changes nothing.

    Attributes:
        weights: Those of the model.
    """

    def __init__(self, channel: RunChannel) -> None:
        self._channel = channel
        self._calls = Calls()
        self.weights = Weights(self._call)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.status} at step {self.step})"

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._channel.folder

    @property
    def where(self) -> str:
        """Names the run in messages: its folder, or its job and the platform of its containers."""
        return self._channel.where

    @property
    def step(self) -> int:
        """The number of updates of the model: of a run that trains at present, else at its end; 0 before the first."""
        if not self._channel.is_live():
            end = self._channel.end()
            return 0 if end is None else end.step
        try:
            view = self._channel.look()
        except NoAnswerError:
            view = None
        return view.step if view is not None and view.generation else self._channel.logged_step() or 0

    @property
    def status(self) -> str:
        """How the run is.

        Returns:
            `starting`, `training`, `held at step N`, `recovering` (from the loss of a ps) or `ending` of a run that is
            live, or `no answer from the chief`, which is frozen or cut off; then the status of its report, `done`,
            `stopped` or `failed`, or `no report`.
        """
        if self._channel.is_live():
            try:
                view = self._channel.look()
            except NoAnswerError:
                return "no answer from the chief"
            if view is not None:
                return str(view.status)
            return "recovering" if self._channel.logged_step() else "starting"
        end = self._channel.end()
        return "no report" if end is None else end.status

    def wait(self, timeout_secs: float | None = None) -> Report:
        """Waits for the end of the run. Of a run in containers, it then copies the results and removes the containers.

        Args:
            timeout_secs: None: as long as it takes.

        Returns:
            The run's report, of a run that failed, too: see its `status`, `exit_code` and `error`.

        Raises:
            DeadlineError: The run has not ended in time; it continues.
            UsageError: There is no report: the launcher was killed, or nothing is left of a run in containers.
        """
        secs = math.inf if timeout_secs is None else timeout_secs
        wait_until(self._channel.has_ended, secs, f"the end of the run {self.where}", poll_secs=POLL_SECS)
        return self._channel.report().located(self.folder)

    def save(self) -> Path:
        """Has the fleet write a checkpoint without a pause in training, and waits until it is verified.

        Returns:
            The folder of a checkpoint of a step at or after that of the call. It is kept as any other checkpoint is:
            see `checkpoint.keep` of the job. Of a run in containers, it is the folder as its chief sees it, which
            `psfleet results` copies to the run's folder.

        Raises:
            UsageError: The run is not live, or another call is in progress.
            LostPeerError: The run has ended before the checkpoint was written.
        """
        return Path(self._call("Save", lambda caller: caller).folder)

    def train(self, steps: int) -> Future[int]:
        """Has a run that was started with `paused=True` train some more steps, after which it is held again.

        A call that waits for another one of this handle is made after it.

        Args:
            steps: At least 1; fewer are made if the run reaches its final step, `train.steps`, which ends it. In
                averaging mode the run is held at the end of a round, so more can be made; in async and ssp mode a step
                is the gradient of one worker.

        Returns:
            The step at which the run is held then. Its errors are those of `save`, and `UsageError` for a run that is
            not held. A program that ends without waiting for it does not stop the run, which makes the steps.
        """

        def train() -> int:
            number = whole(steps, "train", "steps")
            made = self._channel.call(
                "Train", lambda caller: pb.TrainRequest(caller=caller, steps=number), goes_on=require_program
            )
            return int(made.step)

        return self._calls.later(train)

    def evaluate(self) -> Future[dict[str, float]]:
        """The metrics of the weights of a run that is held, on the program's evaluation data, by name.

        They are recorded as those of any evaluation. The errors are those of `train`.
        """

        def evaluate() -> dict[str, float]:
            return dict(self._channel.call("Evaluate", lambda caller: caller, goes_on=require_program).metrics)

        return self._calls.later(evaluate)

    def gradient(
        self, weights: Mapping[str, np.ndarray] | np.ndarray | None = None, batches: int = 1
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The gradient of a run that is held, before it is clipped; nothing is applied, and no batch is consumed.

        Each worker of the job, spares left out, computes it on its next batches: those of the next steps. A call that
        is repeated has the same batches and random numbers.

        Args:
            weights: Trained tensors by name, or all as the vector of `Weights.get_flat`; those that are not given stay
                as they are now.
            batches: Of each worker; 1 with `input.sharding: dynamic`.

        Returns:
            The loss and, for each trained tensor, its gradient in float32: the means over all these batches.

        Raises:
            UsageError: The run is not live or not held, another call is in progress, the program failed, or weights are
                not those of the model; see `Weights.set`.
            LostPeerError: The run has ended before.
        """
        number = whole(batches, "gradient", "batches")
        given = {} if weights is None else weights
        named = self.weights.named(given) if isinstance(given, np.ndarray) else arrays(given)

        def received(answers: Iterator[pb.TensorMessage]) -> tuple[float, dict[str, np.ndarray]]:
            # Of the run's own chief, which has checked what it sends.
            head, gradient = receiving(answers, lambda specs: None)
            return head.loss, gradient

        found = self._call("Gradient", lambda caller: sending(caller, named, batches=number), received)
        return cast("tuple[float, dict[str, np.ndarray]]", found)

    def _call(self, method: str, request: Request, consume: Consume | None = None) -> Any:
        """Makes a call once the earlier calls of this handle are done; see `RunChannel.call`."""
        return self._calls.now(lambda: self._channel.call(method, request, consume))

    def stop(self) -> None:
        """Asks the run to save a checkpoint and to end, as Ctrl-C does; `wait` waits for that.

        On Kubernetes it does what `psfleet down` does, and returns once the chief has ended and the pods are removed:
        a Job starts its pod again.

        Raises:
            UsageError: The run is not live.
        """
        self._channel.stop()
