"""Waits until workers lend their devices, before a client opens a session with them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from psfleet.errors import LostPeerError
from worker_service.data_ports import blocked
from worker_service.fleet_state import States, is_generation_over
from worker_service.fleet_wait import FleetWait
from worker_service.heartbeat import Heartbeat
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.worker")


class LentWorkers:
    """Workers that lend their devices to this process, as ps 0 knows them.

    Args of the constructor:
        context: Of this process.
        indices: Of the workers.
    """

    def __init__(self, context: RunContext, indices: Sequence[int], heartbeat: Heartbeat, fleet: FleetWait) -> None:
        self._context = context
        self._indices = indices
        self._heartbeat = heartbeat
        self._fleet = fleet

    def ready(self, generation: int) -> dict[int, str]:
        """`host:port` of TensorFlow of each worker, once all can be reached and none starts, or reads a first batch.

        Raises:
            DeadlineError: See `FleetWait.until`.
            LostPeerError: The run or the generation ended meanwhile, or with TLS a tunnel does not start.
        """
        if not self._indices:
            return {}
        found: dict[int, str] = {}
        logged = ""

        def are_ready(states: States) -> bool:
            nonlocal logged
            if is_generation_over(states, generation):
                return True
            missing = self._missing(states, found)
            if missing and missing != logged and None not in states:
                logger.info("waiting until all workers lend their devices: %s", missing, extra={"event": "lending"})
                logged = missing
            return not missing

        # The newest replies can be older than this generation, or than the end of a worker.
        self._heartbeat.detach()
        names = ", ".join(map(str, self._indices))
        self._fleet.until(f"workers {names} to lend their devices", are_ready)
        if self._heartbeat.outcome is not None or is_generation_over(self._heartbeat.states, generation):
            raise LostPeerError("the run or its generation is over")
        return found

    def _missing(self, states: States, found: dict[int, str]) -> str:
        """What is missing, in one line; empty if nothing is, and `found` then has all addresses."""
        first = states[0]
        if first is None:
            return "ps 0 does not answer"
        alive = {worker.index: worker for worker in first.workers if worker.is_alive}
        absent = [str(index) for index in self._indices if index not in alive]
        if absent:
            return f"there is no worker {', '.join(absent)}"
        starting = [str(index) for index in self._indices if alive[index].reading_first_batch]
        if starting:
            return f"worker {', '.join(starting)} starts, or reads a first batch"
        plane, run = self._context.tasks, self._context.run
        routes = {index: plane.meet(run, index, alive[index].address) for index in self._indices}
        found.update({index: route.local.data for index, route in routes.items()})
        return blocked([(f"worker {index}", route.entry) for index, route in routes.items()])
