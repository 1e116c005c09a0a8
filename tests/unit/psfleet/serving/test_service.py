"""What `psfleet serve` says of a service."""

from __future__ import annotations

import pytest

from psfleet.job.service_access import FrontOptions
from psfleet.serving.service import url_of


@pytest.mark.parametrize(
    ("host", "certificate", "url"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:8000/v2/models/net"),
        ("front", "cert.pem", "https://front:8000/v2/models/net"),
        ("::1", None, "http://[::1]:8000/v2/models/net"),
    ],
)
def test_the_url_of_a_model_has_the_address_in_the_form_of_urls(host: str, certificate: str | None, url: str) -> None:
    options = FrontOptions.model_construct(host=host, rest_port=8000, tls_cert=certificate)
    assert url_of("net", options) == url
