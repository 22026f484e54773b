"""evaluate over artifacts as the stages write them: what the headline compares is chosen on dev queries alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import ID, doc_id, query_id, rng
from anmi_ray.core.records import METRIC, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.evaluation import fusion
from anmi_ray.evaluation.fusion import of_sweep
from anmi_ray.evaluation.headline import Headline
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import by_judges, evaluate, relevance
from anmi_ray.store import Artifact, Flow, Store

DOCUMENTS = [f"d{i}" for i in range(12)]
UNTRAINED = ("bm25", "dense", "hybrid", "bm25+dense", "start", "start+hybrid")
DEV, TEST = [f"dev{i}" for i in range(30)], [f"test{i}" for i in range(24)]
# how far the relevant document's score stands above the noise
SKILL = {"bm25": 1.0, "dense": 2.0, "reranked": 4.0, "start": 1.5}


class World:
    """Inputs of evaluate: rankings of one relevant document among twelve by systems of some skill, all in one bucket.

    skill: by system, on all queries; test_skill: on the test queries, where it is another. What is no retriever,
    reranked or start is a peer.
    """

    def __init__(
        self,
        root: Path,
        skill: dict[str, float],
        test_skill: dict[str, float] | None = None,
        dev: bool = True,
        test: bool = True,
    ) -> None:
        self.store, self.times = Store(str(root)), 0
        self.skill, self.test_skill, self.dev = skill, test_skill or skill, dev
        queries = [*DEV, *TEST]
        splits = ["dev"] * len(DEV) + ["test"] * len(TEST)
        judged = [*(DEV if dev else ()), *(TEST if test else ())]
        ids, docs = list(map(query_id, queries)), list(map(doc_id, DOCUMENTS))
        names = {"external_id": queries, "text": queries}
        table = QUERY.table({"query_id": ids, "text_hash": ids, "split": splits, **names})
        grades = {"doc_id": [doc_id("d0")] * len(judged), "grade": [1] * len(judged)}
        qrels = QREL.table({"query_id": list(map(query_id, judged)), **grades})
        names = dict.fromkeys(("external_id", "title", "text"), DOCUMENTS)
        texts = TEXT_OF.table({"text_hash": docs, "doc_id": docs, **names})
        self.ingest = self._made("ingest", {"queries": (QUERY, table), "qrels": (QREL, qrels)})
        first = [self._run("bm25"), self._run("dense"), self._run("hybrid", "bm25", "dense")]
        self.retrieve = self._made("retrieve", {"runs": (RUN, pa.concat_tables(first)), "texts": (TEXT_OF, texts)})
        rerankers = [name for name in skill if name not in ("bm25", "dense")]
        runs = pa.concat_tables([self._run(name) for name in rerankers])
        peers = [name for name in rerankers if name not in ("reranked", "start")]
        self.rerank = self._made("rerank", {"runs": (RUN, runs)}, depth=len(DOCUMENTS), peers=peers)

    def _made(self, stage: str, parts: dict[str, object], **facts: object) -> Artifact:
        artifact = Artifact(self.store, stage, f"f-{stage}")
        artifact.commit_bucket(0, parts, [Flow("queries", 1, 1)], None)  # type: ignore[arg-type]
        artifact.complete([Flow("queries", 1, 1)], **facts)
        return artifact

    def _run(self, system: str, *of: str) -> pa.Table:
        """A ranking of every query: by its own scores, or by the sum of those of others."""
        rows: dict[str, list[object]] = {name: [] for name in RUN.schema.names}
        for query in [*DEV, *TEST]:
            skill = self.skill if query in DEV else self.test_skill
            score = np.zeros(len(DOCUMENTS))
            for name in of or (system,):
                score += rng("evaluate-stage", name, query).normal(0.0, 1.0, len(DOCUMENTS))
                score[0] += skill[name]
            order = np.argsort(-score)
            rows["query_id"] += [query_id(query)] * len(order)
            rows["doc_id"] += [doc_id(DOCUMENTS[i]) for i in order]
            rows["system"] += [system] * len(order)
            rows["rank"] += list(range(1, len(order) + 1))
            rows["score"] += score[order].tolist()
        return RUN.table(rows)

    def measured(self, **settings: object) -> tuple[Headline, Artifact]:
        """What evaluate makes of it, and the headline."""
        config = EvaluateConfig.model_validate(settings)
        self.times += 1
        artifact = Artifact(self.store, "evaluate", f"f-{self.times}")
        facts = evaluate._evaluate(  # pyright: ignore[reportPrivateUsage]
            artifact, self.rerank, self.retrieve, self.ingest, config, 1, 0
        )
        artifact.complete(facts.pop("flows"), **facts)
        return evaluate.headline_of(artifact), artifact


@pytest.mark.parametrize("dev", [True, False])
def test_without_a_labelled_test_query_nothing_is_measured_and_dev_still_chooses(tmp_path: Path, dev: bool) -> None:
    first, artifact = World(tmp_path, SKILL, dev=dev, test=False).measured()
    assert artifact.read_json("comparisons.json") == []
    assert artifact.read_part("metrics", 0, METRIC).num_rows == 0
    assert (artifact.manifest() or {})["measured"] is False
    assert (artifact.read_json("fusion.json") is not None) == dev
    whole, _ = World(tmp_path / "whole", SKILL, dev=dev).measured()
    assert first == replace(whole, shares=())


def test_a_retriever_that_found_nothing_has_a_row_of_zeros(tmp_path: Path) -> None:
    world = World(tmp_path, SKILL)
    runs, texts = world.retrieve.read_part("runs", 0, RUN), world.retrieve.read_part("texts", 0, TEXT_OF)
    runs = runs.filter(pc.not_equal(runs["system"], "bm25"))
    world.retrieve = Artifact(world.store, "retrieve", "without-bm25")
    world.retrieve.commit_bucket(0, {"runs": (RUN, runs), "texts": (TEXT_OF, texts)}, [Flow("queries", 1, 1)], None)
    world.retrieve.complete([Flow("queries", 1, 1)], retrievers=["bm25", "dense"])
    first, artifact = world.measured()
    rows = [row for row in artifact.read_json("comparisons.json") if row["system"] == "bm25"]
    assert [row["mean"] for row in rows] == [0.0] * 3
    assert first.dev["bm25"] == 0.0


def test_the_baseline_is_the_best_untrained_system_on_dev(tmp_path: Path) -> None:
    first, artifact = World(tmp_path, SKILL).measured()
    untrained = {name: first.dev[name] for name in UNTRAINED}
    assert first.dev[first.baseline] == max(untrained.values())
    assert (first.chosen, first.system, first.control, first.queries) == ("dev", "reranked+hybrid", "bm25+dense", 30)
    assert evaluate.baseline_of(artifact) == first.baseline
    rows = artifact.read_json("comparisons.json")
    assert {row["system"] for row in rows if row["difference"] is None} == {first.baseline}
    assert first.no_better() == ""
    assert sum(first.weights.values()) == pytest.approx(1.0)
    assert set(first.weights) == {"reranked", "bm25", "dense"}


def test_the_reranker_s_share_is_the_difference_to_the_control(tmp_path: Path) -> None:
    first, artifact = World(tmp_path, SKILL).measured(baseline="bm25")
    assert (first.baseline, first.chosen) == ("bm25", "settings")
    means = means_of(artifact)
    assert [share.system for share in first.shares] == ["reranked+hybrid", "reranked"]
    for share in first.shares:
        assert share.difference == pytest.approx(means[share.system] - means["bm25+dense"])


def test_test_labels_and_rankings_never_enter_the_choice(tmp_path: Path) -> None:
    """With every skill on test the other way round, all that is chosen stays as it was."""
    there, _ = World(tmp_path / "a", SKILL).measured()
    turned = {"bm25": 5.0, "dense": 0.0, "reranked": 0.0, "start": 0.0}
    other, artifact = World(tmp_path / "b", SKILL, turned).measured()
    assert replace(other, shares=()) == replace(there, shares=())
    means = means_of(artifact)
    assert means["bm25"] > means[other.baseline]  # it would have been chosen on test
    on_dev, _ = World(tmp_path / "c", {**SKILL, "bm25": 5.0, "dense": 0.0}).measured()
    assert on_dev.dev["bm25"] > there.dev["bm25"]


def test_a_reranker_that_knows_nothing_is_said_to_be_no_better(tmp_path: Path) -> None:
    """Though its weight was chosen on the same queries, among weights of which one leaves it out."""
    first, _ = World(tmp_path, {**SKILL, "reranked": 0.0}).measured()
    assert "reranked+hybrid is no better than" in first.no_better()
    alone, _ = World(tmp_path, {**SKILL, "reranked": 0.0}).measured(fusion=False)
    assert (alone.system, alone.control, alone.shares, alone.weights) == ("reranked", "", (), {"reranked": 1.0})
    assert "reranked is no better than" in alone.no_better()


def test_a_training_that_adds_nothing_is_no_better_than_its_start(tmp_path: Path) -> None:
    """A start better than any retriever is the baseline; where nothing is fused, alone."""
    world = World(tmp_path / "a", {**SKILL, "reranked": 3.0, "start": 6.0})
    first, _ = world.measured()
    assert first.baseline in ("start", "start+hybrid")
    assert f"reranked+hybrid is no better than {first.baseline}" in first.no_better()
    assert first.control == "bm25+dense"
    alone, _ = world.measured(fusion=False)
    assert alone.baseline == "start"
    assert "start+hybrid" not in alone.dev


def test_without_a_start_it_is_in_no_table(tmp_path: Path) -> None:
    skill = {name: value for name, value in SKILL.items() if name != "start"}
    first, artifact = World(tmp_path / "a", skill).measured()
    there, with_start = World(tmp_path / "b", SKILL).measured()
    assert {name for name in there.dev if name not in first.dev} == {"start", "start+hybrid"}
    assert artifact.read_json("fusion.json") == with_start.read_json("fusion.json")
    assert {**first.dev, **there.dev} == dict(there.dev)
    assert "start" not in {row["system"] for row in artifact.read_json("comparisons.json")}


def test_a_peer_as_partner_counts_in_the_fusion_alone(tmp_path: Path) -> None:
    """The fusion is the one made by hand; the control and the start's fusion know nothing of the peer."""
    world = World(tmp_path, {**SKILL, "cross": 3.0})
    plain, of_plain = world.measured()
    first, artifact = world.measured(partners=["cross", "bm25", "dense"])
    assert set(first.weights) == {"reranked", "bm25", "dense", "cross"}
    assert first.weights["cross"] > 0.1
    assert first.control == plain.control == "bm25+dense"
    assert {name: first.dev[name] for name in UNTRAINED} == {name: plain.dev[name] for name in UNTRAINED}
    assert first.dev["reranked+hybrid"] > plain.dev["reranked+hybrid"]
    without = [of_systems(one, "bm25+dense", "start+hybrid").drop("score") for one in (artifact, of_plain)]
    assert without[0].equals(without[1])  # scores differ by rounding: a weight of zero is added
    runs = pa.concat_tables([one.read_part("runs", 0, RUN) for one in (world.retrieve, world.rerank)])
    runs = runs.filter(pc.is_in(runs["query_id"], value_set=pa.array(list(map(query_id, TEST)), ID)))
    of = {name: runs.filter(pc.equal(runs["system"], name)) for name in ("hybrid", *first.weights)}
    weights = [first.weights[name] for name in ("reranked", "bm25", "dense", "cross")]
    partners = [of["bm25"], of["dense"], of["cross"]]
    by_hand = fusion.fuse(of["reranked"], of["hybrid"], weights, len(DOCUMENTS), partners=partners)
    assert of_systems(artifact, "reranked+hybrid").equals(by_hand.combine_chunks())
    served = of_sweep(artifact.read_json("fusion.json"))
    assert served.partners == ("bm25", "dense", "cross")
    again = served.fuse(of["reranked"], of["hybrid"], of, len(DOCUMENTS))
    assert again["doc_id"].equals(by_hand["doc_id"])


