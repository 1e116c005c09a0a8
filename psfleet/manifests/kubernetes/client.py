"""Renders a client of a standing fleet as a pod."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from psfleet.job.fleet_access import FleetAccess
from psfleet.job.fleet_file import FleetFile
from psfleet.manifests import container
from psfleet.manifests.kubernetes.names import CLIENT, PROGRAM_VOLUME, RENEWED, STANDING, WORKER, client_name, labels
from psfleet.manifests.kubernetes.pod_settings import apply_settings
from psfleet.manifests.kubernetes.pod_template import Object
from psfleet.manifests.kubernetes.standing import data_port, pod_spec
from psfleet.manifests.kubernetes.standing_environment import of_client

STOP_SECS = 10
"""Grace period of a client that is ended."""
RENEWED_FILE = "/etc/psfleet/client/renewed"
"""The pod's annotation RENEWED; the kubelet updates it."""


def client_pod(
    file: FleetFile, access: FleetAccess, index: int, command: Sequence[str], files: str, items: list[Object]
) -> Object:
    """A pod that runs a script as a client of a standing fleet, for as long as its annotation RENEWED is renewed.

    Args:
        index: Which no other client of the fleet has at the same time.
        command: Path of the script below its folder, and its arguments.
        files: Name of the ConfigMap with the files of that folder.
        items: The `items` of the volume with its files.
    """
    path = PurePosixPath(RENEWED_FILE)
    # Kubernetes would replace $(NAME) in a word.
    words = [word.replace("$(", "$$(") for word in (f"{container.PROGRAM}/{command[0]}", *command[1:])]
    own = {
        # The watching process finds no modules in the script's folder.
        "command": ["/usr/bin/tini", "--", "python", "-P", "-m", "psfleet.processes.renewed", RENEWED_FILE, *words],
        "env": of_client(access, index, file.tls),
        "ports": [{"name": name, "containerPort": port} for name, port in data_port(file).items()],
    }
    program = {"name": PROGRAM_VOLUME, "configMap": {"name": files, "items": items}}
    annotation = {"path": path.name, "fieldRef": {"fieldPath": f"metadata.annotations['{RENEWED}']"}}
    renewal = {"name": "renewal", "downwardAPI": {"items": [annotation]}}
    mounts = [
        {"name": PROGRAM_VOLUME, "mountPath": container.PROGRAM, "readOnly": True},
        {"name": "renewal", "mountPath": str(path.parent), "readOnly": True},
    ]
    spec = pod_spec(file, CLIENT, own, mounts, [program, renewal])
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": STOP_SECS}
    meta = {"name": client_name(file.name, index), "labels": labels(file.name, CLIENT, STANDING)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        **apply_settings(file.kubernetes, WORKER, {"metadata": meta, "spec": spec}),
    }
