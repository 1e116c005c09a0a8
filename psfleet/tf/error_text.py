"""The reason in the text of a TensorFlow error, which Python's wrapper surrounds by headings and source lines."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

HEADING = re.compile(r"=+$|([A-Z_]+: )?From /job:")
"""Lines of TensorFlow's messages before and after the reason."""


def reason(error: Any) -> str:
    """The line of an error's message that gives the reason."""
    original = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
    lines = [line.strip() for line in str(original.message).splitlines()]
    return next((line for line in lines if line and not HEADING.match(line)), type(error).__name__)
