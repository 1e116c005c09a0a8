"""The job file's section for containers: images, what is mounted, limits; for the compose and Kubernetes launchers."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from psfleet.job.fields import NonNegativeInt, Positive, PositiveInt, Section

MEMORY = r"^[1-9][0-9]*(Ki|Mi|Gi)$"
MOUNT = re.compile(r"[^:]+:/[^:]+")

Memory = Annotated[str, Field(pattern=MEMORY)]
"""Bytes with a binary unit, as Kubernetes writes them."""

BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def num_bytes(memory: str) -> int:
    """A `Memory` text in bytes."""
    return int(memory[:-2]) * BYTES[memory[-2:]]


class Limits(Section):
    """What one container may use."""

    memory: Memory = Field("2Gi", description="Memory, with Ki, Mi or Gi; a container that takes more is killed.")
    cpus: Positive | None = Field(
        None, description="CPU cores, which TensorFlow's threads fit (see `device`); null: as many as there are."
    )
    pids: PositiveInt = Field(
        512, description="Processes and threads (docker compose; Kubernetes limits them by node)."
    )


class Container(Section):
    """How the fleet runs in containers; `psfleet train` does not look at it."""

    ps_image: str = Field("psfleet-ps:latest", min_length=1, description="Image of the parameter servers.")
    worker_image: str = Field(
        "psfleet-worker:latest",
        min_length=1,
        description="Image of workers and spares: `psfleet-worker`, or one made `FROM` it with a program in /program.",
    )
    program: Literal["mount", "image"] = Field(
        "mount",
        description="mount: /program is the job file's folder (docker compose) or a ConfigMap of its files "
        "(Kubernetes); image: it is what `worker_image` brings.",
    )
    mounts: list[str] = Field(
        default_factory=list,
        description="`SOURCE:TARGET` of data that workers read: SOURCE is a folder of the host (docker compose) or the "
        "name of a PersistentVolumeClaim (Kubernetes), TARGET an absolute path in the container.",
    )
    ps: Limits = Field(default_factory=Limits, description="Limits of each ps.")
    worker: Limits = Field(default_factory=Limits, description="Limits of each worker and spare.")
    storage: Memory = Field("10Gi", description="Size of the volume for checkpoints and results (Kubernetes).")
    storage_class: str | None = Field(
        None, description="StorageClass of that volume; null: the cluster's default (Kubernetes)."
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce",
        description="ReadWriteOnce: that volume is a disk, so all pods of the fleet run on one node; ReadWriteMany: it "
        "is a shared file system, and they run where there is room (Kubernetes).",
    )
    active_secs: PositiveInt = Field(
        7 * 24 * 3600, description="Seconds after which a run is ended, whatever it does (Kubernetes)."
    )
    keep_secs: NonNegativeInt = Field(
        24 * 3600, description="Seconds after which the pods and logs of a run that is over are removed (Kubernetes)."
    )

    @field_validator("mounts")
    @classmethod
    def _pairs(cls, mounts: list[str]) -> list[str]:
        for mount in mounts:
            if not MOUNT.fullmatch(mount):
                raise ValueError(f"mounts has {mount!r}, expected SOURCE:TARGET with an absolute TARGET")
        return mounts
