"""The job file's `tables` section: embedding tables whose rows are on the ps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from psfleet.job.fields import Positive, Section
from psfleet.job.optimizer import Adagrad, Adam, AnyOptimizer, RuleBase, Sgd
from psfleet.job.update import Update

TableKey = Annotated[str, Field(pattern=r"^[^\s@]+$")]
MAX_ROWS = 10**14
"""More than the memory of any fleet has room for, and few enough that positions in a table fit into int64."""
RULES: Mapping[str, type[RuleBase]] = {"sgd": Sgd, "adagrad": Adagrad, "adam": Adam}


class Table(Section):
    """An embedding table."""

    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = Field(
        description="Number of rows: `input_dim` of the layer, or the first dimension."
    )
    hash: bool = Field(
        False,
        description="Whether ids are strings or any integers, and rows are their hashes, as those of "
        "`keras.layers.Hashing(rows)`; false: ids are row numbers.",
    )
    optimizer: Literal["sgd", "adagrad", "adam"] | None = Field(
        None,
        description="Update rule of the rows that a step reads; null: that of `optimizer`. Of adam, moments of other "
        "rows do not decay.",
    )
    learning_rate: Positive | None = Field(
        None,
        description="Learning rate, before the factor of the schedule of `optimizer`; null: that of `optimizer`.",
    )
    init: Literal["uniform", "zeros"] = Field(
        "uniform",
        description="Initial values of the rows, in place of those of the program: uniform over [-`init_scale`, "
        "`init_scale`), a function of `train.seed`, table, row and column; or zeros.",
    )
    init_scale: Positive = Field(0.05, description="Of uniform initial values.")


Tables = dict[TableKey, Table]


def rule_of(table: Table, optimizer: AnyOptimizer) -> RuleBase:
    """The rule of a table; its learning rate and schedule are not read."""
    if table.optimizer in (None, optimizer.name) and isinstance(optimizer, Sgd | Adagrad | Adam):
        return optimizer
    return RULES[table.optimizer or optimizer.name].model_validate({"name": table.optimizer, "learning_rate": 1.0})


def require_tables(
    tables: Tables, update: Update, rules: Mapping[str, AnyOptimizer], accumulate: int, towers: int | str, parts: int
) -> None:
    """Refuses what does not go with tables.

    Args:
        rules: The optimizers by the names of their losses.
        accumulate: `train.accumulate`.
        towers: `device.replicas`.
        parts: `fleet.parts`.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if not tables:
        return
    decay = rules[""].weight_decay if "" in rules else None
    refused: list[tuple[bool, str, str]] = [
        (
            update.mode == "averaging",
            "update.mode is averaging, expected sync, async or ssp",
            "a worker keeps no rows for local steps",
        ),
        (
            update.is_in_graph,
            "update.replication is in_graph, expected between_graph",
            "each worker reads rows as a client",
        ),
        (accumulate > 1, f"train.accumulate is {accumulate}, expected 1", "microbatches add up dense gradients only"),
        (towers != 1, f"device.replicas is {towers}, expected 1", "devices average dense gradients only"),
        (parts != 1, f"fleet.parts is {parts}, expected 1", "rows are read on the first part alone"),
        ("" not in rules, "optimizers is set, expected optimizer", "all losses would move a row"),
        (bool(decay), f"optimizer.weight_decay is {decay}, expected null", "it would move all rows"),
    ]
    for is_refused, found, why in refused:
        if is_refused:
            raise ValueError(f"{found} with tables: {why}")
    (rule,) = rules.values()
    for key, table in tables.items():
        if table.optimizer is None and rule.name not in RULES:
            raise ValueError(
                f"tables.{key}.optimizer is null with optimizer {rule.name}, expected one of {', '.join(RULES)}"
            )
        if table.learning_rate is not None and rule.learning_rate is None:
            raise ValueError(
                f"tables.{key}.learning_rate is {table.learning_rate:g}, expected null if optimizer.learning_rate is"
            )
