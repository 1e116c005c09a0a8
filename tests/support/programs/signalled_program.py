"""The paced program, which also handles SIGTERM with asyncio and reads its data with a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

from paced_program import build as build_paced

import psfleet


def build(gates: str, step_secs: float) -> psfleet.GraphProgram:
    """See `paced_program.build`; files `loader-<process id>` in `gates` name the processes that it starts."""
    asyncio.run(_handle())
    multiprocessing.get_context("fork").Process(target=_load, args=[Path(gates)], daemon=True).start()
    return build_paced(gates, step_secs)


async def _handle() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)


def _load(folder: Path) -> None:
    (folder / f"loader-{os.getpid()}").touch()
    signal.pause()
