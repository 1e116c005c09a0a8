"""The job file's `callbacks` section."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
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


def state_names(specs: Sequence[CallbackSpec]) -> list[str]:
    """The names of the callbacks' folders, which do not depend on the order of different callbacks.

    A name has the `use` of the callback; where several have the same one, a digest of its options, too; and where these
    are equal as well, a number.
    """
    uses = Counter(spec.use for spec in specs)
    names: list[str] = []
    for spec in specs:
        options = json.dumps(spec.options, sort_keys=True, default=str)
        suffix = f"-{hashlib.sha256(options.encode()).hexdigest()[:8]}" if uses[spec.use] > 1 else ""
        name = f"{STATE_PREFIX}{spec.use.replace(':', '.')}{suffix}"
        copies = sum(other == name or other.startswith(f"{name}-copy") for other in names)
        names.append(f"{name}-copy{copies + 1}" if copies else name)
    return names


def _spec(value: object) -> object:
    return {"use": value} if isinstance(value, str) else value


CallbackEntry = Annotated[CallbackSpec, BeforeValidator(_spec)]
