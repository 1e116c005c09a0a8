"""Variables that libraries read when they are loaded, for processes of a fleet and clients of one."""

from __future__ import annotations

from psfleet.service.channel_options import TENSORFLOW

MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(1024 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
}
"""Makes glibc keep freed memory (mallopt(3)): otherwise the kernel clears each new page of each tensor, which took 5 %
of a step with 1.9 million parameters. docker/Dockerfile sets the same values."""

FOR_TENSORFLOW = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_GRPC_DEFAULT_OPTIONS": TENSORFLOW,
    "KERAS_BACKEND": "tensorflow",
}
"""Read by TensorFlow: its log is quiet, channels between its servers detect an unresponsive peer, and Keras uses it."""
