"""Statistics of words: what shards count adds up to what the collection holds, and travels as tables."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.retrieve import Bm25Config, LuceneConfig
from anmi_ray.core import identity
from anmi_ray.retrieval import bm25, lucene, statistics
from anmi_ray.retrieval.statistics import Statistics
from tests.retrieval.java import needs_lucene

PLAIN = Bm25Config(stemmer=None, stopwords=None)
WORDS = ["alpha", "beta", "gamma", "delta", "running", "file"]
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1, max_size=12)


@given(st.lists(texts, min_size=1, max_size=4), st.sets(st.sampled_from(WORDS)))
def test_shards_add_up_to_the_whole(shards: list[list[str]], asked: set[str]) -> None:
    words = {"bm25": sorted(asked)}
    parts = [{"bm25": bm25.Counts.of(shard, PLAIN).statistics(asked)} for shard in shards]
    found = statistics.read(statistics.summed((statistics.counted(part, words) for part in parts), words))["bm25"]
    whole = bm25.Counts.of([text for shard in shards for text in shard], PLAIN).statistics(asked)
    assert (found.documents, found.length) == (whole.documents, whole.length)
    assert {word: count for word, count in found.document_frequency.items() if count} == whole.document_frequency
    assert whole == Statistics.merged(part["bm25"] for part in parts)


def test_idf_is_lucene_s() -> None:
    known = Statistics(10, 40, {"rare": 1, "usual": 10})
    np.testing.assert_allclose(
        known.idf(["rare", "usual", "never"]), np.log(1 + np.array([9.5, 0.5, 9.5]) / [1.5, 10.5, 1.5])
    )
    assert known.mean_length == 4.0
    assert Statistics(0, 0, {}).mean_length == 0.0
    assert statistics.read(statistics.summed([], {"bm25": ["one"]})) == {"bm25": Statistics(0, 0, {"one": 0})}


@needs_lucene
@pytest.mark.parametrize("k1_b", [(0.9, 0.4), (1.2, 0.75), (0.9, 0.0), (0.7, 1.0), (0.0, 0.4)])
def test_lucene_scores_parts_as_the_whole(k1_b: tuple[float, float], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Topics by part, as in a corpus in order: without the collection's statistics the parts' scores differ."""
    k1, b = k1_b
    config = LuceneConfig(k1=k1, b=b)
    draw = identity.rng("documents of parts")
    parts = [
        [" ".join([*draw.choice(of, draw.integers(2, 12)), "c++ NOT"]) for _ in range(30)]
        for of in (WORDS[:4], WORDS[2:], [*WORDS, "日本語", "alpha"])
    ]
    queries = [
        "running alpha",
        "delta delta file",
        "日本語 gamma",
        "c++ AND NOT beta^2 (file",
        "the",
        "",
        "nothing here",
    ]
    asked = lucene.words(queries, config)

    def scores(texts: list[str], whole: Statistics | None = None) -> tuple[np.ndarray, Statistics]:
        folder = tmp_path_factory.mktemp("index")
        lucene.build(texts, folder, config)
        with closing(lucene.LuceneIndex(folder, config, len(texts), whole)) as index:
            place, found = index.search(queries, len(texts), threads=2)
            own = index.statistics(asked)
        score = np.zeros((len(queries), len(texts)))
        row, column = np.nonzero(place >= 0)
        score[row, place[row, column]] = found[row, column]
        return score, own

    expected, known = scores([text for part in parts for text in part])
    own = [scores(part) for part in parts]
    assert Statistics.merged(one for _, one in own) == known
    assert not np.allclose(np.concatenate([score for score, _ in own], axis=1), expected, rtol=1e-3)
    shared = np.concatenate([scores(part, known)[0] for part in parts], axis=1)
    np.testing.assert_allclose(shared, expected, rtol=2e-6)
    assert expected[:4].any(axis=1).all()
    assert not expected[4:].any()


@needs_lucene
def test_words_of_queries_are_those_that_the_index_has() -> None:
    assert sorted(lucene.words(["Running RUNS, and c++!"], LuceneConfig())) == ["c", "run"]
