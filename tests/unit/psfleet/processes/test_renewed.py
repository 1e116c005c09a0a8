"""A client's script in a pod: it ends when `psfleet run` does not renew its file any more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from psfleet.processes.renewed import LAPSE_SECS, LOOK_SECS, RENEW_SECS, await_lapse

SECS = 30.0
LAPSED = """
import sys
from functools import partial
from pathlib import Path
from psfleet.processes import renewed
renewed.LAPSE_SECS, renewed.LOOK_SECS = 1.0, 0.05
sys.exit(renewed.run([sys.executable, *sys.argv[2:]], partial(renewed.await_lapse, Path(sys.argv[1]))))
"""


class Time:
    """Virtual time, in which a file is renewed at some moments."""

    def __init__(self, file: Path, renewals: list[float]) -> None:
        self.now = 0.0
        self._file, self._renewals = file, list(renewals)

    def clock(self) -> float:
        """Monotonic time."""
        return self.now

    def pause(self, secs: float) -> None:
        """Passes time."""
        self.now += secs
        if self._renewals and self.now >= self._renewals[0]:
            self._file.write_text(f"renewed at {self._renewals.pop(0)}")


def ends(file: Path, renewals: list[float]) -> float:
    """When the script is ended."""
    virtual = Time(file, renewals)
    await_lapse(file, virtual.clock, virtual.pause)
    assert not virtual._renewals
    return virtual.now


def test_a_script_lasts_as_long_as_it_is_renewed_and_ends_soon_after(tmp_path: Path) -> None:
    at = [100.0 * n for n in range(1, 50)]
    assert at[-1] + LAPSE_SECS <= ends(tmp_path / "renewed", at) <= at[-1] + LAPSE_SECS + 2 * LOOK_SECS


def test_one_that_is_never_renewed_ends_although_its_file_is_there(tmp_path: Path) -> None:
    for text in ("", "renewed before"):
        (tmp_path / "renewed").write_text(text)
        assert LAPSE_SECS <= ends(tmp_path / "renewed", []) <= LAPSE_SECS + 2 * LOOK_SECS
    assert RENEW_SECS * 3 < LAPSE_SECS


def test_a_script_whose_file_is_not_renewed_is_asked_to_end(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text("import sys, time\nprint(sys.argv[1:], flush=True)\ntime.sleep(100)\n")
    command = [sys.executable, "-c", LAPSED, str(tmp_path / "renewed"), str(script), "word"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECS, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "['word']\n"), done.stderr
    assert f"`psfleet run` has not renewed {tmp_path / 'renewed'} for 1 s: the script is ended" in done.stderr
