"""One update of a program's own optimizer as a TensorFlow graph: the chief sends it to each ps, which applies it.

A ps therefore needs neither the program's code nor Keras. The graph maps vectors of any length, element by element.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psfleet.job.job import Job

GRADIENT, RATE, PARAMETERS = "gradient", "rate", "parameters"
AFTER = "after/"
"""Prefix of the name of a value after the update; without it, before the update."""
_SCOPE = "program_optimizer"


@dataclass(frozen=True)
class Values:
    """Tensors that an update changes: those before it, or those after it.

    Attributes:
        parameters: float32 `[size]`.
        slots: float32 `[size]` each.
        scalars: `[]` each, of float32 or of an integer type.
    """

    parameters: tf.Tensor
    slots: Mapping[str, tf.Tensor]
    scalars: Mapping[str, tf.Tensor]

    def by_node(self) -> dict[str, tf.Tensor]:
        """All tensors by the names of the graph's nodes."""
        slots = {slot_node(name): tensor for name, tensor in self.slots.items()}
        scalars = {scalar_node(name): tensor for name, tensor in self.scalars.items()}
        return {PARAMETERS: self.parameters, **slots, **scalars}


@dataclass(frozen=True)
class Scalar:
    """A number that an update changes without regard to gradients and parameters, such as the count of updates."""

    dtype: str
    initial: float


@dataclass(frozen=True)
class TracedUpdate:
    """The update, and the state that the optimizer keeps.

    Attributes:
        optimizer: Class of the program's optimizer object.
        slots: Initial value of all elements of each slot.
        scalars: By name.
        graph_def: A serialized `tf.compat.v1.GraphDef` with a placeholder for each input, and a node whose name begins
            with `AFTER` for each output.
    """

    optimizer: str
    slots: Mapping[str, float]
    scalars: Mapping[str, Scalar]
    graph_def: bytes

    def apply(self, gradient: tf.Tensor, rate: tf.Tensor, before: Values) -> Values:
        """Adds the update to the default graph.

        Args:
            gradient: float32 `[size]`.
            rate: Learning rate, float32 scalar.
            before: Has the slots and scalars of this update.
        """
        inputs = before.by_node()
        found = tf.graph_util.import_graph_def(
            tf.compat.v1.GraphDef.FromString(self.graph_def),
            input_map={f"{node}:0": tensor for node, tensor in {GRADIENT: gradient, RATE: rate, **inputs}.items()},
            return_elements=[f"{AFTER}{node}:0" for node in inputs],
            name=_SCOPE,
        )
        after = dict(zip(inputs, found, strict=True))
        return Values(
            parameters=after[PARAMETERS],
            slots={name: after[slot_node(name)] for name in before.slots},
            scalars={name: after[scalar_node(name)] for name in before.scalars},
        )

    def to_json(self) -> str:
        """As JSON, for the control plane."""
        content: dict[str, Any] = {
            "optimizer": self.optimizer,
            "slots": dict(self.slots),
            "scalars": {name: [scalar.dtype, scalar.initial] for name, scalar in self.scalars.items()},
            "graph_def": base64.b64encode(self.graph_def).decode(),
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> TracedUpdate:
        """The inverse of `to_json`."""
        content = json.loads(text)
        scalars = {name: Scalar(*fields) for name, fields in content["scalars"].items()}
        return cls(content["optimizer"], content["slots"], scalars, base64.b64decode(content["graph_def"]))


def slot_node(name: str) -> str:
    """The node of a slot before the update."""
    return f"slot/{name}"


def scalar_node(name: str) -> str:
    """The node of a scalar before the update."""
    return f"scalar/{name}"


def optimizer_name(job: Job, update: TracedUpdate | None) -> str:
    """The name of a job's optimizer in checkpoints: state of one name is of use for no other.

    That of several losses has the optimizer of each: `critic adam, actor sgd`.
    """
    if job.optimizers is not None:
        return ", ".join(f"{name} {rule.name}" for name, rule in sorted(job.optimizers.items()))
    return job.rule.name if update is None else f"{job.rule.name}.{update.optimizer}"
