"""Values of environment variables: numbers, addresses, identifiers, and documents as JSON or in a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from psfleet.addresses import Address
from psfleet.errors import BadJobError
from psfleet.job.prediction_order import PredictionOrder
from psfleet.job.service_access import ServiceAccess
from psfleet.job.trial_access import TrialAccess


def document(name: str, text: str, content: str) -> tuple[str, str]:
    """A JSON document that is the value of a variable, or in the file that it names.

    Args:
        content: What the document is, for messages.

    Returns:
        The document, and where it is from, for messages.

    Raises:
        BadJobError: The file cannot be read.
    """
    if text.lstrip().startswith("{"):
        return text, name
    source = f"{name} is {text}"
    try:
        return Path(text).read_text(encoding="utf-8"), source
    except OSError as error:
        raise BadJobError(f"{source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadJobError(f"{source}: expected {content} as JSON") from error


def address(name: str, text: str) -> Address:
    """An address.

    Raises:
        BadJobError: The value is not `host:port`.
    """
    try:
        return Address.parse(text)
    except BadJobError as error:
        raise BadJobError(f"{name}: {error}") from error


def identifier(name: str, text: str) -> str:
    """A run's identifier, which is part of a TensorFlow container's name (`psfleet.tf.container_name`), or nothing.

    Raises:
        BadJobError: The value has other characters.
    """
    if text and not re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9.-]*", text):
        raise BadJobError(f"{name} is {text!r}, expected letters, digits, dots and dashes")
    return text


def integer(name: str, text: str) -> int:
    """A whole number.

    Raises:
        BadJobError: The value is something else.
    """
    if not text.removeprefix("-").isdecimal():
        raise BadJobError(f"{name} is {text!r}, expected a whole number")
    return int(text)


def choice(name: str, text: str, value: str) -> bool:
    """Whether a variable has a value, of which only one is valid.

    Raises:
        BadJobError: It has another value.
    """
    if text not in ("", value):
        raise BadJobError(f"{name} is {text!r}, expected {value} or nothing")
    return bool(text)


def trial_access(name: str, text: str) -> TrialAccess | None:
    """Access to a study, or None if the variable is empty; raises BadJobError."""
    return TrialAccess.from_json(*document(name, text, "access to a study")) if text else None


def prediction_order(name: str, text: str) -> PredictionOrder | None:
    """What a driver predicts, or None if the variable is empty; raises BadJobError."""
    return PredictionOrder.from_json(*document(name, text, "what to predict")) if text else None


def service_access(name: str, text: str) -> ServiceAccess | None:
    """Access to a service, or None if the variable is empty; raises BadJobError."""
    return ServiceAccess.from_json(*document(name, text, "access to a service")) if text else None


def index(env: Mapping[str, str], own: str, of_job: tuple[str, str], tf_config_index: int | None) -> int:
    """The index of this process: of psfleet's own variable, or of an Indexed Job, or of TF_CONFIG; -1 without any.

    Args:
        own: psfleet's own variable.
        of_job: The variable that Kubernetes sets, and the one with what is added to it.
    """
    if env.get(own):
        return integer(own, env[own])
    if env.get(of_job[0]):
        return sum(integer(name, env.get(name) or "0") for name in of_job)
    return -1 if tf_config_index is None else tf_config_index
