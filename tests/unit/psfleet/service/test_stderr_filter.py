"""What TensorFlow writes at its start is left out of a command's standard error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from psfleet.service.stderr_filter import without_tensorflows_own

NOISE = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1234.5 123 port.cc:153] oneDNN custom operations are on.\n"
    b"E0000 00:00:1234.5 123 util.cc:131] oneDNN supports DT_BOOL only on platforms with AVX-512. Falling back to the "
    b"default Eigen-based implementation if present.\n"
)


def test_only_lines_that_tensorflow_always_writes_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    with without_tensorflows_own():
        os.write(2, b"a warning of the program\n" + NOISE + b"E0000 00:00:1 an error\n")
        assert capfd.readouterr().err == ""
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "a warning of the program\nE0000 00:00:1 an error\nlater\n"


def test_what_was_written_before_an_error_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with suppress(ValueError), without_tensorflows_own():
        os.write(2, b"the cause\n" + NOISE)
        raise ValueError("broken")
    assert capfd.readouterr().err == "the cause\n"


def test_a_process_without_standard_error_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    entered = False
    with without_tensorflows_own():
        entered = True
    assert entered
