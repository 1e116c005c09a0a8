"""Runs fleets on Kubernetes through its API: no custom resource, no rights for pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from pathlib import Path

from psfleet.errors import LostPeerError, PsfleetError, UsageError
from psfleet.job.activity import SERVICE, Activity, shown_role
from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job, job_from_json
from psfleet.launch.failed_start import down_command, remove_failed
from psfleet.launch.platform import KUBERNETES, Member, Request
from psfleet.manifests.kubernetes.names import CHIEF, JOB_KEY, LOADER, WORKER, component_name, first_index
from psfleet.manifests.kubernetes.on_fleet import require_served
from psfleet.manifests.kubernetes.render import manifests_text, workers_job
from psfleet.manifests.kubernetes.service import DEPLOYMENT
from psfleet.manifests.kubernetes.tls_secrets import ensure_certificates, tls_secrets
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.events import WaitReasons
from psfleet.platforms.kubernetes.exec import PodCommand, running
from psfleet.platforms.kubernetes.fleet_record import recorded
from psfleet.platforms.kubernetes.jobs import on_fleet, place_of, program_items, require_own_chief
from psfleet.platforms.kubernetes.members import members_of, scaled_away
from psfleet.platforms.kubernetes.model_copies import copy_models
from psfleet.platforms.kubernetes.objects import FleetObjects, wait_until_gone
from psfleet.platforms.kubernetes.pods import pods_of
from psfleet.platforms.kubernetes.renewal import Renewal, renewal_of
from psfleet.platforms.kubernetes.requests import activity_of, in_order, rendered, require_kind
from psfleet.platforms.kubernetes.scaling import scale_job
from psfleet.platforms.kubernetes.service_members import deployments_of, removable, service_members
from psfleet.platforms.kubernetes.stopping import REMOVAL_SECS, stop
from psfleet.platforms.kubernetes.volume_reader import packed

KINDS = (
    ("batch/v1", "Job"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
)
"""Kinds of a fleet's objects, except for its volume and what closes the ports of its pods until they have ended."""
POLICY = ("networking.k8s.io/v1", "NetworkPolicy")
VOLUME = ("v1", "PersistentVolumeClaim")


