"""`psfleet serve`: what it refuses, in one line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.command_line import Psfleet
from support.exported_run import trained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--on", "nowhere"], "platform 'nowhere': expected one of compose, kubernetes"),
        (["--on", "kubernetes", "--out", "logs"], "--out logs: expected only without --on"),
        (["--on", "kubernetes"], "--on kubernetes: all pods of the cluster reach the front, expected --token-file"),
        (["--on", "kubernetes", "--host", "0.0.0.0"], "--host 0.0.0.0: expected only without --on kubernetes"),
        (["--on", "compose", "--namespace", "n"], "--namespace n: expected only with --on kubernetes"),
        (["--on", "compose", "--out", "logs"], "--out logs: expected only without --on"),
        (["--on", "compose", "--top", "2"], "--top 2: . is no study"),
        (["--on", "compose", "--host", "0.0.0.0"], "--host 0.0.0.0 is not one of loopback"),
        (["--on", "compose", "--rest-port", "8001"], "--rest-port and --grpc-port are both 8001"),
        (["--namespace", "n"], "--namespace n: expected only with --on kubernetes"),
        (["--members", "both"], "--members both: expected one of between_graph, in_graph"),
        (["--name", "../net"], "--name '../net': expected letters"),
        (["--top", "2"], "--top 2: . is no study"),
        (["--step", "9"], "has no checkpoint of that step"),
        (["--rest-port", "8001"], "--rest-port and --grpc-port are both 8001, expected different ports"),
        (["--metrics-port", "8000"], "--rest-port and --metrics-port are both 8000, expected different ports"),
        (["--token-file", "missing"], "missing: No such file or directory, expected a file that can be read\n"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is not one of loopback"),
        (["--host", "0.0.0.0", "--token-file", "missing"], "--token-file "),
        (["--tls-key", "missing"], "--tls-key is given without --tls-cert, expected both or neither"),
        (
            ["--tls-cert", "missing", "--tls-key", "missing"],
            "missing: No such file or directory, expected a certificate",
        ),
    ],
)
def test_options_that_cannot_be_served_are_refused(
    psfleet: Psfleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(trained(tmp_path))
    said = psfleet("serve", ".", *options)
    assert (said.code, said.err.count("\n")) == (64, 1), said.err
    assert message in said.err


@pytest.mark.parametrize("option", ["--timeout-secs", "--linger-secs"])
@pytest.mark.parametrize("secs", ["inf", "nan", "-1"])
def test_times_without_an_end_are_refused(psfleet: Psfleet, option: str, secs: str) -> None:
    said = psfleet("serve", ".", option, secs)
    assert said.code == 64
    assert f"Invalid value for '{option}': Input should be " in said.err


def test_a_folder_without_a_checkpoint_is_refused(psfleet: Psfleet, tmp_path: Path) -> None:
    said = psfleet("serve", str(tmp_path))
    assert (said.code, said.err.count("\n")) == (65, 1)
    assert "no checkpoint there" in said.err


def test_a_port_in_use_is_refused(psfleet: Psfleet, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = psfleet("serve", str(trained(tmp_path)), "--rest-port", str(port))
    assert (said.code, said.err.count("\n")) == (64, 1)
    assert f"--rest-port {port} of 127.0.0.1" in said.err
