"""Programs with several losses: their optimizers and their order in the job file, and their scopes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from psfleet.errors import BadJobError, ProgramError
from psfleet.job.optimizer import AnyOptimizer

LossName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def require_optimizers(
    optimizer: AnyOptimizer | None,
    optimizers: Mapping[str, AnyOptimizer] | None,
    order: Sequence[str] | None,
    mode: str,
) -> None:
    """Refuses `optimizers` and `train.alternate` that do not belong together, and what several losses do not have.

    Args:
        optimizer: The only one; None with `optimizers`.
        optimizers: Of each loss.
        order: `train.alternate`.
        mode: Of the updates.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if optimizers is None:
        if order is not None:
            raise ValueError(f"train.alternate is {_listed(order)}, expected null without optimizers")
        return
    names = ", ".join(optimizers)
    if optimizer is not None:
        raise ValueError("optimizer and optimizers are set, expected one of the two")
    if order is None:
        raise ValueError(f"train.alternate is null, expected the order of the losses of optimizers: {names}")
    for name in order:
        if name not in optimizers:
            raise ValueError(f"train.alternate has {name!r}, expected names of optimizers: {names}")
    if missing := [name for name in optimizers if name not in order]:
        raise ValueError(f"train.alternate is {_listed(order)}, expected each of optimizers: {missing[0]} is missing")
    if mode == "averaging":
        raise ValueError(
            "optimizers is set, expected optimizer in mode averaging: a worker applies one optimizer to all its weights"
        )
    for name, rule in optimizers.items():
        if rule.name == "program":
            raise ValueError(
                f"optimizers.{name}.name is program, expected another one: that of a program trains all its weights"
            )
        if rule.schedule.kind == "plateau":
            raise ValueError(
                f"optimizers.{name}.schedule.kind is plateau, expected another schedule with optimizers: a plateau "
                "schedule reduces one learning rate"
            )


def require_losses(optimizers: Collection[str], program: str, losses: Collection[str]) -> None:
    """Refuses a job whose optimizers are not those of a program's losses.

    Args:
        optimizers: The names of the job's optimizers; empty if it has one without a name.
        program: The name of the program in the job file.
        losses: The names of the program's losses; empty if it has one without a name.

    Raises:
        BadJobError: The names differ.
    """
    names = ", ".join(losses)
    if optimizers and not losses:
        raise BadJobError(
            f"optimizers has {', '.join(optimizers)}, but program {program!r} has one loss; expected `optimizer`"
        )
    if losses and not optimizers:
        raise BadJobError(f"optimizers is missing, expected an optimizer for each loss of program {program!r}: {names}")
    if set(optimizers) != set(losses):
        raise BadJobError(
            f"optimizers has {', '.join(optimizers)}, expected the losses of program {program!r}: {names}"
        )


def prefix(scope: str) -> str:
    """What the names of the variables under a scope begin with."""
    return scope.rstrip("/") + "/"


def check_losses(losses: Any) -> None:
    """Checks the losses of a program.

    Raises:
        ProgramError: They are no mapping of names to functions with scopes, or scopes overlap.
    """
    if not isinstance(losses, Mapping) or not losses:
        raise ProgramError(f"GraphProgram.losses is {losses!r}, expected a dict of names to (function, scope)")
    for name, value in losses.items():
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise ProgramError(f"GraphProgram.losses has the name {name!r}, expected letters, digits and underscores")
        is_pair = isinstance(value, tuple | list) and len(value) == 2
        if not is_pair or not callable(value[0]) or not isinstance(value[1], str) or not value[1].strip("/"):
            raise ProgramError(f"GraphProgram.losses[{name!r}] is {value!r}, expected a function and a variable scope")
    scopes = [(name, scope) for name, (_, scope) in losses.items()]
    for name, scope in scopes:
        for other, wider in scopes:
            if name != other and prefix(scope).startswith(prefix(wider)):
                raise ProgramError(
                    f"GraphProgram.losses: scope {scope!r} of {name} is within scope {wider!r} of {other}, expected "
                    "scopes that do not overlap"
                )


def _listed(names: Collection[str]) -> str:
    return f"[{', '.join(names)}]"
