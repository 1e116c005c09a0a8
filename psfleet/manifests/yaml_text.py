"""Writes rendered files as readable YAML: no aliases, texts of several lines as blocks, keys in their given order."""

from __future__ import annotations

from typing import Any

import yaml

from psfleet.job.job import Job

WIDTH = 120


def dump(*documents: Any) -> str:
    """Documents as YAML."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=WIDTH)


def comment(command: str) -> str:
    """A command line for a comment at the start of a file: its words may have line breaks, which would end that."""
    return "\n#   ".join(command.splitlines())


def job_text(job: Job) -> str:
    """The job as JSON, one line for each section, with only the fields that the job file sets."""
    names = [name for name in type(job).model_fields if name in job.model_fields_set]
    sections = (job.model_dump_json(include={name}, exclude_unset=True)[1:-1] for name in names)
    return "{\n" + ",\n".join(sections) + "\n}"


class _Dumper(yaml.SafeDumper):
    """Writes an object that occurs twice in full each time, and lists with indentation."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
