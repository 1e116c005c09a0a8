"""The tables in the documents match the schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

import pytest
import yaml
from pydantic import BaseModel, Field

from docs import schema_tables
from docs.schema_tables import BEGIN, DOCUMENTS, END, file_fields, insert, rewrite, tables
from psfleet.job.job import Job, parse_job
from psfleet.report.history import Point
from psfleet.report.schema import Evaluation, Report

DOCS = Path(__file__).parents[2] / "docs"


class Round(BaseModel):
    """A wheel."""

    shape: Literal["round"]
    radius: float = Field(1.5, gt=0, description="In metres.")


class Square(BaseModel):
    """Not a wheel."""

    shape: Literal["square"]
    sides: list[int] = Field(min_length=4, description="In metres | feet.")


class Cart(BaseModel):
    """What rolls."""

    wheel: Annotated[Round | Square, Field(discriminator="shape")] = Field(description="The front one.")
    load: dict[str, int] = Field(default_factory=dict, description="Kilograms by name.")
    owner: str | None = Field(None, pattern="^[a-z]+$", description="Who pays.")


class Load(BaseModel):
    """What is carried."""

    mass: float = Field(description="Kilograms.")


CART = r"""What rolls.

| field | type | default | meaning |
|---|---|---|---|
| `wheel` | section | required | The front one. |
| `load` | mapping of names to integer | `{}` | Kilograms by name. |
| `owner` | text matching `^[a-z]+$` or null | `null` | Who pays. |

### `wheel`

#### `wheel` with `shape: round`

A wheel.

| field | type | default | meaning |
|---|---|---|---|
| `shape` | `round` | required | Selects this table. |
| `radius` | number > 0 | `1.5` | In metres. |

#### `wheel` with `shape: square`

Not a wheel.

| field | type | default | meaning |
|---|---|---|---|
| `shape` | `square` | required | Selects this table. |
| `sides` | list of integer, at least 4 | required | In metres \| feet. |
"""


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and all models that its fields are made of."""
    yield model
    annotations: list[object] = [field.annotation for field in model.model_fields.values()]
    while annotations:
        annotation = annotations.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from models(annotation)
        annotations += get_args(annotation)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tables_in_the_documents_match_the_schema(name: str) -> None:
    document = (DOCS / name).read_text(encoding="utf-8")
    assert document == insert(document, DOCUMENTS[name]), "run `python -m docs.schema_tables`"


@pytest.mark.parametrize(
    ("name", "model"), [("job-file.md", Job), ("report.md", Report), ("report.md", Point), ("report.md", Evaluation)]
)
def test_every_field_is_documented_with_its_description(name: str, model: type[BaseModel]) -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
    for each in models(model):
        for field, info in file_fields(each).items():
            assert (field, info.description or "Selects this table.") in rows


def test_the_example_job_is_valid_and_shows_every_section() -> None:
    found = re.findall(r"```yaml\n(.*?)```", (DOCS / "job-file.md").read_text(encoding="utf-8"), re.DOTALL)
    whole, asynchronous, averaging, ssp, dynamic, padded, tables, several, towers, parted, *others = found
    colocated, watching, plateau, stored = others
    content = yaml.safe_load(whole)
    # In the place of `optimizer`, and for programs that have tables.
    assert set(content) == set(Job.model_fields) - {"optimizers", "tables"}
    assert parse_job(content | yaml.safe_load(tables)).tables["user"].optimizer == "adagrad"
    assert parse_job(content).rule.learning_rate == 1e-3
    assert len(parse_job({**content, "optimizer": None, **yaml.safe_load(several)}).train.alternate or ()) == 6
    assert parse_job(content | yaml.safe_load(asynchronous)).update.stale.bound == 8
    assert parse_job(content | yaml.safe_load(averaging)).update.round_steps == 10
    assert parse_job(content | yaml.safe_load(ssp)).update.bound == 3
    assert parse_job(content | yaml.safe_load(dynamic)).input.is_dynamic
    assert parse_job(content | yaml.safe_load(padded)).input.bucket_boundaries == [8, 16, 32]
    assert parse_job(content | yaml.safe_load(towers)).device.replicas == "auto"
    assert parse_job(content | yaml.safe_load(parted) | {"tls": False}).fleet.replicas == 2
    assert parse_job(content | yaml.safe_load(colocated)).fleet.ps == 4
    assert set(parse_job(content | yaml.safe_load(watching)).monitored) == {"evaluate.stop", "checkpoint.best"}
    assert set(parse_job(content | yaml.safe_load(plateau)).monitored) == {"optimizer.schedule"}
    assert parse_job(content | yaml.safe_load(stored)).checkpoint.store == "s3://models/team/digits"


def test_tables_show_unions_bounds_and_defaults() -> None:
    assert tables(Cart) == CART


def test_a_field_without_a_description_is_rejected() -> None:
    class Silent(BaseModel):
        """Says nothing."""

        secret: int

    with pytest.raises(ValueError, match=r"Silent\.secret has no description"):
        tables(Silent)


def test_rewriting_is_idempotent_and_keeps_text_outside_the_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"vehicles.md": (Cart, Load), "loads.md": (Load,)}
    monkeypatch.setattr(schema_tables, "DOCUMENTS", members)
    for name, models_of in members.items():
        (tmp_path / name).write_text("".join(f"before {i}\n{BEGIN} old {END} after\n" for i in range(len(models_of))))
    rewrite(tmp_path)
    first = {name: (tmp_path / name).read_text(encoding="utf-8") for name in members}
    rewrite(tmp_path)
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in members} == first
    assert not any(re.search(r"\bold\b", text) for text in first.values())
    assert first["vehicles.md"].startswith(f"before 0\n{BEGIN}\n\nWhat rolls.")
    assert f"{END} after\nbefore 1\n{BEGIN}\n\nWhat is carried." in first["vehicles.md"]
    assert first["loads.md"].startswith(f"before 0\n{BEGIN}\n\nWhat is carried.")


@pytest.mark.parametrize("document", ["", BEGIN, f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_document_with_more_or_fewer_markers_than_models_is_rejected(document: str) -> None:
    with pytest.raises(ValueError, match="expected 1"):
        insert(document, (Cart,))
