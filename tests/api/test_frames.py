"""Runs over tables in memory, judged by a function: nothing is asked twice, and mistakes are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import anmi_ray
from anmi_ray.core.errors import ConfigError, DataError

WORDS = ("chair", "desk", "lamp", "shelf", "sofa", "stool", "table", "bed")
DOCUMENTS = {
    "sku": [f"p{i}" for i in range(64)],
    "description": [f"A {WORDS[i % 8]} of {WORDS[i // 8]} wood, number {i}, for a room." for i in range(64)],
}
QUERIES = [f"{one} of {other} wood" for one in WORDS for other in WORDS[:4]]
SMALL: dict[str, Any] = {"corpus": {"unlabelled_dev": 0, "unlabelled_test": 0}, "execution": {"buckets": 2}}
SMALL |= {"retrieve": {"candidates": 8, "depth": 16, "random_negatives": 1, "dense": {"max_tokens": 32}}}
SMALL |= {"compare": {"degree": 2}, "rerank": {"depth": 8}}


@pytest.mark.ray
@pytest.mark.slow
def test_a_function_judges_tables_in_memory_and_is_asked_once(ray_local: None, tmp_path: Path) -> None:
    asked: list[tuple[str, str, str]] = []

    def longer_match(query: str, first: str, second: str) -> float:
        asked.append((query, first, second))
        if len(asked) == 100:
            raise KeyboardInterrupt
        words = set(query.split())
        score = len(words & set(first.split())) - len(words & set(second.split()))
        return 0.5 + 0.5 * (score > 0) - 0.5 * (score < 0)

    def run() -> anmi_ray.Run:
        return anmi_ray.run(
            documents=DOCUMENTS, queries=QUERIES, judge=longer_match, root=str(tmp_path / "root"), last="rate", **SMALL
        )

    with pytest.raises(KeyboardInterrupt):
        run()
    found = run()
    assert len(asked) == len(set(asked)) + 1, "all but the one that was interrupted are asked once"
    assert found.table("judgments").num_rows == len(set(asked))
    assert set(found.table("ratings")["doc_id"].to_pylist()) <= set(DOCUMENTS["sku"])
    assert found._repr_html_() == "<p>run <b>search</b>, up to rate</p>"
    run()
    assert len(asked) == len(set(asked)) + 1
    with pytest.raises(DataError, match="judge <lambda>"):
        anmi_ray.run(documents=DOCUMENTS, queries=QUERIES, judge=lambda *_: 7, root=str(tmp_path / "root"), **SMALL)


def test_tables_that_are_missing_or_named_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        anmi_ray.run(documents=DOCUMENTS, root=str(tmp_path))
    with pytest.raises(ConfigError):
        anmi_ray.run(anmi_ray.load("jobs/configs/quickstart.yaml"), judge="simulated")
    with pytest.raises(ConfigError):
        anmi_ray.run(documents=DOCUMENTS, queries=QUERIES, judge="gpt-4o", root=str(tmp_path))
    with pytest.raises(DataError):
        anmi_ray.run(documents=3, queries=QUERIES, root=str(tmp_path))


def test_a_function_of_the_same_code_is_known_again_in_another_process() -> None:
    code = """
from anmi_ray.api.frames import _text_of
def judge(query, first, second):
    return float(any(word in {"b", "a", "c"} for word in query.split()))
print(_text_of(judge.__code__))
"""
    call = [sys.executable, "-c", code]
    seeded = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    texts = [subprocess.check_output(call, env=environment) for environment in seeded]
    assert texts[0] == texts[1] != b""


def test_winners_in_words_rate_like_preferences() -> None:
    rows = {"query_id": ["q"] * 4, "doc_a": ["x", "y", "x", "z"], "doc_b": ["y", "z", "z", "y"]}
    by_number = anmi_ray.rate({**rows, "preference": [1.0, 1.0, 0.5, 0.0]}, prior=1.0)
    by_word = anmi_ray.rate(pa.table({**rows, "winner": ["A", "doc_a", "tie", " b"]}), prior=1.0)
    assert by_word.ratings.equals(by_number.ratings)
    with pytest.raises(DataError):
        anmi_ray.rate({**rows, "winner": ["A", "a", "maybe", "x"]}, prior=1.0)
