"""One process that does what a sync fleet promises: averages N gradients each step, and applies the average."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.numpy_optimizers import Rule, rule
from support.programs import exact_graph_program

MAX_DIFFERENCE = 1e-5
"""Of a tensor's element in float32 from that of a replay in float64."""
Weights = dict[str, np.ndarray]
Batch = tuple[np.ndarray, np.ndarray]
Gradient = Callable[[Weights, int, Batch], tuple[Weights, Weights]]
"""Of all tensors and a worker's batch: the gradient of those that are trained, and the new values of the others.

The int is the worker's index."""


def replay(
    initial: Weights,
    gradient: Gradient,
    data: Batch,
    *,
    workers: int,
    batch_size: int,
    steps: int,
    rule: Callable[[], Rule],
    rate: Callable[[int], float],
    clip_norm: float | None = None,
) -> Weights:
    """All tensors after `steps` steps in float64.

    Args:
        initial: Each tensor at step 0, also those that are not trained.
        data: All examples; worker i has every `workers`-th of them, from the i-th on, in batches of `batch_size`.
        rule: Makes the update rule of one tensor.
        rate: The learning rate of a step, the first being 0.
        clip_norm: Highest global norm of each worker's gradient.
    """
    values = {name: value.astype(np.float64) for name, value in initial.items()}
    rules: dict[str, Rule] = {}
    for step in range(steps):
        results = [
            gradient(values, worker, batch(data, worker, workers, batch_size, step)) for worker in range(workers)
        ]
        mean = averaged([clipped(gradients, clip_norm) for gradients, _ in results])
        rules = rules or {name: rule() for name in mean}
        trained = {name: rules[name](values[name], mean[name], rate(step)) for name in rules}
        values = trained | averaged([state for _, state in results])
    return values


def replay_rounds(
    initial: Weights,
    gradient: Gradient,
    data: Batch,
    *,
    workers: int,
    batch_size: int,
    rounds: int,
    local_steps: int,
    rule: Callable[[], Rule],
    rate: Callable[[int], float],
    averages_slots: bool = True,
) -> Weights:
    """All tensors after some rounds of averaging mode.

    Args:
        averages_slots: Whether what the workers' rules remember is averaged, too.
    """
    values = {name: value.astype(np.float64) for name, value in initial.items()}
    own_rules: list[dict[str, Rule]] = [{} for _ in range(workers)]
    for start in range(0, rounds * local_steps, local_steps):
        ends = []
        for worker, own in enumerate(own_rules):
            now = dict(values)
            for step in range(start, start + local_steps):
                trained, state = gradient(now, worker, batch(data, worker, workers, batch_size, step))
                for name in trained:
                    own.setdefault(name, rule())
                now = {name: own[name](now[name], trained[name], rate(step)) for name in trained} | state
            ends.append(now)
        values = averaged(ends)
        if averages_slots:
            _average_memories(own_rules)
    return values


def _average_memories(own_rules: Sequence[dict[str, Rule]]) -> None:
    """Gives each worker's rules the mean of what they all remember."""
    for name in own_rules[0]:
        memories = [vars(own[name]) for own in own_rules]
        mean = {key: np.mean([memory[key] for memory in memories], axis=0) for key in memories[0]}
        for memory in memories:
            memory.update(copy.deepcopy(mean))


