"""Update rules of table rows: those of the dense optimizers (`psfleet.tf.optimizers`), applied to some rows only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from psfleet.job.optimizer import Adagrad, Adam, RuleBase, Sgd

Slots = dict[str, np.ndarray]
Update = Callable[[np.ndarray, Slots, np.ndarray, np.float32, int], None]


@dataclass(frozen=True)
class RowRule:
    """An update rule.

    Attributes:
        slots: Optimizer slot name to its initial value.
        update: Changes rows and slots in place: float32 `[n, width]` each. Its other arguments are the gradient,
            float32 `[n, width]`, the learning rate, and the number of the update, counted from 1.
    """

    slots: Mapping[str, float]
    update: Update


def row_rule(rule: RuleBase) -> RowRule:
    """The rule of an optimizer's section."""
    return _RULES[type(rule)](rule)


def _sgd(rule: Sgd) -> RowRule:
    del rule

    def update(rows: np.ndarray, slots: Slots, gradient: np.ndarray, rate: np.float32, number: int) -> None:
        del slots, number
        rows -= rate * gradient

    return RowRule({}, update)


def _adagrad(rule: Adagrad) -> RowRule:
    def update(rows: np.ndarray, slots: Slots, gradient: np.ndarray, rate: np.float32, number: int) -> None:
        del number
        slots["accumulator"] += gradient * gradient
        rows -= rate * gradient / np.sqrt(slots["accumulator"])

    # As in the dense optimizer, epsilon is a part of the sum from the beginning.
    return RowRule({"accumulator": rule.initial_accumulator + rule.epsilon}, update)


def _adam(rule: Adam) -> RowRule:
    beta1, beta2, epsilon = np.float32(rule.beta1), np.float32(rule.beta2), np.float32(rule.epsilon)

    def update(rows: np.ndarray, slots: Slots, gradient: np.ndarray, rate: np.float32, number: int) -> None:
        mean, square = slots["m"], slots["v"]
        mean += (gradient - mean) * (1 - beta1)
        square += (gradient * gradient - square) * (1 - beta2)
        scale = rate * np.float32(math.sqrt(1 - rule.beta2**number) / (1 - rule.beta1**number))
        rows -= scale * mean / (np.sqrt(square) + epsilon)

    return RowRule({"m": 0.0, "v": 0.0}, update)


_RULES: dict[type[RuleBase], Callable[[Any], RowRule]] = {Sgd: _sgd, Adagrad: _adagrad, Adam: _adam}
