"""A mutating admission webhook of one namespace: it changes what psfleet creates, as service meshes and queues do."""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.kind_cluster import host_address
from support.kind_fleet import Object, Space

Patch = Sequence[Mapping[str, Any]]
"""Operations of a JSON patch."""

RESOURCES = {"Pod": ("", "v1", "pods"), "Job": ("batch", "v1", "jobs")}
"""API group, version and resource by kind."""
JOB_NAME = "batch.kubernetes.io/job-name"
"""Label of the pods of a Job."""
ANSWER_SECS = 10


@contextmanager
def admission(space: Space, patches: Mapping[str, Patch], of_jobs: bool = False) -> Iterator[None]:
    """Applies patches to objects of fleets in a namespace as they are created, while the block runs.

    Args:
        patches: By kind.
        of_jobs: Whether to change only pods that a Job makes.
    """
    host = host_address()
    certificate, key = _certificate(host, space.folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer((host, 0), _handler(patches))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="admission", daemon=True)
    thread.start()
    try:
        url = f"https://{host}:{server.server_port}/"
        space.apply("admission", json.dumps(_configuration(space, url, certificate.read_bytes(), patches, of_jobs)))
        yield
    finally:
        space.kubectl("delete", "mutatingwebhookconfiguration", space.name, "--ignore-not-found")
        server.shutdown()
        server.server_close()
        thread.join(ANSWER_SECS)


def _configuration(space: Space, url: str, authority: bytes, kinds: Iterable[str], of_jobs: bool) -> Object:
    made_by_job = [{"key": JOB_NAME, "operator": "Exists"}] if of_jobs else []
    rules = [
        {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": [resource]}
        for group, version, resource in (RESOURCES[kind] for kind in kinds)
    ]
    webhook = {
        "name": "injector.psfleet.test",
        "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
        "rules": rules,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
        "objectSelector": {
            "matchLabels": {"app.kubernetes.io/part-of": "psfleet"},
            "matchExpressions": made_by_job,
        },
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": ANSWER_SECS,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": space.name},
        "webhooks": [webhook],
    }


def _handler(patches: Mapping[str, Patch]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review["request"]
            patch = base64.b64encode(json.dumps(list(patches[request["kind"]["kind"]])).encode()).decode()
            answer = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
            body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: the API's own events say what was refused."""

    return Handler


def _certificate(host: str, folder: Path) -> tuple[Path, Path]:
    """Writes a certificate for an IP address, which is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "admission")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "admission.crt", folder / "admission.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return paths