def means_of(artifact: Artifact) -> dict[str, float]:
    """Mean nDCG@10 by system."""
    rows = artifact.read_json("comparisons.json")
    return {row["system"]: row["mean"] for row in rows if row["measure"] == "nDCG@10"}


def of_systems(artifact: Artifact, *systems: str) -> pa.Table:
    """What was fused, of some systems."""
    fused = artifact.read_part("fused", 0, RUN)
    return fused.filter(pc.is_in(fused["system"], value_set=pa.array(systems))).combine_chunks()


def test_what_a_score_is_worth_is_fitted_to_dev_and_told_of_test(tmp_path: Path) -> None:
    world = World(tmp_path, SKILL)
    _, artifact = world.measured()
    found = relevance.of(artifact)
    assert found is not None
    assert found.test is not None
    assert (found.dev.queries, found.dev.pairs, found.dev.truth) == (30, 360, "labels")
    assert (found.test.queries, found.test.pairs, found.depth) == (24, 288, 12)
    assert found.dev.expected == pytest.approx(found.dev.relevant, rel=0.1)
    fooled = relevance.of(World(tmp_path / "fooled", SKILL, {**SKILL, "reranked": -4.0}).measured()[1])
    assert fooled is not None
    assert (fooled.curve, fooled.dev) == (found.curve, found.dev), "test labels and scores never enter"
    assert fooled.test is not None
    assert fooled.test.error.rms.low is not None
    assert fooled.test.error.rms.low > 0.1
    alone = relevance.of(World(tmp_path / "alone", SKILL, test=False).measured()[1])
    assert alone == replace(found, test=None)


