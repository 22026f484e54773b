"""Messages about settings: names as files have them, what the right level allows, one remedy, and no credential."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from anmi_ray.config import tune
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load, validate, validate_as
from anmi_ray.config.rate import RateConfig
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core.errors import ConfigError
from tests.commands import refused

SERVER = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
KINDS = "simulated, similarity, null, api, encoder, vllm, imported, distilled"
GENERIC = "prints every setting"


def said(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(settings, "some.yaml")
    text = str(caught.value)
    assert text.count("remedy: ") == 1
    assert len(text) < 600
    return text


def of_judge(**judge: Any) -> str:
    return said({"judge": {"judges": [judge]}})


def test_a_judge_of_no_kind_is_told_the_kinds_once() -> None:
    assert of_judge(kind="oracle") == (
        f"some.yaml: judge.judges.0.kind: expected a known name (given: 'oracle')\n  remedy: give one of {KINDS}"
    )
    assert of_judge(name="x") == f"some.yaml: judge.judges.0.kind is missing\n  remedy: give one of {KINDS}"
    assert of_judge(kind="encodr").endswith("did you mean encoder?")


WRONG: list[Any] = [{"a": {"b": []}}, {}, ["x"], [{}], None, True, 3, 2.5, "text"]
Build = Callable[[Any], Any]


def places(
    schema: dict[str, Any], models: dict[str, Any], name: str = "", build: Build = lambda value: value, depth: int = 0
) -> Iterator[tuple[str, Build, dict[str, Any]]]:
    """(dotted name, content that holds a value there, JSON schema) of every place in settings, in every form."""
    schema = models[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    yield name, build, schema
    if depth > 12:
        return
    fields = schema.get("properties", {})
    form = {key: field["const"] for key, field in fields.items() if "const" in field}
    below = [(f"{name}.{key}".strip("."), fields[key], {key: None}) for key in fields]
    below += [(name, one, None) for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    if isinstance(members := schema.get("additionalProperties"), dict):
        below.append((f"{name}.member", members, {"member": None}))
    for inner, one, keys in below:
        yield from places(
            one,
            models,
            inner,
            build if keys is None else lambda v, k=keys: build(form | dict.fromkeys(k, v)),
            depth + 1,
        )
    if isinstance(items := schema.get("items"), dict):
        yield from places(items, models, f"{name}.0", lambda value: build([value]), depth + 1)


CAMPAIGN = {"name": "c", "experiment": {}, "space": {"train.seed": {"kind": "integer", "low": 1, "high": 3}}}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "base"), [(Experiment, {}), (CampaignConfig, CAMPAIGN), (RateConfig, {})])
def test_a_value_of_any_wrong_shape_is_a_message(model: type[BaseModel], base: dict[str, Any]) -> None:
    """In every setting; and what tells the forms of a group apart is named where it is of another type."""
    schema = model.model_json_schema()
    unions: set[str] = set()
    for name, build, form in places(schema, schema.get("$defs", {})):
        for value in WRONG if name else ():
            with suppress(ConfigError):  # nothing else may come out
                validate_as(model, {**base, **build(value)}, "some.yaml", "see the reference")
        if key := form.get("discriminator", {}).get("propertyName"):
            unions.add(name)
            for value in WRONG:
                with pytest.raises(ConfigError, match=rf"some\.yaml: {re.escape(name.removesuffix('.0'))}"):
                    validate_as(model, {**base, **build({key: value})}, "some.yaml", "see the reference")
    assert unions >= {"judge.judges.0", "mine.weigh", "retrieve.dense.index"} if model is Experiment else True


def test_shapes_are_named_as_yaml_has_them() -> None:
    several = said({"execution": {"askers": "many"}})
    assert several.count("execution.askers") == several.count("given: 'many'") == 1
    assert "judge.judges: expected a list (given: a mapping)" in said({"judge": {"judges": {"kind": "similarity"}}})
    assert "judge.judges.0: expected a group of settings (given: 'similarity')\n  remedy: write {kind: similarity}" in (
        said({"judge": {"judges": ["similarity"]}})
    )
    assert 'give one of simulated, similarity, "null",' in of_judge(kind=None)


@pytest.mark.parametrize(
    "table", [pd.DataFrame({"id": ["a"]}), pa.table({"id": ["a"]}), pa.record_batch({"id": ["a"]})]
)
@pytest.mark.parametrize(
    ("group", "name"),
    [("corpus", "documents"), ("corpus", "qrels"), ("train", "dev_points"), ("compare", "path"), ("execution", "root")],
)
def test_a_table_is_no_setting(table: Any, group: str, name: str) -> None:
    for value in (table, [table]):
        text = said({group: {name: value}})
        assert f"some.yaml: {group}.{name}: expected a value" in text
        assert "to_parquet" in text


def test_a_name_is_the_files_and_what_is_allowed_is_of_its_level() -> None:
    unknown = of_judge(kind="api", endpoint={**SERVER, "zzz": 1})
    assert "unknown setting judge.judges.0.endpoint.zzz\n  remedy: known here: allow_external, base_url" in unknown
    assert "noise_sd" not in unknown
    twice = of_judge(kind="api", endpoint={**SERVER, "zzz": 1, "qqq": 1})
    assert "unknown setting judge.judges.0.endpoint.qqq\n" in twice
    assert twice.count("known here") == 1
    of_kind = of_judge(kind="similarity", zzz=1)
    assert of_kind.endswith("unknown setting judge.judges.0.zzz\n  remedy: known here: kind, name")
    rule = said({"mine": {"allow": [{"rule": "gate", "zzz": 1}]}})
    assert rule.endswith("unknown setting mine.allow.0.zzz\n  remedy: known here: largest, rule")
    replaced = of_judge(kind="api", endpoint={**SERVER, "deadline_s": 2})
    assert "unknown setting judge.judges.0.endpoint.deadline_s\n  remedy: the limit is five times" in replaced


def test_the_remedy_that_a_message_knows_stands_alone() -> None:
    known = said({"compare": {"degree": 30}, "retrieve": {"candidates": 20}})
    assert "\n  remedy: lower compare.degree below it, or raise retrieve.candidates" in known
    assert GENERIC not in known
    several = said({"trian": {}, "compare": {"degre": 4}})
    assert "did you mean train?" in several
    assert "compare.degre" in several
    assert GENERIC not in several
    assert GENERIC in said({"compare": {"degree": 0}})
    assert "and 95 more\n" in said({f"setting-{at}": at for at in range(100)})


def test_a_long_value_is_quoted_short() -> None:
    value = "x" * 5000
    for settings in ({"compare": {"degree": value}}, {"judge": {"preset": value}}, {"mine": {"rule": value}}):
        assert value not in said(settings)
    assert value not in of_judge(kind=value)
    assert value not in said({value: 1})


KEYS = st.sampled_from(["api_key", "Authorization", "x-api-key", "token", "secret", "password", "apiKey"])


@given(KEYS, st.text("abcdef0123456789", min_size=3, max_size=30), st.sampled_from(["", "headers", "a.b"]))
def test_a_key_in_what_is_sent_is_refused_for_key_env(name: str, value: str, groups: str) -> None:
    extra: dict[str, Any] = {name: value}
    for group in filter(None, groups.split(".")):
        extra = {group: extra}
    text = of_judge(kind="api", endpoint={**SERVER, "extra": extra})
    assert f"{name} holds a credential, and settings are recorded" in text
    assert "judge.judges.0.endpoint.key_env: OPENAI_API_KEY" in text
    assert f"'{value}'" not in text


@pytest.mark.parametrize(
    "extra",
    [
        {"max_tokens_per_doc": 100, "stop_token_ids": [1, 2], "logit_bias": {"50256": -100}},
        {"reasoning_effort": "low", "prompt_cache_key": "anmi", "include_usage": True, "api_key": None},
        {"structured_outputs": {"json": {"properties": {"token": {"type": "string"}}, "required": ["token"]}}},
        {"stop": ["sk-", "Bearer"], "eos_token": "</s>"},
    ],
)
def test_what_is_no_key_is_sent(extra: dict[str, Any]) -> None:
    validate({"judge": {"judges": [{"kind": "api", "endpoint": {**SERVER, "extra": extra}}]}}, "some.yaml")
    text = of_judge(kind="api", endpoint={**SERVER, "api_key": 12345})  # not text, so no credential, but unknown
    assert "name the environment variable that holds the key in judge.judges.0.endpoint.key_env" in text
    assert "12345" not in text


def test_a_campaign_and_an_experiment_are_told_their_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("campaign.yaml").write_text("experiment: one.yaml\nspace: {train.seed: {kind: integer, low: 1, high: 3}}")
    Path("one.yaml").write_text("corpus: {reader: pydocs}\ntrain: {max_steps: 3}")
    for command in ("run", "plan", "config"):
        assert "anmi tune campaign.yaml" in refused(command, "campaign.yaml")
    assert "anmi run one.yaml" in refused("tune", "one.yaml")
    Path("my campaign.yaml").write_bytes(Path("campaign.yaml").read_bytes())
    assert "anmi tune 'my campaign.yaml' (" in refused("run", "my campaign.yaml")
    Path("nested.yaml").write_text("experiment: campaign.yaml\nspace: {a: {}}")
    with pytest.raises(ConfigError, match=r"^campaign\.yaml: this file is a campaign's"):
        tune.load("nested.yaml")
    assert load("one.yaml").train.max_steps == 3


def test_gpus_that_ray_cannot_give_are_refused() -> None:
    for group in ("score", "embed"):
        assert f"execution.{group}.gpus: expected 0 or a share of at least 0.0001" in said(
            {"execution": {group: {"gpus": 1e-5}}}
        )
    assert "judges.0.gpus: expected 0 or a share" in of_judge(kind="encoder", model="m", gpus=1e-5)
    assert "execution.embed.gpus" in said({"execution": {"embed": {"gpus": 1.5}}})
    validate({"execution": {"score": {"gpus": 1 / 3}, "embed": {"gpus": 1}}}, "some.yaml")
