"""What one measurement runs: the model, the optimizer, the batch and the number of steps; passed on as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

NUM_WORKERS = 2
LEARNING_RATE = 0.001
OPTIMIZERS = ("adam", "sgd")
HIDDEN = (128, 1024)
"""Hidden units of the MLPs that benchmarks train: 118,282 and 1,863,690 parameters."""


@dataclass(frozen=True)
class Workload:
    """One measurement, equal for every contender.

    Attributes:
        hidden: Units in each of the two hidden layers of the MLP 784-hidden-hidden-10.
        optimizer: One of `OPTIMIZERS`.
        steps: Steps that are timed.
        warmup_steps: Steps before them that are not.
        batch_size: Examples in one worker's gradient.
        shapes: If not empty, variables of these shapes are the model, instead of the MLP; nothing is computed.
        wait_ms: How long a gradient of `shapes` waits instead of computing.
        mnist: If not empty, a folder with MNIST: LeNet-5 trains on it until it has an accuracy, for `steps` at most.
        accuracy: Of the test images of MNIST, 0 to 1.
        evaluate_steps: Steps between two evaluations of that accuracy.
        seed: Of LeNet's first weights, and of the order of its batches where a worker has a part of the images.
    """

    hidden: int
    optimizer: str
    steps: int
    warmup_steps: int = 30
    batch_size: int = 100
    shapes: tuple[tuple[int, ...], ...] = ()
    wait_ms: int = 0
    mnist: str = ""
    accuracy: float = 0.0
    evaluate_steps: int = 0
    seed: int = 1

    @property
    def total_steps(self) -> int:
        """Warm-up and timed steps together."""
        return self.warmup_steps + self.steps

    @property
    def num_parameters(self) -> int:
        """Elements of all variables, of the MLP weights and biases of all three layers; not of LeNet."""
        return sum(math.prod(shape) for shape in self.shapes or mlp_shapes(self.hidden))

    def to_json(self) -> str:
        """The workload as one argument of a command line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Workload:
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "shapes": tuple(tuple(shape) for shape in fields["shapes"])})


def mlp_shapes(hidden: int) -> tuple[tuple[int, ...], ...]:
    """Those of the weights and biases of the MLP 784-hidden-hidden-10, layer by layer."""
    layers = ((784, hidden), (hidden, hidden), (hidden, 10))
    return tuple(shape for layer in layers for shape in (layer, layer[1:]))