def test_without_dev_queries_of_which_anybody_knows_no_score_is_worth_anything(tmp_path: Path) -> None:
    _, artifact = World(tmp_path, SKILL, dev=False).measured()
    assert relevance.of(artifact) is None
    assert "0 dev queries" in (artifact.manifest() or {})["unfitted"]


def test_of_whom_judges_did_not_speak_nothing_is_known() -> None:
    """Documents without a label are not relevant; those without an answer, or below the model's depth, are left out."""
    pairs = [("q0", "d0"), ("q0", "d1"), ("q1", "d0"), ("q1", "d2"), ("q2", "d3")]
    ids = {
        "query_id": pa.array([query_id(query) for query, _ in pairs], ID),
        "doc_id": pa.array([doc_id(doc) for _, doc in pairs], ID),
    }
    numbers = {"rank": [1, 2, 1, 2, 1], "score": [2.0, 1.0, 4.0, 3.0, 0.0]}
    run = RUN.table({**ids, "system": ["reranked"] * 5, **numbers}).sort_by("score")

    def told(known: relevance.KnownRelevance) -> list[tuple[float, float]]:
        found = known.pairs(run)
        assert len(set(found.query.tolist())) == len(set(found.query[np.argsort(found.score)].tolist()))
        return sorted(zip(found.score.tolist(), found.truth.tolist(), strict=True))

    labels = QREL.table({"query_id": ids["query_id"][:3], "doc_id": ids["doc_id"][:3], "grade": [2, 0, 0]})
    assert told(relevance.by_labels(labels)) == [(1.0, 0.0), (2.0, 1.0)]
    gains = QREL.table({"query_id": ids["query_id"][1:4], "doc_id": ids["doc_id"][1:4], "grade": [250, 1000, 0]})
    assert told(relevance.by_gains(gains)) == [(1.0, 0.25), (3.0, 0.0), (4.0, 1.0)]
    answers = pa.table({name: column[2:] for name, column in ids.items()} | {"probability": [0.75, np.nan, 0.5]})
    assert told(relevance.by_answers(answers)) == [(0.0, 0.5), (4.0, 0.75)]


