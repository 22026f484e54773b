"""Fusion, runs and candidates: by hand, and as properties of merging any sharding in any order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anmi_ray.config.retrieve import USUAL, FusionConfig, RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import CANDIDATE, DOCUMENT, QREL, QUERY, REJECT, RUN, TEXT_OF
from anmi_ray.retrieval import bm25, hits, merge
from anmi_ray.retrieval.hits import HITS, BestScores, full_texts, pair_hash, texts_of, to_run
from anmi_ray.retrieval.merge import Merged, merge_bucket
from anmi_ray.retrieval.shard import query_vectors
from anmi_ray.retrieval.statistics import Statistics
from tests.retrieval.searched import indexed, scratch, search_shard

WORDS = [f"word{i}" for i in range(30)]
CONFIG = RetrieveConfig(depth=12, candidates=6, random_negatives=3)


class WordEncoder:
    """Unit vectors from hashed words: near for texts that share words."""

    revision = "words"

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> NDArray[np.float32]:
        rows = np.full((len(texts), 24), 1e-3)
        for row, text in zip(rows, texts, strict=True):
            for word in text.split():
                row += identity.rng("word", word).normal(size=24)
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def documents(count: int = 80) -> pa.Table:
    rng = identity.rng("documents")
    names = [f"d{i}" for i in range(count)]
    return DOCUMENT.table(
        {
            "doc_id": identity.id_array(map(identity.doc_id, names)),
            "external_id": names,
            "title": ["" if i % 3 else f"title{i}" for i in range(count)],
            "text": [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in names],
        }
    )


def queries(count: int = 9) -> pa.Table:
    rng = identity.rng("queries")
    names = [f"q{i}" for i in range(count)]
    texts = [" ".join([*rng.choice(WORDS, 3), f"unique{i}"]) for i in range(count)]
    return QUERY.table(
        {
            "query_id": identity.id_array(map(identity.query_id, names)),
            "external_id": names,
            "text": texts,
            "text_hash": identity.id_array(map(identity.text_hash, texts)),
            "split": [["train", "train", "dev"][i % 3] for i in range(count - 1)] + ["test"],
        }
    )


def qrels(count: int = 9, positives: int = 3) -> pa.Table:
    pairs = [(q, 7 * q + 11 * p, 0 if p == 2 else 1) for q in range(count) for p in range(positives)]
    return QREL.table(
        {
            "query_id": identity.id_array(identity.query_id(f"q{q}") for q, _, _ in pairs),
            "doc_id": identity.id_array(identity.doc_id(f"d{d % 80}") for _, d, _ in pairs),
            "grade": [grade for *_, grade in pairs],
        }
    )


def hits_of(
    parts: Sequence[pa.Table],
    config: RetrieveConfig,
    asked: pa.Table | None = None,
    own: pa.Table | None = None,
    bounded: bool = False,
) -> list[pa.Table]:
    """Of every part of a corpus, its hits of the queries; bounded: one process finds all of them."""
    encoder, of = WordEncoder(), queries() if asked is None else asked
    counts = (bm25.Counts.of(full_texts(part), config.bm25) for part in parts)
    known = {"bm25": Statistics.merged(one.statistics() for one in counts)}
    with scratch() as shelf:
        vectors = query_vectors(of, config, encoder, shelf)
    found = []
    best = BestScores(of.num_rows, config.depth) if bounded else None
    for part in parts:
        with indexed(part, config, encoder, statistics=known) as index:
            found.append(index.search(of, qrels(), vectors, 5, own, others=best))
    return found


def retrieve(parts: Sequence[pa.Table], config: RetrieveConfig = CONFIG, bounded: bool = False) -> Merged:
    """Index, search and merge the parts of a corpus."""
    return merge_bucket(hits_of(parts, config, bounded=bounded), queries(), qrels(), config, seed=5)


@pytest.fixture(scope="module")
def merged() -> Merged:
    return retrieve([documents()])


def test_equal_scores_are_ranked_by_doc_id_bytes() -> None:
    ids = np.zeros((4, 16), dtype=np.uint8)
    ids[:, 15], ids[3, 0] = [9, 200, 3, 0], 128
    query = np.zeros(4, dtype=np.int64)
    assert hits.ranks(query, np.ones(4), ids).tolist() == [2, 3, 1, 4]
    assert hits.ranks(query, np.array([0.0, 1.0, 0.0, 2.0]), ids).tolist() == [4, 2, 3, 1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40), st.randoms())
def test_ranks_do_not_depend_on_row_order(rows: list[tuple[int, int]], random: object) -> None:
    query = np.array([q for q, _ in rows], dtype=np.int64)
    score = np.array([s for _, s in rows], dtype=np.float64)
    ids = identity.id_matrix(identity.id_array(identity.doc_id(str(i)) for i in range(len(rows))))
    rank = hits.ranks(query, score, ids)
    for q in set(query.tolist()):
        assert sorted(rank[query == q]) == list(range(1, (query == q).sum() + 1))
    order = np.array(sorted(range(len(rows)), key=lambda _: random.random()), dtype=np.int64)  # pyright: ignore
    assert hits.ranks(query[order], score[order], ids[order]).tolist() == rank[order].tolist()


def test_to_run_leaves_rank_zero_out() -> None:
    ids = identity.id_matrix(identity.id_array(identity.doc_id(str(i)) for i in range(3)))
    query = np.repeat(identity.id_matrix(identity.id_array([identity.query_id("q")])), 3, axis=0)
    run = to_run(
        query, ids, {"b": (np.array([2, 0, 1]), np.array([0.5, 0.0, 0.7])), "a": (np.zeros(3, int), np.zeros(3))}
    )
    RUN.check(run, "run")
    assert run["rank"].to_pylist() == [1, 2]
    assert run["doc_id"].to_pylist() == [identity.doc_id("2"), identity.doc_id("0")]
    assert to_run(query, ids, {}).num_rows == 0


@pytest.mark.parametrize("shards", [1, 4])
def test_own_documents_are_in_no_ranking_and_among_no_candidates(shards: int) -> None:
    """Every query's own document is its best in all retrievers; the others move up, and lists stay full."""
    size = 80 // shards
    asked = queries()
    whole = documents()
    best = [8 * row + 13 for row in range(asked.num_rows)]  # not graded
    texts = whole["text"].to_pylist()
    titles = whole["title"].to_pylist()
    for row, at in enumerate(best):
        texts[at], titles[at] = asked["text"][row].as_py(), ""
    whole = DOCUMENT.table({**{name: whole[name] for name in whole.column_names}, "text": texts, "title": titles})
    parts = [whole.slice(start, size) for start in range(0, 80, size)]
    own = pa.table({"query_id": asked["query_id"], "doc_id": whole["doc_id"].take(pa.array(best))})
    pairs = set(zip(own["query_id"].to_pylist(), own["doc_id"].to_pylist(), strict=True))
    kept, left = (
        merge_bucket(hits_of(parts, CONFIG, asked, one, bounded=True), asked, qrels(), CONFIG, seed=5)
        for one in (None, own)
    )
    for table in (left.runs, left.candidates):
        assert not pairs & set(zip(table["query_id"].to_pylist(), table["doc_id"].to_pylist(), strict=True))
    for query, document in pairs:
        for system in ("bm25", "dense"):
            before, after = (
                one.runs.filter(pc.and_(pc.equal(one.runs["query_id"], query), pc.equal(one.runs["system"], system)))
                .sort_by("rank")["doc_id"]
                .to_pylist()
                for one in (kept, left)
            )
            assert not before or before[0] == document
            assert after[: len(before) - 1] == before[1:]
            assert len(after) == len(before) or system == "bm25"
    counts = {
        source: [one.candidates.filter(pc.equal(one.candidates["source"], source)).num_rows for one in (kept, left)]
        for source in ("retrieved", "random")
    }
    assert counts["retrieved"][0] == counts["retrieved"][1]
    assert counts["random"][0] == counts["random"][1] > 0


