"""Models of this machine for members of a service on Kubernetes: which files are copied, and how they arrive."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint
from support.service_samples import of_cluster, plan_of, with_plan

from psfleet.checkpoint import versions
from psfleet.checkpoint.tensors import read_tensors
from psfleet.control.relay_client import CommandEnd
from psfleet.errors import LostPeerError
from psfleet.job.service_access import MemberSource
from psfleet.job.service_plan import PlannedModel, ServicePlan
from psfleet.manifests import container
from psfleet.platforms.kubernetes import model_copies
from psfleet.platforms.kubernetes.model_copies import SCRIPT, copy_models, copy_newer, model_files
from psfleet.polling import wait_until


class LocalCommand:
    """See `Command`: the command as a process of this machine, whose input stays open."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def send(self, data: bytes) -> None:
        """See `Command`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise LostPeerError("Kubernetes does not answer") from error

    def receive(self, timeout_secs: float) -> bytes | None:
        """See `Command`."""
        self._process.wait(60)
        return None

    def end(self) -> CommandEnd:
        """See `Command`."""
        _, errors = self._process.communicate()
        return CommandEnd(self._process.returncode, errors.decode().strip().rpartition("\n")[2])


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the claim, into which a process of this machine unpacks."""
    folder = tmp_path / "claim"

    @contextmanager
    def helper(cluster: Any, reasons: Any, job: Any, content: Any, purpose: str) -> Iterator[str]:
        (mounted,) = content["spec"]["volumes"]
        assert mounted["persistentVolumeClaim"] == {"claimName": "digits-serve"}
        yield content["metadata"]["name"]

    @contextmanager
    def running(cluster: Any, pod: str, name: str, command: Sequence[str]) -> Iterator[LocalCommand]:
        *words, at, manifest = command[1:]
        assert at == container.OUT
        with subprocess.Popen(
            [sys.executable, *words, str(folder), manifest], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            yield LocalCommand(process)

    monkeypatch.setattr(model_copies, "helper_pod", helper)
    monkeypatch.setattr(model_copies, "running", running)
    return folder


def run_model(folder: Path, **source: Any) -> PlannedModel:
    return PlannedModel(source=MemberSource(run="/model", **source), program_folder="/home", folder=str(folder))


def copied(folder: Path, *models: PlannedModel) -> ServicePlan:
    made = with_plan(of_cluster(folder), models=models)
    copy_models(None, None, made.job, plan_of(made))  # type: ignore[arg-type]
    return plan_of(made)


def test_a_run_is_copied_as_its_newest_checkpoint(tmp_path: Path, claim: Path) -> None:
    (tmp_path / "run").mkdir()
    trained(tmp_path / "run")
    with_checkpoint(tmp_path / "run", 7, KERNEL, BIAS)
    fleet = PlannedModel(source=MemberSource(run="/model"), program_folder="/home", fleet="two")
    copied(tmp_path, fleet, run_model(tmp_path / "run"))
    assert [path.name for path in (claim / "models").iterdir()] == ["1"]
    found, own = versions.find(claim / "models" / "1"), versions.find(tmp_path / "run")
    assert found.step == own.step == 7
    assert [part.sha256 for part in found.parts] == [part.sha256 for part in own.parts]


def test_a_copy_takes_the_place_of_the_one_before_also_if_its_step_is_earlier(tmp_path: Path, claim: Path) -> None:
    """As after a run that was started with --fresh; the copy of another model stays."""
    for name, steps in (("run", (7, 9)), ("fresh", (5,))):
        (tmp_path / name).mkdir()
        trained(tmp_path / name)
        for step in steps:
            with_checkpoint(tmp_path / name, step, KERNEL, BIAS)
            copied(tmp_path, run_model(tmp_path / name), run_model(tmp_path / "run"))
            assert versions.find(claim / "models" / "0").step == step
            assert len([*(claim / "models" / "0" / "checkpoints").iterdir()]) == 1
    assert versions.find(claim / "models" / "1").step == 9
    assert not [*claim.rglob("*.part")]


def test_the_checkpoint_of_a_step_is_copied_and_found_as_such(tmp_path: Path, claim: Path) -> None:
    (tmp_path / "run").mkdir()
    trained(tmp_path / "run")
    for step in (7, 9):
        with_checkpoint(tmp_path / "run", step, KERNEL, BIAS)
    copied(tmp_path, run_model(tmp_path / "run" / "checkpoints", step=7))
    assert versions.find(claim / "models" / "0", 7).step == 7


def test_a_manifest_is_the_last_file_of_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    trained(tmp_path / "run")
    names = [*model_files(run_model(tmp_path / "run"))]
    assert [name.rpartition("/")[2] == "manifest.json" for name in names] == [False] * (len(names) - 1) + [True]


@pytest.mark.parametrize("step", [7, 9])
def test_a_copy_that_breaks_off_between_two_files_leaves_the_one_before(step: int, tmp_path: Path, claim: Path) -> None:
    """Also that of the same step, of an earlier run: a member that starts again finds no mixture of the two."""
    for name in ("run", "fresh"):
        (tmp_path / name).mkdir()
        trained(tmp_path / name)
    with_checkpoint(tmp_path / "run", 7, KERNEL, BIAS)
    copied(tmp_path, run_model(tmp_path / "run"))
    before = versions.find(claim / "models" / "0")
    with_checkpoint(tmp_path / "fresh", step, 2 * KERNEL, BIAS)
    files = model_files(run_model(tmp_path / "fresh"))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w|") as made:
        for name, path in [*files.items()][:-1]:
            made.add(path, f"models/0/{name}")
    words = [sys.executable, "-c", SCRIPT, str(claim), "manifest.json"]
    subprocess.run(words, input=archive.getvalue(), check=True, timeout=60)
    found = versions.find(claim / "models" / "0")
    assert (found.step, found.parts) == (before.step, before.parts)
    assert [tensor for name, tensor in read_tensors(found).items() if name.endswith("kernel")] == [
        pytest.approx(KERNEL)
    ]
    assert not [*claim.rglob("*.part")]


def test_two_commands_may_copy_a_file_at_the_same_time(tmp_path: Path) -> None:
    content = bytes(range(256)) * 8192
    (tmp_path / "weights").write_bytes(content)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w|") as made:
        made.add(tmp_path / "weights", "models/0/weights")
    whole = archive.getvalue()
    half = len(whole) // 2
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "claim"), "manifest.json"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as first:
        assert first.stdin is not None
        first.stdin.write(whole[:half])
        first.stdin.flush()
        wait_until(lambda: [*tmp_path.glob("claim/models/0/*.part")], 60, "a file to be begun")
        subprocess.run(words, input=whole, check=True, timeout=60)
        assert (tmp_path / "claim" / "models" / "0" / "weights").read_bytes() == content
        first.stdin.write(whole[half:])
        first.stdin.flush()
        assert first.wait(60) == 0
    assert [path.read_bytes() for path in (tmp_path / "claim" / "models" / "0").iterdir()] == [content]


