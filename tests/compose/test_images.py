"""What both images are: small, alike but for one layer, without what nobody needs, and startable by anybody."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from support import images
from support.images import LOCKED, PS_IMAGE, WORKER_IMAGE, container, docker, inspect, shell

from psfleet import __version__
from psfleet.errors import BadJobError
from psfleet.job.job import parse_job
from psfleet.manifests.container import CONTROL_PORT, USER
from psfleet.service.library_variables import MEMORY
from psfleet.service.settings import INDEX, JOB, PS, RUN

BOTH = pytest.mark.parametrize("image", [PS_IMAGE, WORKER_IMAGE])
MAX_BYTES = 1_350_000_000
MODULES = {PS_IMAGE: "ps_service", WORKER_IMAGE: "worker_service"}
SERVICES = {PS_IMAGE: {"ps_service"}, WORKER_IMAGE: {"ps_service", "worker_service"}}
START_SECS = 120.0
"""Until a container has imported TensorFlow and logged a line; about 3 on an idle machine with 2 cores."""
IMPORT_CPU_SECS = 7.0
"""About 3.5 with bytecode and 9 without."""
STOP_SECS = 10.0
BAD_JOB = BadJobError.exit_code
SITE_PACKAGES = "/opt/psfleet/lib/python3*/site-packages"


@BOTH
def test_an_image_is_small(image: str) -> None:
    assert inspect(image)["Size"] <= MAX_BYTES


def test_a_workers_image_is_that_of_a_ps_and_another_layer() -> None:
    """With `fleet.colocate` a worker is a ps, too."""
    ps, worker = (inspect(image)["RootFS"]["Layers"] for image in (PS_IMAGE, WORKER_IMAGE))
    assert worker[:-1] == ps


@BOTH
def test_an_image_runs_its_service_under_tini_as_a_numeric_user(image: str) -> None:
    config = inspect(image)["Config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "/opt/psfleet/bin/python", "-m", MODULES[image]]
    assert not config["Cmd"]
    assert not config.get("ExposedPorts")


@BOTH
def test_an_image_says_what_it_is(image: str) -> None:
    labels = {
        key.removeprefix("org.opencontainers.image."): value
        for key, value in inspect(image)["Config"]["Labels"].items()
    }
    assert labels["title"] == image.partition(":")[0]
    assert labels["version"] == __version__
    assert labels["licenses"] == "Apache-2.0"
    assert labels["description"]
    assert labels["revision"]


@BOTH
def test_an_image_has_a_bill_of_what_is_in_it(image: str) -> None:
    bill = json.loads(shell(image, "cat /usr/share/psfleet/sbom.cdx.json"))
    names = {component["name"] for component in bill["components"]}
    assert {"stunnel4", "tini", "libc6", "python", "psfleet", "tensorflow_cpu", "numpy"} <= names
    assert not names & {"pip", "kubernetes", "docker"}, "removed from the image"


@BOTH
def test_an_image_sets_the_memory_settings_of_local_processes(image: str) -> None:
    assert environment(image).items() >= MEMORY.items()


@BOTH
def test_an_image_holds_the_services_that_it_runs(image: str) -> None:
    found = set(shell(image, "ls /opt/psfleet/app").split())
    assert found == {"bin", "psfleet", f"psfleet-{__version__}.dist-info", *SERVICES[image]}


@BOTH
def test_an_image_has_no_tool_to_build_or_install_with(image: str) -> None:
    """Neither on the path nor as a module, of the environment or of the Python that it was made from."""
    script = f"""
for name in gcc cc g++ ld as make pip pip3 pip3.11 git curl wget; do command -v $name || true; done
for python in /opt/psfleet/bin/python $(readlink -f /opt/psfleet/bin/python); do
    for name in pip ensurepip; do $python -c "import $name; print($name)" 2>/dev/null || true; done
done
ls -d {SITE_PACKAGES}/pip /usr/lib/gcc 2>/dev/null || true
"""
    assert shell(image, script) == ""


@BOTH
def test_an_image_has_no_cache_no_list_of_packages_and_no_trace_of_the_checkout(image: str) -> None:
    script = r"""
for folder in /var/lib/apt/lists /var/cache/apt /root /home /tmp /program /out /src; do
    find $folder -type f ! -name .bashrc ! -name .profile || true