def test_runs_are_for_evaluated_splits_and_candidates_for_train(merged: Merged) -> None:
    RUN.check(merged.runs, "runs")
    CANDIDATE.check(merged.candidates, "candidates")
    REJECT.check(merged.rejects, "rejects")
    assert merged.rejects.num_rows == 0
    split = dict(zip(queries()["query_id"].to_pylist(), queries()["split"].to_pylist(), strict=True))
    assert {split[query] for query in merged.runs["query_id"].to_pylist()} == {"dev", "test"}
    assert {split[query] for query in merged.candidates["query_id"].to_pylist()} == {"train"}
    assert set(merged.runs["system"].to_pylist()) == {"bm25", "dense", "hybrid"}
    assert pc.max(merged.runs["rank"]).as_py() == CONFIG.depth
    keys = [("query_id", "ascending"), ("system", "ascending"), ("rank", "ascending")]
    assert merged.runs.equals(merged.runs.sort_by(keys))


def test_dev_queries_without_a_label_are_compared_where_they_are_rated(merged: Merged) -> None:
    """Their runs and the candidates of train queries stay as they are."""
    dev = queries().filter(pc.equal(queries()["split"], "dev"))["query_id"].to_pylist()
    known = qrels().filter(pc.invert(pc.is_in(qrels()["query_id"], value_set=identity.id_array(dev[1:]))))
    rated = merge_bucket(hits_of([documents()], CONFIG), queries(), known, CONFIG, 5, rates_dev=True)
    assert rated.runs.equals(merged.runs)
    of_dev = pc.is_in(rated.candidates["query_id"], value_set=identity.id_array(dev))
    assert rated.candidates.filter(pc.invert(of_dev)).equals(merged.candidates)
    added = rated.candidates.filter(of_dev).to_pylist()
    assert sorted({row["query_id"] for row in added}) == sorted(dev[1:])
    assert {row["source"] for row in added} == {"retrieved"}


