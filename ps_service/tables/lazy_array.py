"""Arrays of zeros that take memory only where they were written."""

from __future__ import annotations

import math
import mmap
import sys

import numpy as np

NORESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE of Linux (mman-common.h): the mapping may be larger than the memory. Python 3.11 has no name for it."""


def lazy_zeros(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array of zeros whose pages the kernel provides at the first write.

    Neither `np.zeros` nor `np.empty` promises that: an allocator may write all of the memory, and NumPy asks for pages
    of 2 MiB for large arrays.

    Raises:
        OSError: The address space is limited, and too small.
        OverflowError: No address space has so many bytes.
    """
    num_bytes = max(1, math.prod(shape)) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)
