"""Which containers of a compose fleet reach the store of its checkpoints, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.manifests.compose.render import file_text, render

JOB: dict[str, Any] = {
    "name": "small",
    "program": "program:build",
    "fleet": {"ps": 2, "workers": 2},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "train": {"steps": 10, "batch_size": 2},
    "checkpoint": {"store": "s3://bucket/run"},
    "tls": True,
}


def test_ps_and_chief_have_a_way_out_and_the_credentials(tmp_path: Path) -> None:
    services = render(parse_job(JOB), tmp_path / "job.yaml")["services"]
    for name in ("ps-0", "ps-1", "chief"):
        assert list(services[name]["networks"]) == ["fleet", "outside"], name
        assert "AWS_ACCESS_KEY_ID" in services[name]["environment"], name
    assert list(services["worker"]["networks"]) == ["fleet"]
    assert not [name for name in services["worker"]["environment"] if name.startswith("AWS_")]


def test_the_file_has_the_names_of_credentials_and_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tester")
    text = file_text(parse_job(JOB), tmp_path / "job.yaml", None, "")
    assert "secret-of-the-tester" not in text
    environment = yaml.safe_load(text)["services"]["ps-0"]["environment"]
    assert environment["AWS_SECRET_ACCESS_KEY"] is None, "compose takes the value from its own environment"


def test_a_way_out_needs_tls(tmp_path: Path) -> None:
    with pytest.raises(BadJobError, match=r"tls is false, expected true with checkpoint.store s3://bucket/run"):
        render(parse_job({**JOB, "tls": False}), tmp_path / "job.yaml")
