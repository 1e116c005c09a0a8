"""The bill of materials of an image: what is installed in it, under the names that scanners know."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "docker" / "sbom.py"
STATUS = """\
Package: libssl3
Status: install ok installed
Architecture: amd64
Version: 3.0.17-1~deb12u2
Description: a library
 Package: not this

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
STUNNEL = """\
Package: stunnel4
Status: install ok installed
Architecture: amd64
Version: 3:5.68-2+deb12u1
"""


@pytest.fixture
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packages_of_debian_are_those_installed_and_those_copied(sbom: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "status.d").mkdir()
    (tmp_path / "status.d" / "stunnel4").write_text(STUNNEL)
    assert [component["purl"] for component in sbom.debian_packages(tmp_path, "debian-12")] == [
        "pkg:deb/debian/libssl3@3.0.17-1~deb12u2?arch=amd64&distro=debian-12",
        "pkg:deb/debian/stunnel4@3%3A5.68-2%2Bdeb12u1?arch=amd64&distro=debian-12",
    ]


def test_packages_of_python_are_those_of_the_environment_and_psfleet(sbom: ModuleType, tmp_path: Path) -> None:
    for folder, name, version in (
        ("opt/psfleet/lib/python3.11/site-packages", "Typing_Extensions", "4.16.0"),
        ("opt/psfleet/app", "psfleet", "0.1.0"),
    ):
        info = tmp_path / folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    assert {component["purl"] for component in sbom.python_packages(tmp_path)} == {
        "pkg:pypi/typing-extensions@4.16.0",
        "pkg:pypi/psfleet@0.1.0",
    }


def test_the_bill_is_json_of_cyclonedx(
    sbom: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\n')
    monkeypatch.setattr(sbom, "DPKG", tmp_path)
    monkeypatch.setattr(sbom, "RELEASE", tmp_path / "os-release")
    sbom.main()
    content = json.loads(capsys.readouterr().out)
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.5")
    names = [component["name"] for component in content["components"]]
    assert {"libssl3", "python"} <= set(names)
    references = [component["bom-ref"] for component in content["components"]]
    assert len(references) == len(set(references)), "a reference is unique in a bill"
