"""One reader of users' YAML: what it reads, and one message with its line for all that it does not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config import tune, yaml_text
from anmi_ray.config.load import apply, load
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.prompt import load_template

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cc", "Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc. :_-1", max_size=5), inner, max_size=4),
    max_leaves=12,
)


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        yaml_text.parse(text, "some.yaml")
    assert str(caught.value).startswith("some.yaml: ")
    assert caught.value.remedy
    assert len(str(caught.value)) < 600
    return str(caught.value)


@given(VALUES)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert yaml_text.parse(text, "some.yaml") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("1e-5", "1e-5"),
        ("0x1F", 31),
        ("-0.5", -0.5),
        (".inf", math.inf),
        ("!!str 5", "5"),
        ("1_000", "1_000"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("1" * 5000, "1" * 5000),
        ("'1_000'", "1_000"),
        ("{on: 1, null: 2, 3: 4}", {"on": 1, "null": 2, "3": 4}),
        ("", None),
    ],
)
def test_values_are_what_they_look_like(text: str, value: Any) -> None:
    assert yaml_text.parse(f"a: {text}", "some.yaml") == {"a": value}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("b: 1\na: !!python/object/apply:os.system [ls]", "line 2: "),
        ("a: !!binary aGk=", "got a bytes"),
        ("a: !mine 1", "line 1: "),
        ("a: 1\nb: 2\na: 3", "line 3: not valid YAML: a is given twice, also in line 1"),
        ("a: {b: 1, 'b': 2}", "line 1: "),
        ("a: " + "[" * 60 + "]" * 60, "at most 40"),
        ("a: " + "[" * 5000, "recursion"),
        ("a: &x [*x]", "at most 40"),
        ("a: *x", "line 1: "),
        ("? [1]\n: 2", "line 1: "),
        ("b: 2\n<<: 3", "line 2: "),
        ("a: 1\n---\nb: 2", "line 2: "),
        ("a: 1\nb: \x1b[2J", "line 2: unexpected character U+001B"),
        ('a: "\\ud800"', "U+D800"),
        ('a: "\\0"', "U+0000"),
        ("a: 1\n\tb: 2", "line 2: "),
        (f"a: *{'x' * 3000}", "line 1: "),
    ],
)
def test_what_is_refused_names_its_line(text: str, said: str) -> None:
    assert said in refused(text)


def test_what_aliases_repeat_is_changed_apart(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train: &t {max_steps: 5, lora: {rank: 4}}\ndistill: {<<: *t, max_steps: 7}\n")
    read = load(path, ["train.lora.rank=8"])
    assert (read.train.max_steps, read.distill.max_steps) == (5, 7)
    assert read.train.lora is not None
    assert read.distill.lora is not None
    assert (read.train.lora.rank, read.distill.lora.rank) == (8, 4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"seed: 1\nname: caf\xe9", "line 2: "),
        ("seed: 1".encode("utf-16"), "line 1: "),
        (b"seed: 1\nseed: 2", "line 2: "),
        (b"# nothing yet\n", "holds no settings"),
        (b"{}", "holds no settings"),
        (b"- seed", "not a list or a single value"),
        (b"just words", "not a list or a single value"),
    ],
)
def test_a_file_of_settings_or_of_a_campaign(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    for reader in (load, tune.load):
        with pytest.raises(ConfigError) as caught:
            reader(path)
        assert said in str(caught.value)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("name=!!binary aGk=", "got a bytes"),
        ("judge={a: 1, a: 2}", "a is given twice"),
        ("a" + ".a" * 5000 + "=1", "has 5000 dots"),
        ("train.seed=[", "not valid YAML"),
    ],
)
def test_an_override(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match="command line") as caught:
        apply({}, override)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


def test_the_front_matter_of_a_template(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("---\nname: mine\nversion: [\nform: letters\n---\n{% block user %}{% endblock %}")
    with pytest.raises(ConfigError, match="line 4"):
        load_template(str(path))
