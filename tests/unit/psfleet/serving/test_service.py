"""What `psfleet serve` says of a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from psfleet.inference.access import ClientAccess
from psfleet.inference.server_certificate import ServerCertificate
from psfleet.job.service_access import FrontOptions
from psfleet.serving.service import url_of

CERTIFICATE = ServerCertificate(Path("cert"), Path("key"))


@pytest.mark.parametrize(
    ("host", "certificate", "url"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:8000/v2/models/net"),
        ("front", CERTIFICATE, "https://front:8000/v2/models/net"),
        ("::1", None, "http://[::1]:8000/v2/models/net"),
    ],
)
def test_the_url_of_a_model_has_the_address_in_the_form_of_urls(
    host: str, certificate: ServerCertificate | None, url: str
) -> None:
    options = FrontOptions.model_construct(host=host, rest_port=8000)
    assert url_of("net", options, ClientAccess(certificate=certificate)) == url
