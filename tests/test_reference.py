"""The generated reference: every setting, command, record and rule that the code declares stands in it."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.rules import NAMED
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core import records
from docs import generate

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The groups of settings that an annotation holds, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)


def settings_of(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[tuple[type[BaseModel], str]]:
    """(group, name) of every setting of a model and of the groups below it, each group once."""
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        yield model, name
        for below in models_in(field.annotation):
            yield from settings_of(below, seen)


@pytest.mark.parametrize("model", [Experiment, CampaignConfig])
def test_every_setting_is_told_with_what_its_model_says_of_it(model: type[BaseModel]) -> None:
    rows = [(group, row) for group in generate.groups(model) for row in group.rows]
    text = generate.settings(model)
    declared = list(settings_of(model, set()))
    assert len(declared) > 20
    for owner, name in declared:
        field = owner.model_fields[name]
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            (word,) = get_args(field.annotation)  # what tells forms apart stands in a heading
            assert f"`{name}: {word}`" in text
            continue
        told = [row for _, row in rows if row.name.rpartition(".")[2] == name]
        text_of_field = generate.docstrings(owner).get(name, "")
        assert any(text_of_field == row.description for row in told), f"{owner.__name__}.{name}"


def test_dotted_names_are_those_of_the_command_line() -> None:
    names = {row.name for group in generate.groups(Experiment) for row in group.rows}
    some = ("train.learning_rate", "execution.train.micro_batch_tokens", "judge.judges.N.endpoint.base_url")
    assert names >= {*some, "retrieve.lucene.language", "mine.sample.b", "rerank.peers.N.run", "plan.documents"}


def test_links_of_groups_lead_to_their_headings() -> None:
    for model in (Experiment, CampaignConfig):
        text = generate.settings(model)
        made = set(re.findall(r"\{#([\w-]+)\}", text))
        assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= made
        assert len(made) == len(re.findall(r"\{#[\w-]+\}", text))


def test_values_and_defaults_are_told() -> None:
    rows = {row.name: row for group in generate.groups(Experiment) for row in group.rows}
    assert rows["compare.degree"].values == "whole number ≥ 2 and ≤ 1,000"
    assert rows["compare.degree"].default == "`8`"
    assert rows["rate.model"].values == "`thurstone`, `bradley-terry`"
    assert rows["judge.judges.N.endpoint.model"].default == "required"
    assert rows["judge.target_hours"].values == "number > 0 or null"


def test_every_command_stands_with_its_options() -> None:
    text = generate.commands()
    headings = re.findall(r"^## anmi ([\w -]+)$", text, flags=re.MULTILINE)
    assert {"run", "judge", "jobs submit", "doctor"} <= set(headings)
    submit = text.partition("## anmi jobs submit\n")[2].partition("\n## ")[0]
    assert "anmi jobs submit JOB CONFIG [KEY=VALUE]... [OPTIONS]" in submit
    assert all(f"`{option}" in submit for option in ("--attempts NUMBER", "--follow, --no-follow", "--secret NAME"))


def test_every_record_stands_with_its_columns_and_checks() -> None:
    text = generate.data_dictionary()
    for record in records.RECORDS.values():
        part = text.partition(f"## {record.name}\n")[2].partition("\n## ")[0]
        assert all(f"| `{column}` |" in part for column in record.schema.names)
        assert part.count("\n- ") == len(record.invariants)
        assert "\n- \n" not in part


def test_every_composition_of_mining_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "mining-rules.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE))))
    assert set(NAMED) <= described
    assert all(f"| `{name}` |" in generate.compositions() for name in NAMED)


def test_pages_ask_for_parts_that_there_are_and_for_all_of_them() -> None:
    asked = {part for path in PAGES for part in re.findall(r"<!-- generate: ([\w-]+) -->", path.read_text("utf-8"))}
    assert asked == set(generate.PARTS)


NAMES = [
    pytest.param(name, id=f"{path.relative_to(ROOT)} {name}")
    for path in [ROOT / "README.md", ROOT / "SKILL.md", *PAGES]
    for name in sorted(set(re.findall(r"\banmi_ray(?:\.[A-Za-z_]\w*)+", path.read_text(encoding="utf-8"))))
]
IMPORTS = sorted(
    {
        (module, name.strip())
        for path in [ROOT / "README.md", ROOT / "SKILL.md", *PAGES]
        for module, names in re.findall(r"from (anmi_ray[\w.]*) import ([\w, ]+)", path.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_python_names_on_the_pages_exist(name: str) -> None:
    pkgutil.resolve_name(name)


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_python_imports_on_the_pages_work(module: str, name: str) -> None:
    pkgutil.resolve_name(f"{module}:{name}")


def dotted(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """The parts of the dotted names of all settings, of every form of a group."""
    for name, field in model.model_fields.items():
        yield (name,)
        for below in models_in(field.annotation):
            yield from ((name, *rest) for rest in dotted(below))


def test_settings_on_the_pages_exist() -> None:
    """By their dotted names, or the ends of these, such as a judge's own execution.engines."""
    known = {parts[start:] for parts in dotted(Experiment) for start in range(len(parts))}
    pages = [page for page in PAGES if "results" not in page.parts]
    for page in [ROOT / "README.md", ROOT / "SKILL.md", *pages]:
        for name in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)(?:[:=][^`]*)?`", page.read_text(encoding="utf-8")):
            first, *rest = (part for part in name.split(".") if not part.isdecimal())
            if first in Experiment.model_fields and rest[-1] not in ("jsonl", "json", "csv"):
                assert (first, *rest) in known, f"{page.relative_to(ROOT)}: {name}"


def test_tables_have_as_many_cells_as_columns() -> None:
    for part in generate.PARTS.values():
        for table in re.findall(r"(?:^\|.*\n?)+", part(), flags=re.MULTILINE):
            rows = [re.split(r"(?<!\\)\|", line) for line in table.splitlines()]
            assert {len(row) for row in rows} == {len(rows[0])}
