"""A member that answers batches, and the deadline of its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from psfleet import errors
from psfleet.errors import ChangedProgramError
from psfleet.inference.tensors import ModelMetadata, TensorMetadata
from psfleet.job.service_access import MemberSource
from psfleet.service.process import Stop
from worker_service.member.function import PredictFunction
from worker_service.member.model import ServedModel
from worker_service.member.newer_weights import NewerWeights
from worker_service.member.service import answer_all
from worker_service.predictions.weights import Weights
from worker_service.trial.signs_of_life import BEAT_SECS, SignsOfLife

PREDICT_SECS = 5.0


class OneBatch:
    """The front's part: sends a batch, and stops the member when it has the predictions."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        self.found: list[tuple[int, int, float]] = []

    def take(self) -> tuple[int, list[np.ndarray]]:
        return 1, [np.ones([1, 2], np.float32)]

    def put(self, number: int, step: int, outputs: Sequence[np.ndarray], error: str = "") -> None:
        self.found.append((number, step, float(outputs[0].sum())))
        self.stop.event.set()


class SlowModel:
    """Doubles its input, after so many beats of the signs of life."""

    step = 3

    def __init__(self, life: SignsOfLife, beats: int) -> None:
        self.life, self.beats = life, beats

    def predict(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        for _ in range(self.beats):
            self.life.beat()
        return self.step, [2 * inputs[0]]


@pytest.mark.parametrize("is_too_slow", [True, False])
def test_a_member_ends_if_a_prediction_does_not_end(is_too_slow: bool, tmp_path: Path, stop: Stop) -> None:
    ended: list[int] = []
    life = SignsOfLife.in_file(tmp_path / "alive", ended.append)
    connection = OneBatch(stop)
    beats = int(PREDICT_SECS / BEAT_SECS) + (2 if is_too_slow else 0)
    newer = NewerWeights(MemberSource(run=str(tmp_path), step=3), Weights(3, {}, "its own"))
    answer_all(connection, SlowModel(life, beats), newer, life, stop, PREDICT_SECS)  # type: ignore[arg-type]
    assert ended == ([errors.LOST_PEERS] if is_too_slow else [])
    assert connection.found == [(1, 3, 4.0)]


class OtherModel(SlowModel):
    """Refuses all weights: they are of another program."""

    def assign(self, weights: Weights) -> None:
        raise ChangedProgramError("step 4 is of another program")


class EndlessBatches(OneBatch):
    """Stops the member after so many batches."""

    def __init__(self, stop: Stop, number: int) -> None:
        super().__init__(stop)
        self.left = number

    def put(self, number: int, step: int, outputs: Sequence[np.ndarray], error: str = "") -> None:
        self.found.append((number, step, float(outputs[0].sum())))
        self.left -= 1
        if not self.left:
            self.stop.event.set()


@pytest.mark.parametrize("has_program", [True, False])
def test_a_member_ends_after_a_batch_if_newer_weights_need_another_program_that_is_here(
    tmp_path: Path, stop: Stop, caplog: pytest.LogCaptureFixture, has_program: bool
) -> None:
    life = SignsOfLife.in_file(tmp_path / "alive", lambda code: None)
    connection, waiting = EndlessBatches(stop, 3), [Weights(4, {}, "of another")]
    newer = SimpleNamespace(taken=lambda: waiting.pop() if waiting else None, has_program=has_program)
    with pytest.raises(ChangedProgramError) if has_program else nullcontext():
        answer_all(connection, OtherModel(life, 0), cast(NewerWeights, newer), life, stop, PREDICT_SECS)  # type: ignore[arg-type]
    assert connection.found == [(1, 3, 4.0)] * (1 if has_program else 3)
    assert ("step 4 is not served: step 4 is of another program" in caplog.text) is not has_program


def test_the_function_of_a_member_does_not_predict_queries_without_rows() -> None:
    output = TensorMetadata(name="y", datatype="FP32", shape=(-1, 3))
    model = SimpleNamespace(metadata=ModelMetadata(inputs=(), outputs=(output,)))
    step, error, outputs = PredictFunction(cast(ServedModel, model))(np.empty([0, 2], np.float32))
    assert (int(step), error.item(), outputs.size) == (0, b"", 0)
