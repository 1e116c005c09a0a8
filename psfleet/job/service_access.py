"""What a process of `psfleet serve` needs: the model's name, where the front is, and its own part, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from psfleet.job.access import Access
from psfleet.job.fields import Positive, PositiveInt, Section

Mode = Literal["between_graph", "in_graph"]
BETWEEN_GRAPH: Mode = "between_graph"
IN_GRAPH: Mode = "in_graph"
MODES: tuple[Mode, ...] = (BETWEEN_GRAPH, IN_GRAPH)


class MemberSource(Section):
    """Whose model a member has: that of a run, or of a trial of a study.

    Attributes:
        run: Path or URL of a run folder; None: it is a trial.
        step: Of the run's checkpoint; None: the newest, or the best.
        best: Whether the best checkpoint is taken, not the newest.
        job: Of a trial: the resolved job.
        weights: Of a trial: the file of its weights.
        program_folder: The folder of the program; of a run it is empty, if it is that in which the run found it.
    """

    run: str | None = None
    step: int | None = None
    best: bool = False
    job: str = ""
    weights: str = ""
    program_folder: str = ""


class FrontOptions(Section):
    """Options of the front.

    Attributes:
        host: Address on which it listens.
        rest_port: Of REST.
        grpc_port: Of gRPC.
        timeout_secs: From a query's arrival to its answer, with the predictions that are there.
        max_batch_rows: Of a batch of queries.
        linger_secs: How long a query waits for others.
        max_query_bytes: Of the message of a query.
        max_connections: Open connections of REST, and as many of gRPC.
        token_file: File with the token of clients; None: there is none.
        tls_cert: File with the certificate of the front; None: it has no TLS.
        tls_key: File with the key of that certificate.
        published_at: Of a container: the address at which its machine publishes the ports; None: `host`.
    """

    host: str
    rest_port: int
    grpc_port: int
    timeout_secs: Positive
    max_batch_rows: PositiveInt
    linger_secs: float
    max_query_bytes: PositiveInt
    max_connections: PositiveInt
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    published_at: str | None = None


class ServiceAccess(Access):
    """Of one process of a service.

    Attributes:
        name: Of the model.
        front: `host:port` of the front's TensorFlow server.
        num_models: Of the service.
        replicas: Members of each model.
        mode: One of `MODES`: whether each member is a client of the front, or one session of the front has all members.
        members: Of a front whose members are containers: `host:port` of the TensorFlow server of each, by index.
        member: Of a member: its model.
        options: Of the front.
    """

    DESCRIPTION: ClassVar[str] = "access to a service"

    name: str
    front: str
    num_models: PositiveInt
    replicas: PositiveInt = 1
    mode: Mode
    members: tuple[str, ...] = ()
    member: MemberSource | None = None
    options: FrontOptions | None = None


def life_file(folder: Path, role: str, index: int) -> Path:
    """The file that a process of a service renews each second, in the folder of the service."""
    return folder / "logs" / f"{role}-{index}.alive"
