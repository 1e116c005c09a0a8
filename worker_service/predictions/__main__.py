"""`python -m worker_service.predictions`: predicts the share of one worker, and ends."""

from __future__ import annotations

from psfleet.service.process import Service, run_service
from psfleet.service.process_environment import prepare_tensorflow
from worker_service.watched_process import watched


def _load() -> Service:
    """Imports the service; its import of TensorFlow reads the environment."""
    prepare_tensorflow()
    from worker_service.predictions.service import serve

    return serve


if __name__ == "__main__":
    watched()
    run_service("worker", _load)
