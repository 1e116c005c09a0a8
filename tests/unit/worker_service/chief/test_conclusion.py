"""A chief that replaces one which died after the final step was saved."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.checkpoint_samples import save
from support.chief_samples import shard_state
from support.process_end import ProcessEnd
from support.report_samples import DONE as SAMPLE
from support.tiny_job import PRELUDE

from psfleet.addresses import Address
from psfleet.callbacks import Callback
from psfleet.checkpoint.manifest import Checkpoint
from psfleet.checkpoint.store import write_initial
from psfleet.control import control_pb2 as pb
from psfleet.errors import (
    BAD_JOB,
    DONE,
    LOST_PEERS,
    PROGRAM_FAILED,
    DeadlineError,
    ProgramError,
    PsfleetError,
    StoppedError,
)
from psfleet.job.job import parse_job
from psfleet.job.program import load_program
from psfleet.layout import Layout
from psfleet.polling import run_within
from psfleet.report.schema import CheckpointInfo, Evaluation, EvaluationLog, Report
from psfleet.service import settings
from worker_service import build_deadline
from worker_service.chief import conclusion, run_finisher
from worker_service.chief.disk import Disk
from worker_service.chief.run_attempt import begin
from worker_service.evaluation import Evaluator
from worker_service.frontends import front_end

WAIT_SECS = 20.0
JOB = {
    "name": "tiny",
    "program": "concluded_program:build",
    "fleet": {"ps": 2, "workers": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 100, "batch_size": 4},
}


def chief(out: Path, **env: str) -> settings.Settings:
    own = {"PSFLEET_OUT": str(out), "PSFLEET_INDEX": "0", "PSFLEET_JOB": parse_job(JOB).model_dump_json()}
    own |= {"PSFLEET_RUN": "run", "PSFLEET_PROGRAM_FOLDER": str(out)}
    return settings.read(own | {f"PSFLEET_{name}": text for name, text in env.items()})


def fleet_of(outcomes: list[pb.Outcome]) -> Any:
    """One ps, which stores the outcome that it receives."""
    granted = pb.JoinReply(incarnation=2)
    ps = SimpleNamespace(
        address=Address("ps", 2222), join=lambda request: granted, identify=lambda member: None, finish=outcomes.append
    )
    return SimpleNamespace(ps=[ps], release_loaders=lambda outcome: None)


@pytest.mark.parametrize(
    ("step", "env", "is_found"),
    [(100, {"CAUSE": "it was killed"}, True), (99, {"CAUSE": "it was killed"}, False), (100, {}, False)],
    ids=["a replacement", "the final step is not saved", "the first chief of an attempt, whose ps are starting"],
)
def test_only_a_replacement_looks_for_the_saved_final_step(
    tmp_path: Path, step: int, env: dict[str, str], is_found: bool
) -> None:
    save(tmp_path / "checkpoints", step)
    assert (conclusion.saved_final_step(chief(tmp_path, **env)) is not None) == is_found


def test_a_checkpoint_beyond_the_final_step_is_none_of_this_run(tmp_path: Path) -> None:
    """Another fleet, of the same job with more steps, has used the store while this chief was away."""
    save(tmp_path / "checkpoints", 101)
    assert conclusion.saved_final_step(chief(tmp_path, CAUSE="it was killed")) is None


STOPPING = {"every_steps": 10, "stop": {"metric": "loss", "direction": "minimize", "patience": 1}}


def stopped_early(out: Path, step: int) -> None:
    """Adds evaluations of a run, which end its training."""
    for number, at in enumerate((step - 10, step)):
        evaluation = Evaluation(time=1.0, step=at, generation=1, secs=0.1, metrics={"loss": 0.5 + number})
        EvaluationLog(out / EvaluationLog.FILE_NAME).append(evaluation)


@pytest.mark.parametrize(("step", "is_found"), [(40, True), (43, True), (39, False)])
def test_after_an_early_stop_the_saved_final_step_is_at_or_after_the_decision(
    tmp_path: Path, step: int, is_found: bool
) -> None:
    stopped_early(tmp_path, 40)
    save(tmp_path / "checkpoints", step)
    process = chief(tmp_path, CAUSE="it was killed", JOB=parse_job(JOB | {"evaluate": STOPPING}).model_dump_json())
    assert (conclusion.saved_final_step(process) is not None) == is_found


@pytest.mark.parametrize(
    ("step", "states", "is_last"),
    [
        (100, None, True),
        (40, [shard_state(47), None], False),
        (40, [shard_state(47, phase=pb.COMPLETE)], False),
        (40, [shard_state(47, phase=pb.FINISHED), shard_state(47, phase=pb.COMPLETE)], True),
        (40, [None, shard_state(0, phase=pb.EMPTY)], True),
    ],
    ids=["the final step", "a ps trains", "a ps has the last step", "the run is over", "no ps trains"],
)
def test_a_chief_joins_a_fleet_that_trains_on_after_the_decision(
    tmp_path: Path, step: int, states: list[Any] | None, is_last: bool
) -> None:
    """Its last checkpoint is still to come, with the steps made since."""
    job = parse_job(JOB | {"evaluate": STOPPING})

    def describe() -> list[Any]:
        assert states is not None, "the final step needs no ps"
        return states

    assert conclusion.is_last(job, save(tmp_path, step), describe) == is_last


def save_program(out: Path) -> Checkpoint:
    """A program and a checkpoint of its weights."""
    (out / "concluded_program.py").write_text(PRELUDE)
    job = parse_job(JOB)
    front = front_end(load_program(job, out), job, 2, 0)
    layout = Layout.plan(front.parameters, front.state, front.frozen, 2, job.update.bucket_bytes)
    return write_initial(
        out / "checkpoints", layout, front.initial_values(), run="run", generation=1, optimizer="sgd", extra={}
    )


def stop_of(is_set: bool = False, leaves: bool = False) -> Any:
    """A stop that SIGTERM has set."""
    event = SimpleNamespace(is_set=lambda: is_set)
    return SimpleNamespace(event=event, must_leave=lambda index: leaves, error=lambda: StoppedError(signal.SIGTERM))


@pytest.mark.parametrize(
    ("drafted", "pushed"), [(None, 0), (0, SAMPLE.gradients.pushed), (7, 0)], ids=["none", "of it", "of another step"]
)
def test_the_saved_model_is_evaluated_and_reported_without_any_ps(
    tmp_path: Path, drafted: int | None, pushed: int
) -> None:
    """The counts of gradients are those of the draft, if the chief before has written one for this checkpoint."""
    saved = save_program(tmp_path)
    if drafted is not None:
        at = CheckpointInfo(path=str(saved.folder), step=drafted)
        SAMPLE.model_copy(update={"checkpoint": at}).write(tmp_path, Report.DRAFT_NAME)
    outcomes: list[pb.Outcome] = []
    fleet = fleet_of(outcomes)
    assert conclusion.conclude(chief(tmp_path, CAUSE="it was killed"), fleet, stop_of(), saved) == DONE
    report = Report.read(tmp_path)
    assert (report.status, report.exit_code, report.restarts) == ("done", DONE, 1)
    assert report.checkpoint is not None
    assert report.checkpoint.path == str(saved.folder)
    assert report.gradients.pushed == pushed
    assert [outcome.exit_code for outcome in outcomes] == [DONE]


@pytest.mark.parametrize("leaves", [False, True], ids=["it ends the run", "another chief replaces this one"])
def test_a_signal_ends_a_final_evaluation_that_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    released = threading.Event()
    monkeypatch.setattr(run_finisher, "EVALUATION_SECS", 0.0)
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: released.wait(WAIT_SECS) and {})
    process, fleet, stop = chief(tmp_path, CAUSE="it was killed"), fleet_of([]), stop_of(True, leaves)
    saved = save_program(tmp_path)
    try:
        if leaves:
            with pytest.raises(StoppedError):
                run_within(WAIT_SECS / 2, lambda: conclusion.conclude(process, fleet, stop, saved))
            assert not (tmp_path / Report.FILE_NAME).exists()
            return
        assert run_within(WAIT_SECS / 2, lambda: conclusion.conclude(process, fleet, stop, saved)) == DONE
    finally:
        released.set()
    report = Report.read(tmp_path)
    assert (report.status, report.eval) == ("done", {})
    assert report.events[-1].cause == f"not evaluated in time: step {saved.step}, stopped by SIGTERM"


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [("raise ValueError('no data')", PROGRAM_FAILED), (PRELUDE, BAD_JOB)],
    ids=["the program cannot be loaded", "the checkpoint is of another model"],
)
@pytest.mark.parametrize("has_result", [False, True], ids=["no report", "a report of success"])
def test_a_program_that_does_not_fit_is_reported_and_no_ps_is_told_of_a_success(
    tmp_path: Path, program: str, exit_code: int, has_result: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "concluded_program", raising=False)
    (tmp_path / "concluded_program.py").write_text(program)
    save(tmp_path / "checkpoints", 100)
    process = chief(tmp_path, CAUSE="it was killed")
    saved = conclusion.saved_final_step(process)
    assert saved is not None
    if has_result:
        begin(process).entry_in(SAMPLE).write(tmp_path)
        before = (tmp_path / Report.FILE_NAME).read_bytes()
    outcomes: list[pb.Outcome] = []
    with pytest.raises(PsfleetError) as caught:
        conclusion.conclude(process, fleet_of(outcomes), stop_of(), saved)
    assert caught.value.exit_code == exit_code
    assert [outcome.exit_code for outcome in outcomes] == [exit_code]
    if has_result:
        assert (tmp_path / Report.FILE_NAME).read_bytes() == before
        return
    report = Report.read(tmp_path)
    assert (report.status, report.exit_code, report.final_step) == ("failed", exit_code, 100)
    assert report.checkpoint is not None
    assert report.checkpoint.path == str(saved.folder)


def test_an_evaluation_that_takes_too_long_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(*_: object) -> dict[str, float]:
        raise DeadlineError("the evaluation at step 0", 1800)

    ends: list[Report] = []
    callback = Callback()
    monkeypatch.setattr(callback, "on_end", ends.append)
    monkeypatch.setattr(conclusion, "load_callbacks", lambda job: [callback])
    monkeypatch.setattr(Evaluator, "evaluate", expire)
    saved = save_program(tmp_path)
    with pytest.raises(DeadlineError):
        conclusion.conclude(chief(tmp_path, CAUSE="it was killed"), fleet_of([]), stop_of(), saved)
    report = Report.read(tmp_path)
    assert (report.status, report.exit_code) == ("failed", LOST_PEERS)
    assert "the evaluation at step 0" in (report.error or "")
    assert [(end.status, end.error) for end in ends] == [("failed", report.error)]


@pytest.mark.parametrize("what", ["load_program", "load_callbacks"])
def test_code_of_the_program_that_never_returns_ends_the_chief(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    end = ProcessEnd()
    codes = end.codes
    job = parse_job(JOB | {"deadlines": {"stall_secs": 0.01, "first_batch_secs": 0.01}})
    monkeypatch.setattr(conclusion, what, end.hang)
    monkeypatch.setattr(build_deadline.os, "_exit", end)
    process, saved = chief(tmp_path, CAUSE="it was killed", JOB=job.model_dump_json()), save(tmp_path, 100)
    if what == "load_program":
        with pytest.raises(ProgramError, match="released"):
            conclusion.conclude(process, fleet_of([]), stop_of(), saved)
    else:
        conclusion._Conclusion(process, job, fleet_of([]), stop_of(), saved, Disk())._callbacks()
    assert codes == [LOST_PEERS]


def test_a_chief_that_was_frozen_while_it_loaded_the_program_does_not_end_the_run_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A *Finish* from it would first join as the newest chief."""
    process, saved = chief(tmp_path, CAUSE="it was killed"), save(tmp_path / "checkpoints", 100)

    def replaced(*_: object) -> None:
        begin(process)
        raise ProgramError("the download was cut off")

    monkeypatch.setattr(conclusion, "load_program", replaced)
    outcomes: list[pb.Outcome] = []
    with pytest.raises(ProgramError):
        conclusion.conclude(process, fleet_of(outcomes), stop_of(), saved)
    assert outcomes == []
    assert not (tmp_path / Report.FILE_NAME).exists()
