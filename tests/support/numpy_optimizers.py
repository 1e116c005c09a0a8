"""The update rules of the optimizers in NumPy, each as its paper or TensorFlow's documentation states it."""

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
        self.velocity = self.momentum * self.velocity + gradient
        move = gradient + self.momentum * self.velocity if self.nesterov else self.velocity
        return weights - rate * move


@dataclass
class Adam:
    """Kingma and Ba 2015 with "epsilon hat" (the text before section 2.1); AdamW is the same behind the decay."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    step: int = 0
    first: Any = 0.0
    second: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        self.step += 1
        self.first = self.beta1 * self.first + (1 - self.beta1) * gradient
        self.second = self.beta2 * self.second + (1 - self.beta2) * gradient**2
        corrected = rate * np.sqrt(1 - self.beta2**self.step) / (1 - self.beta1**self.step)
        decayed = weights * (1 - rate * self.weight_decay)
        return decayed - corrected * self.first / (np.sqrt(self.second) + self.epsilon)


@dataclass
class Adagrad:
    """Duchi et al. 2011, the diagonal form."""

    initial_accumulator: float = 0.1
    total: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        self.total = self.total + gradient**2
        return weights - rate * gradient / np.sqrt(self.initial_accumulator + self.total)


@dataclass
class RmsProp:
    """Tieleman and Hinton 2012 as tf.compat.v1.train.RMSPropOptimizer has it: the mean of squares begins at one."""

    decay: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-10
    centered: bool = False
    squares: Any = 1.0
    mean: Any = 0.0
    move: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        self.squares = self.decay * self.squares + (1 - self.decay) * gradient**2
        if self.centered:
            self.mean = self.decay * self.mean + (1 - self.decay) * gradient
        self.move = self.momentum * self.move + rate * gradient / np.sqrt(self.squares - self.mean**2 + self.epsilon)
        return weights - self.move


@dataclass
class Ftrl:
    """McMahan et al. 2013, algorithm 1, with the L2 term as tf.compat.v1.train.FtrlOptimizer adds it."""

    learning_rate_power: float = -0.5
    initial_accumulator: float = 0.1
    l1: float = 0.0
    l2: float = 0.0
    total: Any = 0.0
    linear: Any = 0.0

    def __call__(self, weights: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
        before = (self.initial_accumulator + self.total) ** -self.learning_rate_power
        self.total = self.total + gradient**2
        after = (self.initial_accumulator + self.total) ** -self.learning_rate_power
        self.linear = self.linear + gradient - (after - before) / rate * weights
        shrunk = np.sign(self.linear) * np.maximum(np.abs(self.linear) - self.l1, 0.0)
        return -shrunk / (after / rate + 2 * self.l2)


RULES: dict[str, type[Any]] = {
    "sgd": Sgd,
    "momentum": Momentum,
    "adam": Adam,
    "adamw": Adam,
    "adagrad": Adagrad,
    "rmsprop": RmsProp,
    "ftrl": Ftrl,
}


def rule(optimizer: dict[str, Any]) -> Rule:
    """The rule of an optimizer as the job file writes it, for one tensor."""
    aside = ("name", "learning_rate", "schedule", "clip_norm")
    made: Rule = RULES[optimizer["name"]](**{key: value for key, value in optimizer.items() if key not in aside})
    return made
