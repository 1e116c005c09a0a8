"""What a service in containers consists of: the access of its front, and where each model and its program are."""

from __future__ import annotations

from psfleet.job.fields import NonNegativeInt, Section
from psfleet.job.service_access import MemberSource, ServiceAccess


class PlannedModel(Section):
    """A model of the service; the containers of its members mount it, and its program, read only.

    One that is in an object store has neither `folder` nor `fleet`: its members read the store.

    Attributes:
        source: As its members find it in their containers.
        program_folder: The folder of the program, on this machine.
        folder: The folder of the model, on this machine; empty: it is not there. Pods mount a copy.
        fleet: The fleet whose results are the folder of the model; empty: none.
    """

    source: MemberSource
    program_folder: str
    folder: str = ""
    fleet: str = ""


class ServicePlan(Section):
    """The front and the members of a service.

    Attributes:
        access: Of the front, whose ports are those in its container; without the address of its TensorFlow server,
            which the platform knows.
        models: Each has `access.replicas` members.
        host: The address at which the machine of the containers publishes the front's ports, or the Service of pods.
        rest_port: Its port for REST.
        grpc_port: Its port for gRPC.
        metrics_port: Its port for Prometheus, of a machine on loopback; 0: none.
    """

    access: ServiceAccess
    models: tuple[PlannedModel, ...]
    host: str
    rest_port: int
    grpc_port: int
    metrics_port: NonNegativeInt = 0

    @property
    def num_members(self) -> int:
        """Of all models."""
        return len(self.models) * self.access.replicas

    def model_of(self, member: int) -> PlannedModel:
        """The model of a member."""
        return self.models[member % len(self.models)]
