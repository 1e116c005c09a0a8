"""A fleet that stands in a cluster: clients in pods, the loss of a ps, and who reaches its ports."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kind_fleet import COMMAND_SECS, RECOVERY_SECS, START_SECS, Space, exit_codes
from support.visitors import STRANGER, address, opens, pod_manifest

from psfleet.errors import LOST_PEERS, USAGE
from psfleet.manifests.kubernetes.names import CLIENT, COMPONENT, STANDING, selector
from psfleet.polling import wait_until
from psfleet.processes.renewed import LAPSE_SECS, RENEW_SECS
from psfleet.report.schema import Report

pytestmark = pytest.mark.timeout(START_SECS * 3)

EXAMPLES = Path(__file__).parents[2] / "examples" / "client"
FLEET = """
name: {name}
fleet: {{ps: 1, workers: 1}}
container: {{ps: {{memory: 1Gi}}, worker: {{memory: 1Gi}}}}
deadlines: {{start_secs: {start_secs}}}
kubernetes: {{{kubernetes}}}
tls: {tls}
"""
NOTICE_SECS = 15.0
"""Issue 13: until clients get an error after a ps was killed."""
INTERRUPTED = 130
PORTS = ("2222", "2223", "2226")
"""Of a ps; a client reaches the first two of them, those of a plain worker."""
SESSION = """
import tensorflow as tf
import psfleet
from psfleet.errors import LostPeerError

fleet = psfleet.connect()
with tf.Graph().as_default() as graph, tf.device(fleet.device("worker", 0)):
    doubled = 2 * tf.constant(21)
with fleet.session(graph) as session:
    print("a worker says", session.run(doubled))
"""
WAITING = f"""{SESSION}
queue = fleet.queue("nothing", [tf.int64], [[]])
print("waits")
try:
    queue.dequeue(timeout_secs=600)
except LostPeerError as error:
    print("lost:", error)
    raise SystemExit(75)
"""


def fleet_file(space: Space, name: str, start_secs: float = START_SECS, kubernetes: str = "", tls: bool = False) -> str:
    path = space.folder / f"{name}.yaml"
    text = FLEET.format(name=name, start_secs=start_secs, kubernetes=kubernetes, tls=str(tls).lower())
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def lab(shared_space: Space) -> Iterator[Space]:
    """A namespace with a fleet of one ps and one worker; nothing of it stays after `fleet down`."""
    up = shared_space.psfleet("fleet", "up", fleet_file(shared_space, "lab"), secs=START_SECS)
    assert "lab: up, 1 ps and 1 worker" in up
    yield shared_space
    shared_space.psfleet("fleet", "down", "lab", secs=START_SECS)
    assert left(shared_space) == ""


def left(space: Space) -> str:
    """The names of all objects of standing fleets, and of ConfigMaps of clients."""
    kinds = "pods,statefulsets,services,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets"
    return space.kubectl("get", kinds, "-l", f"app.kubernetes.io/part-of={STANDING}", "-o", "name")


def run(space: Space, script: str | Path, *arguments: str, code: int = 0, fleet: str = "lab") -> str:
    """What `psfleet run` prints of a script, without TensorFlow's own lines."""
    words = ("run", str(EXAMPLES / script), *arguments, "--fleet", fleet)
    lines = space.psfleet(*words, secs=START_SECS, code=code).splitlines()
    return "\n".join(line for line in lines if not re.match(r"WARNING: All log|[IWE]0000 ", line))


def script(space: Space, name: str, text: str) -> Path:
    """A script in a folder of its own."""
    folder = space.folder / name
    folder.mkdir()
    (folder / "client.py").write_text(text)
    return folder / "client.py"


def waiting_client(space: Space, name: str) -> Any:
    """A client that waits at a queue, after a session with a worker."""
    client = space.start("run", str(script(space, name, WAITING)), "--fleet", "lab")
    wait_until(
        lambda: space.printed(client), START_SECS, f"client {name} to wait",
        done=lambda printed: "waits\n" in printed, poll_secs=0.5,
    )  # fmt: skip
    return client


