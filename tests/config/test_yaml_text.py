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
    assert str(caught.value).startswith("some.yaml: line ")
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
        ("b: 1\na: 1_000", "line 2: 1_000 is no plain number"),
        ("a: 1_0.5", "write 10.5; quote it"),
        ("a: 1:30", "1:30 is no plain number"),
        ("a: 1:30.5", "1:30.5 is no plain number"),
        ("a: 010", "010 begins with 0"),
        (f"a: {'1' * 5000}", "a number of 5,000 characters"),
        ("a: !!python/object/apply:os.system [ls]", "python/object/apply:os.system' is not read"),
        ("a: !!binary aGk=", "binary' is not read"),
        ("a: !mine 1", "the tag '!mine' is not read"),
        ("a: 1\nb: 2\na: 3", "line 3: 'a' stands twice, in line 1 too"),
        ("a: {b: 1, 'b': 2}", "'b' stands twice"),
        ("a: " + "[" * 5000, "more than 40 lists and groups inside each other"),
        ("a: &x [*x]", "*x stands inside what it names"),
        ("a: *x", "undefined alias"),
        ("? [1]\n: 2", "where a name must"),
        ("<<: 3", "<< takes groups"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: 1\nb: \x1b[2J", "line 2: the character U+001B"),
        ('a: "\\ud800"', "the character U+D800"),
        ('a: "\\0"', "the character U+0000"),
        ("a: 1\n\tb: 2", "line 2: not valid YAML"),
        (f"a: *{'x' * 3000}", "undefined alias"),
    ],
)
def test_what_is_refused_names_its_line(text: str, said: str) -> None:
    assert said in refused(text)


def test_aliases_that_multiply_are_counted_before_they_are_written_out() -> None:
    lines = ["a0: &a0 [" + "lol, " * 10 + "]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 30)]
    assert "more than 100,000 values" in refused("\n".join(lines))


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
        (b"seed: 1\nname: caf\xe9", "line 2: not text in UTF-8"),
        ("seed: 1".encode("utf-16"), "line 1: not text in UTF-8"),
        (b"seed: 1\nseed: 2", "line 2: 'seed' stands twice"),
        (b"train: {learning_rate: 1_0.5}", "1_0.5 is no plain number"),
        (b"# nothing yet\n", "holds no settings"),
        (b"- seed", "not a list or a single value"),
        (b"#" * (5 << 20), "larger than 4 MiB"),
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
        ("train.max_steps=1_000", "write 1000"),
        ("name=!!binary aGk=", "is not read"),
        ("judge={a: 1, a: 2}", "'a' stands twice"),
        ("a" + ".a" * 5000 + "=1", "has 5000 dots"),
        ("train.seed=[", "not valid YAML"),
    ],
)
def test_an_override(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match="command line") as caught:
        apply({}, override)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_date_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("name: 2024-01-01")
    assert load(path).name == "2024-01-01"
    assert load(path, ["name=2025-12-31"]).name == "2025-12-31"


def test_the_front_matter_of_a_template(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("---\nname: mine\nversion: 1_0\nform: letters\n---\n{% block user %}{% endblock %}")
    with pytest.raises(ConfigError, match="line 3: 1_0 is no plain number"):
        load_template(str(path))
