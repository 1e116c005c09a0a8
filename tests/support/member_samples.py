"""A worker's process that has joined its run, without what trains."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.program_samples import sample_job
from worker_service.member_process import MemberProcess

UNSERVED = SimpleNamespace(bind=lambda *_: None, bind_chief=lambda *_: None)
"""No handle is served."""


def process_of(fleet: Any, stop: Any) -> MemberProcess:
    """The process of a chief.

    Args:
        fleet: The control planes of its ps.
        stop: Its signal.
    """
    known = {
        "fleet": fleet,
        "stop": stop,
        "job": sample_job(),
        "heartbeat": SimpleNamespace(index=0),
        "controls": UNSERVED,
        "metrics": SimpleNamespace(add_chief=lambda components: None),
    }
    unused: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(MemberProcess))
    return MemberProcess(**unused | known)


def of_fleet(fleet: Any, out: Path) -> Any:
    """The context of a chief."""
    return SimpleNamespace(fleet=fleet, incarnation=1, out=out, job=sample_job(), require_lease=lambda: None)
