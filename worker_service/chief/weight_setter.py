"""Replaces the weights of a run between two steps, for a handle on it.

All ps hold at one step and write its checkpoint. The chief writes another one of that step, of a later generation, with
the new weights: its manifest, which appears by a rename, makes the change, on all ps or on none. Then the fleet starts
the next generation from it, as after the loss of a ps. So neither a rollback nor a resume undoes the change, a gradient
of the old weights is in no update of the new ones, and a chief that dies leaves the one or the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np

from psfleet.checkpoint.manifest import Checkpoint, checkpoint_folder, read_manifest
from psfleet.checkpoint.replacement import specs_of, write_replaced
from psfleet.checkpoint.store import newest_committed
from psfleet.checkpoint.store_client import StoreError
from psfleet.checkpoint.weight_changes import WeightChanges
from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import LostPeerError, NoCheckpointError, UsageError
from psfleet.layout import TensorSpec
from psfleet.plurals import counted
from psfleet.tensor_checks import check_finite, check_specs
from worker_service.chief.events import Events
from worker_service.chief.holding import Holding
from worker_service.chief.operations import Operations
from worker_service.fleet_state import check_chief

logger = logging.getLogger("psfleet.chief")

WEIGHTS_SET = "weights_set"
"""Kind of the event that records a change."""

IsActive = Callable[[], bool]


class WeightSetter:
    """Sets the weights of one run."""

    def __init__(self, operations: Operations, holding: Holding, events: Events) -> None:
        self._operations = operations
        self._context = operations.context
        self._committer = operations.committer
        self._holding = holding
        self._events = events

    def check_specs(self, given: Mapping[str, TensorSpec]) -> None:
        """Checks names, shapes and types; raises `UsageError`."""
        check_specs(specs_of(self._context.layout), given)

    def known_changes(self) -> int:
        """How often the weights of the run were replaced up to now: what `set` is given.

        Raises:
            LostPeerError: This chief has not found the newest checkpoint yet.
        """
        states = self._context.fleet.describe()
        self._committer.update(states)
        newest = self._committer.newest
        if newest is None and not self._operations.training(states):
            raise LostPeerError("the chief has not found the newest checkpoint yet")
        return 0 if newest is None else WeightChanges.of(newest.extra).number

    def set(
        self, call: run_pb.RunCall, tensors: Mapping[str, np.ndarray], known: int, is_active: IsActive
    ) -> Checkpoint:
        """Replaces weights, and waits until the fleet trains with them, or is held.

        Calls have an order: each is made as the change after those that its caller knew of, or not at all. So one that
        is late, or is repeated because its answer was lost, does not undo a call after it.

        Args:
            call: One that is repeated changes nothing if it was made.
            tensors: Some or all of those of the model, checked by `check_specs`; the others stay.
            known: The changes that its caller knew of when it began; see `known_changes`.
            is_active: Returns whether the caller still waits; the change is made, or not, before that counts.

        Returns:
            The checkpoint that has them.

        Raises:
            UsageError: A number is not finite, the run has made its last step, or another call has replaced weights
                since this one began; nothing has changed.
            StoreError: Whether the change is made is not known, and the same call finds out; or another fleet may have
                the store.
        """
        check_finite(tensors, specs_of(self._context.layout))
        while True:
            self._operations.check_active(is_active)
            states = self._context.fleet.describe()
            self._committer.update(states)
            made = self._made_before(call, known)
            if made is not None:
                self._await_start(made, is_active)
                return made
            training = self._operations.training(states)
            if training:
                with self._holding.pausing(training, self._context.fleet.ps) as is_accepted:
                    made = self._replace(training[0].generation, call, tensors, is_active) if is_accepted else None
                    if made is not None:
                        self._await_start(made, is_active)
                        return made
            self._operations.require_running("set")
            self._operations.pause()

    def _made_before(self, call: run_pb.RunCall, known: int) -> Checkpoint | None:
        """The newest checkpoint if the call has replaced the weights that it comes from, or those before.

        Raises:
            UsageError: It has not, and others have since it began.
        """
        newest = self._committer.newest
        if newest is None:
            return None
        changes = WeightChanges.of(newest.extra)
        if call.call in changes.calls:
            return newest
        if changes.number != known:
            number = counted(changes.number, "time")
            raise UsageError(
                f"`set` of {call.owner} is late: the weights were replaced {number} by now, and {known} when it began; "
                "nothing is replaced: make the call again"
            )
        return None

    def _replace(
        self, generation: int, call: run_pb.RunCall, tensors: Mapping[str, np.ndarray], is_active: IsActive
    ) -> Checkpoint | None:
        """Makes the change at the step at which the fleet is held.

        Returns:
            The checkpoint that has it; None if the generation ends before, by a change of an earlier call, too.
        """
        base = self._operations.held_checkpoint(generation, is_active)
        if base is None:
            return None
        with self._holding.lock:
            # No recovery looks for the newest checkpoint meanwhile.
            states = self._context.fleet.describe()
            training = self._operations.training(states)
            if not training or training[0].generation != generation:
                return None
            check_chief(states, self._context.incarnation)
            self._context.require_lease()
            self._require_newest(base)
            # An earlier call may have failed after its manifest was written: its change comes first, and this call's
            # parts must not get into its folder.
            made = self._found(base, generation) or self._written(base, generation, call, tensors)
            self._committer.adopt(made)
        is_own = WeightChanges.of(made.extra).calls[-1:] == (call.call,)
        cause = f"weights were replaced at step {made.step} by {call.owner if is_own else 'an earlier call'}"
        self._events.add("chief", 0, WEIGHTS_SET, cause)
        return made if is_own else None

    def _written(
        self, base: Checkpoint, generation: int, call: run_pb.RunCall, tensors: Mapping[str, np.ndarray]
    ) -> Checkpoint:
        changes = WeightChanges.of(base.extra).followed_by(call.call)
        extra = {**changes.as_extra(), "incarnation": self._context.incarnation}
        try:
            with self._events.disk.writing(base.folder.parent):
                return write_replaced(base, tensors, generation=generation + 1, run=self._context.run, extra=extra)
        except OSError as error:
            is_denied = isinstance(error, StoreError) and error.is_denied
            # The last request, or a flush, can fail although its change is made.
            made = None if is_denied else self._found(base, generation)
            if made is not None:
                return made
            reason = f"the disk refuses the checkpoint with the new weights: {error.strerror or error}"
            raise UsageError(f"{reason}; nothing has changed") from error

    def _require_newest(self, base: Checkpoint) -> None:
        """Refuses a change that no recovery would find: it restores the checkpoint of the highest step."""
        with self._events.disk.reading(base.folder.parent):
            newest = newest_committed(base.folder.parent)
        if newest is not None and newest.step > base.step:
            raise UsageError(
                f"checkpoint {newest.folder} is of a later step than {base.step}, the fleet's after a "
                "rollback; expected a call after that step: nothing has changed"
            )

    def _found(self, base: Checkpoint, generation: int) -> Checkpoint | None:
        """The checkpoint with other weights that was made of a generation's; None: there is none.

        Raises:
            StoreError: A store does not say it now: the call may be repeated.
        """
        folder = checkpoint_folder(base.folder.parent, base.step, generation + 1)
        try:
            with self._events.disk.reading(folder):
                return read_manifest(folder)
        except NoCheckpointError:
            return None

    def _await_start(self, made: Checkpoint, is_active: IsActive) -> None:
        """Waits until the fleet has started from the new weights, or the run is over."""
        while is_active() and self._operations.is_running():
            training = self._operations.training(self._context.fleet.describe())
            # The checkpoint of the change is of a later generation than the fleet until it starts from it.
            if training and training[0].generation >= made.generation:
                return
            self._operations.pause()
