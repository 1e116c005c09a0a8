"""What a worker measures while it trains; costs about a microsecond for each step."""

from __future__ import annotations

import time

from psfleet.service.metrics import RECOVERY_BOUNDS, STEP_BOUNDS, Times


class Meter:
    """Told by the training loop, read by `worker_service.metrics`.

    Attributes:
        step_secs: From the end of one step to the end of the next.
        recovery_secs: From the loss of a peer to the end of the next step.
        pulls: How often parameters were fetched, with a step or without one.
        attachments: How often state and frozen weights were fetched: once for each session.
    """

    def __init__(self) -> None:
        self.step_secs = Times(STEP_BOUNDS)
        self.recovery_secs = Times(RECOVERY_BOUNDS)
        self.pulls = 0
        self.attachments = 0
        self._lost_at: float | None = None

    def attached(self) -> None:
        """A session was opened, and everything fetched."""
        self.attachments += 1
        self.pulls += 1

    def awaited(self) -> None:
        """Parameters came without a gradient having been pushed."""
        self.pulls += 1

    def step(self, secs: float) -> None:
        """A step is done."""
        self.pulls += 1
        self.step_secs.add(secs)
        if self._lost_at is not None:
            self.recovery_secs.add(time.monotonic() - self._lost_at)
            self._lost_at = None

    def lost(self) -> None:
        """A peer was lost; more losses before the next step belong to this one."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
