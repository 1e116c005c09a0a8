"""A model's own compute_loss gets what Keras' fit passes, whatever its parameters are called."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from worker_service.frontends.keras_loss import loss_of

X, Y, Y_PRED, WEIGHT = np.ones(2), np.full(2, 2.0), np.full(2, 3.0), np.full(2, 0.5)
GIVEN = X, Y, Y_PRED, WEIGHT


class AsDocumented(keras.Model):
    """In the docstring of `keras.Model.compute_loss`."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True) -> Any:
        return x, y, y_pred, sample_weight, training


class OtherNames(keras.Model):
    def compute_loss(self, inputs: Any, labels: Any, outputs: Any, weights: Any, training: bool) -> Any:
        return inputs, labels, outputs, weights, training


class WithDefaults(keras.Model):
    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return x, y, y_pred, sample_weight, True


class TakesAnything(keras.Model):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        assert not kwargs, "Keras passes `training` only by its name"
        return *args, True


class ByName(keras.Model):
    def compute_loss(self, *, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = False) -> Any:
        return x, y, y_pred, sample_weight, training


class OtherOrder(keras.Model):
    """Has Keras' names, and one of its own."""

    def compute_loss(self, y: Any, y_pred: Any, x: Any = None, sample_weight: Any = None, alpha: float = 0.5) -> Any:
        assert alpha == 0.5
        return x, y, y_pred, sample_weight, True


class WithFactor(keras.Model):
    """Takes no weights, but a factor in their place."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, alpha: float = 0.5) -> Any:
        assert alpha == 0.5
        return x, y, y_pred, None, True


class WithoutWeights(keras.Model):
    def compute_loss(self, x: Any, y: Any, y_pred: Any) -> Any:
        return x, y, y_pred, None, True


class OtherWeight(keras.Model):
    """Takes the sample weights by name only."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, **others: Any) -> Any:
        return x, y, y_pred, others.get("sample_weight"), True


@pytest.mark.parametrize(
    "model", [AsDocumented, OtherNames, WithDefaults, TakesAnything, ByName, OtherWeight, OtherOrder]
)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_an_own_loss_gets_examples_predictions_weights_and_that_it_trains(
    model: type[keras.Model], weight: np.ndarray | None
) -> None:
    got = loss_of(model(), X, Y, Y_PRED, weight)
    assert all(each is expected for each, expected in zip(got, (X, Y, Y_PRED, weight, True), strict=True))


@pytest.mark.parametrize("model", [WithoutWeights, WithFactor])
def test_an_own_loss_without_weights_is_enough_for_data_without_weights(model: type[keras.Model]) -> None:
    assert loss_of(model(), X, Y, Y_PRED, None) == (X, Y, Y_PRED, None, True)


def test_an_own_loss_that_cannot_take_the_weights_of_the_data_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"compute_loss\(\) takes 4 positional arguments but 5 were given"):
        loss_of(WithoutWeights(), *GIVEN)
