"""The models of a service in containers, and what they cannot have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.exported_run import BIAS, KERNEL, trained, with_checkpoint
from support.scripted_platform import ScriptedPlatform, member
from support.study_samples import JOB, advance, loaded

from psfleet.errors import NoCheckpointError, UsageError
from psfleet.job.job import job_from_json
from psfleet.serving.platform_sources import PlatformSources, find_models


def found(*texts: object, top: int | None = None, has_results: bool = True, **given: Any) -> PlatformSources:
    place = ScriptedPlatform([])
    place.keeps_results = has_results
    options = {"step": None, "best": False, "name": None, **given}
    return find_models(place, [str(text) for text in texts], top, **options)


def run(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return trained(folder / name)


def job_file(folder: Path, **sections: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, **sections}))
    return path


def study_file(folder: Path) -> Path:
    job_file(folder)
    path = folder / "study.yaml"
    content = loaded(folder).study.model_dump(mode="json", by_alias=True)
    path.write_text(yaml.safe_dump({**content, "job": "job.yaml"}))
    return path


def test_run_folders_are_mounted_with_the_folder_of_their_program(tmp_path: Path) -> None:
    one, two = run(tmp_path, "one"), run(tmp_path, "two")
    sources = found(one, two, best=False, step=0)
    assert (sources.name, sources.job["program"]) == ("net", "versioned_program:keras_program")
    assert [(each.folder, each.fleet, each.program_folder) for each in sources.models] == [
        (str(one), "", str(one)),
        (str(two), "", str(two)),
    ]
    source = sources.models[0].source
    assert (source.run, source.step, source.program_folder) == ("/model", 0, "/program")


def test_a_job_file_stands_for_the_results_of_its_fleet(tmp_path: Path) -> None:
    (model,) = found(job_file(tmp_path), best=True).models
    assert (model.folder, model.fleet, model.program_folder) == ("", "tiny", str(tmp_path))
    assert (model.source.run, model.source.best) == ("/model", True)
    with pytest.raises(UsageError, match="no volume with results of fleet tiny is in the script, expected psfleet up "):
        found(job_file(tmp_path), has_results=False)


def test_the_best_trials_of_a_study_have_their_weights_and_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = study_file(tmp_path)
    results = tmp_path / "studies" / "small"
    results.mkdir(parents=True)
    study = loaded(tmp_path)
    assert [advance(study, results) for _ in range(2)] == [0, 1]
    sources = found(path, top=2)
    assert (sources.name, sources.job["program"]) == ("small", "program:build")
    assert [each.source.weights for each in sources.models] == ["/model/00000.safetensors", "/model/00001.safetensors"]
    assert {(each.folder, each.program_folder) for each in sources.models} == {
        (str(results / "weights"), str(tmp_path))
    }
    job = job_from_json(sources.models[0].source.job, "trial")
    assert job.program == "program:build", "the module of the study's program, which containers have"
    assert found(path).models == sources.models[:1]
    with pytest.raises(UsageError, match=r"--top 3: .* has weights of the best 2 trials"):
        found(path, top=3)
    with pytest.raises(UsageError, match="expected neither --step nor --best"):
        found(path, best=True)
    for top in (None, 2):
        with pytest.raises(UsageError, match="small is the folder of a study's results, expected the study file"):
            found(results, top=top)


def test_a_study_without_results_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="has no results of that study, expected psfleet sweep"):
        found(study_file(tmp_path), has_results=False)


def test_the_best_trials_of_a_study_that_was_never_copied_are_those_on_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, volume = study_file(tmp_path), tmp_path / "volume"
    for _ in range(2):
        advance(loaded(tmp_path), volume)
    place = ScriptedPlatform([], results=volume)
    sources = find_models(place, [str(path)], 2, None, False, None)
    assert (sources.name, sources.job["program"]) == ("small", "program:build")
    assert [each.source.weights for each in sources.models] == [
        "/model/weights/00000.safetensors",
        "/model/weights/00001.safetensors",
    ]
    assert {(each.folder, each.fleet, each.program_folder) for each in sources.models} == {("", "small", str(tmp_path))}
    assert not (tmp_path / "studies").exists()
    with pytest.raises(UsageError, match="--top 3: study small on this platform has weights of the best 2 trials"):
        find_models(place, [str(path)], 3, None, False, None)
    path.write_text(path.read_text().replace("keep: 5", "keep: 1"))
    with pytest.raises(
        UsageError, match="--top 2: study small on this platform has weights of the best 1 trial, expected"
    ):
        find_models(place, [str(path)], 2, None, False, None)


def test_results_on_the_platform_that_are_not_those_of_an_ended_study_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, volume = study_file(tmp_path), tmp_path / "volume"
    advance(loaded(tmp_path), volume)
    runs = ScriptedPlatform([member("chief", activity="study")], results=volume)
    with pytest.raises(UsageError, match="fleet small is in the script and runs, expected the end of the study"):
        find_models(runs, [str(path)], 1, None, False, None)
    (volume / "study.db").unlink()
    with pytest.raises(UsageError, match="the results of fleet small on this platform are not those of a study"):
        find_models(ScriptedPlatform([], results=volume), [str(path)], 1, None, False, None)


def test_what_containers_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="s3://bucket/run is in an object store"):
        found("s3://bucket/run")
    with pytest.raises(UsageError, match="in an object store"):
        found(job_file(tmp_path, checkpoint={"store": "s3://bucket/run"}))
    one = run(tmp_path, "one")
    with pytest.raises(UsageError, match="is given twice"):
        found(one, one)
    with pytest.raises(UsageError, match=r"--top 2: .* is no study"):
        found(one, top=2)
    with pytest.raises(NoCheckpointError):
        found(tmp_path / "none")


def test_runs_of_different_containers_or_names_are_refused(tmp_path: Path) -> None:
    one = run(tmp_path, "one")
    with pytest.raises(UsageError, match="differ in `container` or `tls`"):
        found(one, job_file(tmp_path))
    with pytest.raises(UsageError, match="the runs are of jobs net, tiny, expected one name, or --name"):
        found(one, job_file(tmp_path, container={}))
    assert found(one, job_file(tmp_path, container={}), name="both").name == "both"


def test_a_run_whose_program_is_elsewhere_is_refused(tmp_path: Path) -> None:
    one = run(tmp_path, "one")
    with_checkpoint(one, 3, KERNEL, BIAS)
    moved = tmp_path / "moved"
    one.rename(moved)
    with pytest.raises(UsageError, match=r"the folder of its program, .*one, is not on this machine"):
        found(moved)


def test_members_that_can_read_a_store_need_no_results_on_the_platform(tmp_path: Path) -> None:
    path = job_file(tmp_path, checkpoint={"store": "s3://bucket/run"})
    (model,) = found(path, has_results=False, reads_stores=True, best=True).models
    assert (model.source.run, model.source.best) == ("s3://bucket/run", True)
    assert (model.folder, model.fleet, model.program_folder) == ("", "", str(tmp_path))
