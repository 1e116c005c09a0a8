"""How many arenas glibc takes memory from, in a process that has started."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

VARIABLE = "MALLOC_ARENA_MAX"
"""Read by glibc itself when a process starts."""
M_ARENA_MAX = -8
"""Of mallopt(3), in malloc.h."""


def use_one_arena(environ: Mapping[str, str] = os.environ) -> bool:
    """Has all threads take memory from one arena, unless the environment says how many; whether it did.

    By default each of several threads has an arena of its own, and keeps what is freed there. A ps, whose threads hold
    tensors of the same sizes in turn, then needs a quarter more memory, which grows for hundreds of steps. Libraries
    without `mallopt` are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return VARIABLE not in environ and mallopt is not None and mallopt(M_ARENA_MAX, 1) == 1
