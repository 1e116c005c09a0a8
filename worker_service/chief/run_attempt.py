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
    path = settings.out / STARTED
    try:
        marker = json.loads(path.read_text())
        name, started = str(marker["name"]), float(marker["time"])
    except (OSError, ValueError, TypeError, KeyError):
        name, started = "", time.time()
    if settings.cause:
        return started
    if not settings.start or settings.start != name:
        clear(settings.out, RECORDED)
        started = time.time()
        with suppress(OSError):
            path.write_text(json.dumps({"name": settings.start, "time": started}))
    return started
