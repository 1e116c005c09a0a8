"""`psfleet report`: of a run folder, of a job's newest run, and of a store."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.report_samples import DONE, FAILED, TWO_ATTEMPTS
from support.s3_server import BROKEN, DENIED, S3Server
from support.tiny_job import job

from psfleet.checkpoint.object_store import StoreFolder
from psfleet.job.job import Job
from psfleet.report.attempts import with_attempt
from psfleet.report.schema import Report
from psfleet.run_folder import claimed

EARLIER, LATER = with_attempt(DONE, 1.7e9, 0, []), with_attempt(FAILED, 1.8e9, 0, [])


def leave(folder: str, report: Report | None, of: Job | None = None, platform: str = "local") -> None:
    """A run of the job `tiny`."""
    with claimed(Path(folder), of or job(), fresh=False, platform=platform):
        pass
    if report is not None:
        report.write(Path(folder))


def store(folder: StoreFolder, report: Report) -> None:
    """The copy of a report in a store, as a chief leaves it."""
    (folder / Report.FILE_NAME).write_bytes(report.model_dump_json().encode())


@pytest.fixture(autouse=True)
def _quiet_server(caplog: pytest.LogCaptureFixture) -> None:
    """The S3 server of this process logs each request to the stderr of the commands."""
    caplog.set_level(logging.WARNING, logger="werkzeug")


def test_a_report_is_a_summary_and_a_table_of_the_attempts(psfleet: Psfleet) -> None:
    leave("run", TWO_ATTEMPTS)
    said = psfleet("report", "run")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert said.code == 0, "the outcome of the run is not that of the command"
    for expected in (
        "a (async) in run",
        "status: failed (exit code 75)",
        "error: lost ps 1",
        "steps: 1900 of 1900",
        "test accuracy: 0.9876",
        "report: run/report.html",
        "attempt started status from to of seconds changes error",
    ):
        assert expected in lines
    assert [line.split()[3:] for line in lines[-2:]] == [
        ["done", "0", "1900", "1900", "42", "-", "-"],
        ["failed", "(75)", "1900", "1900", "10", "2", "fleet.ps", "1", "->", "2", "lost", "ps", "1"],
    ]


def test_as_json_it_is_the_content_of_report_json(psfleet: Psfleet) -> None:
    leave("run", TWO_ATTEMPTS)
    said = psfleet("report", "run", "--json")
    assert json.loads(said.out) == json.loads(Path("run/report.json").read_text())


@pytest.mark.parametrize("named", ["tiny", "job.yaml"])
def test_a_job_stands_for_its_newest_run_that_has_a_report(psfleet: Psfleet, named: str) -> None:
    leave("runs/tiny", EARLIER)
    leave("runs/tiny-compose", LATER, platform="compose")
    leave("runs/tiny-new", None)
    leave("runs/other", with_attempt(DONE, 1.9e9, 0, []), of=job(name="other"))
    assert psfleet("report", named).out.splitlines()[0] == "a (sync) in runs/tiny-compose"


def test_the_name_of_a_folder_in_runs_will_do(psfleet: Psfleet) -> None:
    leave("runs/second", EARLIER)
    assert psfleet("report", "second").out.splitlines()[0] == "lenet (async) in runs/second"


def test_a_run_that_trains_has_the_report_of_the_attempts_before(psfleet: Psfleet) -> None:
    leave("run", EARLIER)
    assert "trains there now" not in psfleet("report", "run").out
    with claimed(Path("run"), job(), fresh=False):
        assert psfleet("report", "run").out.endswith(
            "\nrun: a run trains there now; this is the report of the attempts before\n"
        )


def test_the_report_of_a_store_is_found_by_url_folder_and_job(psfleet: Psfleet, bucket: StoreFolder) -> None:
    url = f"{bucket}/run"
    stored = job(checkpoint={"store": url})
    Path("job.yaml").write_text(stored.model_dump_json())
    store(StoreFolder(url), EARLIER)
    leave("elsewhere", None, of=stored)
    for named in (url, f"{url}/", "job.yaml", "elsewhere"):
        said = psfleet("report", named)
        assert (said.code, said.err) == (0, ""), said
        assert said.out.splitlines()[0] == f"lenet (async) in {url}"
        assert f"report:          {url}/report.json" in said.out.splitlines()
    leave("runs/tiny", LATER, of=stored)
    assert psfleet("report", "job.yaml").out.splitlines()[0] == "a (sync) in runs/tiny"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("tiny", "tiny: runs has no run of job tiny, expected a job, a run folder or the URL of a store"),
        ("no/where", "'no/where': expected a job file that exists, or the name of a job"),
        ("empty", "empty: no report.json, expected the folder of a run that has ended, or the name of a job"),
        ("young", "young: no report yet, no attempt of the run has ended"),
        ("ended/report.json", "ended/report.json: is a report, expected its folder, ended"),
        ("ended/report.html", "ended/report.html: is a report, expected its folder, ended"),
        ("ftp://host/run", "ftp://host/run: it is not BUCKET/PREFIX with one of s3://"),
    ],
)
def test_a_report_that_is_not_there_is_an_error_in_one_line(psfleet: Psfleet, named: str, expected: str) -> None:
    Path("empty").mkdir()
    leave("young", None)
    leave("ended", EARLIER)
    Path("ended/report.html").touch()
    said = psfleet("report", named)
    assert (said.code, said.out, len(said.err.splitlines())) == (64, "", 1), said
    assert expected in said.err


def test_a_store_that_refuses_or_fails_is_an_error_in_one_line(
    psfleet: Psfleet, bucket: StoreFolder, s3: S3Server
) -> None:
    for fault, code in ((DENIED, 64), (BROKEN, 75)):
        s3.fault = lambda method, path, fault=fault: fault
        said = psfleet("report", f"{bucket}/run")
        assert (said.code, len(said.err.splitlines())) == (code, 1), said
        assert f"{bucket}/run/report.json: " in said.err


def test_a_report_of_another_version_is_a_bad_file(psfleet: Psfleet) -> None:
    leave("run", None)
    Path("run/report.json").write_text("{}")
    said = psfleet("report", "run")
    assert (said.code, len(said.err.splitlines())) == (78, 1), said
