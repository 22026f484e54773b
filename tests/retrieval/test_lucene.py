"""Lucene against BM25 by hand, its rule for ties, languages, and everything that a text or a file may be."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.config.retrieve import LuceneConfig
from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.retrieval import jvm, lucene
from anmi_ray.retrieval.hits import Hits, top
from tests.retrieval.java import needs_lucene

pytestmark = needs_lucene

WORDS = ["alpha", "beta", "gamma", "delta", "running", "runs", "engine", "file", "socket", "thread"]
PLAIN = LuceneConfig(stemmer=None, stopwords=False)


def corpus(documents: int, seed: int = 0, words: Sequence[str] = WORDS, longest: int = 40) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(1, longest))) for _ in range(documents)]


@contextmanager
def indexed(texts: Sequence[str], config: LuceneConfig = PLAIN) -> Iterator[lucene.LuceneIndex]:
    with TemporaryDirectory() as name:
        lucene.build(texts, Path(name), config)
        index = lucene.LuceneIndex(Path(name), config, len(texts))
        try:
            yield index
        finally:
            index.close()


def search(texts: Sequence[str], queries: Sequence[str], depth: int, config: LuceneConfig = PLAIN) -> Hits:
    with indexed(texts, config) as index:
        return index.search(queries, depth)


def by_hand(texts: Sequence[str], query: str, k1: float, b: float) -> np.ndarray:
    """Lucene's BM25, ln(1 + (N − n + ½)/(n + ½)) · f / (f + k1 (1 − b + b·|d|/mean)), summed over the query's words.

    Lucene keeps a length in a byte, which is exact up to 40 words.
    """
    documents = [text.split() for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    score = np.zeros(len(documents))
    for word in query.split():
        n = sum(word in document for document in documents)
        idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        for place, document in enumerate(documents):
            f = document.count(word)
            score[place] += idf * f / (f + k1 * (1 - b + b * len(document) / mean)) if f else 0.0
    return score


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (2.0, 0.75), (0.0, 0.5), (1.2, 0.0), (10.0, 1.0)])
def test_scores_are_bm25_by_hand(k1: float, b: float) -> None:
    texts, queries = corpus(120), ["alpha", "beta gamma", "alpha alpha running", "engine socket thread file runs"]
    with indexed(texts, LuceneConfig(k1=k1, b=b, stemmer=None, stopwords=False)) as index:
        found, score = index.search(queries, 120)
    for row, query in enumerate(queries):
        expected = by_hand(texts, query, k1, b)
        hits = int((expected > 0).sum())
        assert sorted(found[row, :hits].tolist()) == np.flatnonzero(expected).tolist()
        assert set(found[row, hits:].tolist()) <= {-1}
        np.testing.assert_allclose(score[row, :hits], expected[found[row, :hits]], rtol=1e-5)


@given(st.lists(st.sampled_from(["alpha", "alpha beta", "beta", "gamma"]), min_size=1, max_size=40), st.integers(1, 45))
@settings(max_examples=25, deadline=None)
def test_ties_go_to_the_smaller_index_and_the_cut_is_exact(texts: list[str], depth: int) -> None:
    with indexed(texts) as index:
        every = index.search(["alpha beta"], len(texts))
        cut = index.search(["alpha beta"], depth)
    score = np.zeros((1, len(texts)))
    hits = int((every[0] >= 0).sum())
    score[0, every[0][0, :hits]] = every[1][0, :hits]
    expected = top(score, depth, above=0.0)
    assert cut[0].tolist() == expected[0].tolist()
    assert cut[1].tolist() == expected[1].tolist()


@pytest.mark.slow
def test_documents_keep_their_places_through_flushes_and_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{place} same" for place in range(500)]
    monkeypatch.setattr(lucene, "_BUFFER_MB", 0.02)  # a segment for every few documents
    with indexed(texts) as index:
        assert index.search([f"word{place}" for place in range(500)], 1)[0].ravel().tolist() == list(range(500))
        assert index.search(["same"], 500)[0].ravel().tolist() == list(range(500))


def test_builds_threads_and_depths_agree() -> None:
    texts, queries = corpus(300, seed=5), corpus(150, seed=6, longest=6)
    config = LuceneConfig()
    first, second = search(texts, queries, 20, config), search(texts, queries, 20, config)
    threads = jvm.java("java.lang.Thread")
    with indexed(texts, config) as index:
        before = threads.activeCount()
        threaded, shallow = index.search(queries, 20, threads=3), index.search(queries, 7)
        assert threads.activeCount() == before, "Java still knows threads that have ended"
    for one, other in ((first, second), (first, threaded), (tuple(part[:, :7] for part in first), shallow)):
        assert one[0].tolist() == other[0].tolist()
        assert one[1].tolist() == other[1].tolist()


@pytest.mark.parametrize("query", ["the and of", "", " \t\n", "?!", "zzz unknown", "the OR and", "(((", '"'])
def test_queries_without_a_word_have_no_hits(query: str) -> None:
    index, score = search(corpus(5), [query, "alpha"], 4, LuceneConfig())
    assert index[0].tolist() == [-1] * 4
    assert not score[0].any()
    assert (index[1] >= 0).any()


SYNTAX = [
    *("alpha AND (beta", "contents: alpha^2 beta", '"alpha beta"~3', "alpha* beta?", "+alpha -beta", "[alpha TO beta]"),
    *("alpha\\", "alpha/beta/", "alpha && beta || !gamma", "<alpha> beta~0.5", "*:*alpha beta"),
]


@pytest.mark.parametrize("query", SYNTAX)
def test_query_syntax_is_only_words(query: str) -> None:
    words = " ".join(word for word in WORDS if word in query)
    noise = LuceneConfig(stemmer=None)  # "and" and "to" are stop words, "contents" and numbers are unknown
    asked, plain = (search(corpus(50), [one], 10, noise) for one in (query, words))
    assert asked[0].tolist() == plain[0].tolist()
    assert asked[1].tolist() == plain[1].tolist()


def test_nothing_to_index_and_nothing_to_ask() -> None:
    assert search([], ["alpha"], 2)[0].tolist() == [[-1, -1]]
    assert search(["alpha"], [], 2)[0].shape == (0, 2)
    assert search(["", "the", "alpha", ""], ["alpha"], 3, LuceneConfig())[0].tolist() == [[2, -1, -1]]
    assert search(["", ""], ["alpha"], 3)[0].tolist() == [[-1, -1, -1]]


@pytest.mark.parametrize(
    ("config", "query", "found"),
    [
        (LuceneConfig(), "runs", [0, 1]),
        (LuceneConfig(), "universities", [7, 8]),
        (LuceneConfig(stemmer="krovetz"), "universities", [7]),
        (LuceneConfig(stemmer=None), "runs", []),
        (LuceneConfig(), "the", []),
        (LuceneConfig(stopwords=False), "the", [0, 8]),
        (LuceneConfig(language="de"), "Häusern", [3]),
        (LuceneConfig(), "Häusern", []),
        (LuceneConfig(language="fr"), "chevaux", [4]),
        (LuceneConfig(language="zh"), "京大", [5]),
        (LuceneConfig(language="ru"), "книгами", [6]),
    ],
)
def test_analysis_is_what_was_asked_for(config: LuceneConfig, query: str, found: list[int]) -> None:
    texts = ["the running man", "run!", "nothing here", "viele Häuser", "un cheval blanc", "北京大学", "новые книги"]
    texts += ["a university", "the universe"]
    hits = search(texts, [query], 4, config)[0][0]
    assert sorted(hits[hits >= 0].tolist()) == found


def test_unknown_language_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    for use in (lambda c: lucene.build(["a"], tmp_path, c), lambda c: lucene.LuceneIndex(tmp_path, c, 1)):
        with pytest.raises(ConfigError, match=r"lucene\.language: .*'xx'\n.*use one of ar, bn, .*, en, .*zh"):
            use(LuceneConfig(language="xx"))


@pytest.mark.slow
def test_a_text_of_ten_megabytes_is_indexed() -> None:
    rng = random.Random(0)
    many_words = " ".join(f"{rng.getrandbits(48):x}" for _ in range(800_000)) + " needle"
    one_word = "x" * 10_000_000 + " needle"
    assert len(many_words) > 10_000_000
    with indexed(["needle", many_words, one_word, "hay"], LuceneConfig()) as index:
        found = index.search(["needle", many_words[:100_000]], 4)[0]
    assert sorted(found[0].tolist()) == [-1, 0, 1, 2]
    assert found[1, 0] == 1


@pytest.mark.parametrize("language", ["en", "th", "ja"])
@pytest.mark.parametrize("sign", ["x", "ก", "漢", "カ", "é", "😀", "\u0300", "-", "a'", "a.", "\u00ad", "ﷺ"])
def test_a_word_longer_than_lucene_holds_does_not_lose_its_text(language: str, sign: str) -> None:
    texts = [sign * 40_000 + " needle", "needle"]
    assert sorted(search(texts, ["needle"], 2, LuceneConfig(language=language))[0][0].tolist()) == [0, 1]


def test_odd_characters_are_carried_over() -> None:
    texts = [
        "nul\x00alpha",
        "half \ud800 alpha",
        "𝔘𝔫𝔦 alpha",
        "\ufeffalpha",
        "alpha \U0001f600",
        "日本 alpha",
        "\udfff",
    ]
    assert search(texts, ["alpha \ud800", "𝔘𝔫𝔦", "日本", "\x00", "\udfff"], 7)[0].tolist()[0].count(-1) == 1
    assert search(texts, ["𝔘𝔫𝔦"], 2)[0].tolist() == [[2, -1]]


TEXT = st.text(st.one_of(st.characters(), st.sampled_from('abc ".:*^~()[]\\/\x00\ud800😀')), max_size=60)


@given(st.lists(TEXT, max_size=12), st.lists(TEXT, min_size=1, max_size=6), st.integers(1, 15))
@settings(max_examples=40, deadline=None)
def test_any_text_and_query_give_falling_scores_in_range(texts: list[str], queries: list[str], depth: int) -> None:
    queries = [*queries, *texts]
    config = LuceneConfig()
    index, score = search(texts, queries, depth, config)
    assert index.shape == score.shape == (len(queries), depth)
    assert index.dtype == np.int64
    assert score.dtype == np.float64
    for found, value in zip(index.tolist(), score.tolist(), strict=True):
        hits = [place for place in found if place >= 0]
        assert found == hits + [-1] * (depth - len(hits))
        assert len(set(hits)) == len(hits)
        assert all(place < len(texts) for place in hits)
        assert all(one > 0 for one in value[: len(hits)])
        assert not any(value[len(hits) :])
        assert value == sorted(value, reverse=True)


def test_absent_foreign_or_other_index_is_refused(tmp_path: Path) -> None:
    texts, made = corpus(20), LuceneConfig()
    with pytest.raises(StoreError, match="no Lucene index"):
        lucene.LuceneIndex(tmp_path / "absent", made, 20)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"IndexNotFoundException(.|\n)*remedy: remove it"):
        lucene.LuceneIndex(tmp_path / "empty", made, 20)
    folder = tmp_path / "index"
    folder.mkdir()
    lucene.build(texts, folder, made)
    for config, documents, message in (
        (made, 21, "of 20 documents, not of 21"),
        (LuceneConfig(stemmer=None), 20, r"analyzer en, stemmer porter, stop words left out, not en, stemmer None"),
        (LuceneConfig(language="de"), 20, "analyzer en, .*, not de"),
    ):
        with pytest.raises(StoreError, match=message):
            lucene.LuceneIndex(folder, config, documents)
    lucene.LuceneIndex(folder, LuceneConfig(k1=2.0, b=0.1), 20).close()


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"index: Lucene: FileSystem.*\n.*remedy: check that the folder"):
        lucene.build(["alpha"], tmp_path / "file" / "index", LuceneConfig())


def test_an_interrupted_build_leaves_no_index(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield "alpha"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lucene.build(texts(), tmp_path, LuceneConfig())
    with pytest.raises(StoreError, match="IndexNotFoundException"):
        lucene.LuceneIndex(tmp_path, LuceneConfig(), 1)
    lucene.build(["alpha"], tmp_path, LuceneConfig())
    lucene.LuceneIndex(tmp_path, LuceneConfig(), 1).close()


def test_no_damage_goes_unseen(tmp_path: Path) -> None:
    """Each file truncated, emptied, removed, and with a bit of a byte flipped at places all over it."""
    config = LuceneConfig()
    lucene.build(corpus(50), tmp_path, config)
    rng = random.Random(1)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    for path in files:
        whole = path.read_bytes()
        damaged: list[bytes | None] = [None, b"", whole[: len(whole) // 2], whole[:-1]]
        for at in {0, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(40))}:
            damaged.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        for content in damaged:
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
            with pytest.raises(StoreError, match="remedy: remove it"):
                lucene.LuceneIndex(tmp_path, config, 50)
        path.write_bytes(whole)
    lucene.LuceneIndex(tmp_path, config, 50).close()
