"""What is wrong with a field of a job file, in one line, with a suggestion for an unknown key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from psfleet.job.fields import Section

UNIONS = ("optimizer", "schedule")
"""Fields whose section depends on its `name` or `kind`, which pydantic inserts after the field in the path."""
UNIONS_BY_NAME = ("optimizers",)
"""Mappings of names to such sections: the member is inserted after the name."""
OTHER_WORDS = {"lr": "learning_rate", "epochs": "steps", "rho": "decay", "padding": "pad"}
"""Fields by a common name that is not similar."""
IN_YAML = {" or (instance of|object to extract) .*": "", "a valid dictionary": "a mapping", " after validation": ""}
"""Words of pydantic about Python, as patterns, and what takes their place for readers of a YAML file."""


def problem(item: Mapping[str, Any], model: type[Section]) -> str:
    """Formats an error of pydantic as `field is value: expectation`.

    Args:
        item: One of `ValidationError.errors()`.
        model: That was validated.
    """
    field = ".".join(_keys(item["loc"]))
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        return f"{field}: unknown key{_suggestion(item['loc'], model)}"
    if item["type"] == "missing":
        return f"{field}: missing, expected a value"
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(field, item["ctx"])
    if item["type"] == "value_error":
        return f"{field}: {message}" if field else message
    for words, instead in IN_YAML.items():
        message = re.sub(words, instead, message)
    return f"{field} is {item['input']!r}: {message}"


def _wrong_tag(field: str, context: Mapping[str, str]) -> str:
    """For a section whose `name` or `kind` is missing, or none of those that there are."""
    name = f"{field}.{context['discriminator']}".replace("'", "")
    if "tag" not in context:
        return f"{name}: missing, expected a value"
    tag, expected = context["tag"], context["expected_tags"]
    similar = difflib.get_close_matches(tag, expected.replace("'", "").split(", "), n=1)
    return f"{name} is {tag!r}, expected one of {expected}" + (f"; did you mean {similar[0]}?" if similar else "")


def _suggestion(location: Sequence[str | int], model: type[Section]) -> str:
    """For an unknown key: a similar field of its section, else other optimizers that have it, else one elsewhere."""
    *path, last = location
    key = str(last)
    siblings = sorted({name for section in _sections_at(path, model) for name in section.file_fields()})
    similar = [OTHER_WORDS[key]] if OTHER_WORDS.get(key) in siblings else difflib.get_close_matches(key, siblings, n=1)
    if similar:
        return f"; did you mean {similar[0]}?"
    if len(path) > 1 and _is_union(path[:-1]):
        tags = [
            tag for section in _sections_at(path[:-1], model) if key in section.file_fields() for tag in _tags(section)
        ]
        return f"; {path[-1]} has no such field, only {', '.join(tags)}" if tags else ""
    elsewhere = sorted(name for name in set(_known(model)) if name.rpartition(".")[2] == key)
    return f"; did you mean {elsewhere[0]}?" if elsewhere else ""


def _sections_at(path: Sequence[str | int], model: type[Section]) -> list[type[Section]]:
    """The sections that a path may lead to: several at a union whose tag is not in the path."""
    found = [model]
    for part in path:
        inner = [each.file_fields()[part].annotation for each in found if part in each.file_fields()]
        tagged = [each for each in found if part in _tags(each)]
        found = [section for each in inner for section in _sections(each)] or tagged or found
    return found


def _tags(section: type[Section]) -> tuple[Any, ...]:
    """The values of `name` or `kind` that select a section; empty if it is no member of a union."""
    tags = (field.annotation for name, field in section.file_fields().items() if name in ("name", "kind"))
    return next((get_args(each) for each in tags), ())


def _known(model: type[Section], prefix: str = "") -> Iterator[str]:
    """All fields of a section and of those in it, as dotted names."""
    for name, field in model.file_fields().items():
        yield prefix + name
        for section in _sections(field.annotation):
            yield from _known(section, f"{prefix}{name}.")


def _sections(annotation: Any) -> Iterator[type[Section]]:
    """The sections in a type: itself, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for member in get_args(annotation):
        yield from _sections(member)


def _keys(location: Sequence[str | int]) -> list[str]:
    """The path of an invalid field in the file, without the union members that pydantic inserts after their field."""
    keys: list[str] = []
    is_union = False
    for at, part in enumerate(location):
        if is_union:
            is_union = False
            continue
        # In one line also if a name has another character than those of a text.
        keys.append(str(part) if str(part).isprintable() else repr(part))
        is_union = _is_union(location[: at + 1])
    return keys


def _is_union(path: Sequence[str | int]) -> bool:
    """Whether the section at a path depends on its `name` or `kind`."""
    return path[-1] in UNIONS or (len(path) > 1 and path[-2] in UNIONS_BY_NAME)
