"""What is kept of a shard: vectors and approximate indexes, against exact search and as files that may be damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from anmi_ray.config.retrieve import Bm25Config, DenseConfig, HnswIndex, IvfPqIndex, RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.retrieval import bm25, dense
from anmi_ray.retrieval.shard import query_vectors
from tests.retrieval.searched import indexed, scratch, search_shard, search_vectors
from tests.retrieval.test_merge import WordEncoder, documents, qrels, queries

IVFPQ = IvfPqIndex(kind="ivfpq", probes=4)
HNSW = HnswIndex(kind="hnsw")


def clustered(count: int, seed: str, dimensions: int = 32) -> NDArray[np.float32]:
    """Unit vectors around sixty centres."""
    centres = identity.rng("centres").normal(size=(60, dimensions))
    rng = identity.rng(seed)
    found = centres[rng.integers(0, 60, count)] + 0.4 * rng.normal(size=(count, dimensions))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def many() -> NDArray[np.float32]:
    return clustered(dense.FEWEST + 100, "many")


@pytest.fixture(scope="module")
def ivfpq(many: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ivfpq") / "index.faiss"
    dense.build(path, many, IVFPQ, seed=3)
    return path


def recall(found: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, exact, strict=True)]))


@pytest.mark.slow
def test_all_lists_and_all_documents_rescored_is_the_flat_search(
    many: NDArray[np.float32], ivfpq: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, depth = clustered(20, "asked"), 10
    monkeypatch.setattr(dense, "_PROPOSED", len(many))
    config = IVFPQ.model_copy(update={"probes": len(many)})
    found, exact = dense.Approximate(ivfpq, config, many).search(queries, depth), search_vectors(queries, many, depth)
    assert np.array_equal(found[0], exact[0])
    assert np.array_equal(found[1], exact[1])


def test_probes_and_rescoring_buy_recall(
    many: NDArray[np.float32], ivfpq: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, depth = clustered(100, "asked"), 10
    exact = search_vectors(queries, many, depth)[0]

    def reached(probes: int, proposed: int) -> float:
        monkeypatch.setattr(dense, "_PROPOSED", proposed)
        config = IVFPQ.model_copy(update={"probes": probes})
        return recall(dense.Approximate(ivfpq, config, many).search(queries, depth)[0], exact)

    assert reached(1, 1) < reached(64, 1) < reached(64, 10)
    assert reached(64, 10) > 0.9


def test_a_graph_finds_nearly_all(tmp_path: Path) -> None:
    documents, queries = clustered(3000, "graph"), clustered(50, "asked")
    path = tmp_path / "index.faiss"
    dense.build(path, documents, HNSW, seed=0)
    index, score = dense.Approximate(path, HNSW, documents).search(queries, 10)
    assert recall(index, search_vectors(queries, documents, 10)[0]) > 0.95
    for row in range(len(queries)):
        wanted = dense.similarity(queries, documents, np.full(10, row), index[row])
        assert score[row].tolist() == wanted.tolist() == sorted(wanted, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("config", [IVFPQ, HNSW])
def test_two_builds_are_the_same_file(
    config: IvfPqIndex | HnswIndex, many: NDArray[np.float32], tmp_path: Path
) -> None:
    few = many[: dense.FEWEST] if isinstance(config, IvfPqIndex) else many[:1500]
    for name in ("one", "two"):
        dense.build(tmp_path / name, few, config, seed=7)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_fewer_documents_than_wanted(tmp_path: Path) -> None:
    few = clustered(5, "few")
    path = tmp_path / "index.faiss"
    dense.build(path, few, HNSW, seed=0)
    index, score = dense.Approximate(path, HNSW, few).search(clustered(2, "asked"), 9)
    assert (np.sort(index[:, :5], axis=1) == np.arange(5)).all()
    assert (index[:, 5:] == -1).all()
    assert not score[:, 5:].any()


def test_damaged_and_foreign_indexes(many: NDArray[np.float32], ivfpq: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.faiss"
    cut.write_bytes(ivfpq.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"(?s)damaged index.*delete that folder"):
        dense.Approximate(cut, IVFPQ, many)
    with pytest.raises(DataError, match="of 32 dimensions, but there are 10 of 32"):
        dense.Approximate(ivfpq, IVFPQ, many[:10])


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 9)), elements=st.floats(-1, 1, width=16)),
    st.sampled_from(["float32", "float16"]),
)
def test_vectors_come_back(values: NDArray[np.float32], stored: str) -> None:
    ids = identity.id_matrix(identity.id_array(identity.doc_id(str(i)) for i in range(len(values))))
    with scratch() as shelf:
        folder = shelf("vectors", 1, {}, lambda folder: dense.write_vectors(folder, ids, values, stored))
        back = dense.read_vectors(folder, ids)
    assert back.dtype == np.float32
    assert np.array_equal(back, values)


def test_vectors_of_other_texts_and_cut_ones(tmp_path: Path) -> None:
    ids = identity.id_matrix(documents(6)["doc_id"])
    dense.write_vectors(tmp_path, ids, clustered(6, "kept"), "float32")
    with pytest.raises(DataError, match="vectors of other texts"):
        dense.read_vectors(tmp_path, ids[::-1])
    file = tmp_path / dense.FILE
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged vectors"):
        dense.read_vectors(tmp_path, ids)


def test_counts_come_back_and_damaged_ones_are_named(tmp_path: Path) -> None:
    config, texts = Bm25Config(), ["running engines run", "", "naïve 文字 engine"]
    made = bm25.Counts.of(texts, config)
    made.save(tmp_path)
    back = bm25.Counts.load(tmp_path)
    assert back.vocabulary == made.vocabulary
    assert np.array_equal(back.count_NV.toarray(), made.count_NV.toarray())
    empty = tmp_path / "empty"
    empty.mkdir()
    bm25.Counts.of(["", "the"], config).save(empty)
    assert bm25.Counts.load(empty).vocabulary == []
    (tmp_path / "counts.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="damaged counts"):
        bm25.Counts.load(tmp_path)


def test_a_small_shard_is_searched_exactly() -> None:
    flat = RetrieveConfig(depth=12, candidates=6)
    inexact = flat.model_copy(update={"dense": DenseConfig(index=IVFPQ)})
    found = [search_shard(documents(), queries(), qrels(), config, WordEncoder(), 5) for config in (flat, inexact)]
    assert found[0].equals(found[1])


def test_vectors_of_another_dimension_are_named() -> None:
    config = RetrieveConfig(depth=12, candidates=6)
    with scratch() as shelf, indexed(documents(), config, WordEncoder()) as index:
        asked = query_vectors(queries(), config, WordEncoder(), shelf)
        with pytest.raises(DataError, match="vectors of 24 dimensions, queries of 20"):
            index.search(queries(), qrels(), asked[:, :20], 5)


def test_halved_vectors_change_little() -> None:
    config = RetrieveConfig(depth=12, candidates=6)
    half = config.model_copy(update={"dense": DenseConfig(stored="float16")})
    one, two = (search_shard(documents(), queries(), qrels(), c, WordEncoder(), 5) for c in (config, half))
    keys = ["query_id", "doc_id", "similarity"]
    both = one.select(keys).join(two.select(keys), ["query_id", "doc_id"], join_type="inner", right_suffix="_half")
    assert both.num_rows > 0.9 * one.num_rows
    difference = np.abs(both["similarity"].to_numpy() - both["similarity_half"].to_numpy())
    assert 0 < difference.max() < 2e-3
