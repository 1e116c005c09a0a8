"""`python -m ps_service`: one parameter server, until its run is over."""

from __future__ import annotations

from psfleet.service.arenas import use_one_arena
from psfleet.service.process import Service, run_service
from psfleet.service.process_environment import prepare_tensorflow


def _load() -> Service:
    """Imports the service; its import of TensorFlow reads the environment, and starts threads that take memory."""
    use_one_arena()
    prepare_tensorflow()
    from ps_service.service import serve

    return serve


if __name__ == "__main__":
    run_service("ps", _load)