def test_clients_share_a_variable_and_a_queue_as_the_documentation_says(lab: Space) -> None:
    assert run(lab, "shared_variable.py", "2") == "total is 2"
    assert run(lab, "shared_variable.py", "3") == "total is 5"
    trainer = lab.start("run", str(EXAMPLES / "trainer.py"), "--fleet", "lab")
    assert run(lab, "loader.py") == "2000 points loaded"
    assert trainer.wait(START_SECS) == 0, lab.printed(trainer)
    assert re.search(r"^10[01] steps, w is [12]\.\d\d and b is [01]\.\d\d$", lab.printed(trainer), re.MULTILINE)


def test_the_exit_code_and_the_words_of_a_client_are_passed_on(lab: Space) -> None:
    text = "import sys\nprint(sys.argv[1:], flush=True)\nprint('to stderr', file=sys.stderr)\nsys.exit(3)\n"
    printed = run(lab, script(lab, "three", text), "a b", "$(HOME)", "--steps", code=3)
    # The container runtime reads both streams, each on its own.
    assert sorted(printed.splitlines()) == ["['a b', '$(HOME)', '--steps']", "to stderr"]


def test_status_shows_the_fleet_and_its_clients_and_interrupt_ends_one(lab: Space) -> None:
    client = waiting_client(lab, "interrupted")
    assert "a worker says 42" in lab.printed(client)
    shown = [line.split()[:5] for line in lab.psfleet("status", "lab").splitlines()[1:]]
    assert shown == [
        ["lab", "ps", "0", "running", "healthy"],
        ["lab", "worker", "0", "running", "healthy"],
        ["lab", "client", "-", "running", "healthy"],
    ]
    client.send_signal(signal.SIGINT)
    assert client.wait(COMMAND_SECS) == 130, lab.printed(client)
    wait_until(
        lambda: left(lab), COMMAND_SECS, "the pod and the ConfigMap of the client to go",
        done=lambda names: "lab-client-" not in names, poll_secs=1,
    )  # fmt: skip


def test_a_ps_that_is_deleted_comes_back_and_clients_end(lab: Space) -> None:
    client = waiting_client(lab, "ended")
    before = {name: lab.get("pod", name)["metadata"]["uid"] for name in ("lab-ps-0", "lab-worker-0")}
    lab.kubectl("delete", "pod", "lab-ps-0", "--wait=false")
    assert client.wait(NOTICE_SECS + 15) == LOST_PEERS, lab.printed(client)
    assert "lost: ps 0 of fleet lab has gone away" in lab.printed(client)

    def is_back() -> bool:
        # The pod may be missing for a moment.
        names = lab.kubectl("get", "pods", "-l", "app.kubernetes.io/component=ps", "-o", "json").strip()
        return before["lab-ps-0"] not in names and '"ready": true' in names

    wait_until(is_back, RECOVERY_SECS, "another pod of the ps to serve", poll_secs=1)
    assert run(lab, "shared_variable.py", "4") == "total is 4", "it holds nothing of before"
    assert lab.get("pod", "lab-worker-0")["metadata"]["uid"] == before["lab-worker-0"]


