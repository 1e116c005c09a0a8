"""What a process forked for `support.commands.started` runs: a command with its own folder, arguments and output."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from psfleet.processes import command
from psfleet.service import process_environment
from support.commands import COMMAND

CLONE_NEWNET = 0x40000000
"""setns(2): the kind of a network namespace."""


class Service(BaseException):
    """Leaves a command, such as `psfleet task`, that has a service replace its process.

    Attributes:
        module: The package of the service.
        environment: The complete environment.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        super().__init__(module)
        self.module = module
        self.environment = environment


def main() -> None:
    """Becomes `python -m module arguments...`; the service that this becomes itself has TensorFlow already."""
    plan = json.loads(os.environ.pop(COMMAND))
    if plan["network"]:
        enter(Path(plan["network"]))
    os.chdir(plan["folder"])
    Path(plan["out"]).write_bytes(b"")
    Path(plan["err"]).write_bytes(b"")
    for path, descriptor in ((plan["out"], 1), (plan["err"], 2)):
        with Path(path).open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = [plan["module"], *plan["arguments"]]
    if plan["stays"]:
        command.become = leave
    try:
        runpy.run_module(plan["module"], run_name="__main__", alter_sys=True)
    except Service as service:
        module = service.module
        process_environment.replace_environment(service.environment)
    else:
        return
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def enter(namespace: Path) -> None:
    """Moves this process to a network namespace."""
    with namespace.open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")


def leave(module: str, environment: Mapping[str, str]) -> NoReturn:
    """In place of `psfleet.processes.command.become`, which starts a new interpreter."""
    raise Service(module, environment)


if __name__ == "__main__":
    main()
