"""Renders a fleet with an activity as Kubernetes objects: a Job of the driver, and one of its workers; no ps."""

from __future__ import annotations

from pathlib import Path

from psfleet.addresses import DATA_PORT, Address
from psfleet.errors import PERMANENT_CODES, UsageError
from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import (
    ACTIVITY,
    ACTIVITY_KEY,
    CHIEF,
    JOB_KEY,
    WORKER,
    component_name,
    own_policy,
    require_service_name,
    selector,
)
from psfleet.manifests.kubernetes.placement import near_results
from psfleet.manifests.kubernetes.pod_settings import service_account
from psfleet.manifests.kubernetes.pod_template import TMP, Object, template
from psfleet.manifests.kubernetes.policy_rules import fleet_policy, peers, pods_of, tcp, to_resolver
from psfleet.manifests.kubernetes.program_configmap import Files
from psfleet.manifests.kubernetes.render import claim, codes, end_on, fleet_object, headless_service, job_object
from psfleet.manifests.yaml_text import job_text
from psfleet.service import settings
from psfleet.service.probes import PROBE_LIMIT_SECS, PROBE_SECS

MODEL = "model"
"""Volume of the driver's pod: the claim of the fleet whose results have the model."""
LIFE = f"{TMP}/psfleet-life"
"""The file that the parent of a worker's process renews (see `worker_service.watched_process`)."""
OF_TRAINING = (settings.PS, settings.METRICS_PORT, settings.FIRST_INDEX)
"""Variables of a run's pods that these do not have, or with another value."""


def render(job: Job, activity: Activity, job_file: Path) -> list[Object]:
    """All objects of a fleet.

    Args:
        job: Its name is that of the fleet; its first worker is the driver.
        job_file: Its folder is the program's.

    Raises:
        BadJobError: No Service can have the name.
        UsageError: The program does not fit into a ConfigMap, or the model is in a folder.
    """
    if activity.model_folder:
        raise UsageError(
            f"the model is in {activity.model_folder} on this machine, which pods cannot mount: expected the job or "
            "study file of a fleet whose results are on the cluster"
        )
    require_service_name(job.name)
    files = Files.of(job_file.parent.resolve()) if job.container.program == "mount" else None
    objects: list[Object] = []
    if service_account(job.kubernetes, WORKER) is None:
        objects.append(fleet_object("v1", "ServiceAccount", job, WORKER, automountServiceAccountToken=False))
    data = {JOB_KEY: job_text(job), ACTIVITY_KEY: activity.model_dump_json()}
    objects += [
        fleet_object("v1", "ConfigMap", job, data=data),
        _labelled(claim(job), activity),
        headless_service(job, {"control": container.CONTROL_PORT}),
        *_policies(job),
    ]
    program = files.items() if files is not None else None
    # What the end of a worker means is decided by the driver: none of them ends the Job.
    refused = {"action": "FailIndex", "onExitCodes": codes(WORKER, PERMANENT_CODES)}
    workers = job_object(job, WORKER, job.fleet.processes - 1, [refused], _pod(job, activity, WORKER, program))
    ends = end_on(CHIEF, PERMANENT_CODES)
    driver = job_object(job, CHIEF, 1, ends, _pod(job, activity, CHIEF, program), maxFailedIndexes=0)
    objects += [_labelled(each, activity) for each in (workers, driver)]
    return [*objects, files.config_map(job.name)] if files is not None else objects


def _labelled(content: Object, activity: Activity) -> Object:
    content["metadata"]["labels"][ACTIVITY] = activity.kind
    return content


def _pod(job: Job, activity: Activity, component: str, program: list[Object] | None) -> Object:
    """The pod template of the driver or of a worker, as that of a run but for what its container does."""
    pod = template(job, component, program)
    (own,) = pod["spec"]["containers"]
    is_driver = component == CHIEF
    module = activity.driver if is_driver else activity.worker
    own["command"] = ["/usr/bin/tini", "--", "python", "-m", module]
    own["env"] = [each for each in own["env"] if each["name"] not in OF_TRAINING]
    # The completion index of a worker is its index.
    of_worker = {settings.FIRST_INDEX: "0", settings.DRIVER: _driver(job), settings.LIFE: LIFE}
    of_worker |= activity.worker_variables
    variables = activity.driver_variables if is_driver else of_worker
    # Kubernetes replaces `$(NAME)`, and `$$` by `$`.
    own["env"] += [{"name": name, "value": value.replace("$", "$$")} for name, value in variables.items()]
    own["ports"] = [{"name": "control", "containerPort": container.CONTROL_PORT}] if is_driver else []
    if not is_driver:
        # A worker serves nothing that could be asked for its health.
        del own["startupProbe"]
        own["livenessProbe"] = _life_probe(job.deadlines.start_secs)
    elif activity.model_fleet:
        _mount_model(job, activity.model_fleet, pod["spec"])
    return _labelled(pod, activity)


def _life_probe(start_secs: float) -> Object:
    """Has the kubelet end a pod whose processes are all frozen, so that its Job replaces it."""
    return {
        "exec": {"command": [*container.LIFE_CHECK, LIFE, "--start-secs", f"{start_secs:g}"]},
        "periodSeconds": PROBE_SECS,
        "timeoutSeconds": PROBE_LIMIT_SECS,
        "failureThreshold": 2,
    }


def _mount_model(job: Job, fleet: str, spec: Object) -> None:
    """Adds the results of another fleet to the driver's pod."""
    (own,) = spec["containers"]
    own["volumeMounts"].append({"name": MODEL, "mountPath": container.MODEL, "readOnly": True})
    spec["volumes"].append({"name": MODEL, "persistentVolumeClaim": {"claimName": fleet, "readOnly": True}})
    if job.container.access_mode == "ReadWriteOnce":
        spec["affinity"]["podAffinity"] |= near_results(fleet)


def _driver(job: Job) -> str:
    """The address of the driver."""
    return Address(f"{component_name(job.name, CHIEF)}-0.{job.name}", DATA_PORT).data


def _policies(job: Job) -> list[Object]:
    """Policies that allow nothing but calls of the driver's control port by workers, DNS, and what the job adds."""
    own = selector(job.name)
    drivers, workers = pods_of(own, [CHIEF]), pods_of(own, [WORKER])
    calls = [{"from": peers(own, [WORKER]), "ports": tcp([container.CONTROL_PORT])}]
    called = [{"to": peers(own, [CHIEF]), "ports": tcp([container.CONTROL_PORT])}]
    return [
        fleet_policy(job, job.name, {"matchLabels": own}, [], [to_resolver(), *job.kubernetes.egress]),
        fleet_policy(job, own_policy(job.name, CHIEF), drivers, calls, []),
        fleet_policy(job, own_policy(job.name, WORKER), workers, [], called),
    ]