def test_of_a_trial_its_weights_are_copied(tmp_path: Path, claim: Path) -> None:
    for number in (3, 4):
        (tmp_path / f"trial-{number}.safetensors").write_bytes(b"weights of %d" % number)
    source = MemberSource(weights="/model/trial-3.safetensors", program_folder="/program")
    copied(tmp_path, PlannedModel(source=source, program_folder="/home", folder=str(tmp_path)))
    assert [(path.name, path.read_bytes()) for path in (claim / "models" / "0").iterdir()] == [
        ("trial-3.safetensors", b"weights of 3")
    ]


def test_links_are_copied_as_the_files_that_they_name(tmp_path: Path, claim: Path) -> None:
    (tmp_path / "kept").write_bytes(b"weights")
    (tmp_path / "symbolic").symlink_to(tmp_path / "kept")
    (tmp_path / "hard").hardlink_to(tmp_path / "kept")
    models = [
        PlannedModel(source=MemberSource(weights=f"/model/{name}"), program_folder="/home", folder=str(tmp_path))
        for name in ("kept", "symbolic", "hard")
    ]
    copied(tmp_path, *models)
    found = [path.read_bytes() for path in claim.rglob("*") if path.is_file() and not path.is_symlink()]
    assert found == [b"weights"] * 3


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_claim_that_cannot_be_written_ends_the_copy_with_its_reason(tmp_path: Path, claim: Path, size: int) -> None:
    claim.write_text("no folder")
    source = MemberSource(weights="/model/weights", program_folder="/program")
    # More than a pipe holds: the command has ended before all is sent.
    (tmp_path / "weights").write_bytes(bytes(size))
    reason = r"pod digits-serve-models-\w+ cannot store the models: \[Errno 20\] Not a directory: '.*claim/models'$"
    with pytest.raises(LostPeerError, match=reason):
        copied(tmp_path, PlannedModel(source=source, program_folder="/home", folder=str(tmp_path)))


def test_a_service_that_was_found_stays_if_its_models_cannot_be_copied(
    tmp_path: Path, claim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_copies, "Cluster", lambda *where: None)
    claim.write_text("no folder")
    (tmp_path / "run").mkdir()
    trained(tmp_path / "run")
    made = with_plan(of_cluster(tmp_path), models=(run_model(tmp_path / "run"),))
    with pytest.raises(LostPeerError, match=r"Not a directory: .*; service digits-serve stays, with the copies that"):
        copy_newer(made, None, None)


def test_a_file_that_is_deleted_meanwhile_ends_the_copy(tmp_path: Path, claim: Path) -> None:
    source = MemberSource(weights="/model/weights", program_folder="/program")
    with pytest.raises(LostPeerError, match="weights: No such file or directory while it was copied"):
        copied(tmp_path, PlannedModel(source=source, program_folder="/home", folder=str(tmp_path)))


def test_results_of_fleets_need_no_copy(tmp_path: Path) -> None:
    copied(tmp_path, PlannedModel(source=MemberSource(run="/model"), program_folder="/home", fleet="two"))
