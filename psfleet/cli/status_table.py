"""The status of fleets as a table, or as plain columns where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from psfleet.cli.tables import NOTHING, table
from psfleet.launch.status import TaskStatus

COLUMNS = ("fleet", "role", "index", "state", "health", "step", "rate", "restarts", "container", "last event")
NUMBERS = {"index", "step", "rate", "restarts"}


def table_of(console: Console, tasks: Sequence[TaskStatus]) -> RenderableType:
    """A table with one row for each member; a text of plain columns if the console is not a terminal."""
    if not tasks:
        return Text("no fleet is there")
    return table(console, COLUMNS, [_cells(task) for task in tasks], NUMBERS)


def _cells(task: TaskStatus) -> tuple[str, ...]:
    unit = "updates/s" if task.role == "ps" else "examples/s"
    rate = NOTHING if task.rate is None else f"{task.rate:,.1f} {unit}"
    index, step = (NOTHING if number is None else str(number) for number in (task.index, task.step))
    last_event = task.last_event or NOTHING
    health = task.health or NOTHING
    return task.fleet, task.role, index, task.state, health, step, rate, str(task.restarts), task.name, last_event
