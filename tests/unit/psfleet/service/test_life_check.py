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

HOUR = 3600


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
    """The file with its last sign so long ago, by a clock that may have been set since."""
    file.touch()
    os.utime(file, (time.time() - secs,) * 2)
    return file


@pytest.mark.parametrize("secs", [0, 10 * HOUR, -10 * HOUR], ids=["now", "clock set forward", "clock set back"])
def test_one_that_gives_no_sign_between_all_looks_is_frozen(file: Path, secs: float) -> None:
    aged(file, secs)
    looks: list[float] = []
    assert life_check.silence(file, 180, looks.append) == "no sign of life for 10 s"
    assert sum(looks) == 10


@pytest.mark.parametrize("secs", [0, 10 * HOUR, -10 * HOUR], ids=["now", "clock set forward", "clock set back"])
def test_one_that_gives_a_sign_between_two_looks_is_alive(file: Path, secs: float) -> None:
    """As after a pause of its container, when the sign before is old."""
    aged(file, secs)
    looks: list[float] = []

    def pause(pause_secs: float) -> None:
        looks.append(pause_secs)
        if len(looks) == life_check.LOOKS:
            aged(file, secs - 1)

    assert life_check.silence(file, 180, pause) == ""


def test_one_that_starts_has_time_until_its_first_sign(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_check, "running_secs", lambda: 61.0)
    assert life_check.silence(file, 62, lambda secs: pytest.fail("nothing to look for")) == ""
    assert life_check.silence(file, 60, lambda secs: None) == "no sign of life for 60 s"
    assert life_check.silence(file, 60, lambda secs: file.touch()) == ""


def test_how_long_a_container_runs_is_that_of_its_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < life_check.running_secs() <= float(Path("/proc/uptime").read_text().split()[0]) + 1
    of_all = life_check.running_secs()
    monkeypatch.setattr(life_check, "INIT", Path("/proc/self"))
    assert 0 < life_check.running_secs() <= of_all


def test_a_frozen_process_is_killed_only_where_that_was_asked_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []
    (tmp_path / "task/1").mkdir(parents=True)
    (tmp_path / "task/1/children").write_text("7 11 ")
    monkeypatch.setattr(life_check, "INIT", tmp_path)
    monkeypatch.setattr(life_check, "LOOK_SECS", 0.0)
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append((process, number)))
    file.touch()
    assert life_check.main([str(file)]) == "no sign of life for 0 s"
    assert killed == []
    assert life_check.main([str(file), "--end"]) == "no sign of life for 0 s"
    assert killed == [(7, signal.SIGKILL), (11, signal.SIGKILL)]


def test_a_front_is_healthy_when_it_is_ready(file: Path, front: http.server.HTTPServer) -> None:
    words = [str(file), "--rest-port", str(front.server_port), "--start-secs", "1e9"]
    assert life_check.main(words) == ""
    front.is_empty = True  # type: ignore[attr-defined]
    assert life_check.main(words) == "no member is ready"


def test_a_front_that_does_not_answer_is_not_ready(file: Path, front: http.server.HTTPServer) -> None:
    words = [str(file), "--rest-port", str(front.server_port), "--start-secs", "1e9", "--tls"]
    assert life_check.main(words).startswith("no answer on port")
