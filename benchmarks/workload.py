"""What one measurement runs: the MLP's size, the optimizer, the batch and the number of steps; passed on as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

NUM_WORKERS = 2
LEARNING_RATE = 0.001
OPTIMIZERS = ("adam", "sgd")


@dataclass(frozen=True)
class Workload:
    """One measurement, equal for every contender.

    Attributes:
        hidden: Units in each of the two hidden layers of the MLP 784-hidden-hidden-10.
        optimizer: One of `OPTIMIZERS`.
        steps: Steps that are timed.
        warmup_steps: Steps before them that are not.
        batch_size: Examples in one worker's gradient.
    """

    hidden: int
    optimizer: str
    steps: int
    warmup_steps: int = 30
    batch_size: int = 100

    @property
    def total_steps(self) -> int:
        """Warm-up and timed steps together."""
        return self.warmup_steps + self.steps

    @property
    def num_parameters(self) -> int:
        """Weights and biases of all three layers."""
        return (784 + 1) * self.hidden + (self.hidden + 1) * self.hidden + (self.hidden + 1) * 10

    def to_json(self) -> str:
        """The workload as one argument of a command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The inverse of `to_json`."""
        return cls(**json.loads(text))
