"""Whether saved tensors are those of a program's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psfleet.checkpoint.table_specs import described
from psfleet.errors import BadJobError
from psfleet.layout import EmbeddingSpec

Shapes = Mapping[str, Sequence[int]]


def require_shapes(source: str, saved: Shapes, built: Shapes) -> None:
    """Checks that saved tensors have the names and shapes of a model's variables.

    Args:
        source: Where the tensors are saved, for the error.

    Raises:
        BadJobError: They differ; names one of them and both shapes.
    """
    texts = [{name: str(list(shape)) for name, shape in each.items()} for each in (saved, built)]
    _require_equal("tensor", source, *texts)


def require_tables(source: str, saved: Sequence[EmbeddingSpec], built: Sequence[EmbeddingSpec]) -> None:
    """Checks that saved embedding tables are those of a model; as `require_shapes`."""
    texts = [{table.name: described(table) for table in each} for each in (saved, built)]
    _require_equal("table", source, *texts)


def _require_equal(what: str, source: str, saved: Mapping[str, str], built: Mapping[str, str]) -> None:
    for name in sorted({*saved, *built}):
        if saved.get(name) != built.get(name):
            raise BadJobError(
                f"{what} {name!r} is {saved.get(name, 'missing')} in {source} and {built.get(name, 'missing')} in the "
                "program's model"
            )
