"""The weights of a live run: read as of one step, and replaced on all ps or on none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import PARAMETERS, sample_layout
from support.live_chief import live

import psfleet
from psfleet.checkpoint.manifest import read_manifest
from psfleet.checkpoint.replacement import specs_of
from psfleet.checkpoint.store import committed_checkpoints, newest, newest_committed, verify
from psfleet.checkpoint.tensors import read_shard, read_tensors
from psfleet.checkpoint.weight_changes import CHANGES, WeightChanges
from psfleet.control import run_control_pb2 as pb
from psfleet.errors import UsageError
from psfleet.handle.weights import flat
from psfleet.report.schema import EventLog

SPECS = specs_of(sample_layout())
ZEROS = {name: np.zeros(spec.shape, spec.dtype) for name, spec in SPECS.items()}
ZEROS_BUT_ONE = {name: value for name, value in ZEROS.items() if name != "dense/kernel"}


def changed(**tensors: Any) -> dict[str, np.ndarray]:
    return {**ZEROS, **{name: np.asarray(value) for name, value in tensors.items()}}


def test_they_are_those_of_one_checkpoint_from_now_on(tmp_path: Path) -> None:
    with live(tmp_path):
        weights = psfleet.attach(tmp_path).weights
        assert weights.names == list(SPECS)
        assert weights.trained == [spec.name for spec in PARAMETERS]
        found = weights.get()
        checkpoint = newest_committed(tmp_path / "checkpoints")
        assert checkpoint is not None
        for name, value in read_tensors(checkpoint).items():
            np.testing.assert_array_equal(found[name], value)


def test_a_change_is_a_checkpoint_of_a_later_generation_from_which_the_fleet_trains_on(tmp_path: Path) -> None:
    """So a rollback and a resume restore the new weights; the optimizer's state is what it was."""
    with live(tmp_path) as chief:
        run = psfleet.attach(tmp_path)
        before = read_manifest(run.save())
        run.weights.set(ZEROS)
        made = newest(tmp_path / "checkpoints")
        assert made is not None
        assert made.step > before.step
        assert (made.generation, chief.generation) == (2, 3)
        verify(made)
        for name, value in read_tensors(made).items():
            np.testing.assert_array_equal(value, ZEROS[name])
        old, new = (read_shard(each, made.layout, 1) for each in (before, made))
        np.testing.assert_array_equal(new.slots["m"], old.slots["m"])
        assert new.scalars == old.scalars
        assert chief.hold_at is None
    [event] = [each for each in EventLog(tmp_path / EventLog.FILE_NAME).readable(0) if each.kind == "weights_set"]
    assert f"replaced at step {made.step} by the handle of process" in event.cause


def test_tensors_that_are_not_given_stay(tmp_path: Path) -> None:
    with live(tmp_path) as chief:
        weights = psfleet.attach(tmp_path).weights
        before = weights.get()
        weights.set({"dense/bias": np.full(5, 7, np.float32)})
        made = newest(tmp_path / "checkpoints")
        assert made is not None
        assert (made.generation, chief.generation) == (2, 3)
        found = read_tensors(made)
    np.testing.assert_array_equal(found.pop("dense/bias"), np.full(5, 7))
    assert list(found) == [name for name in before if name != "dense/bias"]
    for name, value in found.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_a_run_that_is_held_stays_held_at_its_step(tmp_path: Path) -> None:
    with live(tmp_path, held_at=40) as chief:
        run = psfleet.attach(tmp_path)
        run.weights.set(ZEROS)
        assert (chief.generation, run.status) == (3, "held at step 40")


