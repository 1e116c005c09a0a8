"""Pods of no fleet, and what they reach."""

from __future__ import annotations

from pathlib import Path

from psfleet.polling import wait_until
from support.kind_fleet import START_SECS, Space

STRANGER = Path(__file__).with_name("kind_stranger.py")


def pod_manifest(name: str, *command: str) -> str:
    """A restricted pod of no fleet."""
    words = ", ".join(f'"{word}"' for word in command)
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsNonRoot: true, runAsUser: 10001, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: main
      image: psfleet-ps:latest
      imagePullPolicy: IfNotPresent
      command: [{words}]
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""


def address(space: Space, pod: str) -> str:
    """The address of a pod once it runs."""

    def look() -> str:
        status = space.get("pod", pod)["status"]
        return str(status.get("podIP", "")) if status["phase"] == "Running" else ""

    return wait_until(look, START_SECS, f"the address of pod {pod}", poll_secs=1)


def opens(space: Space, host: str, *ports: str) -> list[str]:
    """Those of the ports that the pod `stranger` can open."""
    return space.kubectl("exec", "stranger", "--", "python", "-c", STRANGER.read_text(), host, *ports).split()
