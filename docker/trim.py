"""Takes out of an environment what no fleet process reads, while the images are built: `trim.py SITE_PACKAGES`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

UNREAD = (
    "tensorflow/include",  # headers, for building custom ops
    "tensorflow/**/*.a",  # static libraries, for the same
    "tensorflow/xla_aot_runtime_src",  # sources, for compiling models ahead of time
    "clang",  # libclang: TensorFlow's package asks for it, none of its modules imports it
    "libclang-*",
    "kubernetes",  # the client that starts a fleet from outside, as the next two
    "kubernetes-*",
    "docker",
    "docker-*",
    "**/tests",
    "**/__pycache__",  # written anew, for all that is left
)

SYMBOLS = ("tensorflow/libtensorflow_cc.so.*", "tensorflow/libtensorflow_framework.so.*")
"""Libraries with many. Others stay: those that a wheel's maker rewrote (numpy.libs) cannot be loaded after it."""


def main(site_packages: Path) -> None:
    """Removes what is unread, and the symbols that only a debugger reads."""
    for pattern in UNREAD:
        for path in sorted(site_packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for pattern in SYMBOLS:
        subprocess.run(["strip", "--strip-unneeded", *map(str, site_packages.glob(pattern))], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