def test_who_chooses_on_dev_says_what_is_relevant() -> None:
    """On test as on dev, and the others where these say nothing of test."""
    ids = {"query_id": pa.array([query_id("q")], ID), "doc_id": pa.array([doc_id("d")], ID)}
    label = QREL.table({**ids, "grade": [1]})
    queries = pa.table({"query_id": pa.chunked_array([ids["query_id"]])})
    answers = pa.table({**ids, "answer": [0.75], "probability": [0.75]})
    said = by_judges.Assessed(answers, "", "nDCG@10", {})
    silent = replace(said, answers=answers.slice(0, 0))
    choose, config = evaluate._choice, EvaluateConfig()  # pyright: ignore[reportPrivateUsage]
    by_labels = choose(label, queries, None, None, config)
    judges = choose(QREL.empty(), queries, said, None, config)
    assert (by_labels.known.by, judges.known.by) == ("labels", "judges")
    assert judges.known.rows["truth"].to_pylist() == [0.75]
    rated = choose(QREL.empty(), queries, said, label, config)
    assert rated.known.rows["truth"].to_pylist() == [0.001]
    for choice, labels, answered, by in (
        (by_labels, label, said, "labels"),
        (by_labels, QREL.empty(), said, "judges"),
        (judges, label, said, "judges"),
        (judges, label, silent, "labels"),
        (judges, label, None, "labels"),
        (by_labels, QREL.empty(), silent, None),
    ):
        found = evaluate._known_of_test(choice, labels, queries, answered)  # pyright: ignore[reportPrivateUsage]
        assert (found and found.by) == by


