"""Generates Markdown tables from pydantic schemas, so that the documentation cannot differ from the code.

`python -m docs.schema_tables` writes the tables to `docs/`, between the markers of each document.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from psfleet.job.fleet_file import FleetFile
from psfleet.job.job import Job
from psfleet.report.history import Point
from psfleet.report.schema import Evaluation, Report
from psfleet.report.training_metrics import TrainingMetrics
from psfleet.sweep.study_file import Study

BEGIN, END = "<!-- schema -->", "<!-- /schema -->"
NAMED = ".<key>"
"""Path of the values of a mapping of names, below that of the mapping."""
DOCUMENTS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "job-file.md": (Job,),
    "fleets.md": (FleetFile,),
    "sweeps.md": (Study,),
    "report.md": (Report, Point, Evaluation, TrainingMetrics),
}
"""The models of each document in `docs/`, in the order of its pairs of markers."""

_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class Section:
    """One table: a model at a dotted path of the file; `choice` selects it among the members of a union."""

    path: str
    model: type[BaseModel]
    choice: str = ""


def tables(model: type[BaseModel]) -> str:
    """Markdown of all fields of a model: a table for it and one for each nested model, in the order of the fields.

    Each member of a discriminated union has a table. A model that occurs again at the same path (the schedule of each
    optimizer) is not repeated, nor are the members of a union in a mapping of names that a field has, too.
    """
    paths: set[str] = set()
    parts: list[str] = []
    top = Section("", model)
    for section in (top, *_below(top, set())):
        if section.path and section.path not in paths:
            parts.append(f"### `{section.path}`\n")
        if section.choice:
            parts.append(f"#### `{section.path}` with `{section.choice}`\n")
        paths.add(section.path)
        parts.append(f"{' '.join((section.model.__doc__ or '').split())}\n")
        parts.append(_table(section) + "\n")
    return "\n".join(parts)


def insert(document: str, models: tuple[type[BaseModel], ...]) -> str:
    """The document with the text between its n-th pair of markers replaced by the tables of the n-th model.

    Raises:
        ValueError: The number of pairs of markers differs from the number of models.
    """
    head, *rest = document.split(BEGIN)
    if len(rest) != len(models) or any(part.count(END) != 1 for part in rest):
        raise ValueError(f"the document has {len(rest)} markers {BEGIN}, expected {len(models)}, each with its {END}")
    texts = (f"{BEGIN}\n\n{tables(model)}\n{END}{part.split(END)[1]}" for model, part in zip(models, rest, strict=True))
    return head + "".join(texts)


def file_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by their keys in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _below(section: Section, seen: set[tuple[str, type[BaseModel]]]) -> Iterator[Section]:
    """The nested sections of a section, the members of a union before their own sections; each model once per path."""
    for name, field in file_fields(section.model).items():
        members = [inner for inner in _inner(section, name, field) if (inner.path, inner.model) not in seen]
        seen.update((member.path, member.model) for member in members)
        yield from members
        for member in members:
            yield from _below(member, seen)


def _inner(section: Section, name: str, field: FieldInfo) -> Iterator[Section]:
    """The sections of a field."""
    schema = _properties(section.model)[name]
    path = f"{section.path}.{name}".lstrip(".") + {"array": "[]", "object": NAMED}.get(_kind(schema), "")
    models = list(_models(field.annotation))
    if path.endswith(NAMED) and len(models) > 1:
        return
    for model in models:
        choice = ""
        if isinstance(field.discriminator, str):
            (value,) = get_args(model.model_fields[field.discriminator].annotation)
            choice = f"{field.discriminator}: {value}"
        yield Section(path, model, choice)


def _kind(schema: Mapping[str, Any]) -> str:
    """The type in a JSON schema, or its type if it is not null."""
    kinds = [member.get("type", "") for member in schema.get("anyOf", [schema])]
    return next((str(kind) for kind in kinds if kind in ("array", "object")), "")


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """The models in a type annotation, the outermost first."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


@functools.cache
def _properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """JSON schema of each field; other models remain a `$ref`."""
    properties: dict[str, dict[str, Any]] = model.model_json_schema().get("properties", {})
    return properties


def _table(section: Section) -> str:
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    properties = _properties(section.model)
    fields = file_fields(section.model).items()
    for name, field in sorted(fields, key=lambda item: not section.choice.startswith(f"{item[0]}: ")):
        cells = (f"`{name}`", _type(properties[name]), _default(field), field.description or _meaning(section, name))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _meaning(section: Section, name: str) -> str:
    """The meaning of a discriminator of a union, the only kind of field without a description."""
    if section.choice.startswith(f"{name}: "):
        return "Selects this table."
    raise ValueError(f"{section.model.__name__}.{name} has no description")


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON schema in words, bounds included."""
    if "$ref" in schema or "oneOf" in schema:
        return "section"
    if "anyOf" in schema:
        return " or ".join(_type(member) for member in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" + _length(schema)
    if schema.get("type") == "object":
        patterns: dict[str, Any] = schema.get("patternProperties", {})
        values: Any = next(iter(patterns.values()), schema.get("additionalProperties", True))
        return "mapping of names to " + ("anything" if values is True else _type(values))
    text = _TYPES[schema["type"]]
    text += " and".join(f" {sign} {schema[bound]:g}" for bound, sign in _BOUNDS.items() if bound in schema)
    text += f" matching `{schema['pattern']}`" if "pattern" in schema else ""
    return text + (f", at most {schema['maxLength']} characters" if "maxLength" in schema else "")


def _length(schema: Mapping[str, Any]) -> str:
    """How many items a list may have, in words."""
    if "minItems" not in schema:
        return ""
    return f", {'exactly' if schema.get('maxItems') == schema['minItems'] else 'at least'} {schema['minItems']}"


def _default(field: FieldInfo) -> str:
    """The default in the notation of the file."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if not isinstance(value, BaseModel):
        return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"
    if isinstance(field.discriminator, str):
        return f"`{field.discriminator}: {getattr(value, field.discriminator)}`"
    return "its defaults"


def rewrite(folder: Path) -> None:
    """Updates the documents in a folder."""
    for name, models in DOCUMENTS.items():
        path = folder / name
        path.write_text(insert(path.read_text(encoding="utf-8"), models), encoding="utf-8")


if __name__ == "__main__":
    rewrite(Path(__file__).parent)
