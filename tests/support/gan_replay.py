"""The steps of `tiny_gan_program` in NumPy: each loss moves its own weights, by its own rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from support.numpy_optimizers import Rule, rule
from support.programs import tiny_gan_program as tiny
from support.replay import Batch, Weights, averaged, batch

Optimizers = Mapping[str, dict[str, Any]]


class Replay:
    """The weights in float64 after any number of steps.

    Args of the constructor:
        optimizers: By loss, as the job file writes them.
    """

    def __init__(self, optimizers: Optimizers) -> None:
        initial = tiny.initial_weights() | tiny.initial_state()
        self.values = {name: value.astype(np.float64) for name, value in initial.items()}
        self._optimizers = optimizers
        self._rules: dict[str, Rule] = {name: rule(optimizers[name.partition("/")[0]]) for name in tiny.SHAPES}

    def step(self, loss: str, batches: Sequence[Batch]) -> None:
        """Applies the mean gradient of one loss over the workers' batches."""
        found = [gradient(self.values, loss, each) for each in batches]
        mean, state = averaged([own for own, _ in found]), averaged([own for _, own in found])
        rate = self._optimizers[loss]["learning_rate"]
        trained = {name: self._rules[name](self.values[name], mean[name], rate) for name in mean}
        self.values = self.values | trained | state


def replayed(optimizers: Optimizers, alternate: Sequence[str], workers: int, batch_size: int, steps: int) -> Weights:
    """All tensors after the steps of a sync fleet."""
    replay = Replay(optimizers)
    for step in range(steps):
        batches = [batch(tiny.data(), worker, workers, batch_size, step) for worker in range(workers)]
        replay.step(alternate[step % len(alternate)], batches)
    return replay.values


def gradient(values: Weights, loss: str, batch: Batch) -> tuple[Weights, Weights]:
    """The gradient of a loss with respect to its own weights, and the state after a step with it."""
    real, noise = (np.asarray(part, np.float64) for part in batch)
    before, kernel = values["generator/mean"], values["discriminator/kernel"]
    made = noise @ values["generator/kernel"] + values["generator/bias"] - before
    on_real, on_made = (part @ kernel + values["discriminator/bias"] for part in (real, made))
    state = {"generator/mean": before, "steps": values["steps"] + 1}
    if loss == "discriminator":
        to_real, to_made = -sigmoid(-on_real) / len(real), sigmoid(on_made) / len(real)
        own = {
            "discriminator/kernel": real.T @ to_real + made.T @ to_made,
            "discriminator/bias": to_real.sum() + to_made.sum(),
        }
        return own, state
    to_features = np.outer(-sigmoid(-on_made) / len(real), kernel)
    own = {"generator/kernel": noise.T @ to_features, "generator/bias": to_features.sum(0)}
    own = {name: value + 2 * tiny.PENALTY * values[name] for name, value in own.items()}
    return own, state | {"generator/mean": tiny.MOMENTUM * before + (1 - tiny.MOMENTUM) * made.mean(0)}


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    value: np.ndarray = 1 / (1 + np.exp(-x))
    return value
