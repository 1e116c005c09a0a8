"""The update rules of three optimizers in NumPy, for replays in float64, as `keras.optimizers` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Rule(Protocol):
    """One tensor's update; keeps what the rule remembers between steps."""

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        """The weights after one step, of the same shape."""


@dataclass
class Sgd:
    """Plain descent."""

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        return weights - rate * gradient


@dataclass
class Momentum:
    """Polyak's heavy ball, or Nesterov's form as in Sutskever et al. 2013, section 2."""

    momentum: float = 0.9
    nesterov: bool = False
    velocity: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        self.velocity = self.momentum * self.velocity - rate * gradient
        move = self.momentum * self.velocity - rate * gradient if self.nesterov else self.velocity
        return weights + move


@dataclass
class Adam:
    """Kingma and Ba 2015 with "epsilon hat" (the text before section 2.1)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7
    step: int = 0
    first: Any = 0.0
    second: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        self.step += 1
        self.first = self.beta1 * self.first + (1 - self.beta1) * gradient
        self.second = self.beta2 * self.second + (1 - self.beta2) * gradient**2
        corrected = rate * np.sqrt(1 - self.beta2**self.step) / (1 - self.beta1**self.step)
        return weights - corrected * self.first / (np.sqrt(self.second) + self.epsilon)


@dataclass
class Adagrad:
    """Duchi et al. 2011, with the accumulator of Keras."""

    initial_accumulator: float = 0.1
    epsilon: float = 1e-7
    total: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        self.total = self.total + gradient**2
        return weights - rate * gradient / np.sqrt(self.initial_accumulator + self.total + self.epsilon)


RULES: dict[str, type[Any]] = {"adagrad": Adagrad, "sgd": Sgd, "momentum": Momentum, "adam": Adam}


def rule(optimizer: dict[str, Any]) -> Rule:
    """The rule of an optimizer as the job file writes it, for one tensor."""
    aside = ("name", "learning_rate", "schedule", "clip_norm")
    made: Rule = RULES[optimizer["name"]](**{key: value for key, value in optimizer.items() if key not in aside})
    return made
