"""`python -m worker_service.trial`: takes trials of a study until it is stopped."""

from __future__ import annotations

from psfleet.service.process import Service, run_service
from psfleet.service.process_environment import prepare_tensorflow
from worker_service.watched_process import watched


def _load() -> Service:
    """Imports the service; its import of TensorFlow reads the environment."""
    prepare_tensorflow()
    from worker_service.trial.service import serve

    return serve


if __name__ == "__main__":
    watched()
    run_service("worker", _load)
