"""A handle on a run that is live, or has ended."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.chief_samples import sample_job
from support.live_chief import RUN, live
from support.report_samples import DONE

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.store import verify
from psfleet.control import control_pb2 as pb
from psfleet.control import run_control_pb2 as run_pb
from psfleet.errors import BadJobError, DeadlineError, LostPeerError, UsageError
from psfleet.handle.channel import RunChannel
from psfleet.platforms.local.control_file import ControlFile
from psfleet.run_folder import OWNER_FILE, claimed

CALL_SECS = 20.0


def test_it_says_how_far_a_live_run_is(tmp_path: Path) -> None:
    with live(tmp_path / "out") as chief:
        run = psfleet.attach(tmp_path / "out")
        chief.moves = False
        assert (run.status, run.step) == ("training", 40)
        chief.step = 55
        assert run.step == 55
        chief.outcome = pb.Outcome()
        assert run.status == "ending"


def test_it_saves_a_verified_checkpoint_of_a_step_from_now_on(tmp_path: Path) -> None:
    with live(tmp_path / "out") as chief:
        folder = psfleet.attach(tmp_path / "out").save()
        checkpoint = read_manifest(folder)
        verify(checkpoint)
        assert 40 < checkpoint.step <= chief.step
        # Few steps at once: the next checkpoint is scheduled as far ahead as the rate of steps says.
        chief.step += 2
        later = chief.step
        assert read_manifest(psfleet.attach(tmp_path / "out").save()).step >= later, "not the one that was there"


def test_a_second_call_is_refused_while_one_is_in_progress(tmp_path: Path) -> None:
    with live(tmp_path / "out") as chief:
        chief.moves = False
        looked = threading.Event()
        chief.looks = looked.set
        first = threading.Thread(target=psfleet.attach(tmp_path / "out").save)
        first.start()
        assert looked.wait(CALL_SECS), "the first call did not begin"
        with pytest.raises(UsageError, match=r"`save` of the handle of process .* is in progress"):
            psfleet.attach(tmp_path / "out").save()
        chief.moves = True
        first.join(CALL_SECS)
        assert not first.is_alive(), "the first call did not end"


def test_a_call_ends_with_its_run(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def save() -> None:
        try:
            psfleet.attach(tmp_path / "out").save()
        except LostPeerError as error:
            failures.append(error)

    with live(tmp_path / "out") as chief:
        chief.moves = False
        looked = threading.Event()
        chief.looks = looked.set
        caller = threading.Thread(target=save)
        caller.start()
        assert looked.wait(CALL_SECS), "the call did not begin"
    caller.join(CALL_SECS)
    assert "before `save` was done" in str(failures[0])


def test_the_last_checkpoint_of_a_run_that_is_done_is_what_a_late_save_gets(tmp_path: Path) -> None:
    with live(tmp_path / "out") as chief:
        saved = psfleet.attach(tmp_path / "out").save()
        chief.outcome = pb.Outcome(exit_code=0)
        assert psfleet.attach(tmp_path / "out").save() == saved
        chief.outcome = pb.Outcome(exit_code=75, message="lost")
        with pytest.raises(UsageError, match="is over: lost; nothing was saved"):
            psfleet.attach(tmp_path / "out").save()


def test_a_caller_of_another_run_is_refused(tmp_path: Path) -> None:
    with live(tmp_path / "out") as chief:
        found = ControlFile.read(chief.out)
        assert found is not None
        ControlFile("another", found.launcher, found.chief).write(chief.out)
        with pytest.raises(UsageError, match=f"the call is for run another .*, expected run {RUN} and"):
            psfleet.attach(chief.out).save()


def test_a_caller_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(tmp_path / "out") as chief:
        monkeypatch.setattr(RunChannel, "_caller", lambda channel: run_pb.RunCall(version="0.0.1", call="1"))
        with pytest.raises(UsageError, match=rf"from psfleet 0\.0\.1, expected run {RUN} and psfleet"):
            psfleet.attach(chief.out).save()


def test_a_run_whose_launcher_has_started_no_process_yet_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int] = []
    monkeypatch.setattr("psfleet.handle.local_channel.os.kill", lambda pid, number: signalled.append(pid))
    with claimed(tmp_path, sample_job(), fresh=False):
        stopping = threading.Thread(target=psfleet.attach(tmp_path).stop)
        stopping.start()
        ControlFile("the-run", 12345, "127.0.0.1:1").write(tmp_path)
        stopping.join(CALL_SECS)
        assert signalled == [12345]


def test_a_run_that_has_ended_takes_no_calls(tmp_path: Path) -> None:
    with live(tmp_path) as chief:
        DONE.model_copy(update={"run": RUN}).write(chief.out)
    run = psfleet.attach(tmp_path)
    assert (run.status, run.step) == ("done", DONE.final_step)
    assert run.wait(timeout_secs=1).status == "done"
    for call in (run.save, run.stop):
        with pytest.raises(UsageError, match=f"the run is done at step {DONE.final_step}; expected a run that trains"):
            call()


def test_the_report_of_an_earlier_attempt_is_not_that_of_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    with claimed(tmp_path, sample_job(), fresh=False):
        DONE.write(tmp_path)
        ControlFile("the-next", 1, "127.0.0.1:1").write(tmp_path)
    run = psfleet.attach(tmp_path)
    assert run.status == "no report"
    with pytest.raises(UsageError, match="its launcher was killed"):
        run.wait(timeout_secs=1)


def test_a_wait_has_a_deadline(tmp_path: Path) -> None:
    with live(tmp_path), pytest.raises(DeadlineError, match="the end of the run"):
        psfleet.attach(tmp_path).wait(timeout_secs=0.2)


def test_only_the_folder_of_a_run_that_can_be_called_has_a_handle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run, expected the folder of one"):
        psfleet.attach(tmp_path)
    (tmp_path / OWNER_FILE).write_text('{"name": "small", "platform": "hosts"}')
    with pytest.raises(UsageError, match="a run of `psfleet task`, of which there is no handle"):
        psfleet.attach(tmp_path)


def test_errors_of_the_job_are_raised_at_once(tmp_path: Path) -> None:
    job = sample_job().model_dump(mode="json")
    with claimed(tmp_path / "out", sample_job(), fresh=False), pytest.raises(UsageError, match="another run is using"):
        psfleet.start(job, out=tmp_path / "out", program_folder=tmp_path)
    with pytest.raises(BadJobError, match="steps"):
        psfleet.start(job | {"train": {"steps": -1}}, out=tmp_path / "out")


@pytest.mark.parametrize("on", ["compose", "kubernetes"])
def test_a_function_that_no_module_has_does_not_travel_to_containers(tmp_path: Path, on: str) -> None:
    job = sample_job().model_dump(mode="json")

    def build() -> None:
        """No module has it."""

    with pytest.raises(UsageError, match=f"program 'build' is defined in a script or notebook, .* {on} cannot import"):
        psfleet.start(job, program=build, out=tmp_path / "out", on=on)
    with pytest.raises(UsageError, match="platform 'docker': expected one of compose, kubernetes"):
        psfleet.start(job, program=build, out=tmp_path / "out", on="docker")
    assert not list(tmp_path.iterdir())


def test_a_gradient_does_not_wait_for_ever_for_a_worker_that_is_away(tmp_path: Path) -> None:
    with live(tmp_path, held_at=40, deadlines={"stall_secs": 0.3}):
        expected = r"no gradient of all workers within deadlines.stall_secs = 0.3 s: worker 0 is away; nothing has"
        with pytest.raises(UsageError, match=expected):
            psfleet.attach(tmp_path).gradient()
