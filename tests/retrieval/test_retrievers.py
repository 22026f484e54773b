"""BM25 against bm25s and by hand, dense retrieval against all inner products, and the rule for ties."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from anmi_ray.config.retrieve import Bm25Config, RetrieveConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.retrieval import bm25, dense
from anmi_ray.retrieval.hits import top
from anmi_ray.retrieval.statistics import Statistics
from tests.retrieval.searched import search_texts, search_vectors

WORDS = ["alpha", "beta", "gamma", "delta", "running", "runs", "engine", "file", "socket", "thread"]
PLAIN = Bm25Config(stemmer=None, stopwords=None)


def corpus(documents: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 12))) for _ in range(documents)]


@given(st.lists(st.lists(st.integers(0, 4), min_size=7, max_size=7), min_size=1, max_size=4), st.integers(1, 9))
def test_top_is_a_stable_sort(rows: list[list[int]], depth: int) -> None:
    scores = np.array(rows, dtype=np.float64)
    index, value = top(scores, depth, above=0.0)
    for row in range(len(rows)):
        wanted = [i for i in np.argsort(-scores[row], kind="stable") if scores[row, i] > 0][:depth]
        assert index[row].tolist() == wanted + [-1] * (depth - len(wanted))
        assert value[row, : len(wanted)].tolist() == scores[row, wanted].tolist()
        assert not value[row, len(wanted) :].any()


@pytest.mark.parametrize(
    ("texts", "queries"),
    [
        (["酵头每天喂两次", "番茄需要六小时的阳光", "茶"], ["酸面团酵头多久喂一次", "番茄要多少阳光", "茶"]),
        (["サワードウの種は一日二回", "ﾄﾏﾄは日光が必要", "猫と犬"], ["サワードウ種", "トマトの日光", "猫"]),
        (["เลี้ยงหัวเชื้อวันละสองครั้ง", "มะเขือเทศต้องการแสงแดด", "ดื่มน้ำ"], ["หัวเชื้อ", "แสงแดด", "น้ำ"]),
        (["고양이는 물을 마신다", "강아지가 뛴다", "토마토 Python"], ["고양이", "강아지를", "ＰＹＴＨＯＮ"]),
        (["ພາສາລາວ", "ភាសាខ្មែរ", "မြန်မာစာ"], ["ລາວ", "ខ្មែរ", "မြန်မာ"]),
        (["हिन्दी भाषा सरल है।", "தமிழ் மொழி", "ಕನ್ನಡ"], ["हिन्दी", "மொழி", "ಕನ್ನಡ"]),
    ],
)
def test_bm25_finds_words_of_other_scripts(texts: list[str], queries: list[str]) -> None:
    index, _ = search_texts(texts, queries, Bm25Config(), 1)
    assert index[:, 0].tolist() == [0, 1, 2]


def test_bm25_by_hand() -> None:
    texts = ["alpha beta", "alpha alpha gamma delta", "gamma delta"]
    index, score = search_texts(texts, ["alpha"], PLAIN, 3)
    idf = np.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    length = np.array([2, 4]) / (8 / 3)
    frequency = np.array([1, 2])
    expected = idf * frequency / (frequency + 0.9 * (1 - 0.4 + 0.4 * length))
    assert index.tolist() == [[1, 0, -1]]
    np.testing.assert_allclose(score, [[expected[1], expected[0], 0.0]], rtol=1e-12)


@pytest.mark.parametrize("config", [Bm25Config(), Bm25Config(k1=1.5, b=0.75, stopwords=None)])
def test_bm25_agrees_with_bm25s(config: Bm25Config) -> None:
    texts, queries = corpus(60), ["running the engine", "alpha beta beta", "sockets and threads"]
    stemmer = Stemmer.Stemmer("english")
    tokens = [
        bm25s.tokenize(part, stopwords=config.stopwords or [], stemmer=stemmer, show_progress=False)
        for part in (texts, queries)
    ]
    peer = bm25s.BM25(k1=config.k1, b=config.b, method="lucene")
    peer.index(tokens[0], show_progress=False)
    _, expected = peer.retrieve(tokens[1], k=10, show_progress=False)
    np.testing.assert_allclose(search_texts(texts, queries, config, 10)[1], expected, rtol=1e-5)


@pytest.mark.parametrize("query", ["the and of", "", "zzz unknown", "?!"])
def test_bm25_without_hits_is_padded(query: str) -> None:
    index, score = search_texts(corpus(5), [query, "alpha"], Bm25Config(), 4)
    assert index[0].tolist() == [-1] * 4
    assert not score[0].any()
    assert (index[1] >= 0).any()


def test_bm25_starts_no_jax_which_would_take_most_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('started')")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(scores, k): return scores, k")
    there = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for code in ("import anmi_ray.retrieval.bm25", "import anmi_ray.retrieval.bm25, jax", "import bm25s"):
        done = subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True, check=True)
        assert done.stdout == ("" if code == "import anmi_ray.retrieval.bm25" else "started\n")


def test_nothing_to_index_and_nothing_to_ask() -> None:
    assert search_texts([], ["alpha"], PLAIN, 2)[0].tolist() == [[-1, -1]]
    assert search_texts(["alpha"], [], PLAIN, 2)[0].shape == (0, 2)
    assert search_texts(["the", "of"], ["alpha"], Bm25Config(), 2)[0].tolist() == [[-1, -1]]
    assert search_vectors(vectors(2, 0), vectors(0, 0), 3)[0].tolist() == [[-1] * 3] * 2
    assert search_vectors(vectors(0, 0), vectors(4, 0), 3)[0].shape == (0, 3)


def test_bm25_ties_go_to_the_smaller_index() -> None:
    index, _ = search_texts(["alpha"] * 6, ["alpha"], PLAIN, 4)
    assert index.tolist() == [[0, 1, 2, 3]]


def test_bm25_scores_do_not_depend_on_the_order_of_documents() -> None:
    texts, order = corpus(80), np.random.default_rng(1).permutation(80)
    first, second = _index(texts), _index([texts[i] for i in order])
    one, two = (index.search(["alpha running file beta"], 80) for index in (first, second))
    found = one[0][0] >= 0
    assert dict(zip(one[0][0][found], one[1][0][found], strict=True)) == dict(
        zip(order[two[0][0][found]], two[1][0][found], strict=True)
    )


def test_statistics_of_the_whole_collection_make_shards_exact() -> None:
    texts, query = corpus(40), ["alpha running file"]
    whole = _index(texts)
    parts = [texts[:13], texts[13:]]
    merged = Statistics.merged(bm25.Counts.of(part, PLAIN).statistics() for part in parts)
    assert merged == whole.statistics
    scores = np.concatenate([_all_scores(_index(part, merged), query, len(part)) for part in parts])
    np.testing.assert_allclose(scores, _all_scores(whole, query, 40), rtol=1e-12)


def _index(texts: list[str], statistics: Statistics | None = None) -> bm25.Bm25Index:
    return bm25.Bm25Index(bm25.Counts.of(texts, PLAIN), PLAIN, statistics)


def _all_scores(index: bm25.Bm25Index, query: list[str], documents: int) -> np.ndarray:
    hits, score = index.search(query, documents)
    result = np.zeros(documents)
    result[hits[0][hits[0] >= 0]] = score[0][hits[0] >= 0]
    return result


@pytest.mark.parametrize(
    ("settings", "message"), [({"stemmer": "klingon"}, "no stemmer 'klingon'"), ({"stopwords": "xx"}, "xx not recog")]
)
def test_unknown_languages(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search_texts(["a text"], ["a"], Bm25Config(**settings), 1)


def vectors(rows: int, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(rows, 16)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


@pytest.mark.parametrize(("documents", "depth"), [(300, 10), (20, 20), (5, 8), (50, 45)])
def test_dense_is_exact(documents: int, depth: int) -> None:
    queries, docs = vectors(30, 0), vectors(documents, 1)
    index, score = search_vectors(queries, docs, depth)
    wanted_index, wanted_score = top(queries.astype(np.float64) @ docs.T.astype(np.float64), depth)
    np.testing.assert_array_equal(index, wanted_index)
    np.testing.assert_allclose(score, wanted_score, atol=1e-12)


def test_dense_ties_go_to_the_smaller_index_however_many() -> None:
    docs = np.concatenate([vectors(1, 2).repeat(200, axis=0), vectors(50, 3)])
    index, score = search_vectors(docs[:1], docs, 10)
    assert index.tolist() == [list(range(10))]
    assert len(set(score[0])) == 1


def test_similarity_does_not_depend_on_its_company() -> None:
    queries, docs = vectors(7, 0), vectors(9, 1)
    row, column = np.divmod(np.arange(63), 9)
    together = dense.similarity(queries, docs, row, column)
    alone = [dense.similarity(queries[r : r + 1], docs[[c]], np.zeros(1, int), np.zeros(1, int))[0]
             for r, c in zip(row, column, strict=True)]  # fmt: skip
    assert together.tolist() == alone


def test_more_candidates_than_depth_are_refused() -> None:
    with pytest.raises(ValidationError, match="raise depth or lower candidates"):
        RetrieveConfig(depth=20, candidates=50)
