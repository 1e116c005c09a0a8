"""Shows the containers of fleets as a table, or as plain columns where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from psfleet.launch.platform import TaskStatus

COLUMNS = ("fleet", "role", "index", "state", "health", "step", "rate", "restarts", "container", "last event")
NUMBERS = {"index", "step", "rate", "restarts"}
NOTHING = "-"


def show(console: Console, tasks: Sequence[TaskStatus]) -> None:
    """Prints one row for each container."""
    if not tasks:
        console.print("no fleet is there")
        return
    rows = [_row(task) for task in tasks]
    if console.is_terminal:
        table = Table(*COLUMNS, box=None)
        for column in table.columns:
            column.justify = "right" if column.header in NUMBERS else "left"
        for row in rows:
            table.add_row(*row)
        console.print(table, markup=False, highlight=False)
        return
    widths = [max(map(len, cells)) for cells in zip(COLUMNS, *rows, strict=True)]
    for cells in (COLUMNS, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)


def _row(task: TaskStatus) -> tuple[str, ...]:
    return (
        task.fleet,
        task.role,
        _number(task.index),
        task.state,
        task.health or NOTHING,
        _number(task.step),
        NOTHING if task.rate is None else f"{task.rate:,.1f}",
        str(task.restarts),
        task.name,
        task.last_event or NOTHING,
    )


def _number(number: int | None) -> str:
    return NOTHING if number is None else str(number)
