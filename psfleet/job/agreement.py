"""What the job files of all processes of a run have in common: of each section a digest, as of a program's files.

Two hosts may differ in paths (`options`), threads (`device`), deadlines and whatever the chief alone reads. The job is
that of the file: the learning rate of a program's optimizer, which the chief fills in, is not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from psfleet.job.job import Job
from psfleet.job.program_files import DIGEST_CHARS, digest

SECTIONS = ("program", "update", "optimizer", "optimizers", "tables", "train", "input")
FLEET = ("ps", "workers", "spares", "max_workers", "parts", "colocate")
"""Of the section `fleet`."""


def common_sections(job: Job) -> Mapping[str, str]:
    """The digests of what all processes have in common, by names for messages."""
    content = job.model_dump(mode="json", include={*SECTIONS, "fleet"})
    content["fleet"] = {field: content["fleet"][field] for field in FLEET}
    return {f"{name} of the job file": _digest(section) for name, section in content.items()}


def job_digest(job: Job) -> str:
    """One digest of `common_sections`."""
    return digest(common_sections(job))


def _digest(section: object) -> str:
    text = json.dumps(section, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]
