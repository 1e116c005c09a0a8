"""The thread that reads a loader's part, when it is closed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from worker_service import dynamic_part
from worker_service.pass_counts import PassCounts


def test_a_part_that_is_closed_before_it_reads_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it took would be lost to all workers."""
    has_closed, has_ended = threading.Event(), threading.Event()
    loader: Any = SimpleNamespace(index=0, address=SimpleNamespace(control="loader:1"))
    watch: Any = MagicMock()
    watch.__enter__.return_value = SimpleNamespace(
        has_begun=lambda secs: True, on_end=lambda call: None, who="a loader", loader=loader
    )
    watch.__exit__.side_effect = lambda *error: has_ended.set()
    monkeypatch.setattr(dynamic_part, "LoaderWatch", lambda loader: watch)
    stream: Any = MagicMock()

    def process() -> str:
        assert has_closed.wait(10.0)
        return "process"

    part = dynamic_part.DynamicPart(loader, process, stream, 98, PassCounts(), threading.Condition())
    part.close()
    has_closed.set()
    assert has_ended.wait(10.0)
    stream.named.assert_not_called()
