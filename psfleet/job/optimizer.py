"""The job file's `optimizer` section: update rules and learning rate schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from psfleet.job.fields import Fraction, NonNegative, NonNegativeInt, Positive, PositiveInt, Real, Section
from psfleet.job.monitored import Monitored

WarmupSteps = Annotated[
    NonNegativeInt, Field(description="Steps in which the learning rate increases linearly to its full value.")
]


class Constant(Section):
    """A constant learning rate."""

    kind: Literal["constant"] = "constant"
    warmup_steps: WarmupSteps = 0


class Exponential(Section):
    """learning_rate * decay_rate ** (step / decay_steps)."""

    kind: Literal["exponential"]
    decay_steps: PositiveInt = Field(
        description="Number of steps in which the learning rate is multiplied by `decay_rate`."
    )
    decay_rate: Positive = Field(description="Decay factor.")
    staircase: bool = Field(False, description="Whether the exponent is rounded down to an integer.")
    warmup_steps: WarmupSteps = 0


class Piecewise(Section):
    """learning_rate * factors[i], where i is the number of boundaries below the step, counted from 0."""

    kind: Literal["piecewise"]
    boundaries: list[PositiveInt] = Field(
        min_length=1, description="Last step of each factor but the last one, in ascending order."
    )
    factors: list[Positive] = Field(description="Factors of the learning rate; one more than `boundaries`.")
    warmup_steps: WarmupSteps = 0

    @model_validator(mode="after")
    def _check_boundaries(self) -> Piecewise:
        if len(self.factors) != len(self.boundaries) + 1:
            raise ValueError(f"factors has {len(self.factors)} entries, expected {len(self.boundaries) + 1}")
        if sorted(set(self.boundaries)) != list(self.boundaries):
            raise ValueError(f"boundaries is {self.boundaries}, expected ascending steps")
        return self


class Cosine(Section):
    """Half a cosine from learning_rate to learning_rate * final_factor over decay_steps."""

    kind: Literal["cosine"]
    decay_steps: PositiveInt = Field(description="Steps until the final learning rate is reached.")
    final_factor: NonNegative = Field(0.0, description="Final learning rate as a fraction of `learning_rate`.")
    warmup_steps: WarmupSteps = 0


class Plateau(Monitored):
    """keras.callbacks.ReduceLROnPlateau, over evaluations: reduces the rate when a metric has ceased to improve."""

    kind: Literal["plateau"]
    factor: Annotated[Real, Field(gt=0, lt=1)] = Field(
        0.1, description="By which a reduction multiplies the learning rate."
    )
    patience: PositiveInt = Field(
        10, description="Number of evaluations in a row without an improvement after which the rate is reduced."
    )
    min_delta: NonNegative = Field(
        1e-4, description="An improvement is a value that is better than the last improvement by more than this."
    )
    cooldown: NonNegativeInt = Field(
        0,
        description="Number of evaluations after a reduction during which none counts as one without an improvement; "
        "as in Keras, the last of them counts.",
    )
    min_learning_rate: NonNegative = Field(0.0, description="The lowest learning rate, before the warm-up's factor.")
    warmup_steps: WarmupSteps = 0


Schedule = Annotated[Constant | Exponential | Piecewise | Cosine | Plateau, Field(discriminator="kind")]


class OptimizerBase(Section):
    """Base class of all optimizers, that of a program included."""

    learning_rate: Positive | None
    schedule: Schedule = Field(default_factory=Constant, description="Learning rate schedule.")
    clip_norm: Positive | None = Field(
        None,
        description="Global norm, over all tensors, to which a worker clips its gradient before pushing it "
        "(`global_clipnorm` in Keras); null: no clipping.",
    )
    weight_decay: NonNegative | None = Field(
        None,
        description="Fraction of each weight that is subtracted from it before an update with learning rate 1, in "
        "proportion to the scheduled learning rate, as in Keras; all parameters decay. null: none.",
    )


class RuleBase(OptimizerBase):
    """Base class of the optimizers that psfleet has."""

    learning_rate: Positive = Field(description="Learning rate, before the schedule's factor.")


class Sgd(RuleBase):
    """keras.optimizers.SGD without momentum: w -= lr * g."""

    name: Literal["sgd"]


class Momentum(RuleBase):
    """keras.optimizers.SGD with momentum: v = momentum * v - lr * g; w += v."""

    name: Literal["momentum"]
    momentum: Fraction = Field(0.9, description="Fraction of the previous velocity that is kept.")
    nesterov: bool = Field(False, description="Whether to use Nesterov momentum.")


class Adam(RuleBase):
    """keras.optimizers.Adam: Kingma and Ba 2015, the formulation before section 2.1 (epsilon hat)."""

    name: Literal["adam"]
    beta1: Fraction = Field(0.9, description="Decay rate of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay rate of the second moment.")
    epsilon: Positive = Field(1e-7, description="Added to the square root of the second moment.")


class AdamW(RuleBase):
    """keras.optimizers.AdamW: Adam (above), and w -= lr * weight_decay * w before each update.

    Loshchilov and Hutter 2019. All parameters decay.
    """

    name: Literal["adamw"]
    beta1: Fraction = Field(0.9, description="Decay rate of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay rate of the second moment.")
    epsilon: Positive = Field(1e-7, description="Added to the square root of the second moment.")
    weight_decay: NonNegative | None = Field(
        0.004, description="Fraction of each weight that is subtracted in a step with learning rate 1; null: none."
    )


class Adagrad(RuleBase):
    """keras.optimizers.Adagrad: n += g ** 2; w -= lr * g / sqrt(n + epsilon) (Duchi et al. 2011)."""

    name: Literal["adagrad"]
    initial_accumulator: NonNegative = Field(0.1, description="Initial value of n, the sum of squared gradients.")
    epsilon: Positive = Field(1e-7, description="Added to n under the square root; stored as a part of n.")


class RmsProp(RuleBase):
    """keras.optimizers.RMSprop: n = decay * n + (1 - decay) * g ** 2, from 0; w -= lr * g / sqrt(n + epsilon).

    Tieleman and Hinton 2012.
    """

    name: Literal["rmsprop"]
    decay: Fraction = Field(0.9, description="Decay rate of the moving average of squared gradients.")
    momentum: Fraction = Field(0.0, description="Fraction of the previous update that is kept.")
    epsilon: Positive = Field(
        1e-7, description="Added to the moving average of squared gradients, under the square root."
    )
    centered: bool = Field(
        False, description="Whether the squared moving average of the gradients is subtracted from n, down to 0."
    )


class Ftrl(RuleBase):
    """keras.optimizers.Ftrl: McMahan et al. 2013, algorithm 1."""

    name: Literal["ftrl"]
    learning_rate_power: Annotated[Real, Field(le=0)] = Field(
        -0.5, description="Exponent of the accumulator in the learning rate; -0.5: 1 / sqrt."
    )
    initial_accumulator: NonNegative = Field(0.1, description="Initial value of the sum of squared gradients.")
    l1: NonNegative = Field(0.0, description="L1 regularization strength.")
    l2: NonNegative = Field(0.0, description="L2 regularization strength.")


class Lion(RuleBase):
    """keras.optimizers.Lion: w -= lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m + (1 - beta2) * g.

    Chen et al. 2023. A suitable learning rate is 3 to 10 times smaller than that of adamw.
    """

    name: Literal["lion"]
    beta1: Annotated[Real, Field(gt=0, le=1)] = Field(0.9, description="Share of m in the direction of the update.")
    beta2: Fraction = Field(0.99, description="Decay rate of the moving average m of gradients.")


class Lamb(RuleBase):
    """keras.optimizers.Lamb: Adam, whose update u of each tensor w becomes lr * norm(w) / norm(u) * u.

    You et al. 2020. `fleet.ps` must be 1, except in averaging mode: tensors are cut anywhere between ps, none of which
    then knows their norms.
    """

    name: Literal["lamb"]
    beta1: Fraction = Field(0.9, description="Decay rate of the first moment.")
    beta2: Fraction = Field(0.999, description="Decay rate of the second moment.")
    epsilon: Positive = Field(1e-7, description="Added to the square root of the second moment.")


class OfProgram(OptimizerBase):
    """The program's own: the Keras optimizer object `optimizer` of its `KerasProgram` or `GraphProgram`.

    It must be elementwise; see [above](#an-optimizer-of-the-program).
    """

    name: Literal["program"]
    learning_rate: Positive | None = Field(
        None, description="Learning rate, before the schedule's factor; null: that of the object."
    )


AnyOptimizer = Sgd | Momentum | Adam | AdamW | Adagrad | RmsProp | Ftrl | Lion | Lamb | OfProgram
Optimizer = Annotated[AnyOptimizer, Field(discriminator="name")]
