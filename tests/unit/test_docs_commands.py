"""What the documents show is there: commands, options, make targets, files, modules, links, jobs and programs."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pkgutil
import re
from typing import Any

import pytest
import typer.main
import yaml
from support.documents import ROOT, Document, anchors, documents, spelled_out

from psfleet.cli.main import app
from psfleet.job.job import load_job, parse_job

FOLDERS = "benchmarks|docker|docs|examples|k8s|ps_service|psfleet|tests|worker_service"
PACKAGES = ("psfleet", "ps_service", "worker_service")

every_document = pytest.mark.parametrize("document", documents(), ids=lambda document: document.name)


@every_document
def test_the_command_line_accepts_every_command(document: Document) -> None:
    for line in document.lines_of("psfleet"):
        for words in spelled_out(line):
            parse(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian", "job.yaml"], "No such command"),
        (["train", "job.yaml", "--fersh"], "No such option"),
        (["scale", "lenet", "--workers", "many"], "valid integer"),
        (["validate", "--set", "a=1"], "Missing (argument|parameter)"),
        (["up", "job.yaml", "another"], "unexpected extra argument"),
    ],
)
def test_a_command_that_does_not_exist_is_found(words: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        parse(words)


def test_a_synopsis_stands_for_every_command_line_that_it_allows() -> None:
    assert list(spelled_out("psfleet logs JOB [chief|ps-0] [--follow]")) == [
        ["logs", "JOB"],
        ["logs", "JOB", "--follow"],
        ["logs", "JOB", "chief"],
        ["logs", "JOB", "ps-0"],
        ["logs", "JOB", "chief", "--follow"],
        ["logs", "JOB", "ps-0", "--follow"],
    ]
    assert list(spelled_out("psfleet scale JOB --workers N")) == [["scale", "JOB", "--workers", "3"]]


@every_document
def test_the_makefile_has_every_target(document: Document) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {words[1] for line in document.lines_of("make") if len(words := line.split()) > 1}
    assert shown <= targets


def test_every_target_of_the_makefile_has_a_help_text() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z-]+):.*## \S", text, re.MULTILINE))


@every_document
def test_every_link_leads_somewhere(document: Document) -> None:
    for link in document.links():
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        path = document.path.parent / name if name else document.path
        assert path.exists(), link
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link


@every_document
def test_every_file_is_there(document: Document) -> None:
    shown = {span for span in document.spans() if re.fullmatch(rf"({FOLDERS})/[\w./*{{}},-]*", span)}
    assert not {span for span in shown if not list(ROOT.glob(span.rstrip("/")))}


@every_document
def test_every_module_is_there(document: Document) -> None:
    for span in document.spans():
        if re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+", span):
            assert pkgutil.resolve_name(span) is not None
    for line in document.lines_of("python"):
        module = re.search(r" -m ([\w.]+)", line)
        assert module is None or importlib.util.find_spec(module.group(1)) is not None, line


@every_document
def test_whole_jobs_are_valid_and_programs_compile(document: Document) -> None:
    for block in document.blocks():
        if block.language == "yaml":
            content = yaml.safe_load(block.text)
            if {"name", "program", "optimizer", "train"} <= set(content):
                parse_job(content)
        if block.language == "python":
            ast.parse(block.text)


def test_the_output_in_the_readme_is_that_of_the_example_job() -> None:
    steps = load_job(ROOT / "examples" / "lenet" / "job.yaml").train.steps
    output = next(block.text for block in Document(ROOT / "README.md").blocks() if "step 1 of" in block.text)
    assert set(re.findall(r"step [\d,]+ of ([\d,]+)", output)) == {f"{steps:,}"}
    assert f"{steps:,} of {steps:,}" in output


def test_the_module_map_names_every_package() -> None:
    packages = {str(path.parent.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("__init__.py")}
    assert "psfleet/job" in packages
    assert packages <= {span.rstrip("/") for span in Document(ROOT / "docs" / "architecture.md").spans()}


def parse(words: list[str]) -> None:
    """Has the real command line parse these words without running the command; no word, or a name alone, is accepted.

    Raises:
        Exception: There is no such command, or it does not take these words; a UsageError of Typer's own copy of click.
    """
    if not words:
        return
    group = command_line()
    with group.make_context("psfleet", list(words)) as context:
        name, command, rest = group.resolve_command(context, list(words))
        if rest:
            command.make_context(name, rest, parent=context)


@functools.cache
def command_line() -> Any:
    """Typer's command of all commands."""
    return typer.main.get_command(app)
