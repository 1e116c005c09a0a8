"""Digests of the sections of a job that must be equal in all processes of a run.

Hosts may differ in paths (`options`), threads (`device`) and deadlines, and in the sections that only the chief reads.
The digests are of the job as in its file: the chief adds the learning rate of a program's optimizer later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from psfleet.job.job import Job
from psfleet.job.program_files import DIGEST_CHARS, digest

SECTIONS = ("program", "update", "optimizer", "optimizers", "tables", "train", "input")
FLEET = ("ps", "workers", "spares", "max_workers", "parts", "colocate")
"""Fields of the section `fleet`."""


def common_sections(job: Job) -> Mapping[str, str]:
    """The digest of each common section, by a name for messages."""
    content = job.model_dump(mode="json", include={*SECTIONS, "fleet"})
    content["fleet"] = {field: content["fleet"][field] for field in FLEET}
    return {f"{name} of the job file": _digest(section) for name, section in content.items()}


def job_digest(job: Job) -> str:
    """The digest of all common sections."""
    return digest(common_sections(job))


def _digest(section: object) -> str:
    text = json.dumps(section, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
