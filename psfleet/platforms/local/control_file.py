"""The file by which other processes of this machine find a live run of local processes: its launcher and its chief."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from psfleet.files import replace_file
from psfleet.run_folder import CONTROL


@dataclass(frozen=True)
class ControlFile:
    """The content of the file. It counts only while the lock of the run folder is held.

    Attributes:
        run: The run's id.
        launcher: Process id of the launcher.
        chief: `host:port` of the chief's control plane.
        tls: The folder of a client's certificate that the chief accepts; empty: connections to it are plain.
    """

    run: str
    launcher: int
    chief: str
    tls: str = ""

    def write(self, folder: Path) -> None:
        """Writes it atomically into a run folder."""
        replace_file(folder / CONTROL, json.dumps(asdict(self)), writer=str(os.getpid()))

    @classmethod
    def read(cls, folder: Path) -> ControlFile | None:
        """That of a run folder; None if there is none."""
        try:
            content = json.loads((folder / CONTROL).read_bytes())
            return cls(str(content["run"]), int(content["launcher"]), str(content["chief"]), str(content["tls"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
