"""The job file's `container` section: images, mounts and resource limits for docker compose and Kubernetes."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from psfleet.job.fields import NonNegativeInt, Positive, PositiveInt, Section

MEMORY = r"^[1-9][0-9]*(Ki|Mi|Gi)$"
MOUNT = re.compile(r"[^:]+:/[^:]+")

Memory = Annotated[str, Field(pattern=MEMORY)]
"""A Kubernetes memory quantity with a binary unit."""

BYTES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def num_bytes(memory: str) -> int:
    """Converts a `Memory` quantity to bytes."""
    return int(memory[:-2]) * BYTES[memory[-2:]]


class Limits(Section):
    """Resource limits of one container."""

    memory: Memory = Field(
        "2Gi", description="Memory with the unit Ki, Mi or Gi; a container that exceeds it is killed."
    )
    cpus: Positive | None = Field(
        None,
        description="CPU cores, which also set the number of TensorFlow's threads (see `device`); null: no limit.",
    )
    pids: PositiveInt = Field(
        512, description="Processes and threads (docker compose; Kubernetes limits them per node)."
    )


class WorkerLimits(Limits):
    """Resource limits of one worker's container, and whether it gets GPUs."""

    gpus: bool = Field(
        False,
        description="Whether the container gets all GPUs of the engine's host (docker compose); `device.visible_gpus` "
        "selects those of each worker. In a cluster, `kubernetes.worker.resources` requests GPUs.",
    )


class Container(Section):
    """Containers of the fleet; ignored by `psfleet train`."""

    ps_image: str = Field("psfleet-ps:latest", min_length=1, description="Image of the parameter servers.")
    worker_image: str = Field(
        "psfleet-worker:latest",
        min_length=1,
        description="Image of workers, spares and loaders: `psfleet-worker`, or one built `FROM` it with a program in "
        "/program.",
    )
    program: Literal["mount", "image"] = Field(
        "mount",
        description="mount: /program is the job file's folder (docker compose) or a ConfigMap of its files "
        "(Kubernetes); image: /program is part of `worker_image`.",
    )
    mounts: list[str] = Field(
        default_factory=list,
        description="`SOURCE:TARGET` of data that workers and loaders read: SOURCE is a folder of the host (docker "
        "compose) or the name of a PersistentVolumeClaim (Kubernetes), TARGET is an absolute path in the container.",
    )
    ps: Limits = Field(default_factory=Limits, description="Limits of each ps.")
    worker: WorkerLimits = Field(default_factory=WorkerLimits, description="Limits of each worker and spare.")
    loader: Limits = Field(default_factory=Limits, description="Limits of each loader.")
    storage: Memory = Field("10Gi", description="Size of the volume for checkpoints and results (Kubernetes).")
    storage_class: str | None = Field(
        None, description="StorageClass of that volume; null: the cluster's default (Kubernetes)."
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = Field(
        "ReadWriteOnce",
        description="ReadWriteOnce: that volume is a disk, so all pods that mount it run on one node: the chief, and "
        "with `checkpoint.shared` all others; ReadWriteMany: it is a shared file system, and all pods run on any node "
        "(Kubernetes).",
    )
    active_secs: PositiveInt = Field(
        7 * 24 * 3600,
        description="Seconds after which a run is terminated (Kubernetes: `activeDeadlineSeconds`).",
    )
    keep_secs: NonNegativeInt = Field(
        24 * 3600,
        description="Seconds after a run's end until its pods are deleted (Kubernetes: `ttlSecondsAfterFinished`), at "
        "least 300, in which `psfleet up` copies the results.",
    )

    @field_validator("mounts")
    @classmethod
    def _check_mounts(cls, mounts: list[str]) -> list[str]:
        for mount in mounts:
            if not MOUNT.fullmatch(mount):
                raise ValueError(f"mounts has {mount!r}, expected SOURCE:TARGET with an absolute TARGET")
        return mounts