def test_candidates_by_definition(merged: Merged) -> None:
    relevant = qrels().filter(pc.greater_equal(qrels()["grade"], 1))
    positives = set(zip(relevant["query_id"].to_pylist(), relevant["doc_id"].to_pylist(), strict=True))
    train = queries().filter(pc.equal(queries()["split"], "train"))["query_id"].to_pylist()
    rows = merged.candidates.to_pylist()
    for query in train:
        mine = [row for row in rows if row["query_id"] == query]
        by_source = {
            source: [row for row in mine if row["source"] == source] for source in ("retrieved", "added", "random")
        }
        assert [row["rank"] for row in by_source["retrieved"]] == list(range(1, CONFIG.candidates + 1))
        assert len(by_source["random"]) == CONFIG.random_negatives
        for row in mine:
            assert row["is_positive"] == ((query, row["doc_id"]) in positives)
        assert {row["doc_id"] for row in mine} >= {doc for q, doc in positives if q == query}
        for row in by_source["retrieved"]:
            ranks = dict(row["retriever_ranks"])
            assert row["fused_score"] == pytest.approx(sum(1 / (60 + rank) for rank in ranks.values()))
        assert all(
            row["rank"] is None and row["retriever_ranks"] == [] for row in by_source["added"] + by_source["random"]
        )
    assert any(row["source"] == "added" for row in rows)


def test_random_negatives_were_found_by_no_retriever(merged: Merged) -> None:
    config = CONFIG.model_copy(update={"candidates": CONFIG.depth})
    everything = merge_bucket(
        [search_shard(documents(), queries(), qrels(), config, WordEncoder(), 5)], queries(), qrels(), config, 5,
        run_splits=("train",),
    )  # fmt: skip
    found = set(zip(everything.runs["query_id"].to_pylist(), everything.runs["doc_id"].to_pylist(), strict=True))
    drawn = merged.candidates.filter(pc.equal(merged.candidates["source"], "random"))
    assert not found & set(zip(drawn["query_id"].to_pylist(), drawn["doc_id"].to_pylist(), strict=True))


def test_random_negatives_are_uniform() -> None:
    ids = identity.id_matrix(identity.id_array(identity.query_id(str(i)) for i in range(400)))
    draws = pair_hash(ids[:, None], identity.id_matrix(documents()["doc_id"])[None], 3)
    chosen = np.bincount(np.argsort(draws, axis=1)[:, :8].ravel(), minlength=80)
    expected = 400 * 8 / 80
    assert ((chosen - expected) ** 2 / expected).sum() < 130  # χ² with 79 degrees of freedom: p = .0002
    other = pair_hash(ids[:, None], identity.id_matrix(documents()["doc_id"])[None], 4)
    assert abs(np.corrcoef(draws.ravel(), other.ravel())[0, 1]) < 0.03


