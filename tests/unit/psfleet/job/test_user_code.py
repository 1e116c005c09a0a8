"""The line that an error of the user's code is reported with."""

from __future__ import annotations

import pytest
from support.program_samples import sample_job

from psfleet.job.user_code import failure

OF_AN_OPERATION = """Graph execution error:

Detected at node 'w/Initializer/Assert' defined at (most recent call last):
    File "/home/me/program.py", line 6, in initial
Node: 'w/Initializer/Assert'
assertion failed: [the size is not positive:] [-1]
\t [[{{node w/Initializer/Assert}}]]

Original stack trace for 'w/Initializer/Assert':
  File "/home/me/program.py", line 6, in initial
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OF_AN_OPERATION, "assertion failed: [the size is not positive:] [-1]"),
        ("Graph execution error:\n\nout of range\n\t [[{{node x}}]]", "out of range"),
        ("Exception encountered when calling A.call().\n\n\x1b[1mshapes differ\x1b[0m", "shapes differ (in A.call())"),
        ("", "no message"),
    ],
    ids=["of an operation", "of a function", "in a layer", "empty"],
)  # fmt: skip
def test_the_reason_is_the_line_that_states_the_cause(text: str, reason: str) -> None:
    error = failure(sample_job(), "loss(batch)", ValueError(text))
    assert str(error).endswith(f"loss(batch) raised ValueError: {reason}")
