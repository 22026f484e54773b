"""Training on pseudo-labels: P(relevant) from rank and similarity, no judge, from a collection to a report."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import CANDIDATE, EXAMPLE, GAP, RATING, RELEVANCE
from anmi_ray.core.scale import ELO_PER_LOGIT
from anmi_ray.mining.anchors import LIKELY, POSSIBLE
from anmi_ray.mining.relevance import by_retrieval, first_stage, unit_of
from tests.models.tiny import write_tiny_bert
from tests.small import start_from
from tests.stages.runs import Done, World


def candidates(rank: list[int | None], similarity: list[float]) -> pa.Table:
    ids = [bytes([i]) * 16 for i in range(len(rank))]
    return pa.table({"query_id": [b"q" * 16] * len(rank), "doc_id": ids, "rank": rank, "similarity": similarity})


def test_probabilities_are_the_softmax_over_candidates_and_none() -> None:
    evidence = first_stage(candidates([1, 2, None], [0.4, 0.6, 0.5]))
    assert evidence.rank.tolist() == [1.0, 2.0, 3.0]  # not retrieved: after the last
    unit = unit_of(evidence)
    log_odds, probability = by_retrieval(evidence, unit)
    spread = np.array([0.4, 0.6, 0.5]) / unit
    expected = 1.0 - 0.75 * np.log([1.0, 2.0, 3.0]) + 1.5 * (spread - spread.max())
    assert log_odds == pytest.approx(expected)
    assert probability == pytest.approx(np.exp(expected) / (1.0 + np.exp(expected).sum()))
    alone = first_stage(candidates([1, 2, 3], [0.5, 0.5, 0.5]))
    assert unit_of(alone) == 0.0
    assert by_retrieval(alone, 0.0)[0] == pytest.approx(1.0 - 0.75 * np.log([1.0, 2.0, 3.0]))


@pytest.fixture(scope="module")
def done(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    world = World(tmp_path_factory.mktemp("pseudo"), small_collection)
    start_from(prepared, world.root, "ingest")
    unlabelled = ["corpus.labels=[dev,test]", "mine.anchors=retrieved", "recipe=infonce-mined", "name=pseudo"]
    return world.carry_out(*unlabelled, last="report")


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_without_judges_trains_on_the_likeliest_documents(done: Done) -> None:
    assert set(done.told.computed) == {"ingest", "retrieve", "pseudo", "mine", "train", "rerank", "evaluate", "report"}
    relevance = done.part("pseudo", "relevance", RELEVANCE).to_pylist()
    probability = {(row["query_id"], row["doc_id"]): row["probability"] for row in relevance}
    best: dict[bytes, float] = defaultdict(float)
    for (query, _), value in probability.items():
        best[query] = max(best[query], value)
    for row in relevance:
        if row["may_anchor"]:
            assert row["probability"] > LIKELY or row["probability"] == best[row["query_id"]] > POSSIBLE
    examples = done.part("mine", "examples", EXAMPLE).to_pylist()
    assert len({row["query_id"] for row in examples}) == len(best)
    for row in examples:
        query, documents = row["query_id"], row["doc_ids"]
        assert probability[query, documents[0]] == best[query]
        for document, category, weight in zip(documents, row["categories"], row["weights"], strict=True):
            if category not in ("anchor", "positive", "random") and weight:
                assert probability[query, document] <= POSSIBLE
    ratings = done.part("pseudo", "ratings", RATING)
    rating = dict(zip(zip(ratings["query_id"].to_pylist(), ratings["doc_id"].to_pylist(), strict=True),
                      ratings["rating_elo"].to_pylist(), strict=True))  # fmt: skip
    for row in done.part("pseudo", "gaps", GAP).to_pylist()[:200]:
        query = row["query_id"]
        assert row["gap_elo"] == pytest.approx(rating[query, row["anchor_id"]] - rating[query, row["doc_id"]], abs=1e-6)
        odds = probability[query, row["anchor_id"]] / probability[query, row["doc_id"]]
        assert row["gap_elo"] == pytest.approx(ELO_PER_LOGIT * np.log(odds), abs=1e-6)
    page = done.report("report.html")
    assert "No judge was asked" in page
    assert '<section id="judges"' not in page
    assert json.loads(done.report("report.json"))["judges"] == []


@pytest.mark.ray
@pytest.mark.slow
def test_known_positives_anchor_where_there_are_any(
    prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("labelled"), small_collection)
    start_from(prepared, world.root, "retrieve")
    done = world.carry_out("mine.anchors=retrieved", "recipe=infonce-mined")
    assert done.told.computed == ["pseudo", "mine"]
    rows = done.part("retrieve", "candidates", CANDIDATE).to_pylist()
    known = {(row["query_id"], row["doc_id"]) for row in rows if row["is_positive"]}
    examples = done.part("mine", "examples", EXAMPLE).to_pylist()
    assert {(row["query_id"], row["doc_ids"][0]) for row in examples} == known
    assert done.part("pseudo", "relevance", RELEVANCE).num_rows == 0


def test_rules_that_ask_judges_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path, write_tiny_bert(tmp_path / "any"))
    with pytest.raises(ConfigError):
        world.settings("mine.anchors=retrieved", "mine.allow=[{rule: validate}]")
