"""MaxSim by definition and as properties, and late interaction over any sharding of the documents and the queries."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sentence_transformers.util import maxsim as peer

from anmi_ray.config.retrieve import FusionConfig, RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import StoreError
from anmi_ray.core.records import DOCUMENT, RUN
from anmi_ray.retrieval import late
from anmi_ray.retrieval.hits import HITS, full_texts
from anmi_ray.retrieval.merge import Merged, merge_bucket
from tests.retrieval.test_merge import CONFIG as OTHERS
from tests.retrieval.test_merge import documents, hits_of, qrels, queries

CONFIG = OTHERS.model_copy(update={"retrievers": ("bm25", "dense", "late")})


class WordVectors:
    """A unit vector of every word, its own for queries and documents; counts what it is asked for."""

    dimension = 8
    limits: Mapping[str, int] = {"query": 32, "document": 128}

    def __init__(self) -> None:
        self.encoded: list[tuple[str, str]] = []

    def encode(self, texts: Sequence[str], task: str) -> list[NDArray[np.float32]]:
        self.encoded += [(task, text) for text in texts]
        rows = [[identity.rng("token", word).normal(size=8) for word in text.split() or [""]] for text in texts]
        return [(np.array(row) / np.linalg.norm(row, axis=1, keepdims=True)).astype(np.float32) for row in rows]


def unit(rng: np.random.Generator, tokens: int, dimension: int) -> NDArray[np.float32]:
    rows = rng.normal(size=(tokens, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(2, 20), st.integers(0, 10**6))
def test_maxsim_by_definition(query_tokens: int, tokens: int, dimension: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    query, document = unit(rng, query_tokens, dimension), unit(rng, tokens, dimension)
    naive = sum(max(float(q.astype(float) @ d.astype(float)) for d in document) for q in query)
    found = late.maxsim(query, document)
    assert found == pytest.approx(naive, abs=1e-5)
    assert found == pytest.approx(float(peer([torch.from_numpy(query)], [torch.from_numpy(document)])), abs=1e-5)
    assert -query_tokens - 1e-5 <= found <= query_tokens + 1e-5


@given(st.integers(1, 12), st.integers(1, 40), st.integers(2, 20), st.integers(0, 10**6))
def test_what_does_not_change_maxsim(query_tokens: int, tokens: int, dimension: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    query, document = unit(rng, query_tokens, dimension), unit(rng, tokens, dimension)
    once = late.maxsim(query, document)
    assert late.maxsim(query, document[rng.permutation(tokens)]) == pytest.approx(once, abs=1e-5)
    assert late.maxsim(query[rng.permutation(query_tokens)], document) == pytest.approx(once, abs=1e-5)
    assert late.maxsim(query, np.concatenate([document, document])) == pytest.approx(once, abs=1e-5)
    assert late.maxsim(query, np.concatenate([document, unit(rng, 1, dimension)])) >= once - 1e-5
    assert late.maxsim(document, document) == pytest.approx(tokens, abs=1e-4)


def retrieve(
    parts: Sequence[pa.Table],
    buckets: Sequence[pa.Table] | None = None,
    config: RetrieveConfig = CONFIG,
    splits: Sequence[str] = ("dev", "test"),
) -> list[Merged]:
    """Search, pool, rescore and merge the parts of a corpus, a Merged for every bucket of queries."""
    buckets = [queries()] if buckets is None else buckets
    of_buckets = [hits_of(parts, config, bucket) for bucket in buckets]
    pooled = [late.pool(found, bucket, config) for found, bucket in zip(of_buckets, buckets, strict=True)]
    scored = [
        late.rescore(part, queries(), pa.concat_tables([pairs[number] for pairs in pooled]), WordVectors())
        for number, part in enumerate(parts)
    ]
    merged = []
    for found, pairs, bucket in zip(of_buckets, pooled, buckets, strict=True):
        mine = [_of_pairs(*both) for both in zip(scored, pairs, strict=True)]
        full = [late.with_scores(*both) for both in zip(found, mine, strict=True)]
        merged.append(merge_bucket(full, bucket, qrels(), config, 5, splits))
    return merged


def _of_pairs(scored: pa.Table, pairs: pa.Table) -> pa.Table:
    return scored.filter(pc.is_in(scored["query_id"], value_set=pc.unique(pairs["query_id"])))


def system(runs: pa.Table, name: str) -> pa.Table:
    return runs.filter(pc.equal(runs["system"], name))


@pytest.fixture(scope="module")
def merged() -> Merged:
    return retrieve([documents()], splits=("train", "dev", "test"))[0]


def test_late_ranks_the_union_of_what_the_others_found(merged: Merged) -> None:
    RUN.check(merged.runs, "runs")
    texts = dict(zip(documents()["doc_id"].to_pylist(), full_texts(documents()), strict=True))
    encoder = WordVectors()
    for query in queries().to_pylist():
        mine = merged.runs.filter(pc.equal(merged.runs["query_id"], pa.scalar(query["query_id"], identity.ID)))
        union = {row["doc_id"] for name in ("bm25", "dense") for row in system(mine, name).to_pylist()}
        vectors = encoder.encode([query["text"]], "query")[0]
        score = {doc: late.maxsim(vectors, encoder.encode([texts[doc]], "document")[0]) for doc in union}
        best = sorted(union, key=lambda doc: -score[doc])[: CONFIG.depth]
        rows = system(mine, "late").to_pylist()
        assert [row["score"] for row in rows] == pytest.approx([score[doc] for doc in best], abs=2e-3)
        assert len(union) > len(rows) == CONFIG.depth
        assert {row["doc_id"] for row in rows} <= union


def test_late_takes_part_in_fusion(merged: Merged) -> None:
    ranks = [dict(row["retriever_ranks"]) for row in merged.candidates.to_pylist() if row["source"] == "retrieved"]
    assert any("late" in found for found in ranks)
    for row in merged.candidates.to_pylist():
        if row["source"] == "retrieved":
            fused = sum(1 / (60 + rank) for rank in dict(row["retriever_ranks"]).values())
            assert row["fused_score"] == pytest.approx(fused)
    rule = FusionConfig(weights={"late": 1e9})
    runs = retrieve([documents()], config=CONFIG.model_copy(update={"fusion": rule}))[0].runs
    columns = ["query_id", "doc_id", "rank"]
    assert system(runs, "hybrid").select(columns).equals(system(runs, "late").select(columns))


def test_the_others_runs_are_as_without_it(merged: Merged) -> None:
    alone = retrieve([documents()], config=CONFIG.model_copy(update={"retrievers": ("bm25", "late")}))[0].runs
    for name, runs in (("bm25", alone), ("dense", retrieve([documents()])[0].runs)):
        keys = set(system(runs, name)["query_id"].to_pylist())
        every = system(merged.runs, name)
        assert system(runs, name).equals(
            every.filter(pc.is_in(every["query_id"], value_set=pa.array(keys, identity.ID)))
        )


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.integers(0, 2), min_size=80, max_size=80), st.integers(1, 8), st.integers(0, 10**6))
def test_any_sharding_and_bucketing_gives_the_same_bytes(shards: list[int], cut: int, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(80)
    assigned = np.array(shards)
    parts = [documents().take(order[assigned[order] == part]) for part in range(3)]
    buckets = [queries().slice(0, cut), queries().slice(cut)]
    one = retrieve([documents()])[0]
    many = retrieve([part for part in parts if part.num_rows], buckets)
    late_runs = system(pa.concat_tables([part.runs for part in many]), "late")
    keys = [("query_id", "ascending"), ("rank", "ascending")]
    assert late_runs.sort_by(keys).equals(system(one.runs, "late").sort_by(keys))


def test_each_document_and_query_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where blocks are small."""
    monkeypatch.setattr(late, "_TOKENS", 7 * 128)
    monkeypatch.setattr(WordVectors, "limits", {"query": 400, "document": 128})
    rng, encoder = np.random.default_rng(4), WordVectors()
    chosen = np.sort(rng.permutation(80 * 9)[:100])
    pairs = pa.table(
        {"query_id": queries()["query_id"].take(chosen % 9), "doc_id": documents()["doc_id"].take(chosen // 9)},
        schema=late.PAIRS,
    ).take(rng.permutation(100))
    found = late.rescore(documents(), queries(), pairs, encoder)
    assert found.schema == late.SCORED
    assert found.select(["query_id", "doc_id"]).equals(pairs)
    assert len(set(encoder.encoded)) == len(encoder.encoded)
    assert {task for task, _ in encoder.encoded} == {"query", "document"}
    monkeypatch.undo()
    assert late.rescore(documents(), queries(), pairs, WordVectors()).equals(found)


def test_nothing_to_rescore() -> None:
    empty = late.PAIRS.empty_table()
    assert late.rescore(documents(), queries(), empty, WordVectors()).num_rows == 0
    hits = HITS.empty()
    assert late.with_scores(hits, late.SCORED.empty_table()).equals(hits)
    assert late.pool([], queries(), CONFIG) == []
    assert late.pool([hits], queries().slice(0, 0), CONFIG)[0].schema == late.PAIRS


@pytest.mark.slow
def test_a_query_of_one_token_a_huge_document_and_an_empty_one() -> None:
    rows = {"doc_id": [identity.doc_id(name) for name in "abc"], "external_id": list("abc"), "title": [""] * 3}
    texts = ["word1 " * 200_000, "", "word1"]
    three = DOCUMENT.table({**rows, "doc_id": identity.id_array(rows["doc_id"]), "text": texts})
    one = queries().slice(0, 1).set_column(2, queries().schema.field("text"), pa.array(["word1"]))
    pairs = pa.table(
        {"query_id": pa.concat_arrays([one["query_id"].combine_chunks()] * 3), "doc_id": three["doc_id"]},
        schema=late.PAIRS,
    )
    scores = late.rescore(three, one, pairs, WordVectors())["late_score"].to_pylist()
    assert scores[0] == scores[2] == pytest.approx(1.0, abs=1e-3)
    assert scores[1] < 1.0


def test_pairs_of_what_is_not_there_are_our_mistake() -> None:
    pairs = pa.table(
        {"query_id": queries()["query_id"], "doc_id": documents()["doc_id"].slice(0, 9)}, schema=late.PAIRS
    )
    with pytest.raises(AssertionError, match="unknown queries"):
        late.rescore(documents().slice(40), queries(), pairs, WordVectors())
    scored = late.rescore(documents(), queries(), pairs, WordVectors())
    with pytest.raises(AssertionError, match="not hits"):
        late.with_scores(HITS.empty(), scored)


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses what is written with the error of a full disk."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: io.FileIO("/dev/full", "w"))
    pairs = pa.table(
        {"query_id": queries()["query_id"], "doc_id": documents()["doc_id"].slice(0, 9)}, schema=late.PAIRS
    )
    with pytest.raises(StoreError, match="No space left") as caught:
        late.rescore(documents(), queries(), pairs, WordVectors())
    assert "TMPDIR" in str(caught.value)