done
find / -xdev -name .git -o -name .env -o -path '*/pip/http*'
find /opt/psfleet/app -name '*.lock' -o -name 'test_*' -o -name '*.pem' -o -name '*.key'
"""
    assert shell(image, script, "--user", "0") == ""


@BOTH
def test_nothing_in_an_image_names_the_machine_that_built_it(image: str) -> None:
    history = docker("image", "history", "--no-trunc", "--format", "{{.CreatedBy}}", image).stdout
    config = json.dumps(inspect(image)["Config"])
    found = shell(image, f"grep -rlF -e '{images.ROOT}' /opt/psfleet/app /usr/lib/psfleet || true", "--user", "0")
    assert str(images.ROOT) not in history + config
    assert found == ""
    assert not [name for name in environment(image) if "PROXY" in name.upper() or "INDEX" in name]


@BOTH
def test_an_image_has_bytecode_for_every_module(image: str) -> None:
    """Else each start compiles in memory, because it cannot write what it compiled: its root is read only."""
    script = """
import importlib.util, pathlib
modules = [path for path in pathlib.Path("/opt/psfleet").rglob("*.py") if "/bin/" not in str(path)]
assert len(modules) > 2000, len(modules)
print([str(path) for path in modules if not pathlib.Path(importlib.util.cache_from_source(path)).exists()])
"""
    assert docker("run", "--rm", "--entrypoint", "python", image, "-c", script).stdout.strip() == "[]"


@BOTH
def test_a_service_is_imported_in_a_few_seconds_of_cpu_time(image: str) -> None:
    """In CPU time, because the machine may be busy."""
    script = f"import {MODULES[image]}.service, time; print(time.process_time())"
    done = docker("run", "--rm", *LOCKED, "--entrypoint", "python", image, "-c", script, timeout_secs=START_SECS)
    assert float(done.stdout) < IMPORT_CPU_SECS


@BOTH
@pytest.mark.parametrize("user", [f"{USER}:{USER}", "4711:4711", "0:0"])
def test_a_container_starts_as_anybody_with_a_read_only_root_and_no_capability(image: str, user: str) -> None:
    """A ps without settings serves any run; a worker without settings names those that are missing."""
    with container(image, "--user", user) as started:
        text = "PSFLEET_JOB" if image == WORKER_IMAGE else "ps is ready"
        entry = started.wait_for(
            lambda: next((entry for entry in started.entries() if text in entry["message"]), None),
            START_SECS, f"a log entry with {text!r}",
        )  # fmt: skip
        if image == WORKER_IMAGE:
            assert started.wait(STOP_SECS) == BAD_JOB
    assert entry["role"] == image.partition(":")[0].removeprefix("psfleet-")


@BOTH
def test_users_of_any_number_can_write_into_a_fresh_volume(image: str) -> None:
    with images.volume() as name:
        for user in (4711, 12345):
            mount = ("--user", f"{user}:{user}", "--volume", f"{name}:/out", *LOCKED)
            assert shell(image, "touch /out/$(id -u); stat -c %a /out", *mount).strip() == "1777"
        assert shell(image, "ls /out", "--volume", f"{name}:/out").split() == ["12345", "4711"]


@BOTH
def test_a_container_ends_within_seconds_of_sigterm_with_exit_code_143(image: str) -> None:
    """The worker waits for a ps that is nowhere."""
    job = parse_job(
        {
            "name": "waiting",
            "program": "program:build",
            "optimizer": {"name": "sgd", "learning_rate": 0.1},
            "train": {"steps": 1, "batch_size": 1},
        }
    ).model_dump_json()
    variables = {} if image == PS_IMAGE else {JOB: job, RUN: "waiting-1", PS: "nobody.invalid:2222", INDEX: "0"}
    with container(image, environment=variables) as started:
        started.wait_for(lambda: started.is_listening(CONTROL_PORT), START_SECS, "its control port")
        before = time.monotonic()
        docker("kill", "--signal", "TERM", started.name)
        assert started.wait(STOP_SECS) == 143
        assert time.monotonic() - before < STOP_SECS


def test_make_images_says_in_one_line_that_there_is_no_engine(tmp_path: Path) -> None:
    (tmp_path / "docker").symlink_to("/bin/false")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["make", "images"],
        cwd=images.ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    line, *rest = done.stderr.splitlines()
    assert line == "make images: cannot connect to a Docker engine; make train works without one"
    assert all(line.startswith("make") for line in rest)


def environment(image: str) -> dict[str, str]:
    """The environment that an image sets."""
    return dict(pair.split("=", 1) for pair in inspect(image)["Config"]["Env"])
