"""What a caller gives to a handle and is none of what it takes is refused in one line, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoint_samples import PARAMETERS
from support.live_chief import live

import psfleet
from psfleet.errors import UsageError

CALL_SECS = 20.0
REFUSED: list[tuple[Callable[[psfleet.Run], Any], str]] = [
    (lambda run: run.train(1.5).result(CALL_SECS), r"train\(steps=1.5\): expected a whole number of at least 1"),
    (lambda run: run.train("a").result(CALL_SECS), r"train\(steps='a'\): expected a whole number"),
    (lambda run: run.train(True).result(CALL_SECS), r"train\(steps=True\): expected a whole number"),
    (lambda run: run.train(10**30).result(CALL_SECS), r"train\(steps=10+\): expected a whole number"),
    (lambda run: run.gradient(batches=0.5), r"gradient\(batches=0.5\): expected a whole number"),
    (lambda run: run.gradient(weights=[1.0]), "tensors: a value of type list, expected a mapping of names to arrays"),
    (lambda run: run.weights.set(None), "tensors: a value of type NoneType, expected a mapping"),
    (lambda run: run.weights.set({3: np.zeros(5)}), "the name of a tensor is 3, expected a text"),
    (lambda run: run.weights.set({"dense/bias": [[1.0], [1.0, 2.0]]}), "tensor 'dense/bias' cannot be converted"),
    (lambda run: run.weights.set_flat("abc"), "the vector cannot be converted to an array: could not convert string"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_it_is_refused_with_the_value_and_what_is_expected(
    tmp_path: Path, call: Callable[[psfleet.Run], Any], message: str
) -> None:
    with live(tmp_path, held_at=40) as chief:
        with pytest.raises(UsageError, match=message) as caught:
            call(psfleet.attach(tmp_path))
        assert "\n" not in str(caught.value)
        assert (chief.generation, chief.step) == (1, 40)


def test_whole_numbers_and_vectors_of_numpy_are_taken(tmp_path: Path) -> None:
    with live(tmp_path, held_at=40):
        run = psfleet.attach(tmp_path)
        assert run.train(np.int64(5)).result(CALL_SECS) == 45
        run.weights.set_flat([0.0] * sum(spec.size for spec in PARAMETERS))
