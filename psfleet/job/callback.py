"""The job file's `callbacks` section."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from psfleet.job.fields import Options, Section

MLFLOW = "mlflow"
STATE_PREFIX = "callback-"
"""Of the names of the callbacks' folders, by which `--fresh` knows them."""


class CallbackSpec(Section):
    """One callback; a text is its `use`."""

    use: str = Field(
        pattern=rf"^({MLFLOW}|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        description="`mlflow` (needs `psfleet[mlflow]`), or `module:callable` that returns a `psfleet.Callback`.",
    )
    options: Options = Field(default_factory=dict, description="Keyword arguments.")


def _spec(value: object) -> object:
    return {"use": value} if isinstance(value, str) else value


CallbackEntry = Annotated[CallbackSpec, BeforeValidator(_spec)]
