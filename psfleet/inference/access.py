"""Who may use a service: on loopback everyone of the machine, elsewhere who has the token."""

from __future__ import annotations

import hmac
from pathlib import Path

from psfleet.errors import UsageError

SCHEME = "Bearer "
MIN_TOKEN_CHARACTERS = 16
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def read_token(host: str, file: Path | None) -> str:
    """The token in a file; empty: a service on loopback needs none.

    Raises:
        UsageError: The host is not one of loopback and there is no file; it cannot be read, or is no token.
    """
    if file is None:
        if host not in LOOPBACK:
            raise UsageError(
                f"--host {host} is not one of loopback ({', '.join(LOOPBACK)}), expected --token-file, too"
            )
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--token-file {file}: {reason}, expected a file that can be read") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"--token-file {file} has a token of {len(token)} characters, expected at least {MIN_TOKEN_CHARACTERS} "
            "ASCII characters without spaces"
        )
    return token


def is_allowed(token: str, header: str) -> bool:
    """Whether a header `Authorization` has the token; takes the same time for all wrong ones of a length."""
    if not token:
        return True
    return hmac.compare_digest(header.encode("utf-8", "replace"), f"{SCHEME}{token}".encode())
