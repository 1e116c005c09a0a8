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
    if update.mode == "averaging":
        raise ValueError("update.mode is averaging, expected sync, async or ssp with tables")
    if update.is_in_graph:
        raise ValueError("update.replication is in_graph, expected between_graph with tables")
    if accumulate > 1:
        raise ValueError(f"train.accumulate is {accumulate}, expected 1 with tables")
    if towers != 1:
        raise ValueError(f"device.replicas is {towers}, expected 1 with tables")
    if parts != 1:
        raise ValueError(f"fleet.parts is {parts}, expected 1 with tables: rows are read on the first part alone")
    if "" not in rules:
        raise ValueError("optimizers is set, expected optimizer with tables: all losses would move a row")
    (rule,) = rules.values()
    if rule.weight_decay:
        raise ValueError(f"optimizer.weight_decay is {rule.weight_decay:g}, expected null with tables")
    for key, table in tables.items():
        if table.optimizer is None and rule.name not in RULES:
            raise ValueError(
                f"tables.{key}.optimizer is null with optimizer {rule.name}, expected one of {', '.join(RULES)}"
            )
        if table.learning_rate is not None and rule.learning_rate is None:
            raise ValueError(
                f"tables.{key}.learning_rate is {table.learning_rate:g}, expected null if optimizer.learning_rate is"
            )
