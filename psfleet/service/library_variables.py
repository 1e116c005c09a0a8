"""Variables that libraries read when they are loaded, for processes of a fleet and clients of one."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from psfleet.addresses import LOADER_HOST, LOOPBACK
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

NO_GRPC_PROXY, NO_PROXY = "no_grpc_proxy", "no_proxy"
"""gRPC reads the second one unless the first one is set. Other libraries know the second one only."""

_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "TF_", "KERAS_", "CUDA_", "NVIDIA_", "XLA_", "OMP_", "OPENBLAS_", "GRPC_")
_READ_LATER = "TF_CONFIG"


def read_at_start(environ: Mapping[str, str] | None = None) -> set[tuple[str, str]]:
    """(name, value) of what the interpreter, glibc and TensorFlow read once, when loaded; they read TF_CONFIG later."""
    env = os.environ if environ is None else environ
    return {item for item in env.items() if item[0].startswith(_READ_AT_START) and item[0] != _READ_LATER}


def for_kernels() -> dict[str, str]:
    """The variable by which TensorFlow computes with oneDNN on x86-64; none on other machines, where it was not tried.

    By default TensorFlow does so only on CPUs with instructions for neural networks, such as AVX512_VNNI. On one with
    AVX2 alone most gradients take 0.3 to 0.8 of the time with it (docs/traps.md).
    """
    return {"TF_ENABLE_ONEDNN_OPTS": "1"} if platform.machine() == "x86_64" else {}


def for_loaders(environ: Mapping[str, str], loaders: str) -> dict[str, str]:
    """The variable by which the clients of tf.data service, whose channels have no options, use no proxy.

    Args:
        environ: Of this process.
        loaders: `HOST:PORT,...` of the run's loaders; empty: it has none, and there is no variable.
    """
    hosts = [address.rpartition(":")[0] for address in loaders.split(",") if address]
    known = environ.get(NO_GRPC_PROXY) or environ.get(NO_PROXY)
    return {NO_GRPC_PROXY: ",".join([*filter(None, [known]), LOOPBACK, LOADER_HOST, *hosts])} if hosts else {}