def test_known_positives_never_enter_a_run() -> None:
    """The run is the same whatever the qrels say."""
    config = CONFIG.model_copy(update={"depth": 6})
    runs = [
        merge_bucket(
            [search_shard(documents(), queries(), judged, config, WordEncoder(), 5)], queries(), judged, config, 5,
            run_splits=("train", "dev", "test"),
        ).runs
        for judged in (qrels(), qrels(positives=0))
    ]  # fmt: skip
    assert runs[0].equals(runs[1])


def test_wanted_are_the_documents_of_runs_and_candidates_each_of_its_shard() -> None:
    parts = [documents().slice(0, 31), documents().slice(31)]
    merged = retrieve(parts)
    used = set(merged.runs["doc_id"].to_pylist()) | set(merged.candidates["doc_id"].to_pylist())
    for part, wanted in zip(parts, merged.wanted, strict=True):
        assert wanted["doc_id"].to_pylist() == sorted(used & set(part["doc_id"].to_pylist()))


def test_texts_are_those_that_are_wanted() -> None:
    wanted = pa.concat_tables(retrieve([documents()]).wanted)["doc_id"]
    texts = texts_of(documents(), pc.unique(wanted))
    TEXT_OF.check(texts, "texts")
    assert texts["doc_id"].to_pylist() == sorted(wanted.to_pylist())
    row = texts.to_pylist()[0]
    known = {one["doc_id"]: one for one in documents().to_pylist()}[row["doc_id"]]
    assert (row["text"], row["title"], row["external_id"]) == (known["text"], known["title"], known["external_id"])
    assert row["text_hash"] == identity.text_hash(row["title"], row["text"])
    assert texts_of(documents(), pa.array([], identity.ID)).num_rows == 0


@pytest.mark.parametrize("name", USUAL)
def test_a_retriever_alone_is_the_hybrid(name: str, merged: Merged) -> None:
    alone = retrieve([documents()], CONFIG.model_copy(update={"retrievers": (name,)}))
    assert set(alone.runs["system"].to_pylist()) == {name, "hybrid"}
    columns = ["query_id", "doc_id", "rank"]
    mine = alone.runs.filter(pc.equal(alone.runs["system"], name))
    assert mine.equals(merged.runs.filter(pc.equal(merged.runs["system"], name)))
    assert mine.select(columns).equals(alone.runs.filter(pc.equal(alone.runs["system"], "hybrid")).select(columns))
    for row in alone.candidates.to_pylist():
        assert {key for key, _ in row["retriever_ranks"]} <= {name}


def test_similarities_are_there_without_dense_retrieval(merged: Merged) -> None:
    alone = retrieve([documents()], CONFIG.model_copy(update={"retrievers": ("bm25",)})).candidates
    both = {(row["query_id"], row["doc_id"]): row["similarity"] for row in merged.candidates.to_pylist()}
    rows = [row for row in alone.to_pylist() if (row["query_id"], row["doc_id"]) in both]
    assert len(rows) > 20
    for row in rows:
        assert row["similarity"] == pytest.approx(both[row["query_id"], row["doc_id"]], abs=1e-12)


def test_scores_are_fused_as_they_are_weighted(merged: Merged) -> None:
    """A weight that drowns the other retriever gives its order, below it the other's documents."""
    rule = FusionConfig(rule="scores", weights={"dense": 1e9})
    runs = retrieve([documents()], CONFIG.model_copy(update={"fusion": rule})).runs
    columns = ["query_id", "doc_id", "rank"]
    hybrid = runs.filter(pc.equal(runs["system"], "hybrid")).select(columns)
    dense = merged.runs.filter(pc.equal(merged.runs["system"], "dense")).select(columns)
    assert dense.num_rows
    assert hybrid.filter(pc.less(hybrid["rank"], CONFIG.depth)).equals(
        dense.filter(pc.less(dense["rank"], CONFIG.depth))
    )


