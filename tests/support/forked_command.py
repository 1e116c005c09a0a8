"""What a process forked for `support.commands.started` runs: a command with its own folder, arguments and output."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

from support.commands import COMMAND


def main() -> None:
    """Becomes `python -m module arguments...`."""
    plan = json.loads(os.environ.pop(COMMAND))
    os.chdir(plan["folder"])
    Path(plan["out"]).write_bytes(b"")
    Path(plan["err"]).write_bytes(b"")
    for path, descriptor in ((plan["out"], 1), (plan["err"], 2)):
        with Path(path).open("ab") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = [plan["module"], *plan["arguments"]]
    runpy.run_module(plan["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
