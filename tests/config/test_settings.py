"""Every setting earns its place: few of them, each described, read by somebody, and told in the reference."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from anmi_ray import config
from anmi_ray.config.dropped import DROPPED, dropped
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import check_setting, validate, validate_record
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core.errors import ConfigError
from docs import generate

MOST = 367
PACKAGE = Path(config.__file__).parents[1]


def groups_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in groups_in(part)]


@cache
def settings() -> dict[tuple[str, str], type[BaseModel]]:
    """(class, name) of every field that is no group of others, with its class: one in a base is one setting."""
    found: dict[tuple[str, str], type[BaseModel]] = {}
    for module in pkgutil.iter_modules(config.__path__):
        names = vars(importlib.import_module(f"{config.__name__}.{module.name}"))
        for one in names.values():
            if isinstance(one, type) and issubclass(one, BaseModel) and one.__module__.endswith(f".{module.name}"):
                found |= {
                    (one.__name__, name): one
                    for name, field in one.model_fields.items()
                    if name in vars(one).get("__annotations__", {}) and not groups_in(field.annotation)
                }
    return found


def test_there_are_few() -> None:
    assert 200 < len(settings()) <= MOST


def test_each_is_described() -> None:
    assert [name for name, owner in settings().items() if not owner.model_fields[name[1]].description] == []


class _Reads(ast.NodeVisitor):
    """Names of attributes that are read, outside of config as texts too; validators, which read them all, aside."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.texts = True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not any("validator" in ast.unparse(one) for one in node.decorator_list):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:  # of getattr
        if self.texts and isinstance(node.value, str):
            self.names.add(node.value)


def test_each_is_read() -> None:
    reads = _Reads()
    for path in sorted(PACKAGE.rglob("*.py")):
        reads.texts = path.parent != PACKAGE / "config"
        reads.visit(ast.parse(path.read_text(encoding="utf-8")))
    put_together = {f"max_{split}_queries" for split in ("train", "dev", "test")}
    expanded = {"preset"}  # into the judges that it stands for, before they are read
    assert {name for _, name in settings()} - reads.names == put_together | expanded


def test_each_is_in_the_reference() -> None:
    told = {row.name.rpartition(".")[2] for model in (Experiment, CampaignConfig) for row in rows(model)}
    forms = {"kind", "rule"}  # stand in headings
    internal = {"start", "tells_panel"}
    assert {name for _, name in settings()} - told - forms - internal == set()


def rows(model: type[BaseModel]) -> Iterator[generate.Row]:
    for group in generate.groups(model):
        yield from group.rows


def put(name: str, value: Any) -> dict[str, Any]:
    """Settings in which a dropped one is given, with what its group needs."""
    forms: dict[str, dict[str, Any]] = {
        "judge.judges.N": {"kind": "imported", "path": "p"},
        "judge.judges.N.endpoint": {"base_url": "http://h", "model": "m"},
        "rerank.peers.N": {"name": "p", "endpoint": {"base_url": "http://h", "model": "m"}},
        "retrieve.dense.index": {"kind": "hnsw"},
        "mine.allow.N": {"rule": "rocketqa"},
        "mine.weigh": {"rule": "gaussian-mixture"},
        "mine.sample": {"rule": "simans"},
    }
    vllm = name.startswith("judge.judges.N.execution")
    if vllm:
        forms["judge.judges.N"] = {"kind": "vllm", "name": "v", "model": "org/m"}
    elif name.startswith("judge.judges.N.endpoint"):
        forms["judge.judges.N"] = {"kind": "api", "name": "a"}
    content: dict[str, Any] = {}
    node: Any = content
    parts = name.split(".")
    for depth, part in enumerate(parts[:-1], 1):
        if part == "N":
            continue
        listed = parts[depth] == "N"
        group = ".".join([*parts[:depth], *(["N"] if listed else [])])
        below = dict(forms.get(group, {}))
        node[part] = [below] if listed else node.get(part, below)
        node = below if listed else node[part]
    node[parts[-1]] = to_jsonable_python(value)
    return content


@pytest.mark.parametrize("name", DROPPED)
def test_a_dropped_setting_is_told_with_its_value_and_what_replaced_it(name: str) -> None:
    given = put(name, "another")
    with pytest.raises(ConfigError) as caught:
        validate(given, "some.yaml")
    said = str(caught.value)
    assert "no such setting" in said
    assert f"{name.rpartition('.')[2]} is fixed now, at " in said
    assert DROPPED[name].instead in said


@pytest.mark.parametrize("name", DROPPED)
def test_a_record_may_hold_a_dropped_setting_at_its_value_alone(name: str) -> None:
    value = DROPPED[name].value
    assert validate_record(put(name, value), "a record") == validate_record(remove(put(name, value), name), "a record")
    with pytest.raises(ConfigError, match="no such setting"):
        validate_record(put(name, "another"), "a record")


def remove(content: dict[str, Any], name: str) -> dict[str, Any]:
    node: Any = content
    *groups, last = name.split(".")
    for part in groups:
        node = node[0] if part == "N" else node[part]
    del node[last]
    return content


def test_a_value_by_its_old_name_is_told_the_new_one_and_read_in_records() -> None:
    old = {"train": {"loss": {"target": "absolute"}}}
    with pytest.raises(ConfigError, match=r"train\.loss\.target: absolute is called centred now"):
        validate(old, "some.yaml")
    assert validate_record(old, "a record").train.loss.target == "centred"


def test_no_dropped_setting_is_a_setting() -> None:
    taken = {"judge.judges.N.slope", "judge.judges.N.readout", "mine.weigh.most"}  # those of other forms stay
    names = {row.name for row in rows(Experiment)}
    assert set(DROPPED) & names <= taken


def test_a_space_that_searches_a_dropped_setting_says_so() -> None:
    with pytest.raises(ConfigError, match=r"train\.beta2 is fixed now, at 0.98"):
        check_setting("train.beta2", "space")
    assert dropped("distill.judge.judges.0.revision") == DROPPED["judge.judges.N.revision"]
    assert dropped("train.learning_rate") is None


def test_what_was_never_a_setting_is_still_guessed_at() -> None:
    with pytest.raises(ConfigError, match=r"did you mean train\.epochs"):
        validate({"train": {"epoch": 1}}, "some.yaml")
    with pytest.raises(ValidationError):
        Experiment.model_validate({"train": {"beta1": 0.9}})
