"""The job file's `optimizer` section: update rules and learning rate schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from psfleet.job.fields import Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, Real, Section


class Constant(Section):
    """The same learning rate at every step."""

    kind: Literal["constant"] = "constant"
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")


class Exponential(Section):
    """learning_rate * decay_rate ** (step / decay_steps)."""

    kind: Literal["exponential"]
    decay_steps: PositiveInt = Field(description="Steps after which the rate has been multiplied by `decay_rate` once.")
    decay_rate: Positive = Field(description="The factor.")
    staircase: bool = Field(False, description="Whether the exponent is rounded down to a whole number.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")


class Piecewise(Section):
    """learning_rate * factors[i], i being the number of boundaries that the step has passed."""

    kind: Literal["piecewise"]
    boundaries: list[PositiveInt] = Field(min_length=1, description="Ascending steps at which the factor changes.")
    factors: list[Positive] = Field(description="One factor more than boundaries.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")

    @model_validator(mode="after")
    def _matched(self) -> Piecewise:
        if len(self.factors) != len(self.boundaries) + 1:
            raise ValueError(f"factors has {len(self.factors)} entries, expected {len(self.boundaries) + 1}")
        if sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError(f"boundaries is {self.boundaries}, expected ascending steps")
        return self


class Cosine(Section):
    """Falls along half a cosine from learning_rate to learning_rate * final_factor over decay_steps."""

    kind: Literal["cosine"]
    decay_steps: PositiveInt = Field(description="Steps until the lowest rate is reached.")
    final_factor: NonNegative = Field(0.0, description="Lowest rate as a part of learning_rate.")
    warmup_steps: NonNegativeInt = Field(0, description="Steps over which the rate rises linearly to its full value.")


Schedule = Annotated[Constant | Exponential | Piecewise | Cosine, Field(discriminator="kind")]


class OptimizerBase(Section):
    """What every optimizer has."""

    learning_rate: Positive = Field(description="The rate before the schedule's factor.")
    schedule: Schedule = Field(default_factory=Constant, description="How the rate changes with the step.")
    clip_norm: Positive | None = Field(
        None, description="A worker's gradient is scaled down to this global norm before it is pushed; null: never."
    )


class Sgd(OptimizerBase):
    """w -= lr * g."""

    name: Literal["sgd"]


class Momentum(OptimizerBase):
    """v = momentum * v + g; w -= lr * v."""

    name: Literal["momentum"]
    momentum: Fraction = Field(0.9, description="The part of the old velocity that is kept.")
    nesterov: bool = Field(False, description="Whether the gradient is taken as if after the velocity's move.")


class Adam(OptimizerBase):
    """Kingma and Ba 2015, just before section 2.1 (epsilon hat), as tf.compat.v1.train.AdamOptimizer."""

    name: Literal["adam"]
    beta1: Fraction = Field(0.9, description="Decay of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay of the second moment.")
    epsilon: Positive = Field(1e-8, description="Added to the root of the second moment.")


class AdamW(OptimizerBase):
    """Adam after a decoupled decay of every weight (Loshchilov and Hutter 2019): w -= lr * weight_decay * w."""

    name: Literal["adamw"]
    beta1: Fraction = Field(0.9, description="Decay of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay of the second moment.")
    epsilon: Positive = Field(1e-8, description="Added to the root of the second moment.")
    weight_decay: NonNegative = Field(0.01, description="The part of each weight that a step at rate 1 takes away.")


class Adagrad(OptimizerBase):
    """Duchi et al. 2011, as tf.compat.v1.train.AdagradOptimizer."""

    name: Literal["adagrad"]
    initial_accumulator: Positive = Field(0.1, description="Start of the sum of squared gradients.")


class RmsProp(OptimizerBase):
    """Tieleman and Hinton 2012, as tf.compat.v1.train.RMSPropOptimizer."""

    name: Literal["rmsprop"]
    decay: Fraction = Field(0.9, description="Decay of the mean of squared gradients.")
    momentum: Fraction = Field(0.0, description="The part of the old step that is kept.")
    epsilon: Positive = Field(1e-10, description="Added to the mean of squared gradients.")
    centered: bool = Field(False, description="Whether the squared mean of gradients is subtracted.")


class Ftrl(OptimizerBase):
    """McMahan et al. 2013, as tf.compat.v1.train.FtrlOptimizer."""

    name: Literal["ftrl"]
    learning_rate_power: Annotated[Real, Field(le=0)] = Field(-0.5, description="How the rate falls; -0.5 is 1 / sqrt.")
    initial_accumulator: NonNegative = Field(0.1, description="Start of the sum of squared gradients.")
    l1: NonNegative = Field(0.0, description="Strength of the L1 penalty.")
    l2: NonNegative = Field(0.0, description="Strength of the L2 penalty.")


Optimizer = Annotated[Sgd | Momentum | Adam | AdamW | Adagrad | RmsProp | Ftrl, Field(discriminator="name")]
