"""Names of clients' containers and queues, and the resource containers that they stand for."""

from __future__ import annotations

import re

from psfleet.errors import UsageError

PREFIX = "psfleet/client/"
"""Of clients' resource containers. Those of runs have one slash (`psfleet.tf.container_name`), and so another name."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")


def check_name(kind: str, name: object) -> str:
    """Returns the name.

    Args:
        kind: What has the name, for the message.

    Raises:
        UsageError: It is not a name.
    """
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{kind} is {name!r}, expected up to 100 letters, digits, dots, dashes, underscores and slashes, and a letter "
        "or digit first"
    )


def resource_container(name: str) -> str:
    """The resource container of a client's container.

    TensorFlow allows no underscore there (ContainerInfo::Init in resource_mgr.cc): a dot begins `..` for a dot and `.u`
    for an underscore, so that different names stay different.

    Raises:
        UsageError: The name has other characters.
    """
    return PREFIX + check_name("container", name).replace(".", "..").replace("_", ".u")
