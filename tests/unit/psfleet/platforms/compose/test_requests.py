"""What a fleet needs on a Docker engine before it is started there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.activity_samples import ACTIVITY, driven_job

from psfleet.errors import UsageError
from psfleet.launch.platform import Request
from psfleet.platforms.compose import requests
from psfleet.platforms.compose.requests import require_startable


def test_a_model_that_containers_cannot_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests.engine, "require_plugin", lambda: None)
    monkeypatch.setattr(requests.engine, "require_images", lambda client, images: None)
    program, model = tmp_path / "program", tmp_path / "model"
    for folder in (program, model / "inner"):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
    model.chmod(0o755)
    part = model / "inner" / "part-0"
    part.touch(0o644)
    (model / "link").symlink_to("gone")
    activity = ACTIVITY.model_copy(update={"model_folder": str(model)})
    request = Request(driven_job(), program / "job.yaml", activity=activity)
    client = object()
    require_startable(client, request, [], [])  # type: ignore[arg-type]
    for path, mode in ((part, 0o600), (model / "inner", 0o700)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"{path} cannot be read by user 10001.*: `chmod -R o.rX {model}`"):
            require_startable(client, request, [], [])  # type: ignore[arg-type]
        path.chmod(before)
