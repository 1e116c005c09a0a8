"""One start of a run, over all the chiefs that it has: when it began, and what an earlier start has left."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from psfleet.run_folder import RECORDED, STARTED, clear
from psfleet.service.settings import Settings


def begin(settings: Settings) -> float:
    """Clears what an earlier start left in the run's folder, unless this chief takes the place of one of this start.

    It does if it is told why it was started again, or if the platform names the start and the folder knows that name.

    Returns:
        When the start began, in seconds since 1970.
    """
    path = settings.out / STARTED
    try:
        noted = json.loads(path.read_text())
        name, began = str(noted["name"]), float(noted["time"])
    except (OSError, ValueError, TypeError, KeyError):
        name, began = "", time.time()
    if settings.cause:
        return began
    if not settings.start or settings.start != name:
        clear(settings.out, RECORDED)
        began = time.time()
        with suppress(OSError):
            path.write_text(json.dumps({"name": settings.start, "time": began}))
    return began
