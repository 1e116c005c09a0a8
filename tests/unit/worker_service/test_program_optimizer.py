"""A program's optimizer is traced for the ps, or refused with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import optimizers as ko
from support.programs.own_optimizer_program import Cautious

from psfleet.errors import BadJobError, ProgramError
from psfleet.job.job import Job, parse_job
from psfleet.job.program import KerasProgram
from psfleet.layout import TensorSpec
from psfleet.tf.traced_update import Scalar, TracedUpdate, optimizer_name
from worker_service.program_optimizer import resolved

SPECS = (TensorSpec("dense/kernel", (4, 3)), TensorSpec("dense/bias", (3,)))
OUTSIDE = tf.Variable(1.0)

Step = Callable[[Any, Any, Any, Any, Any], None]


class Stepping(ko.Optimizer):
    """An optimizer with one slot, whose update of a variable is a function."""

    def __init__(self, step: Step, initializer: Any = "zeros") -> None:
        super().__init__(learning_rate=0.1)
        self._step = step
        self._initializer = initializer
        self.count = 0

    def build(self, variables: list[Any]) -> None:
        """Makes the slots."""
        super().build(variables)
        self._slots = self.add_optimizer_variables(variables, "slot", self._initializer)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Calls the function."""
        self._step(self, gradient, variable, self._slots[self._get_variable_index(variable)], learning_rate)


def resolve(optimizer: Any, **options: Any) -> tuple[Job, TracedUpdate | None]:
    job = parse_job(
        {
            "name": "sample",
            "program": "program:build",
            "optimizer": {"name": "program", **options},
            "train": {"steps": 10, "batch_size": 4},
        }
    )
    program = KerasProgram(model=keras.Sequential, loss="mse", train=lambda *_: None, optimizer=optimizer)
    return resolved(program, job, SPECS)


def test_the_learning_rate_is_that_of_the_object_unless_the_job_has_one() -> None:
    assert resolve(ko.SGD(0.001))[0].optimizer.learning_rate == 0.001
    assert resolve(ko.SGD(0.001), learning_rate=0.25)[0].optimizer.learning_rate == 0.25


def test_slots_and_scalars_have_names_that_do_not_depend_on_the_process() -> None:
    job, first = resolve(ko.Nadam(0.1))
    assert first is not None
    assert first.slots == {"momentum": 0.0, "velocity": 0.0}
    assert first.scalars == {"iterations": Scalar("int64", 0), "u_product": Scalar("float32", 1.0)}
    assert optimizer_name(job, first) == "program.Nadam"
    second = resolve(ko.Nadam(0.1))[1]
    assert second is not None
    assert (second.slots, second.scalars) == (first.slots, first.scalars)


def test_slots_start_with_the_values_that_build_gives_them() -> None:
    update = resolve(Cautious())[1]
    assert update is not None
    assert update.slots == {"move": 0.0, "size": 0.5}


