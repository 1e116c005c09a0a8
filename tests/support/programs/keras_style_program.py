"""The program of a style in `support.trained_styles`."""

from __future__ import annotations

import psfleet
from support.trained_styles import PROGRAMS


def build(style: str) -> psfleet.KerasProgram:
    """The program of a style."""
    return PROGRAMS[style]()
