"""Removes files that no fleet process reads from an environment, while images are built: `trim.py SITE_PACKAGES`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

UNREAD = (
    "tensorflow/include",  # headers, for building custom ops
    "tensorflow/**/*.a",  # static libraries, for the same
    "tensorflow/xla_aot_runtime_src",  # sources, for compiling models ahead of time
    "clang",  # libclang: a dependency of TensorFlow's package that no module imports
    "libclang-*",
    "kubernetes",  # clients that run outside the fleet, like the next two
    "kubernetes-*",
    "docker",
    "docker-*",
    "**/tests",
    "**/__pycache__",  # compiled again after trimming
)

SERVICES = ("s3", "sts", "sso", "sso-oidc", "signin")
"""Of the 400 services of AWS that botocore describes: the store of checkpoints, and sources of credentials."""
SYMBOLS = ("tensorflow/libtensorflow_cc.so.*", "tensorflow/libtensorflow_framework.so.*")
"""Libraries with large symbol tables. Stripping libraries rewritten by auditwheel (numpy.libs) breaks them."""


def main(site_packages: Path) -> None:
    """Removes unread files, and symbols that only a debugger reads."""
    for pattern in UNREAD:
        for path in sorted(site_packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in (site_packages / "botocore" / "data").glob("*/"):
        if path.is_dir() and path.name not in SERVICES:
            shutil.rmtree(path)
    for pattern in SYMBOLS:
        subprocess.run(["strip", "--strip-unneeded", *map(str, site_packages.glob(pattern))], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