def test_only_a_pod_with_the_labels_of_a_client_reaches_the_ports(lab: Space) -> None:
    lab.apply("stranger", pod_manifest("stranger", "sleep", "3600"))
    address(lab, "stranger")
    hosts = [lab.get("pod", name)["status"]["podIP"] for name in ("lab-ps-0", "lab-worker-0")]
    own = selector("lab", CLIENT, STANDING)

    def reached() -> list[list[str]]:
        return [opens(lab, host, *PORTS) for host in hosts]

    lab.kubectl("label", "pod", "stranger", *(f"{key}={value}" for key, value in own.items()))
    everything = [["2222", "2223"]] * 2
    wait_until(reached, COMMAND_SECS, "the labelled pod to reach ports", done=everything.__eq__, poll_secs=1)
    for key in own:
        lab.kubectl("label", "pod", "stranger", f"{key}-")
        wait_until(reached, COMMAND_SECS, f"a pod without {key} to be kept out", done=[[], []].__eq__, poll_secs=1)
        lab.kubectl("label", "pod", "stranger", f"{key}={own[key]}")
        wait_until(reached, COMMAND_SECS, "the labelled pod to reach ports", done=everything.__eq__, poll_secs=1)
    lab.kubectl("delete", "pod", "stranger", "--wait=false")


def test_a_client_ends_after_its_command_was_killed_and_one_that_is_renewed_does_not(lab: Space) -> None:
    orphan, other = waiting_client(lab, "orphan"), waiting_client(lab, "other")
    orphan.kill()
    killed = time.monotonic()
    ended = wait_until(
        lambda: ended_clients(lab), LAPSE_SECS + 60, "the client to end", done=bool, poll_secs=1,
    )  # fmt: skip
    assert list(ended.values()) == [128 + signal.SIGTERM]
    assert time.monotonic() - killed > LAPSE_SECS - 2 * RENEW_SECS
    assert other.poll() is None, lab.printed(other)
    (name,) = ended
    lapse = f"has not renewed /etc/psfleet/client/renewed for {LAPSE_SECS:g} s: the script is ended"
    assert lapse in lab.kubectl("logs", name)
    lab.kubectl("delete", "pod", name)
    (name,) = lab.kubectl("get", "pods", "-l", f"{COMPONENT}={CLIENT}", "-o", "name").split()
    lab.kubectl("delete", name)
    assert other.wait(COMMAND_SECS) == LOST_PEERS, lab.printed(other)


def ended_clients(space: Space) -> dict[str, int | None]:
    """The exit codes of the clients that have ended, by pod."""
    pods = space.get("pods", "-l", f"{COMPONENT}={CLIENT}")["items"]
    return {name: code for name, code in exit_codes(pods).items() if code is not None}


def test_two_commands_start_one_fleet_at_the_same_time(space: Space) -> None:
    file = fleet_file(space, "twin")
    commands = [space.start("fleet", "up", file) for _ in range(2)]
    for each in commands:
        assert each.wait(START_SECS) == 0, space.printed(each)
        assert "twin: up, 1 ps and 1 worker" in space.printed(each)
    access = json.loads(space.get("configmap", "twin")["data"]["access.json"])
    for name in ("twin-ps-0", "twin-worker-0"):
        pod = space.get("pod", name)
        env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        assert json.loads(env["PSFLEET_FLEET"])["id"] == access["id"]
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert [each["metadata"]["generation"] for each in space.get("statefulsets")["items"]] == [1, 1]
    space.psfleet("fleet", "down", "twin", secs=START_SECS)
    assert left(space) == ""


