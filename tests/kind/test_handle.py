"""A handle on a run in pods: held, trained, evaluated, its weights read and replaced, through an evicted chief."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.kind_fleet import COMMAND_SECS, RECOVERY_SECS, START_SECS, Space

DRIVER = """\
import sys

import numpy as np
import psfleet

job, out, secs = sys.argv[1], sys.argv[2], float(sys.argv[3])
run = psfleet.start(job, out=out, paused=True, on="kubernetes")
assert run.train(20).result(secs) == 20
assert (run.status, run.step) == ("held at step 20", 20), repr(run)
loss, gradient = run.gradient()
assert list(gradient) == run.weights.trained, list(gradient)
weights = run.weights.get()
run.weights.set({name: np.zeros_like(value) for name, value in weights.items()})
assert not any(value.any() for value in run.weights.get().values())
call = run.train(20)
print("trains", flush=True)
assert sys.stdin.readline() == "the chief is gone\\n"
assert call.result(secs) == 40, "the steps are made once"
other = psfleet.attach(out)
print("saved", other.save(), flush=True)
other.stop()
report = other.wait(secs)
assert (report.status, report.final_step) == ("stopped", 40), report
print("ended", report.checkpoint.path, flush=True)
"""


@pytest.mark.timeout(START_SECS + 2 * RECOVERY_SECS)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_run_is_driven_from_outside_through_the_loss_of_its_chief(space: Space, tls: bool) -> None:
    job = space.job_file("held", {"step_secs": 0.05}, tls=tls, train={"steps": 1000, "batch_size": 1})
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, job, str(space.folder / "out"), str(START_SECS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=space.user_environment, cwd=space.folder,
    )  # fmt: skip
    space.processes.append(driver)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "trains\n", driver.communicate()[1]
    space.kubectl("delete", "pod", space.pod("chief", 0)["metadata"]["name"], "--wait=false")
    output, problems = driver.communicate("the chief is gone\n", timeout=START_SECS + RECOVERY_SECS)
    assert driver.returncode == 0, problems
    assert "saved /out/checkpoints/00000040-g" in output
    assert f"ended {space.folder}/out/checkpoints/00000040-g" in output
    assert space.kubectl("get", "jobs", "-o", "name", secs=COMMAND_SECS).strip() == "", "removed with its end"
