"""`psfleet certs`: the certificates of a fleet with `tls: true`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from psfleet.errors import UsageError
from psfleet.tls import certificates
from psfleet.tls.identity import ROLES


def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder; created if it is missing.", show_default=False)
    ],
    days: Annotated[
        int, typer.Option(min=1, max=certificates.AUTHORITY_DAYS, help="Validity in days.")
    ] = certificates.DAYS,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Renew the certificates with the CA in DIR; running processes reload them."),
    ] = False,
    replace_authority: Annotated[
        bool,
        typer.Option(
            "--replace-authority",
            help="Replace the CA in DIR, which has expired or whose key has leaked, and all certificates; fleets that "
            "run must be started again.",
        ),
    ] = False,
) -> None:
    """Create the certificates of a fleet with `tls: true`: of its roles, and DIR/client for the command line."""
    if renew and replace_authority:
        raise UsageError("--renew and --replace-authority: expected one of them")
    if replace_authority:
        ends = certificates.replace_authority(folder, days)
        typer.echo(f"{folder}: new authority; fleets with certificates of the old one must be started again")
    else:
        ends = certificates.renew(folder, days) if renew else certificates.make(folder, days)
    roles = ", ".join(ROLES)
    typer.echo(f"{folder}: certificates for {roles}, valid until {ends:%Y-%m-%d %H:%M} UTC")
