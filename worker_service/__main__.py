"""`python -m worker_service`: one worker, spare or chief, until its run is over."""

from __future__ import annotations

import logging

from psfleet.service.process import Service, run_service
from psfleet.service.process_environment import prepare_tensorflow

logger = logging.getLogger("psfleet.worker")


def _load() -> Service:
    """Imports the service; its import of TensorFlow reads the environment and takes seconds."""
    logger.info("importing TensorFlow", extra={"event": "starting"})
    prepare_tensorflow()
    from worker_service.service import serve

    return serve


if __name__ == "__main__":
    run_service("worker", _load)