def assert_perceptron(
    found: Weights,
    optimizer: Mapping[str, Any],
    *,
    workers: int,
    batch_size: int,
    steps: int,
    local_steps: int | None = None,
    averages_slots: bool = True,
) -> None:
    """The tensors are those of one process that trains `exact_graph_program`.

    Args:
        optimizer: As in the job file, with a constant learning rate.
        local_steps: Of averaging mode, whose rounds make the steps; None: the mode is sync.
        averages_slots: As in `replay_rounds`.
    """
    options: dict[str, Any] = {"workers": workers, "batch_size": batch_size}
    options |= {"rule": lambda: rule(optimizer), "rate": lambda step: float(optimizer["learning_rate"])}
    initial = exact_graph_program.initial_weights() | exact_graph_program.initial_state()
    if local_steps is None:
        expected = replay(initial, perceptron_gradient, exact_graph_program.data(), steps=steps, **options)
    else:
        options |= {"rounds": steps // local_steps, "local_steps": local_steps, "averages_slots": averages_slots}
        expected = replay_rounds(initial, perceptron_gradient, exact_graph_program.data(), **options)
    differences = {name: float(np.abs(found[name] - value).max()) for name, value in expected.items()}
    assert max(differences.values()) <= MAX_DIFFERENCE, differences


def averaged(of_workers: Sequence[Weights]) -> Weights:
    """The mean of each tensor."""
    return {name: np.mean([one[name] for one in of_workers], axis=0) for name in of_workers[0]}


def batch(data: Batch, worker: int, workers: int, batch_size: int, number: int) -> Batch:
    """A worker's batch of that number: epoch after epoch in the order of the data, none that is not full."""
    x, y = data[0][worker::workers], data[1][worker::workers]
    start = number % (len(x) // batch_size) * batch_size
    return x[start : start + batch_size], y[start : start + batch_size]


def clipped(gradient: Weights, clip_norm: float | None) -> Weights:
    """The gradient, scaled down to a global norm of `clip_norm` if it is longer."""
    norm = np.sqrt(sum(np.sum(np.square(value, dtype=np.float64)) for value in gradient.values()))
    if clip_norm is None or norm <= clip_norm:
        return gradient
    return {name: value * (clip_norm / norm) for name, value in gradient.items()}


def perceptron_gradient(values: Weights, worker: int, batch: Batch) -> tuple[Weights, Weights]:
    """The gradient and the moving average of `exact_graph_program.loss`, by hand."""
    del worker
    x, label = batch[0].astype(np.float64), batch[1]
    centered = x - values["mean"]
    hidden = np.tanh(centered @ values["hidden/weights"] + values["hidden/bias"])
    logits = hidden @ values["out/weights"] + values["out/bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    to_logits = odds / odds.sum(axis=1, keepdims=True)
    to_logits[np.arange(len(label)), label] -= 1
    to_logits /= len(label)
    to_hidden = to_logits @ values["out/weights"].T * (1 - hidden**2)
    gradient = {
        "hidden/weights": centered.T @ to_hidden,
        "hidden/bias": to_hidden.sum(axis=0),
        "out/weights": hidden.T @ to_logits,
        "out/bias": to_logits.sum(axis=0),
    }
    momentum = exact_graph_program.MOMENTUM
    return gradient, {"mean": momentum * values["mean"] + (1 - momentum) * x.mean(axis=0)}


class KerasReplica:
    """A plain Keras model, and its gradient by `tf.GradientTape`; one serves all workers, since it keeps no values."""

    def __init__(self, model: keras.Model, loss: Any) -> None:
        self.model = model
        self._loss = loss
        self._gradient = tf.function(self._tape)

    def values(self) -> Weights:
        """All tensors by path: what is trained, and what the forward pass changes."""
        return {variable.path: variable.numpy() for variable in self.model.variables}

    def gradient(self, values: Weights, batch: Batch) -> tuple[Weights, Weights]:
        """Of the loss and the model's penalties, with these values; and the state after the forward pass."""
        for variable in self.model.variables:
            variable.assign(values[variable.path])
        gradient = {name: value.numpy().astype(np.float64) for name, value in self._gradient(*batch).items()}
        return gradient, {variable.path: variable.numpy() for variable in self.model.non_trainable_variables}

    def _tape(self, x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self._loss(y, self.model(x, training=True)) + tf.add_n([*self.model.losses, 0.0])
        variables = self.model.trainable_variables
        gradients: Sequence[tf.Tensor] = tape.gradient(loss, [variable.value for variable in variables])
        return {variable.path: gradient for variable, gradient in zip(variables, gradients, strict=True)}
