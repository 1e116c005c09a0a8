"""Ends a run whose final step is saved already: a chief died after that, and this process replaces it. Needs no ps."""

from __future__ import annotations

import logging
import threading

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import newest_from
from psfleet.checkpoint.tensors import check_tensors
from psfleet.control import control_pb2 as pb
from psfleet.control.client import CALL_SECS, FINISH_SECS, FleetClient
from psfleet.errors import DONE, ProgramError
from psfleet.job.program import load_program
from psfleet.layout import Layout
from psfleet.report import html
from psfleet.run_folder import CHECKPOINTS
from psfleet.service.logs import log_json
from psfleet.service.process import Stop
from psfleet.service.settings import Settings
from worker_service.chief.checkpoints import CheckpointCommitter
from worker_service.chief.events import Events
from worker_service.chief.recorder import Recorder
from worker_service.chief.run_attempt import begin, is_first
from worker_service.chief.run_finisher import RunFinisher
from worker_service.evaluation import Evaluator
from worker_service.frontends import FrontEnd, front_end
from worker_service.joining import finish_as_chief
from worker_service.run_context import RunContext, TaskAddresses

logger = logging.getLogger("psfleet.chief")


def saved_final_step(settings: Settings) -> Checkpoint | None:
    """The verified checkpoint of the final step, if this chief replaces one; None: there is training to do."""
    if settings.job is None or settings.index != 0 or is_first(settings):
        return None
    return newest_from(settings.out / CHECKPOINTS, settings.job.train.steps)


def conclude(settings: Settings, fleet: FleetClient, stop: Stop, checkpoint: Checkpoint) -> int:
    """Evaluates a verified checkpoint of the final step and writes the report, without any ps; the exit code.

    Ps and workers that still wait for the end of the run receive the outcome meanwhile.

    Raises:
        ProgramError: The program cannot be loaded, or its evaluation failed; the report says so.
        BadJobError: The checkpoint is of another model than the program's.
    """
    assert settings.job is not None, "saved_final_step() found its checkpoint"
    step = checkpoint.step
    log_json(run=settings.run, role="worker", index=0)
    logger.info("step %d is saved and verified: the report remains", step, extra={"event": "verified", "step": step})
    outcome = pb.Outcome(exit_code=DONE, message=f"step {step} is saved and verified")
    job = settings.job

    def finish() -> None:
        finish_as_chief(fleet, settings, job, outcome)

    finishing = threading.Thread(target=finish, name="finish", daemon=True)
    finishing.start()
    front = front_end(load_program(job, settings.program_folder), job, job.fleet.replicas, 0)
    layout = Layout.plan(front.parameters, front.state, front.frozen, job.fleet.ps, job.update.bucket_bytes)
    check_tensors(checkpoint, layout)
    context = RunContext(
        run=settings.run,
        index=0,
        incarnation=0,
        job=job,
        layout=layout,
        tasks=TaskAddresses(settings.address, settings.ps),
        fleet=fleet,
        stop=stop,
        out=settings.out,
    )
    _report(settings, context, front, checkpoint)
    finishing.join(FINISH_SECS + CALL_SECS)
    return DONE


def _report(settings: Settings, context: RunContext, front: FrontEnd, checkpoint: Checkpoint) -> None:
    attempt = begin(settings)
    events = Events(context.out, context.job)
    events.add("chief", 0, "restarted", settings.cause or "it was replaced")
    evaluator = Evaluator(front, context.layout, context.job.device)
    recorder = Recorder(context.out, context.job, context.layout, evaluator)
    finisher = RunFinisher(context, recorder, CheckpointCommitter(context, {}), events, attempt.started)
    try:
        html.publish(finisher.resumed_report(checkpoint), context.out)
    except ProgramError as error:
        html.publish(finisher.report([], checkpoint, error), context.out)
        raise
    finally:
        recorder.close()
