"""Tables of text: with columns of their width on a terminal, and as plain columns where there is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

NOTHING = "-"
"""Shown for a value that is not known."""


def table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()
) -> RenderableType:
    """Rows below the names of their columns; on a terminal the columns named in `numbers` are aligned to the right."""
    if console.is_terminal:
        found = Table(box=None)
        for column in columns:
            found.add_column(column, justify="right" if column in numbers else "left")
        for row in rows:
            found.add_row(*map(Text, row))
        return found
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (columns, *rows))
    return Text("\n".join(lines))
