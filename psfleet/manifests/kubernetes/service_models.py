"""Where members of a service find their models: results of fleets, and copies of what this machine has."""

from __future__ import annotations

from psfleet.job.activity import Activity
from psfleet.job.job import Job
from psfleet.job.service_plan import ServicePlan
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import ACTIVITY, MODEL_CLAIM, labels
from psfleet.manifests.kubernetes.placement import beside_claim
from psfleet.manifests.kubernetes.pod_template import Object, reader
from psfleet.manifests.kubernetes.render import claim

MODELS = "models"
"""Component of the pod that writes copies of models to the claim of a service, and their folder there."""


def copy_folder(model: int) -> str:
    """The folder of the copy of a model on the claim of its service, by the index of the model."""
    return f"{MODELS}/{model}"


def model_claim(job: Job, activity: Activity, plan: ServicePlan) -> list[Object]:
    """The claim of a service for copies of models; none if all are results of fleets."""
    if not any(model.folder for model in plan.models):
        return []
    made = claim(job)
    made["metadata"]["labels"][ACTIVITY] = activity.kind
    return [made]


def mount_model(job: Job, plan: ServicePlan, member: int, pod: Object) -> None:
    """Adds the model of a member to its pod, unless it is in a store; the pods that mount a disk are on one node."""
    number, model = member % len(plan.models), plan.model_of(member)
    if not model.folder and not model.fleet:
        return
    name, part = (model.fleet, {}) if model.fleet else (job.name, {"subPath": copy_folder(number)})
    (own,) = pod["spec"]["containers"]
    own["volumeMounts"].append({"name": "model", "mountPath": container.MODEL, "readOnly": True, **part})
    source = {"claimName": name, "readOnly": True}
    pod["spec"]["volumes"].append({"name": "model", "persistentVolumeClaim": source})
    if _place_beside(job, name, pod):
        del pod["spec"]["topologySpreadConstraints"]


def writer(job: Job, name: str) -> Object:
    """A pod from which copies of models are written to the claim of a service."""
    pod = reader(job, name)
    (own,) = pod["spec"]["containers"]
    own |= {
        "name": MODELS,
        "image": job.container.worker_image,
        "volumeMounts": [{"name": MODELS, "mountPath": container.OUT}],
    }
    pod["spec"]["volumes"] = [{"name": MODELS, "persistentVolumeClaim": {"claimName": job.name}}]
    pod["metadata"]["labels"] = labels(job.name, MODELS)
    _place_beside(job, job.name, pod)
    return pod


def _place_beside(job: Job, name: str, pod: Object) -> bool:
    """Keeps the pods of a claim on one node if it is a disk; whether it is."""
    if job.container.access_mode != "ReadWriteOnce":
        return False
    pod["metadata"]["labels"][MODEL_CLAIM] = name
    pod["spec"]["affinity"] = beside_claim(name)
    return True
