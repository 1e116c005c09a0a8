"""Whether a checkpoint has the embedding tables of a job, and whether a model without psfleet can read them."""

from __future__ import annotations

from psfleet.checkpoint.manifest import Checkpoint
from psfleet.errors import BadJobError, UsageError
from psfleet.layout import EmbeddingSpec, Layout


def check_tables(checkpoint: Checkpoint, layout: Layout) -> None:
    """Checks that a checkpoint has the embedding tables of a layout.

    Raises:
        BadJobError: A table is missing, is one too many, or differs.
    """
    old, new = ({table.name: table for table in each.embeddings} for each in (checkpoint.layout, layout))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            raise BadJobError(
                f"table {name!r} is {described(old.get(name))} in checkpoint {checkpoint.folder} and "
                f"{described(new.get(name))} in the job; --fresh starts a new run"
            )


def require_row_numbers(checkpoint: Checkpoint, what: str) -> None:
    """Refuses tables whose rows are hashes of ids, which the Embedding layer of an exported model does not compute.

    Args:
        what: Is exported, for the error.

    Raises:
        UsageError: A table is one.
    """
    hashed = [table.key for table in checkpoint.layout.embeddings if table.is_hashed]
    if hashed:
        raise UsageError(
            f"{what}: tables.{hashed[0]}.hash is true, and an exported model would read other rows, expected tables "
            "without hash, or psfleet weights --out *.safetensors or *.weights.h5"
        )


def described(spec: EmbeddingSpec | None) -> str:
    """A table for an error; None: there is none."""
    if spec is None:
        return "missing"
    hashed = ", hashed" if spec.is_hashed else ""
    return f"{spec.key}, {spec.rows} x {spec.width}{hashed}, {spec.init} {spec.scale:g} of seed {spec.seed}"
