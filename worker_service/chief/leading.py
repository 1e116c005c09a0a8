"""Leads a run: trains as its chief, and writes the report."""

from __future__ import annotations

from psfleet.errors import PsfleetError
from worker_service.batches import Batches
from worker_service.build_deadline import building
from worker_service.chief.chief import Chief
from worker_service.chief.components import chief_components
from worker_service.chief.failure_report import publish_failure
from worker_service.chief.report_publishing import publish
from worker_service.fleet_state import check_chief
from worker_service.frontends import FrontEnd
from worker_service.member_process import MemberProcess
from worker_service.run_context import RunContext
from worker_service.run_end import is_replaced, report_failure, worker_error


def lead(process: MemberProcess, context: RunContext, front: FrontEnd, batches: Batches) -> int:
    """Trains as the chief, and writes the report, however the run ends; returns the exit code."""
    job = process.job
    # The job's callbacks are code of the program, too.
    with building(job.program, job.deadlines.first_secs, process.stall_report(), process.stop):
        components = chief_components(process.settings, context, front, process.program, process.disk)
    process.metrics.add_chief(components)
    chief = Chief(context, front, batches, process.heartbeat, process.progress, components)
    process.controls.bind(chief, context, front, batches, process.progress)
    process.controls.bind_chief(chief, context, process.heartbeat, components)
    try:
        outcome = chief.run()
        error = chief.error
        if error is None and outcome.exit_code:
            raise worker_error(outcome)
        if error is not None:
            # The chief has informed the ps.
            error.is_reported = True
            publish_failure(chief, context, components, error, [], num_informed=0)
            raise error
        report = chief.report(None)
        publish(report, context.out, job, components.storage, context.require_lease, is_required=True)
        components.callbacks.end(report)
        return outcome.exit_code
    except PsfleetError as error:
        if chief.error is None and not is_replaced(error, process.stop):
            states = context.fleet.describe()
            check_chief(states, context.incarnation)
            # Before the report: ps 0 refuses a chief that was replaced, however long it was frozen since the check.
            num_informed = report_failure(context.fleet, error, 0, process.stop)
            publish_failure(chief, context, components, error, states, num_informed)
        raise
    finally:
        components.recorder.close()
