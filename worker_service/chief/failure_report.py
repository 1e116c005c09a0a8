"""The report of a run that an error ended."""

from __future__ import annotations

import logging

from psfleet.errors import PsfleetError
from worker_service.chief.chief import Chief
from worker_service.chief.components import ChiefComponents
from worker_service.chief.report_publishing import publish
from worker_service.fleet_state import States
from worker_service.run_context import RunContext

logger = logging.getLogger("psfleet.chief")


def publish_failure(
    chief: Chief,
    context: RunContext,
    components: ChiefComponents,
    error: PsfleetError,
    states: States,
    num_informed: int,
) -> None:
    """Writes the report of a run that an error ended, unless that would replace a better one.

    Args:
        states: Of the ps before they were informed; they may end once they are.
        num_informed: Number of ps that have accepted the outcome.
    """
    attempt = components.attempt
    with components.storage.disk.reading(attempt.out):
        may_report = attempt.may_report_failure(states if num_informed else [])
    if may_report:
        report = chief.report(error, states)
        publish(report, attempt.out, context.job, components.storage, context.require_lease, is_required=False)
        components.callbacks.end(report)
    else:
        logger.warning(
            "no report of this end (%s): a newer chief, or a chief whose run is done, has the run folder", error
        )
