"""A process that fails for good where its engine would start it again for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from psfleet.polling import wait_until
from psfleet.service import settings
from psfleet.service.health import failure

SECS = 60.0
PROGRAM = """
import sys
from psfleet import errors
from psfleet.service.process import run_service
def load():
    raise getattr(errors, sys.argv[1])("a reason")
run_service("ps", load)
"""


def started(file: Path, error: str, **variables: str) -> subprocess.Popen[str]:
    """A service that ends with an error."""
    environment = {**os.environ, settings.FAILURE: str(file), **variables}
    command = [sys.executable, "-c", PROGRAM, error]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize(
    ("error", "variables", "said"),
    [
        ("BadJobError", {}, "failed with exit code 78: a reason"),
        ("LostPeerError", {settings.FLEET: "{"}, "failed with exit code 78: PSFLEET_FLEET: expected the access to a"),
    ],
)
def test_it_says_why_and_waits_until_it_is_stopped(
    tmp_path: Path, error: str, variables: dict[str, str], said: str
) -> None:
    file = tmp_path / "failure"
    with started(file, error, **variables) as process:
        wait_until(lambda: failure(str(file)), SECS, "the reason", done=lambda text: text.startswith(said))
        assert process.poll() is None
        process.terminate()
        assert process.wait(SECS) == 78


@pytest.mark.parametrize(("error", "code"), [("LostPeerError", 75), ("PsfleetError", 1)], ids=["lost peer", "bug"])
def test_an_error_that_another_try_may_mend_ends_it(tmp_path: Path, error: str, code: int) -> None:
    file = tmp_path / "failure"
    with started(file, error) as process:
        assert process.wait(SECS) == code
    assert failure(str(file)) == ""
    assert failure("") == ""
