"""Access of pods to an S3 server outside of their cluster."""

from __future__ import annotations

from support.kind_fleet import Object, Space
from support.s3_server import S3Server, environment

SECRETS = {"AWS_ACCESS_KEY_ID": "access-key", "AWS_SECRET_ACCESS_KEY": "secret-key"}
"""By variable, the key of the Secret `models`."""


def make_secret(space: Space, server: S3Server) -> None:
    """The Secret with the credentials."""
    values = [f"--from-literal={key}={environment(server)[name]}" for name, key in SECRETS.items()]
    space.kubectl("create", "secret", "generic", "models", *values)


def section(server: S3Server) -> Object:
    """The way out and the credentials, for the job file."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    plain = {name: value for name, value in environment(server).items() if name.startswith(("AWS_DEF", "AWS_END"))}
    return {
        "env": plain,
        "secret_env": {name: f"models:{key}" for name, key in SECRETS.items()},
        "egress": [{"to": [{"ipBlock": {"cidr": f"{host}/32"}}], "ports": [{"protocol": "TCP", "port": int(port)}]}],
    }
