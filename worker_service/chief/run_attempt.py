"""The run-attempt marker: when this attempt of a run started, and whether files of an earlier one must be removed."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from psfleet.run_folder import RECORDED, STARTED, clear
from psfleet.service.settings import Settings


def begin(settings: Settings) -> float:
    """Returns when this attempt started; the first chief of an attempt removes the records of earlier attempts.

    A chief is not the first of its attempt if its settings name the cause of a restart, or if the platform names the
    attempt and the marker in the run's folder has the same name.

    Returns:
        Seconds since 1970.
    """
    _, started = _read(settings)
    if is_first(settings):
        clear(settings.out, RECORDED)
        started = time.time()
        with suppress(OSError):
            (settings.out / STARTED).write_text(json.dumps({"name": settings.start, "time": started}))
    return started


def is_first(settings: Settings) -> bool:
    """Whether the chief is the first of its attempt; see `begin`."""
    return not settings.cause and (not settings.start or settings.start != _read(settings)[0])


def _read(settings: Settings) -> tuple[str, float]:
    """Name and start time of the attempt in the marker; no name and the present time if it cannot be read."""
    try:
        marker = json.loads((settings.out / STARTED).read_text())
        return str(marker["name"]), float(marker["time"])
    except (OSError, ValueError, TypeError, KeyError):
        return "", time.time()