SCORES = st.lists(st.tuples(st.integers(0, 2), st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=30)


def ranked(query: NDArray[np.int64], score: NDArray[np.float64], found: NDArray[np.bool_]) -> NDArray[np.int64]:
    ids = identity.id_matrix(identity.id_array(identity.doc_id(str(i)) for i in range(len(query))))
    rank = np.zeros(len(query), dtype=np.int64)
    rank[found] = hits.ranks(query[found], score[found], ids[found])
    return rank


@given(SCORES, st.floats(0.1, 9), st.floats(-50, 50), st.integers(0, 99))
def test_units_of_scores_do_not_matter(
    rows: list[tuple[int, float, float]], unit: float, origin: float, seed: int
) -> None:
    query = np.array([q for q, *_ in rows], dtype=np.int64)
    score = np.array([scores for _, *scores in rows]).T.round(3)
    found = np.random.default_rng(seed).random(score.shape) < 0.7
    rank = np.stack([ranked(query, *one) for one in zip(score, found, strict=True)])
    weight = np.array([1.0, 2.5])
    once = hits.weighted_scores(query, rank, score, weight)
    again = hits.weighted_scores(query, rank, unit * score + origin, weight)
    np.testing.assert_allclose(again, once, atol=1e-6)
    assert np.isfinite(once).all()


@given(SCORES)
def test_what_both_put_higher_is_higher(rows: list[tuple[int, float, float]]) -> None:
    query = np.zeros(len(rows), dtype=np.int64)
    score = np.array([scores for _, *scores in rows]).T.round(3)
    everything = np.ones(len(rows), dtype=bool)
    rank = np.stack([ranked(query, one, everything) for one in score])
    fused = hits.weighted_scores(query, rank, score, np.array([0.7, 1.9]))
    for i, j in itertools.permutations(range(len(rows)), 2):
        if (score[:, i] >= score[:, j]).all():
            assert fused[i] >= fused[j] - 1e-9


@settings(max_examples=12)
@given(st.lists(st.integers(0, 2), min_size=80, max_size=80), st.integers(0, 10**6), st.booleans())
def test_any_sharding_in_any_order_gives_the_same(shards: list[int], seed: int, bounded: bool) -> None:
    """With the whole collection's statistics BM25 is exact too."""
    order = np.random.default_rng(seed).permutation(80)
    assigned = np.array(shards)
    parts = [documents().take(order[assigned[order] == part]) for part in np.random.default_rng(seed).permutation(3)]
    one, many = retrieve([documents()]), retrieve([part for part in parts if part.num_rows], bounded=bounded)
    assert one.candidates.drop_columns("similarity").equals(many.candidates.drop_columns("similarity"))
    np.testing.assert_allclose(one.candidates["similarity"], many.candidates["similarity"], atol=1e-12)
    assert one.runs.drop_columns("score").equals(many.runs.drop_columns("score"))
    assert one.wanted[0].equals(pa.concat_tables(many.wanted).sort_by("doc_id"))


def test_rows_of_hits_may_come_in_any_order(merged: Merged) -> None:
    found = search_shard(documents(), queries(), qrels(), CONFIG, WordEncoder(), 5)
    HITS.check(found, "hits")
    order = np.random.default_rng(0).permutation(found.num_rows)
    again = merge_bucket([found.take(order)], queries(), qrels(), CONFIG, 5)
    assert again == merged


def test_a_bucket_is_a_part_of_the_whole(merged: Merged) -> None:
    parts = []
    for bucket in (queries().slice(0, 4), queries().slice(4)):
        mine = search_shard(documents(), bucket, qrels(), CONFIG, WordEncoder(), 5)
        assert set(mine["query_id"].to_pylist()) == set(bucket["query_id"].to_pylist())
        judged = qrels().filter(pc.is_in(qrels()["query_id"], value_set=bucket["query_id"].combine_chunks()))
        parts.append(merge_bucket([mine], bucket, judged, CONFIG, 5))
    for name in ("runs", "candidates"):
        together = pa.concat_tables([getattr(part, name) for part in parts])
        assert together.num_rows == getattr(merged, name).num_rows
        assert sorted(map(repr, together.to_pylist())) == sorted(map(repr, getattr(merged, name).to_pylist()))


@pytest.mark.parametrize("many", [0, 40, 300])
@pytest.mark.parametrize("fusion", ["rrf", "scores"])
def test_hits_let_go_on_the_way_change_nothing(many: int, fusion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty shards, merged at once and with what cannot matter let go after every so many hits."""
    changed = {**CONFIG.model_dump(), "depth": 5, "candidates": 4, "fusion": {"rule": fusion}}
    config = RetrieveConfig.model_validate(changed)
    parts = [documents().slice(start, 4) for start in range(0, 80, 4)]
    found, bounded = (hits_of(parts, config, bounded=one) for one in (False, True))
    at_once = merge_bucket(found, queries(), qrels(), config, 5)
    assert set(at_once.candidates["source"].to_pylist()) == {"retrieved", "added", "random"}
    monkeypatch.setattr(merge, "_MANY", many)
    assert merge_bucket(iter(found), queries(), qrels(), config, 5) == at_once
    kept, count = merge.gather(found, queries(), config, 5)
    assert count == len(at_once.wanted) == 20
    assert kept.num_rows < sum(table.num_rows for table in found) / 2
    assert merge_bucket(bounded, queries(), qrels(), config, 5) == at_once
    assert sum(table.num_rows for table in bounded) < sum(table.num_rows for table in found)


@pytest.mark.parametrize("bounded", [False, True])
def test_rows_of_one_process_hardly_grow_with_its_shards(bounded: bool) -> None:
    """By the best of N shards of equal size: those of the first, and 1/n of as many from the n-th."""
    config = CONFIG.model_copy(update={"depth": 3, "random_negatives": 2})
    parts = [documents(40 * 32).slice(at, 40) for at in range(0, 40 * 32, 40)]
    one, many = (sum(hits.num_rows for hits in hits_of(of, config, bounded=bounded)) for of in (parts[:1], parts))
    assert (many < 6 * one) == bounded


@pytest.mark.parametrize("shards", [8, 32, 128])
def test_what_is_held_does_not_grow_with_the_shards(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_MANY", 0)
    config = CONFIG.model_copy(update={"depth": 3, "random_negatives": 2})
    held, surviving = [], merge.surviving

    def seen(hits: pa.Table, *rest: Any) -> pa.Table:
        kept = surviving(hits, *rest)
        held.append(kept.num_rows)
        return kept

    monkeypatch.setattr(merge, "surviving", seen)
    every = documents(4 * shards)
    merge_bucket(hits_of([every.slice(at, 4) for at in range(0, 4 * shards, 4)], config), queries(), qrels(), config, 5)
    positives = qrels().num_rows
    assert 0 < max(held) <= queries().num_rows * (2 * 3 + 2) + positives


def test_a_document_in_two_shards_is_an_error() -> None:
    found = search_shard(documents(), queries(), qrels(), CONFIG, WordEncoder(), 5)
    with pytest.raises(DataError, match="repeat a key"):
        merge_bucket([found, found], queries(), qrels(), CONFIG, 5)


def test_fewer_documents_than_asked_for() -> None:
    few = retrieve([documents(4)])
    CANDIDATE.check(few.candidates, "candidates")
    assert not pc.any(pc.equal(few.candidates["source"], "random")).as_py()
    assert pc.max(few.runs["rank"]).as_py() == 4
    lost = few.rejects.filter(pc.equal(few.rejects["reason"], "positive not in the corpus"))
    assert lost.num_rows > 0


def test_a_train_query_without_candidates_is_a_reject() -> None:
    result = merge_bucket([HITS.empty()], queries(), qrels(positives=0), CONFIG, 5)
    assert result.candidates.num_rows == result.runs.num_rows == result.wanted[0].num_rows == 0
    assert result.rejects["reason"].to_pylist() == ["no candidates"] * 6
    assert result.rejects["place"].to_pylist()[0] == "queries q0"


def test_no_random_negatives_and_no_shards() -> None:
    config = CONFIG.model_copy(update={"random_negatives": 0})
    assert set(retrieve([documents()], config).candidates["source"].to_pylist()) == {"retrieved", "added"}
    assert merge_bucket([], queries(), qrels(), CONFIG, 5).rejects.num_rows > 0


def test_a_bucket_without_queries() -> None:
    none = queries().slice(0, 0)
    for empty in (none, pa.Table.from_batches([], schema=QUERY.schema)):
        found = search_shard(documents(), empty, qrels(), CONFIG, WordEncoder(), 5)
        assert found.num_rows == 0
        result = merge_bucket([found], empty, qrels(), CONFIG, 5)
        assert result.runs.num_rows == result.candidates.num_rows == result.rejects.num_rows == 0
