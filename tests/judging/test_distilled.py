"""judge.json: what is refused, and how logits of distilled models are read as answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.special import expit, log_softmax

from anmi_ray.config.judge import EncoderJudgeConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging import kinds
from anmi_ray.judging.calibration import log_probabilities
from anmi_ray.judging.kinds import distilled
from anmi_ray.judging.kinds.distilled import LABELS, DistilledForm, Target
from anmi_ray.judging.kinds.encoder import EncoderEngine
from anmi_ray.judging.preferences import of_answers
from tests.judging.test_encoder import asked, direct, questions, settings, shown
from tests.models.tiny import write_tiny_classifier

TARGETS: tuple[Target, ...] = ("binary", "ternary", "two-head")


def write(folder: Path, target: Target, **more: Any) -> Path:
    write_tiny_classifier(folder, LABELS[target])
    (folder / distilled.FILE).write_text(DistilledForm(target, **{"max_tokens": 48, **more}).to_json())
    return folder


def config(folder: Path, **more: object) -> EncoderJudgeConfig:
    return EncoderJudgeConfig.model_validate({"kind": "encoder", "model": str(folder), "form": "pairwise", **more})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Target, Path]:
    root = tmp_path_factory.mktemp("distilled")
    return {target: write(root / target, target) for target in TARGETS}


@given(
    target=st.sampled_from(TARGETS),
    logits=st.lists(st.tuples(*[st.floats(-800, 800)] * 3), min_size=1, max_size=8),
)
def test_exchanging_the_documents_exchanges_the_answer(target: Target, logits: list[tuple[float, ...]]) -> None:
    raw = np.array(logits)[:, : len(LABELS[target])]
    swapped = raw.copy()
    if target == "two-head":
        swapped[:, 0] *= -1
    else:
        swapped[:, :2] = raw[:, 1::-1]
    found, back = log_probabilities(raw, target), log_probabilities(swapped, target)
    assert set(found) == {"log_first", "log_second"} | ({"log_tie"} if target != "binary" else set())
    assert all(np.isfinite(values).all() for values in found.values())
    share, other = ({name: np.exp(values) for name, values in one.items()} for one in (found, back))
    np.testing.assert_allclose(sum(share.values()), 1.0, atol=1e-12)
    np.testing.assert_allclose(share["log_first"], other["log_second"], atol=1e-12)
    np.testing.assert_allclose(share["log_second"], other["log_first"], atol=1e-12)


@given(mean=st.floats(-40, 40), decided=st.floats(-40, 40))
def test_two_heads_are_mean_and_consensus(mean: float, decided: float) -> None:
    logs = log_probabilities(np.array([[mean, decided]]), "two-head")
    first, second, tie = (np.exp(logs[f"log_{name}"][0]) for name in ("first", "second", "tie"))
    m = expit(mean)
    d = max(expit(decided), abs(2 * m - 1))
    wanted = ((d - (2 * m - 1)) / 2, (d + (2 * m - 1)) / 2, 1 - d)
    np.testing.assert_allclose((first, second, tie), wanted, atol=1e-12)


def test_small_probabilities_keep_their_digits() -> None:
    """Where E[C] is near 0, and where the second head is sure that judges agree."""
    logs = log_probabilities(np.array([[-60.0, 300.0], [60.0, 300.0]]), "two-head")
    np.testing.assert_allclose(logs["log_second"][0], -60.0, rtol=1e-12)
    np.testing.assert_allclose(logs["log_first"][1], -60.0, rtol=1e-12)
    np.testing.assert_allclose(logs["log_tie"], -300.0, rtol=1e-12)


@given(logits=st.lists(st.tuples(*[st.floats(-300, 300)] * 3), min_size=1, max_size=8))
def test_without_calibration_labels_are_a_softmax(logits: list[tuple[float, ...]]) -> None:
    for target in ("binary", "ternary"):
        raw = np.array(logits)[:, : len(LABELS[target])]
        found = log_probabilities(raw, target)
        np.testing.assert_array_equal(np.stack(list(found.values()), axis=1), log_softmax(raw, axis=1))


def test_nan_stays_nan() -> None:
    for target in TARGETS:
        raw = np.zeros((2, len(LABELS[target])))
        raw[1] = np.nan
        for values in log_probabilities(raw, target).values():
            assert np.isfinite(values).tolist() == [True, False]


@pytest.mark.parametrize("target", TARGETS)
def test_a_distilled_judge_answers_by_its_file(tmp_path: Path, target: Target) -> None:
    folder, of = write(tmp_path / "model", target), questions(longest=15)
    table = asked(config(folder), of)[1]
    texts = [q for q, _, _ in shown(of)], [f"{a} [SEP] {b}" for _, a, b in shown(of)]
    logs = log_probabilities(direct(folder, *texts), target)
    share = {name: np.exp(values) for name, values in logs.items()}
    p_first, error = of_answers(table, None)
    assert error.null_count == len(p_first)
    np.testing.assert_allclose(p_first, share["log_first"] + share.get("log_tie", 0.0) / 2, atol=1e-5)
    assert np.std(p_first) > 0.02
    if target != "binary":
        np.testing.assert_allclose(np.exp(table["log_tie"].to_numpy()), share["log_tie"], atol=1e-5)


def test_a_ternary_judge_is_the_labelled_one(folders: dict[Target, Path], tmp_path: Path) -> None:
    """The file changes nothing that the settings could not say."""
    of, bare = questions(), tmp_path / "bare"
    shutil.copytree(folders["ternary"], bare)
    (bare / distilled.FILE).unlink()
    named = settings("pairwise", bare, first_label="first", second_label="second", tie_label="tie", max_tokens=48)
    old, new = asked(named, of)[1], asked(config(folders["ternary"]), of)[1]
    assert old.equals(new)


def test_text_pair_and_tokens_are_the_folders(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "binary", text="word9 {query} {first} word8 {second}", text_pair=None)
    of = questions(longest=60)
    engine = kinds.of(config(folder)).engine()
    assert isinstance(engine, EncoderEngine)
    truncator = engine.form.truncator  # type: ignore[union-attr]
    read = kinds.of(config(folder)).model_inputs(None)
    assert read is not None
    assert truncator.model.max_tokens == read.tokens == 48
    texts, pairs = truncator(shown(of))
    assert pairs is None
    assert all(text.startswith("word9 ") and " word8 " in text for text in texts)
    assert max(map(len, truncator.inputs(shown(of))["input_ids"])) == 48


def test_the_identity_covers_the_file_and_not_how_it_is_named(folders: dict[Target, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folders["ternary"], folder)
    before = kinds.of(config(folder)).identity
    assert before == kinds.of(config(folders["ternary"])).identity
    said = {"first_label": "first", "second_label": "second", "tie_label": "tie", "max_tokens": 48}
    assert kinds.of(config(folder, **said)).identity == before
    assert kinds.of(config(folder, dtype="bfloat16")).identity != before
    (folder / distilled.FILE).write_text(DistilledForm("ternary", max_tokens=32).to_json())
    assert kinds.of(config(folder)).identity != before


@pytest.mark.parametrize(
    ("target", "given", "message"),
    [
        ("ternary", {"first_label": "second", "second_label": "first"}, "`first_label` is 'second'.*says 'first'"),
        ("binary", {"first_label": "first", "second_label": "second", "tie_label": "tie"}, "`tie_label` .*says None"),
        ("two-head", {"first_label": "mean", "second_label": "decided"}, "`first_label` is 'mean'"),
        ("ternary", {"max_tokens": 64}, "`max_tokens` is 64, and its judge.json says 48"),
        ("ternary", {"form": "pointwise"}, "judge.json"),
    ],
)
def test_settings_that_contradict_the_file_are_refused_before_anything_runs(
    folders: dict[Target, Path], target: Target, given: dict[str, object], message: str
) -> None:
    judge = kinds.of(config(folders[target], **given))
    for ask in (judge.content, judge.engine, lambda: judge.model_inputs(None)):
        with pytest.raises(ConfigError, match=message) as caught:
            ask()
        assert caught.value.remedy


def test_half_of_the_labels_is_no_form(folders: dict[Target, Path]) -> None:
    with pytest.raises(ValidationError, match="needs first_label and second_label"):
        config(folders["ternary"], first_label="first")


GOOD = json.loads(DistilledForm("two-head").to_json())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "JSON"),
        ("[1]", "object"),
        ("\udcff", "cannot be read"),
        ({"format": 2}, "format"),
        ({"format": None}, "format"),
        ({"target": "quaternary"}, "target"),
        ({"target": ["binary"]}, "target"),
        ({"target": "ternary"}, "labels mean, decided, and a ternary model has first, second, tie"),
        ({"text": 3}, "text"),
        ({"text_pair": 3}, "text_pair"),
        ({"text": "{query} {first}"}, "must show {first} once, not 2 times"),
        ({"text": "{query.x}"}, "is not one of"),
        ({"max_tokens": 8}, "max_tokens"),
        ({"max_tokens": 64.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 2.0}, "temperature"),
        ({"calibration": "isotonic"}, "calibration"),
        ("-target", "target"),
    ],
)
def test_a_file_that_is_not_of_this_form_is_refused_with_its_name(
    folders: dict[Target, Path], tmp_path: Path, change: str | dict[str, object], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["two-head"], folder)
    file = folder / distilled.FILE
    if isinstance(change, dict):
        file.write_text(json.dumps({**GOOD, **change}))
    elif change.startswith("-"):
        file.write_text(json.dumps({name: value for name, value in GOOD.items() if name != change[1:]}))
    else:
        file.write_bytes(change.encode(errors="surrogateescape"))
    judge = kinds.of(config(folder))
    for ask in (judge.content, judge.engine):
        with pytest.raises(ConfigError, match=message) as caught:
            ask()
        assert str(file) in str(caught.value)
        assert "distill again" in (caught.value.remedy or "")


def test_what_is_written_is_read(folders: dict[Target, Path], tmp_path: Path) -> None:
    for target in TARGETS:
        folder = tmp_path / target
        shutil.copytree(folders[target], folder)
        form = DistilledForm(target, "{query} – {first}", "{second}", 99)
        (folder / distilled.FILE).write_text(form.to_json(), encoding="utf-8")
        assert distilled.read(folder) == form
    assert distilled.read(tmp_path) is None
    assert distilled.read(tmp_path / "nothing") is None
    with pytest.raises(ValidationError, match="must show"):
        DistilledForm("binary", text="{query} {query}")
