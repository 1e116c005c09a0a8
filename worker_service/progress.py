"""How far a worker's training is, and how long its steps take; costs about a microsecond for each step."""

from __future__ import annotations

import time

from psfleet.service.metrics import RECOVERY_BOUNDS, STEP_BOUNDS, Times


class TrainingProgress:
    """Counters of one worker over all its sessions.

    Single writer: the thread that trains. The heartbeat and the metrics read from threads of their own; each value is
    replaced as a whole, so that they need no lock.

    Attributes:
        step_secs: From the end of one step to the end of the next.
        recovery_secs: From the loss of a peer to the end of the next step.
    """

    def __init__(self) -> None:
        self.step_secs = Times(STEP_BOUNDS)
        self.recovery_secs = Times(RECOVERY_BOUNDS)
        self._step = 0
        self._pushed = 0
        self._abandoned = 0
        self._pulls = 0
        self._sessions = 0
        self._lost_at: float | None = None
        self._reading_first_batch = True

    @property
    def step(self) -> int:
        """The global step of this worker's local parameters."""
        return self._step

    @property
    def pushed(self) -> int:
        """Gradients that this process has pushed."""
        return self._pushed

    @property
    def abandoned(self) -> int:
        """Steps that this process has ended early, without a gradient; see `worker_service.abandonment`."""
        return self._abandoned

    @property
    def pulls(self) -> int:
        """How often parameters were pulled, with a step or without one."""
        return self._pulls

    @property
    def sessions(self) -> int:
        """How often state and frozen weights were read: once in each session."""
        return self._sessions

    @property
    def reading_first_batch(self) -> bool:
        """Whether this worker starts, or waits for a batch that may take `deadlines.first_secs`.

        The other workers then wait as long.
        """
        return self._reading_first_batch

    def await_first_batch(self, is_waiting: bool = True) -> None:
        """This worker starts, or begins to wait for a first batch; False: it does so no longer."""
        self._reading_first_batch = is_waiting

    def session_opened(self, global_step: int) -> None:
        """A session is open, and everything is read at a global step."""
        self._sessions += 1
        self._pulls += 1
        self._step = global_step

    def step_awaited(self, global_step: int) -> None:
        """Parameters were pulled at a global step; the gradient had been pushed by an earlier session."""
        self._pulls += 1
        self._step = global_step

    def follow(self, global_step: int) -> None:
        """Others have made steps with this worker's device, which has no copy of the parameters."""
        self._step = max(self._step, global_step)

    def step_done(self, global_step: int, secs: float) -> None:
        """A gradient was pushed, and the parameters of the next global step were pulled, in `secs` seconds."""
        self._pushed += 1
        self._pulls += 1
        self._step = global_step
        self.step_secs.add(secs)
        if self._lost_at is not None:
            self.recovery_secs.add(time.monotonic() - self._lost_at)
            self._lost_at = None

    def step_abandoned(self, global_step: int) -> None:
        """A step ended early, and the parameters of a later global step were pulled."""
        self._abandoned += 1
        self._pulls += 1
        self._step = global_step

    def peer_lost(self) -> None:
        """A peer was lost; further losses before the next step belong to the same recovery."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
