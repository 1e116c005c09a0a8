"""`python -m worker_service`: one worker, spare or chief, until its run is over."""

from __future__ import annotations

from psfleet import settings

settings.prepare_tensorflow()

from psfleet.process import run_service  # noqa: E402  TensorFlow reads its environment when it is imported
from worker_service.service import serve  # noqa: E402

if __name__ == "__main__":
    run_service("worker", serve)
