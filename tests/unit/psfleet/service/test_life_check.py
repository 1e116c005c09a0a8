"""The health check of a container of a service: silence, readiness, and the end of a frozen process."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psfleet.service import life_check


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "member-0.alive"


@pytest.fixture
def front() -> Iterator[http.server.HTTPServer]:
    """Answers `status`, of which a test may set another."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v2/health/ready" and not self.server.is_empty else 503)  # type: ignore[attr-defined]
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.is_empty = False  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def aged(file: Path, secs: float) -> Path:
    """The file with its last sign so long ago."""
    file.touch()
    os.utime(file, (time.time() - secs,) * 2)
    return file


def no_pause(secs: float) -> None:
    """In place of a pause in which nothing happens."""


def test_one_that_has_given_a_sign_or_not_started_is_not_frozen(file: Path) -> None:
    assert life_check.silence(file, no_pause) == ""
    assert life_check.silence(aged(file, life_check.SILENT_SECS - 1), no_pause) == ""


def test_one_that_gives_no_sign_is_frozen(file: Path) -> None:
    assert life_check.silence(aged(file, 60), no_pause) == "no sign of life for 60 s"


def test_one_that_continues_after_a_pause_of_its_container_is_not_frozen(file: Path) -> None:
    aged(file, 3600)
    assert life_check.silence(file, lambda secs: file.touch()) == ""


def test_a_frozen_process_is_killed_only_where_that_was_asked_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children, killed = tmp_path / "children", []
    children.write_text("7 11 ")
    monkeypatch.setattr(life_check, "CHILDREN", children)
    monkeypatch.setattr(life_check, "LOOK_SECS", 0.0)
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append((process, number)))
    aged(file, 60)
    assert life_check.main([str(file)]) == "no sign of life for 60 s"
    assert killed == []
    assert life_check.main([str(file), "--end"]) == "no sign of life for 60 s"
    assert killed == [(7, signal.SIGKILL), (11, signal.SIGKILL)]


def test_a_front_is_healthy_when_it_is_ready(file: Path, front: http.server.HTTPServer) -> None:
    words = [str(file), "--rest-port", str(front.server_port)]
    assert life_check.main(words) == "no sign of life yet"
    file.touch()
    assert life_check.main(words) == ""
    front.is_empty = True  # type: ignore[attr-defined]
    assert life_check.main(words) == "no member is ready"


def test_a_front_that_does_not_answer_is_not_ready(file: Path, front: http.server.HTTPServer) -> None:
    file.touch()
    assert life_check.main([str(file), "--rest-port", str(front.server_port), "--tls"]).startswith("no answer on port")