def test_the_vector_has_the_trained_tensors_without_gaps(tmp_path: Path) -> None:
    with live(tmp_path, held_at=40):
        weights = psfleet.attach(tmp_path).weights
        weights.set(ZEROS)
        size = sum(spec.size for spec in PARAMETERS)
        assert weights.get_flat().shape == (size,)
        weights.set_flat(np.arange(size))
        # The simulated ps do not hold them, but the checkpoint that they would restore does.
        made = next(each for each in committed_checkpoints(tmp_path / "checkpoints") if CHANGES in each.extra)
        tensors = read_tensors(made)
        np.testing.assert_array_equal(flat(PARAMETERS, tensors), np.arange(size, dtype=np.float32))
        np.testing.assert_array_equal(tensors["dense/bias"], np.arange(35, 40, dtype=np.float32))
        with pytest.raises(UsageError, match=rf"shape \[{size + 1}\], expected \[{size}\]"):
            weights.set_flat(np.zeros(size + 1))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param(
            {"kernel": np.zeros((7, 5), np.float32)} | ZEROS_BUT_ONE,
            "no tensor 'kernel'; expected 'dense/kernel' in place of 'kernel': rename it",
            id="another prefix",
        ),
        pytest.param(ZEROS | {"extra": np.zeros(1)}, "no tensor 'extra'", id="one too many"),
        pytest.param({"dense/bais": np.zeros(5, np.float32)}, "expected 'dense/bias'", id="misspelt"),
        pytest.param({"Q": np.zeros(5, np.float32)}, "no tensor 'Q'; expected names of the model: '", id="unlike any"),
        pytest.param({}, "no tensor is given; expected one or more of 'dense/kernel', ", id="none"),
        pytest.param(changed(mask=np.zeros(6, bool)), r"'mask' is bool \[6\], expected bool \[5\]", id="shape"),
        pytest.param(changed(seen=np.int32(1)), r"'seen' is int32 \[\], expected int64 \[\]", id="type"),
        pytest.param(
            changed(**{"dense/bias": np.full(5, np.nan, np.float32)}), "'dense/bias' has NaN or infinity", id="NaN"
        ),
    ],
)
def test_what_is_not_of_the_model_is_refused_and_changes_nothing(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    with live(tmp_path, held_at=40) as chief:
        with pytest.raises(UsageError, match=message):
            psfleet.attach(tmp_path).weights.set(tensors)
        assert (chief.generation, chief.step) == (1, 40)


def test_a_repeated_call_changes_nothing_although_the_fleet_has_trained_on(tmp_path: Path) -> None:
    """Its first answer was lost with the connection, or with the chief."""
    call = pb.RunCall(call="first", owner="a test")
    with live(tmp_path) as chief:
        chief.services().weights.set(call, ZEROS, 0, lambda: True)
        generation = chief.generation
        saved = read_manifest(psfleet.attach(tmp_path).save())
        assert saved.generation == generation
        assert chief.services().weights.set(call, ZEROS, 0, lambda: True).step >= saved.step
        assert chief.generation == generation


def test_a_repeated_or_late_call_does_not_undo_one_after_it(tmp_path: Path) -> None:
    repeated, late = (pb.RunCall(call=name, owner="a test") for name in ("repeated", "late"))
    with live(tmp_path) as chief:
        chief.services().weights.set(repeated, ZEROS, 0, lambda: True)
        weights = psfleet.attach(tmp_path).weights
        weights.set({"dense/bias": np.full(5, 7, np.float32)})
        generation = chief.generation
        chief.services().weights.set(repeated, ZEROS, 0, lambda: True)
        with pytest.raises(
            UsageError, match="`set` of a test is late: the weights were replaced 2 times by now, and 1 when"
        ):
            chief.services().weights.set(late, ZEROS, 1, lambda: True)
        assert chief.generation == generation
        weights.set({"dense/bias": np.full(5, 8, np.float32)})
        made = newest(tmp_path / "checkpoints")
        assert made is not None
        assert WeightChanges.of(made.extra).number == 3
        np.testing.assert_array_equal(read_tensors(made)["dense/bias"], np.full(5, 8))


def test_a_held_run_trains_the_steps_of_each_call_once(tmp_path: Path) -> None:
    with live(tmp_path, held_at=40) as chief:
        run = psfleet.attach(tmp_path)
        calls = [run.train(5), run.train(steps=7)]
        assert [call.result(20) for call in calls] == [45, 52]
        assert chief.hold_at == 52
        with pytest.raises(UsageError, match=r"train\(steps=0\): expected a whole number of at least 1"):
            run.train(0).result(20)
        assert run.train(1000).result(20) == 100, "the final step of the job"


def test_only_a_run_that_was_started_so_is_held(tmp_path: Path) -> None:
    with live(tmp_path):
        run = psfleet.attach(tmp_path)
        for call in (run.train(5), run.evaluate()):
            with pytest.raises(UsageError, match="start it with paused=True"):
                call.result(20)


def test_a_vector_is_made_of_all_trained_tensors_in_their_shapes() -> None:
    tensors = {spec.name: np.zeros(spec.shape, np.float32) for spec in PARAMETERS}
    first = PARAMETERS[0]
    with pytest.raises(UsageError, match=f"tensor '{first.name}' is missing, expected all trained tensors"):
        flat(PARAMETERS, {name: value for name, value in tensors.items() if name != first.name})
    with pytest.raises(UsageError, match=rf"tensor '{first.name}' has shape \[1, {first.size}\], expected"):
        flat(PARAMETERS, tensors | {first.name: np.zeros((1, first.size), np.float32)})
    with pytest.raises(UsageError, match="tensors: a value of type list, expected a mapping of names to arrays"):
        flat(PARAMETERS, [1.0])  # type: ignore[arg-type]
