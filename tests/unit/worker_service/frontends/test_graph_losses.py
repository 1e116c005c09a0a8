"""Graph programs with several losses: which variables each moves, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from support.gan_replay import gradient
from support.programs import tiny_gan_program as tiny
from support.replay import batch

from psfleet.errors import ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import GraphProgram
from worker_service.evaluation import Evaluator
from worker_service.frontends import FrontEnd, front_end, planned
from worker_service.local_step import LocalStep

SGD = {"name": "sgd", "learning_rate": 0.1}
BATCH = batch(tiny.data(), 0, 1, 8, 0)


def job_of(*losses: str) -> Job:
    train = {"steps": 10, "batch_size": 8, "seed": 7, "alternate": list(losses)}
    return parse_job(
        {"name": "a", "program": "program:build", "optimizers": dict.fromkeys(losses, SGD), "train": train}
    )


TINY_JOB = job_of("discriminator", "generator")


def tiny_step() -> tuple[FrontEnd, LocalStep, Callable[..., Any]]:
    """The front end of `tiny_gan_program`, its steps, and a function that runs tensors of them on `BATCH`."""
    front = front_end(tiny.build(), TINY_JOB, 1, 0)
    step = LocalStep(front, planned(front, TINY_JOB))

    def run(fetches: Any, values: Mapping[str, np.ndarray] | None = None) -> Any:
        with v1.Session(graph=step.graph) as session:
            return session.run(fetches, step.feeds(values or front.initial_values()) | step.batch(BATCH))

    return front, step, run


def test_the_variables_of_a_loss_follow_one_another_in_the_order_of_the_losses() -> None:
    front, _, _ = tiny_step()
    assert [spec.name for spec in front.parameters] == [
        "discriminator/kernel",
        "discriminator/bias",
        "generator/kernel",
        "generator/bias",
    ]
    assert front.losses == (("discriminator", 2), ("generator", 2))
    assert {spec.name for spec in front.state} == {"generator/mean", "steps"}


def test_each_loss_has_the_gradient_of_its_own_variables_and_moves_no_state_of_the_other() -> None:
    """The penalty of the generator is that of the scope's regularizer, which TensorFlow finds by its name."""
    front, step, run = tiny_step()
    values = front.initial_values() | {"generator/mean": np.linspace(-1, 1, tiny.FEATURES).astype(np.float32)}
    for (name, _), training in zip(front.losses, step.training.each, strict=True):
        expected, state = gradient(values, name, BATCH)
        found, new_state = run([list(training.gradients), list(training.new_state)], values)
        own = [spec for spec in front.parameters if spec.name.startswith(f"{name}/")]
        for spec, value in zip(own, found, strict=True):
            np.testing.assert_allclose(value.reshape(spec.shape), expected[spec.name], rtol=1e-4, atol=1e-6)
        for spec, value in zip(front.state, new_state, strict=True):
            np.testing.assert_allclose(value, state[spec.name], rtol=1e-5, err_msg=f"{spec.name} after {name}")
        if name == "discriminator":
            before = [spec.name for spec in front.state].index("generator/mean")
            assert new_state[before].tobytes() == values["generator/mean"].tobytes()


def test_an_evaluation_has_the_mean_of_each_loss() -> None:
    front = front_end(tiny.build(), TINY_JOB, 1, 0)
    values = front.initial_values()
    found = Evaluator(front, planned(front, TINY_JOB), TINY_JOB).evaluate(values, 0)
    real, noise = (part.astype(np.float64) for part in tiny.data())
    made = noise @ values["generator/kernel"] + values["generator/bias"]
    on_real, on_made = (x @ values["discriminator/kernel"] + values["discriminator/bias"] for x in (real, made))
    penalty = sum(np.sum(values[f"generator/{name}"].astype(np.float64) ** 2) for name in ("kernel", "bias"))
    assert found == pytest.approx(
        {
            "discriminator_loss": np.mean(np.log1p(np.exp(-on_real)) + np.log1p(np.exp(on_made))),
            "generator_loss": np.mean(np.log1p(np.exp(-on_made))) + tiny.PENALTY * penalty,
        },
        rel=1e-5,
    )


def square(*names: str, summary: str = "") -> Callable[[Any], tf.Tensor]:
    """The sum of squares of variables."""

    def loss(x: Any) -> tf.Tensor:
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            total = tf.add_n(
                [tf.square(v1.get_variable(name, [], initializer=v1.ones_initializer())) for name in names]
            )
        if summary:
            v1.summary.scalar(summary, total)
        return total + 0 * tf.reduce_sum(x)

    return loss


def no_variable(x: Any) -> Any:
    return tf.reduce_sum(x)


def fails(x: Any) -> Any:
    raise ValueError("not today")


def reuses_nothing(x: Any) -> Any:
    with v1.variable_scope("b", reuse=True):
        return v1.get_variable("w", []) + tf.reduce_sum(x)


def front_of(**losses: tuple[Callable[[Any], Any], str]) -> FrontEnd:
    program = GraphProgram(losses=losses, train=lambda *_: tf.data.Dataset.from_tensor_slices(tf.ones([32])))
    return front_end(program, job_of(*losses), 1, 0)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        (
            {"a": (square("a/w", "c/w"), "a"), "b": (square("b/w"), "b")},
            "trainable variable c/w is under no scope of a loss, expected one of a/, b/",
        ),
        (
            {"a": (square("a/w"), "a"), "b": (no_variable, "b")},
            "loss b has no trainable variable under its scope b/, expected at least one",
        ),
        ({"a": (fails, "a")}, "a: loss(batch) raised ValueError: not today"),
        ({"a": (lambda x: x, "a")}, "a: loss(batch) returned float32 of shape (None,), expected a scalar float tensor"),
        (
            {"a": (square("a/w"), "a"), "b": (reuses_nothing, "b")},
            "b: loss(batch) raised ValueError: Variable b/w does",
        ),
    ],
    ids=["no scope", "no variable", "exception", "vector", "reuse of nothing"],
)
def test_losses_whose_variables_do_not_fit_are_refused(losses: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError) as raised:
        front_of(**losses)
    assert str(raised.value).startswith(f"program 'program:build': {message}")


def test_a_loss_that_depends_on_none_of_its_own_variables_is_refused() -> None:
    front = front_of(a=(square("b/w"), "a"), b=(square("a/w"), "b"))
    with pytest.raises(ProgramError, match="loss a depends on no trainable variable under its scope a/"):
        LocalStep(front, planned(front, job_of("a", "b")))


def test_the_summaries_of_all_losses_are_one_summary() -> None:
    front = front_of(a=(square("a/w", summary="first"), "a"), b=(square("b/w", summary="second"), "b"))
    step = LocalStep(front, planned(front, job_of("a", "b")))
    with v1.Session(graph=step.graph) as session:
        feeds = step.feeds(front.initial_values()) | step.batch([np.ones(8, np.float32)])
        found = v1.Summary.FromString(session.run(step.training.summaries, feeds))
    assert [value.tag.rpartition("/")[2] for value in found.value] == ["first", "second"]
