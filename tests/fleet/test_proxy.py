"""A proxy in the environment is the program's: no process of the fleet connects to another one through it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.tiny_job import JOB, PRELUDE, psfleet

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables that gRPC reads."""
PROGRAM = f"""\
import json, os
from pathlib import Path

{PRELUDE}
Path(__file__).with_name("seen.json").write_text(json.dumps([os.environ.get(name) for name in {VARIABLES}]))
"""


def test_a_fleet_trains_past_a_proxy_that_the_program_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy accepts connections and never answers."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "program.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        for name in VARIABLES:
            monkeypatch.setenv(name, url)
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        done = psfleet(tmp_path, "train", "job.yaml", "--out", "out", "--set", "fleet.max_restarts=0")
        assert done.returncode == 0, done.stdout + done.stderr
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert json.loads((tmp_path / "seen.json").read_text()) == [url] * len(VARIABLES)