def test_a_run_trains_on_the_fleet_can_be_left_and_recovers_from_the_loss_of_a_ps(lab: Space) -> None:
    train = {"steps": 200, "batch_size": 1}
    job = lab.job_file("guest", {"step_secs": 0.2}, train=train, checkpoint={"every_steps": 20})
    up = ("up", job, "--fleet", "lab")
    first = lab.start(*up)
    lab.wait_for_step("guest", 1, START_SECS)
    first.send_signal(signal.SIGINT)
    assert first.wait(COMMAND_SECS) == INTERRUPTED, lab.printed(first)
    before = {pod["metadata"]["uid"] for pod in lab.pods()}
    second = lab.start(*up)
    shown = [line.split()[:2] for line in lab.psfleet("status", "guest").splitlines()[1:]]
    assert shown == [["guest", "chief"], ["guest", "worker"]]
    refusal = lab.psfleet("fleet", "down", "lab", code=USAGE)
    assert "fleet lab has runs: guest, expected none: `psfleet down guest --on kubernetes` ends the first" in refusal
    lab.wait_for_step("guest", 25)
    assert before <= {pod["metadata"]["uid"] for pod in lab.pods()}, "nothing was started again"
    lab.kubectl("delete", "pod", "lab-ps-0", "--wait=false")
    assert second.wait(RECOVERY_SECS + START_SECS) == 0, lab.printed(second)
    report = Report.read(lab.folder / "runs" / "guest")
    assert (report.status, report.final_step) == ("done", 200)
    lost = [event for event in report.events if event.role == "ps"]
    assert [event.index for event in lost] == [0]
    assert 0 < lost[0].steps_lost <= 40
    names = lab.kubectl("get", "jobs,networkpolicies,services", "-o", "name").split()
    assert not [name for name in names if "guest" in name]
    lab.psfleet("down", "guest", "--results", secs=START_SECS)


def test_a_fresh_run_begins_at_step_0_although_the_ps_have_the_shards_of_a_lost_one(lab: Space) -> None:
    job = lab.job_file("lost", {"step_secs": 0.2}, train={"steps": 60, "batch_size": 1})
    up = ("up", job, "--fleet", "lab")
    first, own = lab.start(*up), ("-l", "app.kubernetes.io/instance=lost")
    lab.wait_for_step("lost", 20, START_SECS)
    assert "/out/checkpoints/" in lab.psfleet("save", job)
    first.kill()
    lab.kubectl("delete", "jobs", *own, "--cascade=orphan")
    lab.kubectl("delete", "pods", *own, "--grace-period=0", "--force")
    lab.psfleet(*up, "--fresh", secs=START_SECS)
    report = Report.read(lab.folder / "runs" / "lost")
    assert (report.status, report.final_step, report.attempts[-1].first_step) == ("done", 60, 0)
    assert report.checkpoint is not None
    assert report.checkpoint.path.endswith("/00000060-g1"), report.checkpoint.path
    lab.psfleet("down", "lost", "--results", secs=START_SECS)


def test_up_says_why_a_pod_does_not_start_and_leaves_nothing_behind(space: Space) -> None:
    file = fleet_file(space, "moon", 20, "node_selector: {moon: 'yes'}")
    said = space.psfleet("fleet", "up", file, secs=START_SECS, code=LOST_PEERS)
    assert re.search(r"pod moon-(ps|worker)-0 waits: Unschedulable: ", said), said
    assert "gave up after 20 s waiting for fleet moon to serve; last seen: pod moon-ps-0: Unschedulable: " in said
    assert left(space) == ""


def test_with_tls_clients_work_and_tensorflow_listens_on_loopback_only(space: Space) -> None:
    space.psfleet("fleet", "up", fleet_file(space, "sealed", tls=True), secs=START_SECS)
    assert run(space, "shared_variable.py", "2", fleet="sealed") == "total is 2"
    assert run(space, script(space, "session", SESSION), fleet="sealed") == "a worker says 42"
    job = space.job_file("guest", train={"steps": 50, "batch_size": 1})
    assert "status:          done" in space.psfleet("up", job, "--fleet", "sealed", secs=START_SECS)
    space.psfleet("down", "guest", "--results", secs=START_SECS)

    def opened(host: str) -> str:
        """Which of TensorFlow's ports a process in the pod of the ps opens: that without TLS, and that of ps 0."""
        words = ("exec", "sealed-ps-0", "--", "python", "-c", STRANGER.read_text(), host, "2222", "20000")
        return space.kubectl(*words).strip()

    assert opened("127.0.0.1") == "20000"
    assert opened(space.get("pod", "sealed-ps-0")["status"]["podIP"]) == ""
    space.psfleet("fleet", "down", "sealed", secs=START_SECS)
    assert left(space) == ""