def assigns_directly(_: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    slot.assign(slot * 0.9 + gradient * tf.constant(0.5))
    variable.assign_sub(rate * slot * keras.ops.ones_like(slot))


def test_an_update_may_assign_variables_itself_and_use_constants() -> None:
    assert resolve(Stepping(assigns_directly))[1] is not None


def takes_the_norm(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.assign_sub(variable, rate * gradient / keras.ops.norm(gradient))


def counts_elements(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    ones = tf.ones(tf.shape(gradient))
    optimizer.assign_sub(variable, rate * gradient * ones / tf.cast(tf.shape(gradient), tf.float32))


def accumulates_along(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.assign_sub(variable, rate * tf.cumsum(gradient))


def draws(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.assign_sub(variable, rate * (gradient + tf.random.normal(tf.shape(gradient))))


def reads_the_name(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.assign_sub(variable, rate * gradient * (0.5 if "bias" in variable.name else 1.0))


def counts_in_python(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.count += 1
    optimizer.assign_sub(variable, rate * gradient / optimizer.count)


def uses_a_variable_from_outside(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.assign_sub(variable, rate * gradient * OUTSIDE)


def prints(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    tf.print("update")
    optimizer.assign_sub(variable, rate * gradient)


def does_nothing(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    """As one whose author forgot the assignment."""
    variable - rate * gradient


def changes_its_slot_only(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    optimizer.assign_add(slot, rate * gradient * variable)


def fails(optimizer: Any, gradient: Any, variable: Any, slot: Any, rate: Any) -> None:
    raise ValueError("no update today")


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (takes_the_norm, "Stepping is not elementwise: its update has the operation Sum"),
        (counts_elements, "Stepping is not elementwise: its update computes with the number of elements"),
        (accumulates_along, "Stepping is not elementwise: its update has the operation Cumsum"),
        (draws, "Stepping is not elementwise: its update has the operation RandomStandardNormal"),
        (reads_the_name, "Stepping is not elementwise: after update 1 of random values, dense/bias differs by"),
        (counts_in_python, "Stepping is not elementwise: after update 1 of random values, dense/kernel differs by"),
        (uses_a_variable_from_outside, "Stepping uses a variable or table that is not among its variables"),
        (prints, "Stepping is not elementwise: its update has the operation StringFormat"),
        (does_nothing, "Stepping never changes a parameter: its update assigns nothing to the variable that it gets"),
        (changes_its_slot_only, "Stepping never changes a parameter"),
        (fails, "tracing an update of optimizer Stepping raised ValueError: no update today"),
    ],
)
def test_an_update_that_a_ps_cannot_apply_to_its_part_is_refused(step: Step, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        resolve(Stepping(step))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (ko.Lamb, "Lamb is not elementwise: its update has the operation Sum"),
        (ko.Adafactor, "Adafactor is not elementwise: its update has the operation Mean"),
        (lambda: ko.Muon(0.1), "Muon is not elementwise: .* dense/kernel differs by"),
        (lambda: Stepping(assigns_directly, "random_normal"), "has slot slot with initial values that are not"),
        (lambda: ko.SGD(clipnorm=1.0), "has clipnorm 1.0, expected `clip_norm` of the job file"),
        (lambda: ko.SGD(global_clipnorm=1.0), "has global_clipnorm 1.0, expected `clip_norm` of the job file"),
        (lambda: ko.SGD(use_ema=True), "has use_ema True"),
        (lambda: ko.SGD(gradient_accumulation_steps=2), "gradient_accumulation_steps 2, expected `train.accumulate`"),
        (lambda: ko.SGD(loss_scale_factor=8.0), "has loss_scale_factor 8.0"),
        (lambda: ko.LossScaleOptimizer(ko.SGD()), "scales the loss"),
        (lambda: ko.MultiOptimizer(ko.OptimizerMap(ko.SGD())), "delegates to several optimizers, expected one"),
        (lambda: HiddenRate(), "reading the options of optimizer HiddenRate raised AttributeError: not of this one"),
        (lambda: ko.SGD(ko.schedules.CosineDecay(0.1, 10)), "has a schedule of the learning rate"),
        (lambda: ko.SGD(0.0), "has learning rate 0.0, expected one above 0"),
        (lambda: without_decay_of_biases(), "excludes tensors from weight decay"),
        (lambda: built(), "is built already"),
        (lambda: "nadam", "optimizer of the program is 'nadam', expected a keras.optimizers.Optimizer"),
    ],
)
def test_an_optimizer_whose_options_no_ps_has_is_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        resolve(make())


class HiddenRate(ko.SGD):
    """An optimizer whose learning rate cannot be read."""

    @property
    def learning_rate(self) -> float:
        raise AttributeError("not of this one")


def without_decay_of_biases() -> Any:
    optimizer = ko.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def built() -> Any:
    optimizer = ko.SGD(0.1)
    optimizer.build([keras.Variable([1.0])])
    return optimizer


def test_two_weight_decays_are_refused() -> None:
    with pytest.raises(BadJobError, match=r"weight_decay is 0\.1, and .* AdamW has weight_decay 0\.004; expected one"):
        resolve(ko.AdamW(0.1), weight_decay=0.1)


def test_an_optimizer_that_the_job_does_not_use_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "psfleet.worker"):
        job, update = resolve(ko.Lamb(), name="sgd", learning_rate=0.5)
    assert update is None
    assert job.optimizer.name == "sgd"
    assert "the program's optimizer Lamb is not used: the job's is sgd" in caplog.text
