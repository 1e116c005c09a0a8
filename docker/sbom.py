"""Prints the software bill of materials of an image in CycloneDX's JSON format, while images are built.

Standard library only. See https://cyclonedx.org/docs/1.5/json and https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

DPKG = Path("/var/lib/dpkg")
RELEASE = Path("/etc/os-release")
SITE_PACKAGES = ("/opt/psfleet/lib/python3*/site-packages", "/opt/psfleet/app")

Component = dict[str, str]


def main() -> None:
    """Prints the packages of Debian and of Python, and Python itself."""
    packages = [python(), *debian_packages(DPKG, release(RELEASE)), *python_packages(Path("/"))]
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "psfleet"}},
        "components": sorted(packages, key=lambda component: component["purl"]),
    }
    json.dump(content, sys.stdout, indent=1)


def python() -> Component:
    """The interpreter, which base images build from source."""
    version = platform.python_version()
    return _component("python", version, f"pkg:generic/python@{version}")


def debian_packages(dpkg: Path, distribution: str) -> Iterator[Component]:
    """Installed packages of Debian.

    Args:
        dpkg: Folder with `status` and `status.d/`, see deb-control(5).
        distribution: `debian-12`.
    """
    for path in (dpkg / "status", *sorted(dpkg.glob("status.d/*"))):
        for paragraph in path.read_text(encoding="utf-8").strip().split("\n\n"):
            lines = [line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" ")]
            fields = {name: value for name, _, value in lines}
            if fields.get("Status", "").endswith(" installed"):
                name, version = fields["Package"], fields["Version"]
                purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}"
                yield _component(name, version, f"{purl}?arch={fields['Architecture']}&distro={distribution}")


def python_packages(root: Path) -> Iterator[Component]:
    """Distributions in the image's folders of Python packages."""
    folders = [str(path) for pattern in SITE_PACKAGES for path in root.glob(pattern.lstrip("/"))]
    for distribution in distributions(path=folders):
        name, version = distribution.metadata["Name"], distribution.version
        normal = name.lower().replace("_", "-")
        yield _component(name, version, f"pkg:pypi/{quote(normal)}@{quote(version)}")


def release(path: Path) -> str:
    """`debian-12`, of os-release(5)."""
    lines = [line.partition("=") for line in path.read_text(encoding="utf-8").splitlines()]
    fields = {name: value.strip('"') for name, _, value in lines}
    return f"{fields['ID']}-{fields['VERSION_ID']}"


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


if __name__ == "__main__":
    main()
