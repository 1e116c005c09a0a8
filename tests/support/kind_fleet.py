"""A fleet in a namespace of a kind cluster: `psfleet` and `kubectl` on it, and the state of its objects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from psfleet.manifests.kubernetes.names import COMPLETION_INDEX, COMPONENT, FIRST_INDEX
from psfleet.polling import wait_until
from support.kind_user import make_user

PROGRAM = Path(__file__).parent / "programs" / "slow_program.py"
COMMAND_SECS = 120.0
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
START_SECS = 300.0
"""From `up` to the first step; TensorFlow's import alone takes a minute of a crowded machine."""
RECOVERY_SECS = 240.0
"""From a fault to the next step: the Job waits 10 s, 20 s, … before it makes a pod again."""

OF_FLEET = f"{COMPONENT} in (ps,loader,chief,worker)"
"""Selects the pods that train."""

Object = dict[str, Any]


@dataclass
class Space:
    """A namespace, a kubeconfig whose context is in it, and a user who has no right but those that psfleet needs.

    Attributes:
        kubeconfig: Of the administrator, for kubectl.
        user: Kubeconfig of the user, for psfleet.
        folder: Has the kubeconfig, job files, and the output of started commands.
    """

    name: str
    kubeconfig: Path
    user: Path
    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Of kubectl."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}

    @property
    def user_environment(self) -> dict[str, str]:
        """Of psfleet; certificates are kept in the home folder."""
        return {**self.environment, "KUBECONFIG": str(self.user)}

    def kubectl(self, *arguments: str, secs: float = COMMAND_SECS, check: bool = True) -> str:
        """What `kubectl ARGUMENTS` prints."""
        return self._run("kubectl", *arguments, secs=secs, check=check).stdout

    def psfleet(self, *arguments: str, secs: float = COMMAND_SECS, code: int | None = 0) -> str:
        """What `psfleet ARGUMENTS --on kubernetes` prints on both outputs."""
        command = (sys.executable, "-m", "psfleet", *arguments, "--on", "kubernetes")
        done = self._run(*command, secs=secs, check=False)
        output = done.stdout + done.stderr
        assert code is None or done.returncode == code, f"psfleet {' '.join(arguments)}: {done.returncode}\n{output}"
        return output

    def rendered(self, job: str) -> str:
        """What `psfleet render kubernetes` prints for a job."""
        return self._run(
            sys.executable, "-m", "psfleet", "render", "kubernetes", job, secs=COMMAND_SECS, check=True
        ).stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`psfleet ARGUMENTS --on kubernetes` on its own; ended with the space."""
        with (self.folder / f"command-{len(self.processes)}.log").open("w") as output:
            process = subprocess.Popen(
                (sys.executable, "-m", "psfleet", *arguments, "--on", "kubernetes"), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, env=self.user_environment, cwd=self.folder, text=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def printed(self, process: subprocess.Popen[str]) -> str:
        """What a started command has printed."""
        return (self.folder / f"command-{self.processes.index(process)}.log").read_text()

    def apply(self, name: str, text: str) -> None:
        """Applies manifests, which are kept as a file of that name."""
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        self.kubectl("apply", "-f", str(path))

    def get(self, *what: str) -> Object:
        """An object, or a list of them."""
        found: Object = json.loads(self.kubectl("get", *what, "-o", "json"))
        return found

    def pods(self, component: str = "") -> list[Object]:
        """The pods of ps, chief and workers, or of one of them, in the order of their indices."""
        chosen = f"app.kubernetes.io/component={component}" if component else OF_FLEET
        found: list[Object] = self.get("pods", "-l", chosen)["items"]
        return sorted(found, key=lambda pod: (pod["metadata"]["name"], pod["metadata"]["creationTimestamp"]))

    def pod(self, component: str, index: int) -> Object:
        """The pod of a ps or worker that was not deleted and has not ended."""

        def look() -> list[Object]:
            return [pod for pod in self.pods(component) if index_of(pod) == index and is_alive(pod)]

        return wait_until(look, RECOVERY_SECS, f"a pod of {component} {index}", poll_secs=1)[0]

    def job(self, name: str) -> Object:
        """A Job."""
        return self.get("job", name)

    def condition(self, name: str) -> str:
        """What ended a Job: Complete, Failed, or nothing yet."""
        conditions = self.job(name)["status"].get("conditions", ())
        ends = [each["type"] for each in conditions if each["status"] == "True"]
        return next((each for each in ends if each in ("Complete", "Failed")), "")

    def entries(self, pod: str) -> list[Object]:
        """The JSON lines of a pod's log; no container but psfleet's writes any."""
        lines = self.kubectl("logs", pod, "--all-containers", check=False).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def step(self, name: str) -> int:
        """The last step that the chief of a fleet has logged; -1: none yet."""
        chief = self.pods("chief")
        entries = self.entries(chief[-1]["metadata"]["name"]) if chief else []
        return max([entry["step"] for entry in entries if entry.get("event") == "progress"], default=-1)

    def wait_for_step(self, name: str, step: int, timeout_secs: float = RECOVERY_SECS) -> int:
        """Waits until the chief has logged a step, and returns the one that it is at."""
        return wait_until(
            lambda: self.step(name), timeout_secs, f"step {step} of {name}", done=lambda at: at >= step, poll_secs=1
        )  # fmt: skip

    def job_file(self, name: str, options: Object | None = None, **sections: Any) -> str:
        """Writes a job and its program into a folder of their own; the job file's path."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "program.py").write_text(PROGRAM.read_text())
        content = {
            "name": name,
            "program": "program:build",
            "options": options or {},
            "fleet": {"ps": 1, "workers": 2},
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "train": {"steps": 200, "batch_size": 1},
            **sections,
        }
        limits = {"ps": {"memory": "1Gi"}, "worker": {"memory": "1Gi"}}
        content["container"] = {**limits, **sections.get("container", {})}
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    def _run(self, *command: str, secs: float, check: bool) -> subprocess.CompletedProcess[str]:
        environment = self.environment if command[0] == "kubectl" else self.user_environment
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=secs, env=environment,
            cwd=self.folder,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
        return done


