"""From which checkpoint the chief restores the fleet, and when it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoint_samples import random_values, save
from support.chief_samples import Ps, sample_context, sample_job, shard_state

from psfleet.addresses import Address
from psfleet.checkpoint import committed
from psfleet.control import control_pb2 as pb
from psfleet.errors import BadJobError, LostPeerError, NoCheckpointError
from psfleet.job.program_files import PROGRAM_DIGEST
from psfleet.layout import Layout, TensorSpec
from psfleet.report.history import History, Point
from psfleet.report.hold import AT_START, HoldRecord
from psfleet.service.settings import Settings
from worker_service.chief.events import Events
from worker_service.chief.recovery import Recovery, RecoveryResult
from worker_service.run_context import shares_folder

EMPTY = pb.ShardState(run="run", phase=pb.EMPTY, cause="killed by SIGKILL")


def recover(out: Path, *states: Any, last_step: int = 0) -> str:
    """Recovers the fleet; returns the name of the checkpoint that every ps restored."""
    ps = [Ps(state) for state in states]
    context = sample_context(out, ps)
    Recovery(context, lambda: random_values(1), {}, Events(out, context.job)).recover(states, last_step)
    [name] = {Path(folder).name for one in ps for folder in one.configured}
    return name


def trained(out: Path, step: int, generation: int = 1) -> None:
    """Adds a point to the history of a run."""
    point = Point(time=1.0, step=step, generation=generation, loss=1.0, step_secs=1.0, examples_per_sec=1.0)
    History(out / History.FILE_NAME).append(point)


def test_a_new_run_starts_from_step_0(tmp_path: Path) -> None:
    assert recover(tmp_path, EMPTY, EMPTY) == "00000000-g1"


def test_after_a_loss_the_newest_checkpoint_is_restored(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 40)
    assert recover(tmp_path, EMPTY, shard_state(55), last_step=55) == "00000040-g1"


def test_the_step_at_which_a_generation_began_is_that_of_its_checkpoint(tmp_path: Path) -> None:
    """A replaced chief finds the generation running, which has trained since."""
    save(tmp_path / "checkpoints", 40)
    trained = shard_state(55)
    trained.first_step = 40
    for states, generation in ([trained, trained], 1), ([EMPTY, trained], 2):
        context = sample_context(tmp_path, [Ps(state) for state in states])
        recovery = Recovery(context, lambda: random_values(1), {}, Events(tmp_path, context.job))
        assert recovery.recover(states, last_step=55) == RecoveryResult(generation, 40)


def test_a_generation_is_not_that_of_a_point_of_the_history(tmp_path: Path) -> None:
    """The checkpoints of generation 2 were deleted, so that the run starts again from one of generation 1."""
    save(tmp_path / "checkpoints", 40)
    trained(tmp_path, 60, generation=2)
    context = sample_context(tmp_path, [Ps(EMPTY), Ps(EMPTY)])
    recovery = Recovery(context, lambda: random_values(1), {}, Events(tmp_path, context.job))
    assert recovery.recover([EMPTY, EMPTY], last_step=0).generation == 3


@pytest.mark.parametrize("who_knows", ["ps", "chief", "history"])
def test_a_run_that_has_trained_never_starts_again_from_step_0(tmp_path: Path, who_knows: str) -> None:
    """Its checkpoints were deleted: the ps that live, the chief or the history know that steps are missing."""
    other = shard_state(55) if who_knows == "ps" else EMPTY
    if who_knows == "history":
        trained(tmp_path, 55)
    with pytest.raises(NoCheckpointError, match=r"55 steps were trained.*no checkpoint") as caught:
        recover(tmp_path, EMPTY, other, last_step=55 if who_knows == "chief" else 0)
    assert str(tmp_path / "checkpoints") in str(caught.value)
    assert not (tmp_path / "checkpoints").exists()


def test_a_history_of_another_version_is_refused_where_training_would_start_at_step_0_and_else_skipped(
    tmp_path: Path,
) -> None:
    (tmp_path / History.FILE_NAME).write_text('{"step": 55}\n')
    with pytest.raises(BadJobError, match=r"history\.jsonl line 1: time: Field required"):
        recover(tmp_path, EMPTY, EMPTY)
    save(tmp_path / "checkpoints", 40)
    assert recover(tmp_path, EMPTY, EMPTY) == "00000040-g1"


def test_an_older_checkpoint_does_not_stand_in_for_one_that_was_deleted(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    save(root, 20)
    newest = save(root, 40)
    committed.write(tmp_path, newest)
    shutil.rmtree(newest.folder)
    with pytest.raises(NoCheckpointError, match=r"00000040-g1 was committed.*00000020-g1"):
        recover(tmp_path, EMPTY, shard_state(41), last_step=41)


def test_an_older_checkpoint_stands_in_for_one_that_is_damaged(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    save(root, 20)
    newest = save(root, 40)
    committed.write(tmp_path, newest)
    (newest.folder / newest.parts[0].file).write_bytes(b"")
    assert recover(tmp_path, EMPTY, shard_state(41), last_step=41) == "00000020-g1"


def test_a_committed_record_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 20)
    (tmp_path / committed.FILE_NAME).write_text('{"step": ')
    assert recover(tmp_path, EMPTY, EMPTY, last_step=20) == "00000020-g1"


@pytest.mark.parametrize(("before", "is_recorded"), [("1111", True), ("2222", False), (None, False)])
def test_a_run_that_is_resumed_with_a_changed_program_says_so(
    tmp_path: Path, before: str | None, is_recorded: bool
) -> None:
    save(tmp_path / "checkpoints", 20, extra={} if before is None else {PROGRAM_DIGEST: before})
    ps = [Ps(EMPTY), Ps(EMPTY)]
    context = sample_context(tmp_path, ps)
    events = Events(tmp_path, context.job)
    extra = {PROGRAM_DIGEST: "2222"}
    Recovery(context, lambda: random_values(1), extra, events).recover([EMPTY, EMPTY], last_step=0)
    found = [(event.kind, event.role, event.cause) for event in events.all()]
    cause = "step 20 was trained by a program with digest 1111, this one has 2222"
    assert found == ([("program_changed", "chief", cause)] if is_recorded else [])


@pytest.mark.parametrize("is_chief_replaced", [False, True])
def test_a_recovery_that_is_tried_again_records_each_ps_and_each_step_once(
    tmp_path: Path, is_chief_replaced: bool
) -> None:
    """The second ps, or the chief too, dies while the first one is configured; then both ps are lost once more."""
    save(tmp_path / "checkpoints", 40)
    ps = [Ps(EMPTY), Ps(shard_state(55))]
    context = sample_context(tmp_path, ps)

    def chief() -> tuple[Recovery, Events]:
        events = Events(tmp_path, context.job)
        return Recovery(context, lambda: random_values(1), {}, events), events

    recovery, events = chief()
    configure = ps[1].configure

    def refuse(**_: Any) -> Any:
        raise LostPeerError("gone")

    ps[1].configure = refuse  # type: ignore[method-assign]
    with pytest.raises(LostPeerError):
        recovery.recover([EMPTY, shard_state(55)], 55)
    ps[1].configure = configure  # type: ignore[method-assign]
    if is_chief_replaced:
        recovery, events = chief()
    for _ in range(2):
        recovery.recover([EMPTY, EMPTY], 55)
    found = [(event.role, event.index, event.steps_lost) for event in events.all()]
    assert found == [("ps", 0, 15), ("ps", 1, 0), ("ps", 0, 15), ("ps", 1, 0)]


@pytest.mark.parametrize("evidence", ["a point of the history", "a checkpoint"])
def test_a_replaced_chief_records_the_loss_of_a_generation_that_trained(tmp_path: Path, evidence: str) -> None:
    save(tmp_path / "checkpoints", 40)
    context = sample_context(tmp_path, [Ps(EMPTY), Ps(EMPTY)])
    for last_step in (55, 50):
        events = Events(tmp_path, context.job)
        recovery = Recovery(context, lambda: random_values(1), {}, events)
        generation = recovery.recover([EMPTY, shard_state(last_step)], last_step).generation
        if evidence == "a checkpoint":
            save(tmp_path / "checkpoints", 44, generation=generation)
        else:
            trained(tmp_path, 44, generation)
    assert [event.steps_lost for event in events.all()] == [15, 6 if evidence == "a checkpoint" else 10]


@pytest.mark.parametrize(
    ("age_secs", "generation", "lost"), [(0.0, 1, 15), (10.0, 1, None), (0.0, 0, None)],
    ids=["of this attempt", "of an earlier attempt", "of an earlier generation"],
)  # fmt: skip
def test_steps_that_only_the_history_knows_count_as_lost_if_this_attempt_made_them(
    age_secs: float, generation: int, lost: int | None, tmp_path: Path
) -> None:
    """All processes were killed at once: no ps, and no chief, remembers a step."""
    save(tmp_path / "checkpoints", 40)
    trained(tmp_path, 55, generation)
    context = sample_context(tmp_path, [Ps(EMPTY), Ps(EMPTY)])
    events = Events(tmp_path, context.job)
    # The point's time is 1.
    Recovery(context, lambda: random_values(1), {}, events, started=1.0 + age_secs).recover([EMPTY, EMPTY], 0)
    found = [(event.role, event.index, event.steps_lost) for event in events.all()]
    assert found == ([] if lost is None else [("ps", 0, lost), ("ps", 1, 0)])


def test_a_checkpoint_beyond_the_final_step_is_refused(tmp_path: Path) -> None:
    """The run would be reported as done with more steps than the job has."""
    save(tmp_path / "checkpoints", 101)
    with pytest.raises(BadJobError, match=r"00000101-g1 is at step 101, train.steps is 100; expected at least"):
        recover(tmp_path, EMPTY, EMPTY)


def test_a_resumed_run_names_what_of_its_job_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    before = sample_job(train={"steps": 50, "batch_size": 8}, optimizer={"name": "sgd", "learning_rate": 0.1})
    save(tmp_path / "checkpoints", 40, extra={"job": before.model_dump(mode="json")})
    recover(tmp_path, EMPTY, EMPTY)
    [message] = [record.getMessage() for record in caplog.records if "restoring" in record.getMessage()]
    assert message.startswith("restoring from step 40; the job has changed: ")
    assert "optimizer.name sgd -> adam" in message
    assert "train.steps 50 -> 100" in message
    assert "batch_size" not in message


def test_a_resumed_run_of_the_same_job_names_only_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    save(tmp_path / "checkpoints", 40, extra={"job": sample_job().model_dump(mode="json")})
    recover(tmp_path, EMPTY, EMPTY)
    assert "restoring from step 40" in [record.getMessage() for record in caplog.records]


def test_a_final_step_of_another_model_is_refused(tmp_path: Path) -> None:
    """It would be evaluated with a model that has none of its tensors."""
    context = sample_context(
        tmp_path, [Ps(EMPTY), Ps(EMPTY)], layout=Layout.plan([TensorSpec("w", (3,))], [], [], 2, 100)
    )
    save(tmp_path / "checkpoints", context.job.train.steps)
    with pytest.raises(BadJobError, match=r"in checkpoint .* missing in the program"):
        Recovery(context, lambda: {}, {}, Events(tmp_path, context.job)).recover([EMPTY, EMPTY], 0)


def test_ps_that_do_not_share_the_folder_get_what_they_restore_and_no_path(tmp_path: Path) -> None:
    saved = save(tmp_path / "checkpoints", 40)
    sent: list[tuple[int, str, str, int, int]] = []

    class RemotePs(Ps):
        def restore(
            self, *, shard: int, origin: pb.ShardOrigin, ranges: Iterable[tuple[str, int, bytes]], **plan: Any
        ) -> pb.ShardState:
            """See PsClient."""
            num_bytes = sum(len(data) for _, _, data in ranges)
            sent.append((shard, plan["checkpoint_folder"], plan["checkpoints_root"], origin.step, num_bytes))
            return self.states[0]

    context = replace(sample_context(tmp_path, [RemotePs(EMPTY), RemotePs(EMPTY)]), is_shared=False)
    Recovery(context, lambda: {}, {}, Events(tmp_path, context.job)).recover([EMPTY, EMPTY], 0)
    assert sorted(call[:4] for call in sent) == [(0, "", "", 40), (1, "", "", 40)]
    specs = [*saved.layout.state.specs, *saved.layout.frozen.specs]
    of_parameters = (1 + len(saved.slots)) * sum(spec.num_bytes for spec in saved.layout.parameters.specs)
    assert sum(call[4] for call in sent) == of_parameters + sum(spec.num_bytes for spec in specs)


@pytest.mark.parametrize(
    ("launched", "host", "is_shared", "expected"),
    [
        pytest.param(1.0, "127.0.0.1", False, True, id="processes of one machine"),
        pytest.param(1.0, "10.0.0.7", False, False, id="ps elsewhere"),
        pytest.param(0.0, "127.0.0.1", False, False, id="nobody knows who started them"),
        pytest.param(0.0, "ps-0", False, False, id="containers"),
        pytest.param(0.0, "ps-0", True, True, id="containers with one volume"),
    ],
)
def test_the_folder_is_shared_on_one_machine_or_if_the_job_says_so(
    launched: float, host: str, is_shared: bool, expected: bool
) -> None:
    job = sample_job(checkpoint={"shared": is_shared})
    addresses = (Address("127.0.0.1", 2222), Address(host, 2222))
    settings = Settings(job, Path(), "run", 0, addresses, addresses[0], Path(), 0, "", launched=launched)
    assert shares_folder(settings, job) == expected


def test_weights_that_were_set_start_the_next_generation_although_every_ps_trains(tmp_path: Path) -> None:
    """The chief that has set them died before it could do so."""
    save(tmp_path / "checkpoints", 40)
    save(tmp_path / "checkpoints", 40, generation=2)
    assert recover(tmp_path, shard_state(40), shard_state(40), last_step=40) == "00000040-g2"


def test_a_run_that_is_held_at_step_0_keeps_its_initial_checkpoint(tmp_path: Path) -> None:
    """Each ps of generation 1 writes a part of step 0, too."""
    HoldRecord(AT_START).write(tmp_path)
    assert recover(tmp_path, EMPTY, EMPTY) == "00000000-g0"


def test_a_generation_is_held_where_the_run_is(tmp_path: Path) -> None:
    save(tmp_path / "checkpoints", 40)
    HoldRecord(AT_START).write(tmp_path)
    ps = [Ps(EMPTY), Ps(EMPTY)]
    context = sample_context(tmp_path, ps)
    Recovery(context, lambda: random_values(1), {}, Events(tmp_path, context.job)).recover([EMPTY, EMPTY], 0)
    assert [one.hold_at for one in ps] == [40, 40]
    assert HoldRecord.read(tmp_path) == HoldRecord(40)
