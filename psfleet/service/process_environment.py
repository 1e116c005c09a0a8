"""The environment of this process and of its children, and what of it TensorFlow needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec

from psfleet.errors import UsageError
from psfleet.service.library_variables import FOR_TENSORFLOW, MEMORY, for_kernels, for_loaders
from psfleet.service.settings import LOADERS


def for_child(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment of a service process: MEMORY, overridden by this process's environment, then by `variables`."""
    return {**MEMORY, **os.environ, **variables}


def replace_environment(environment: Mapping[str, str]) -> None:
    """Gives this process another environment."""
    os.environ.clear()
    os.environ.update(environment)


def require_tensorflow() -> None:
    """Checks that TensorFlow is installed, without importing it, which takes seconds.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    if find_spec("tensorflow") is None:
        raise UsageError("TensorFlow is not installed, expected an extra: pip install 'psfleet[cpu]' or 'psfleet[gpu]'")


def prepare_tensorflow(environ: MutableMapping[str, str] | None = None) -> None:
    """Sets the variables that TensorFlow reads when it is imported; the user's own values stay.

    Raises:
        UsageError: TensorFlow is not installed.
    """
    require_tensorflow()
    env = os.environ if environ is None else environ
    for name, value in {**FOR_TENSORFLOW, **for_kernels()}.items():
        env.setdefault(name, value)
    env.update(for_loaders(env, env.get(LOADERS, "")))
