"""The user of a namespace who runs psfleet in tests: a ServiceAccount with the Role of `k8s/rbac.yaml`, and no more."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).parents[2] / "k8s" / "rbac.yaml"
USER = "psfleet-user"
TOKEN_TIME = "4h"
COMMAND_SECS = 60


def make_user(admin: Path, namespace: str, folder: Path) -> Path:
    """Makes the user of a namespace; returns its kubeconfig file.

    Args:
        admin: The kubeconfig file of a user who may do everything.
        folder: Takes the file.
    """

    def kubectl(*arguments: str) -> str:
        command = ["kubectl", f"--kubeconfig={admin}", f"--namespace={namespace}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECS, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    kubectl("apply", "-f", str(ROLE))
    kubectl("create", "serviceaccount", USER)
    kubectl("create", "rolebinding", USER, "--role=psfleet", f"--serviceaccount={namespace}:{USER}")
    token = kubectl("create", "token", USER, f"--duration={TOKEN_TIME}").strip()
    path = folder / "user-kubeconfig"
    path.write_text(json.dumps(_kubeconfig(yaml.safe_load(admin.read_text()), namespace, token)))
    return path


def _kubeconfig(admin: dict[str, Any], namespace: str, token: str) -> dict[str, Any]:
    """The file of a user who has a token, for the cluster of another file."""
    context = {"cluster": admin["clusters"][0]["name"], "user": USER, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": admin["clusters"],
        "users": [{"name": USER, "user": {"token": token}}],
        "contexts": [{"name": USER, "context": context}],
        "current-context": USER,
    }