def test_without_judged_dev_queries_it_is_the_start(tmp_path: Path) -> None:
    world = World(tmp_path, SKILL, dev=False)
    first, artifact = world.measured()
    assert (first.baseline, first.chosen, first.dev, first.queries) == ("start", "default", {}, 0)
    assert first.weights == {"reranked": 0.5, "bm25": 0.25, "dense": 0.25}
    fused = pc.unique(artifact.read_part("fused", 0, RUN)["system"]).to_pylist()
    assert set(fused) == {"reranked+hybrid", "bm25+dense", "start+hybrid"}
    assert first.no_better() == ""
    assert artifact.read_json("fusion.json") is None
    with pytest.raises(DataError, match="no nDCG@10 of 'nothing'"):
        world.measured(baseline="nothing")


def test_the_hybrid_as_the_only_partner_is_the_control(tmp_path: Path) -> None:
    first, _ = World(tmp_path, SKILL).measured(partners=["hybrid"])
    assert first.control == "hybrid"
    assert set(first.weights) == {"reranked", "hybrid"}


def test_artifacts_of_before_name_the_hybrid_or_what_was_set(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for number, (settings, said) in enumerate([({}, "hybrid"), ({"baseline": "dense"}, "dense")]):
        artifact = Artifact(store, "evaluate", f"old{number}")
        artifact.complete([Flow("test queries", 1, 1)], settings=settings)
        assert evaluate.baseline_of(artifact) == said


@pytest.mark.parametrize(("dev", "fusion", "count"), [(False, True, 1), (False, False, 0), (True, True, 0)])
def test_even_weights_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dev: bool, fusion: bool, count: int
) -> None:
    world, notices = World(tmp_path, SKILL, dev=dev), list[str]()
    artifact = Artifact(world.store, "evaluate", "f-said")
    monkeypatch.setattr(evaluate, "run_task", lambda _, work, *given: work(*given))  # in this process, without Ray
    context = Context(world.store, ExecutionConfig(root=str(tmp_path)), 1, 0, lambda *_, **__: None, notices.append)
    inputs = {"rerank": world.rerank, "retrieve": world.retrieve, "ingest": world.ingest}
    evaluate.run(artifact, inputs, EvaluateConfig(fusion=fusion), context)
    said = [text for text in notices if "no dev query has a relevant document: reranked+hybrid takes even" in text]
    assert len(said) == count
