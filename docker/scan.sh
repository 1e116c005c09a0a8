#!/usr/bin/env bash
# Looks for known vulnerabilities: in the locks with pip-audit, in the images with trivy or grype, whatever is installed.
# Exits with 1 if one was found or a scanner failed, with 2 if there is no scanner.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scanners=0 problems=0
has() { command -v "$1" >/dev/null; }
scan() {
  echo "make scan: $*"
  scanners=$((scanners + 1))
  "$@" || problems=$((problems + 1))
}

if has pip-audit; then
  for lock in requirements.lock requirements-gpu.lock requirements-dev.lock; do
    # Strict: a package that the service does not know counts as a problem, not as clean.
    scan pip-audit --strict --disable-pip --require-hashes --requirement "$lock"
  done
fi
if has trivy || has grype; then
  for image in psfleet-ps:latest psfleet-worker:latest; do
    if ! docker image inspect "$image" >/dev/null 2>&1; then
      echo "make scan: there is no image $image, expected one by make images" >&2
      problems=$((problems + 1))
    elif has trivy; then
      scan trivy image --exit-code 1 --severity HIGH,CRITICAL --ignore-unfixed "$image"
    else
      scan grype --fail-on high --only-fixed "$image"
    fi
  done
fi
if ((scanners + problems == 0)); then
  echo "make scan: no scanner is installed, expected pip-audit (uv tool install pip-audit), trivy or grype" >&2
  exit 2
fi
((problems == 0))
