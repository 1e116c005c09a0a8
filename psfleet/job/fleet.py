"""The section `fleet` of the job file."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from psfleet.job.fields import NonNegativeInt, PositiveInt, Section, split_address


class Fleet(Section):
    """Number of processes of each role."""

    ps: PositiveInt = Field(1, description="Number of parameter servers; each holds an equal shard of the model.")
    workers: PositiveInt = Field(1, description="Number of workers; worker 0 is the chief.")
    colocate: bool = Field(
        False,
        description="Whether each worker's process is a ps, too, so that its own shard crosses no network; `ps` is "
        "then the number of workers. See [above](#a-ps-in-each-worker). Not with spares, `parts`, `ps_addresses` or "
        "`update.replication: in_graph`.",
    )
    parts: PositiveInt = Field(
        1,
        description="Number of workers of each replica, a divisor of `workers`: a program assigns its layers to them "
        "by `psfleet.part`; see [above](#model-parallelism). Not with spares, tables "
        "or `device.replicas`.",
    )
    spares: NonNegativeInt = Field(
        0, description="Backup workers in addition to `workers`: a step need not wait for the slowest."
    )
    max_workers: PositiveInt | None = Field(
        None,
        description="Maximum number of workers and spares when a running fleet is scaled; null: twice their sum, or "
        "with `update.replication: in_graph` or with `parts` above 1 their sum.",
    )
    ps_addresses: list[str] | None = Field(
        None,
        description="`host:port` of running parameter servers (their control port is port + 1, "
        "their exchange port is port + 4), which the launcher neither starts nor stops; null: the launcher starts `ps` "
        "parameter servers.",
    )
    unix_sockets: bool = Field(
        True,
        description="Whether a worker exchanges gradients and parameters by Unix sockets and shared memory with a ps "
        "of the same machine and user at 127.0.0.1, which takes less CPU time; false: by TCP, as with any other ps. On "
        "other systems than Linux it is TCP.",
    )
    max_restarts: NonNegativeInt = Field(
        10, description="Maximum number of restarts of one process that was killed or lost its peers."
    )

    @property
    def processes(self) -> int:
        """Number of workers and spares."""
        return self.workers + self.spares

    @property
    def regular_replicas(self) -> int:
        """Number of replicas that are no spares."""
        return self.workers // self.parts

    @property
    def replicas(self) -> int:
        """Number of replicas: of workers and spares, if each replica is one of them."""
        return self.regular_replicas + self.spares

    def tasks_of(self, replica: int) -> range:
        """The workers of a replica, in the order of its parts; none for a worker that was added to a running fleet."""
        return range(replica, self.processes, self.replicas)

    @property
    def worker_limit(self) -> int:
        """Maximum number of worker indices."""
        return self.max_workers or 2 * self.processes

    def role(self, index: int) -> str:
        """Role of the worker with an index: chief, worker or spare."""
        if index == 0:
            return "chief"
        return "worker" if index < self.workers else "spare"

    @model_validator(mode="before")
    @classmethod
    def _one_ps_each(cls, content: Any) -> Any:
        """Sets the number of ps that are in workers, unless it is given."""
        if not isinstance(content, dict) or content.get("colocate") is not True or "ps" in content:
            return content
        return {**content, "ps": content.get("workers", 1)}

    @model_validator(mode="after")
    def _consistent(self) -> Fleet:
        if self.max_workers is not None and self.max_workers < self.processes:
            raise ValueError(
                f"max_workers is {self.max_workers}, expected at least workers + spares = {self.processes}"
            )
        if self.ps_addresses is not None:
            if len(self.ps_addresses) != self.ps:
                raise ValueError(
                    f"ps_addresses has {len(self.ps_addresses)} entries, expected as many as ps = {self.ps}"
                )
            for address in self.ps_addresses:
                if split_address(address) is None:
                    raise ValueError(f"ps_addresses has {address!r}, expected host:port with port below 65532")
        return self


def require_colocated(fleet: Fleet, is_in_graph: bool) -> None:
    """Refuses what a fleet cannot do whose workers are its ps.

    A step needs every ps and thereby every worker: a spare could replace none, and none can be added or removed.

    Args:
        is_in_graph: Whether `update.replication` is in_graph.

    Raises:
        ValueError: Names the field, its value and what was expected.
    """
    if not fleet.colocate:
        return
    if fleet.ps != fleet.workers:
        raise ValueError(
            f"fleet.ps is {fleet.ps}, expected fleet.workers = {fleet.workers} with fleet.colocate: each worker is a ps"
        )
    if fleet.spares:
        raise ValueError(
            f"fleet.spares is {fleet.spares}, expected 0 with fleet.colocate: a step needs the ps of every worker"
        )
    if fleet.max_workers not in (None, fleet.workers):
        raise ValueError(
            f"fleet.max_workers is {fleet.max_workers}, expected null with fleet.colocate: the fleet is not scaled"
        )
    if fleet.parts > 1:
        raise ValueError(f"fleet.parts is {fleet.parts}, expected 1 with fleet.colocate")
    if fleet.ps_addresses is not None:
        raise ValueError("fleet.ps_addresses is set, expected null with fleet.colocate: the ps are the workers")
    if is_in_graph:
        raise ValueError("update.replication is in_graph, expected between_graph with fleet.colocate")