class Watcher:
    """Remembers the last state of every pod of ps, chief and workers, also of those that are removed."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._file = space.folder / "pods.json"

    def __enter__(self) -> Self:
        chosen = ("-l", OF_FLEET)
        command = ["kubectl", "get", "pods", "--watch", *chosen, "-o", "json"]
        with self._file.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, env=self._space.environment)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def exit_codes(self) -> dict[str, int | None]:
        """By pod."""
        text, decoder, at = self._file.read_text(), json.JSONDecoder(), 0
        last: dict[str, Object] = {}
        while text[at:].strip():
            pod, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
            last[pod["metadata"]["name"]] = pod
        return exit_codes(list(last.values()))


@contextmanager
def made_space(kubeconfig: Path, folder: Path) -> Iterator[Space]:
    """Makes a namespace with the "restricted" pod security standard; it is deleted with the block.

    Args:
        kubeconfig: Of the cluster; copied.
        folder: Takes the copy, and the output of commands.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    own = folder / "kubeconfig"
    shutil.copy(kubeconfig, own)
    space = Space(name, own, folder / "user-kubeconfig", folder)
    space.kubectl("create", "namespace", name)
    try:
        make_user(own, name, folder)
        space.kubectl("label", "namespace", name, RESTRICTED)
        space.kubectl("config", "set-context", "--current", f"--namespace={name}")
        yield space
    finally:
        for process in space.processes:
            process.kill()
            process.wait()
        # A namespace removes its pods first, which wait for their Job, which waits to replace them: Jobs go before.
        space.kubectl("delete", "jobs", "--all", "--wait=false")
        space.kubectl("delete", "namespace", name, "--wait=false")


def index_of(pod: Object) -> int:
    """The index of a ps or worker, from that of its pod in its Job."""
    labels = pod["metadata"]["labels"]
    return FIRST_INDEX[labels[COMPONENT]] + int(labels[COMPLETION_INDEX])


def is_alive(pod: Object) -> bool:
    """Whether a pod was not deleted and has not ended."""
    return "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] in ("Pending", "Running")


def exit_codes(pods: list[Object]) -> dict[str, int | None]:
    """By pod, the exit code of its process; None: it has not ended."""
    found: dict[str, int | None] = {}
    for pod in pods:
        states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
        found[pod["metadata"]["name"]] = states[0].get("terminated", {}).get("exitCode") if states else None
    return found
