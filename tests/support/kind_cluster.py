"""A cluster of three nodes made by kind, with the fleet's images: `make kind-up` and `make kind-down`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".kind"
"""Its kubeconfig."""
NAME = "psfleet"
NETWORK = "kind"
"""The network of the nodes."""
NODE_IMAGE = os.environ.get("KIND_NODE_IMAGE") or "kindest/node:v1.34.0"
IMAGES = ("psfleet-ps:latest", "psfleet-worker:latest")
CONFIGURATION = {
    "kind": "Cluster",
    "apiVersion": "kind.x-k8s.io/v1alpha4",
    "nodes": [{"role": role} for role in ("control-plane", "worker", "worker")],
}
"""Nodes share no folder: a volume is a folder of the node on which it is mounted first."""
CREATE_SECS = 600
LOAD_SECS = 900
COMMAND_SECS = 120


def kubeconfig() -> Path:
    """The cluster's kubeconfig; no other program reads or changes it."""
    return HOME / "kubeconfig"


def is_up() -> bool:
    """Whether the cluster is there."""
    found = _run("kind", "get", "clusters", secs=COMMAND_SECS).splitlines()
    return NAME in found and kubeconfig().exists()


def up() -> None:
    """Makes the cluster if it is not there, and loads the images of this tree into it."""
    if not is_up():
        HOME.mkdir(parents=True, exist_ok=True)
        configuration = HOME / "cluster.json"
        configuration.write_text(json.dumps(CONFIGURATION))
        _run(
            "kind", "create", "cluster", "--name", NAME, "--image", NODE_IMAGE, "--config", str(configuration),
            "--kubeconfig", str(kubeconfig()), "--wait", "300s", secs=CREATE_SECS,
        )  # fmt: skip
    workers = ",".join(f"{NAME}-worker{suffix}" for suffix in ("", "2"))
    _run("kind", "load", "docker-image", *IMAGES, "--name", NAME, "--nodes", workers, secs=LOAD_SECS)


def down() -> None:
    """Removes the cluster and all that it left."""
    _run("kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(kubeconfig()), secs=CREATE_SECS)
    shutil.rmtree(HOME, ignore_errors=True)


def host_address() -> str:
    """This machine's address on the network of the nodes, at which the cluster and its pods reach it."""
    (network,) = json.loads(_run("docker", "network", "inspect", NETWORK, secs=COMMAND_SECS))
    gateways = [each["Gateway"] for each in network["IPAM"]["Config"] if "Gateway" in each]
    return next(address for address in gateways if ":" not in address)


def _run(*command: str, secs: float) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=secs)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    {"up": up, "down": down}[sys.argv[1]]()
