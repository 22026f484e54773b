"""Every setting earns its place: few of them, each described, read by somebody, and told in the reference."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from anmi_ray import config
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import check_setting, validate, validate_record
from anmi_ray.config.mistakes import REPLACED, models_in
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.redaction import is_secret_name
from docs import generate

MOST = 316
PACKAGE = Path(config.__file__).parents[1]


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
                    if name in vars(one).get("__annotations__", {}) and not models_in(field.annotation)
                }
    return found


def test_there_are_few() -> None:
    assert 200 < len(settings()) <= MOST


def test_each_is_described_and_not_called_like_a_secret() -> None:
    assert [name for name, owner in settings().items() if not generate.docstrings(owner).get(name[1])] == []
    assert [name for _, name in settings() if is_secret_name(name)] == []


class _Reads(ast.NodeVisitor):
    """Names of attributes that are read, outside of config as texts too; validators, which read them all, aside."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.texts = True

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name != "_problems" and not any("validator" in ast.unparse(one) for one in node.decorator_list):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:  # of getattr
        if self.texts and isinstance(node.value, str):
            self.names.add(node.value)


@pytest.mark.slow
def test_each_is_read() -> None:
    reads = _Reads()
    for path in sorted(PACKAGE.rglob("*.py")):
        reads.texts = path.parent != PACKAGE / "config"
        reads.visit(ast.parse(path.read_text(encoding="utf-8")))
    put_together = {"max_dev_queries", "max_test_queries"}  # f"max_{split}_queries"
    assert {name for _, name in settings()} - reads.names == put_together


def test_each_is_in_the_reference() -> None:
    told = {row.name.rpartition(".")[2] for model in (Experiment, CampaignConfig) for row in rows(model)}
    forms = {"kind", "rule"}  # stand in headings
    internal = {"start", "tells_panel"}
    assert {name for _, name in settings()} - told - forms - internal == set()


def rows(model: type[BaseModel]) -> Iterator[generate.Row]:
    for group in generate.groups(model):
        yield from group.rows


@pytest.mark.parametrize("name", REPLACED)
def test_a_removed_setting_names_its_replacement(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_setting(name, "space")
    assert caught.value.remedy == REPLACED[name]
    judge = {"kind": "vllm", "model": "org/m", "revision": "main"}
    for group in ({"judge": {"judges": [judge]}}, {"distill": {"judge": {"judges": [judge]}}}):
        with pytest.raises(ConfigError) as caught:
            validate(group, "some.yaml")
        assert caught.value.remedy == REPLACED["judge.judges.revision"]


def test_a_record_may_hold_settings_that_are_gone() -> None:
    judge = {"kind": "similarity", "name": "s"}
    old = {"train": {"beta1": 0.9, "epochs": 2}, "judge": {"judges": [judge | {"gone": 1}]}}
    new = {"train": {"epochs": 2}, "judge": {"judges": [judge]}}
    assert validate_record(old, "a record") == validate(new, "a record")
    with pytest.raises(ConfigError, match=r"train\.epochs"):
        validate_record({"train": {"beta1": 0.9, "epochs": "many"}}, "a record")