class Kubernetes:
    """A `Platform` in a namespace of a cluster; each fleet is up to four Jobs, or Deployments, and what they need."""

    noun = "pod"
    look_secs = 1.0
    restart_secs = 0.0
    settle_secs = 0.0
    restarts_stopped = True

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        self._context, self._namespace = context, namespace
        self._has_listed = False
        # Of fleets that this process starts or attaches to, by name.
        self._renewals: dict[str, Renewal | None] = {}

    @property
    def where(self) -> str:
        """See `Platform`."""
        return f"is in namespace {self._cluster.namespace}"

    @property
    def location(self) -> str:
        """See `Platform`."""
        return f"{self._cluster.api.configuration.host} {self._cluster.namespace}"

    def render(self, request: Request, out: Path | None, command: str) -> str:
        """See `Platform`."""
        return manifests_text(request.job, request.job_file, command)

    def check(self, request: Request) -> None:
        """See `Platform`."""
        if request.fleet:
            require_served(request.job, self._fleet(request.fleet))
        name, cluster = request.job.name, self._cluster
        self._objects.require_own(name, rendered(request))
        found = [*cluster.jobs(name), *deployments_of(cluster, name), *cluster.claims(name)]
        require_kind(name, request.activity, found, cluster.namespace)

    def apply(self, request: Request) -> None:
        """See `Platform`."""
        job = request.job
        self.check(request)
        objects = rendered(request)
        if job.tls and not request.fleet:
            ensure_certificates(job)
            objects += tls_secrets(job, has_ps=request.activity is None)
        self._objects.require_own(job.name, objects)
        self.remove(job.name, results=request.fresh)
        needed, making, last = in_order(job.name, objects)
        plan = request.activity.service if request.activity is not None else None
        try:
            self._objects.apply(job.name, needed)
            if plan is not None:
                copy_models(self._cluster, self._reasons, job, plan)
            self._objects.apply(job.name, making)
            (owner,) = self._objects.apply(job.name, [last])
            owned = [each for each in (*needed, *making) if each["kind"] != VOLUME[1]]
            self._objects.set_owner(owned, owner, (last["apiVersion"], last["kind"]))
        except PsfleetError as error:
            if plan is not None:
                down = down_command(job.name, KUBERNETES, self._context, self._namespace)
                remove_failed(partial(self.remove, job.name, False), error, down)
            raise
        self._renewals[job.name] = renewal_of(self._cluster, job, request.fleet)

    def job(self, name: str) -> Job:
        """See `Platform`."""
        text = self._cluster.config_map(name).get(JOB_KEY)
        if text is None:
            raise UsageError(f"fleet {name} has no ConfigMap {name} with its job, expected one that psfleet rendered")
        job = job_from_json(text, f"ConfigMap {name}: {JOB_KEY}")
        places = [place for each in self._cluster.jobs(name) if (place := on_fleet(each)) is not None]
        self._renewals[name] = renewal_of(self._cluster, job, places[0].fleet if places else "")
        return job

    def activity(self, name: str) -> Activity | None:
        """See `Platform`."""
        return activity_of(self._cluster, name)

    def members(self, name: str | None, with_notes: bool = False) -> list[Member]:
        """See `Platform`. After a first success, a refusal may be temporary: an expired token, a restarting server.

        The certificates of a fleet that is followed are looked at, too.
        """
        try:
            jobs, pods = self._cluster.jobs(name), pods_of(self._cluster.pods(name))
            reasons = self._reasons.of(jobs, pods)
            members = members_of(jobs, pods, reasons)
            if name is None or not jobs:
                members += service_members(deployments_of(self._cluster, name), pods, reasons)
        except UsageError as error:
            if self._has_listed:
                raise LostPeerError(str(error)) from error
            raise
        self._has_listed = True
        renewal = self._renewals.get(name) if name is not None else None
        if renewal is not None:
            renewal.look()
        return members

    def scaled_away(self, name: str) -> list[Member]:
        """See `Platform`."""
        return scaled_away(self._cluster.jobs(name), pods_of(self._cluster.pods(name)))

    def restart(self, member: Member) -> None:
        """See `Platform`. Never called: a Job restarts its pods itself."""
        raise NotImplementedError

    def end_restarts(self, members: Sequence[Member]) -> None:
        """See `Platform`. Does nothing: a Job does not restart pods with permanent exit codes."""

    def ask_to_stop(self, chief: Member) -> None:
        """See `Platform`. Never called: the chief's Job would start it again."""
        raise NotImplementedError

    def running(self, chief: Member, command: Sequence[str]) -> AbstractContextManager[PodCommand]:
        """See `Platform`."""
        return running(self._cluster, chief.name, CHIEF, command)

    def stop(self, chief: Member, timeout_secs: float) -> None:
        """See `Platform`."""
        stop(self._cluster, chief, timeout_secs)

    def log(self, member: Member, since: float = 0.0, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See `Platform`. Each pod has its own log; without `follow` and `tail`, the logs of all pods of the index."""
        if follow or tail is not None or member.activity == SERVICE:
            return self._cluster.log(member.name, shown_role(member.activity, member.role), tail, follow)
        return self._log_of_index(member)

    def has_results(self, name: str) -> bool:
        """See `Platform`."""
        return bool(self._cluster.claims(name))

    @contextmanager
    def tar(self, job: Job, names: Sequence[str]) -> Iterator[Iterator[Iterator[bytes]]]:
        """See `Platform`. A pod that only reads the volume packs it into a stream of the API."""
        with packed(self._cluster, self._reasons, job) as archive:
            yield iter([archive])

    def scale(self, job: Job, workers: int) -> None:
        """See `Platform`. A fleet that began with its chief alone has no Job of other workers yet."""
        others = workers - 1
        jobs = {place_of(each)[1]: each for each in self._cluster.jobs(job.name)}
        if WORKER in jobs:
            scale_job(self._cluster, component_name(job.name, WORKER), others)
        elif others:
            content = workers_job(job, program_items(jobs[CHIEF]), others, on_fleet(jobs[CHIEF]))
            self._objects.apply(job.name, [content])
            self._objects.set_owner([content], jobs[CHIEF])

    def scale_loaders(self, job: Job, loaders: int) -> None:
        """See `Platform`."""
        scale_job(self._cluster, component_name(job.name, LOADER), loaders)

    def remove(self, name: str, results: bool) -> bool:
        """See `Platform`. Waits until all is gone. A fleet may have no Jobs: one was refused, or deleted at the end."""
        jobs, claims = self._cluster.jobs(name), removable(self._cluster, name, results)
        deployments = deployments_of(self._cluster, name)
        require_own_chief(jobs)
        pods = self._cluster.pods(name) if jobs or deployments else []
        # Without their owner, the chief's Job or the front's Deployment, the policies outlast the pods.
        policies = self._objects.disown(name, POLICY)
        is_found = self._objects.remove_all(name, [DEPLOYMENT, *KINDS] if deployments else KINDS)
        if jobs or deployments:
            secs = REMOVAL_SECS + max([pod.spec.termination_grace_period_seconds or 0 for pod in pods], default=0)
            wait_until_gone(name, [self._cluster.jobs, self._cluster.pods], secs, f"the pods of fleet {name} to end")
        # Those of a fleet that another command starts meanwhile close the ports of its pods.
        self._objects.remove_same(POLICY, policies)
        if claims:
            self._objects.remove_all(name, [VOLUME])
            wait_until_gone(name, [self._cluster.claims], REMOVAL_SECS, f"the volume of fleet {name} to go")
        return is_found or bool(policies) or bool(claims)

    def _fleet(self, name: str) -> FleetFile:
        """The file of a standing fleet of the namespace."""
        found = recorded(self._cluster, name)
        if found is None:
            raise UsageError(
                f"--fleet {name}: no such fleet stands in namespace {self._cluster.namespace}, expected one that "
                "`psfleet fleet up --on kubernetes` started"
            )
        return found[0]

    def _log_of_index(self, member: Member) -> Iterator[str]:
        """The logs of all pods of an index, older ones first; pods that failed are kept until their Job is deleted."""
        for pod in pods_of(self._cluster.pods(member.fleet)):
            if (pod.component, first_index(pod.component, member.activity) + pod.index) == (member.role, member.index):
                yield from self._cluster.log(pod.name, pod.component)

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._context, self._namespace)

    @cached_property
    def _objects(self) -> FleetObjects:
        return FleetObjects(self._cluster)

    @cached_property
    def _reasons(self) -> WaitReasons:
        return WaitReasons(self._cluster)
