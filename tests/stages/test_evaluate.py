"""evaluate over artifacts as the stages write them: what the headline compares is chosen on dev queries alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.evaluate import EvaluateConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.core.records import QREL, QUERY, RUN, TEXT_OF
from anmi_ray.evaluation.headline import Headline
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import evaluate
from anmi_ray.store import Artifact, Flow, Store

DOCUMENTS = [f"d{i}" for i in range(12)]
DEV, TEST = [f"dev{i}" for i in range(30)], [f"test{i}" for i in range(24)]
SKILL = {"bm25": 1.0, "dense": 2.0, "reranked": 4.0}  # how far the relevant document's score stands above the noise


class World:
    """Inputs of evaluate: rankings of one relevant document among twelve by systems of some skill, all in one bucket.

    skill: by system, on all queries; test_skill: on the test queries, where it is another.
    """

    def __init__(
        self, root: Path, skill: dict[str, float], test_skill: dict[str, float] | None = None, dev: bool = True
    ) -> None:
        self.store, self.times = Store(str(root)), 0
        self.skill, self.test_skill, self.dev = skill, test_skill or skill, dev
        queries = [*DEV, *TEST]
        splits = ["dev"] * len(DEV) + ["test"] * len(TEST)
        judged = queries if dev else TEST
        ids = [query_id(name) for name in queries]
        table = QUERY.table(
            {
                "query_id": ids,
                "external_id": queries,
                "text": queries,
                "split": splits,
                "text_hash": ids,
            }
        )
        qrels = QREL.table(
            {
                "query_id": [query_id(name) for name in judged],
                "doc_id": [doc_id("d0")] * len(judged),
                "grade": [1] * len(judged),
            }
        )
        texts = TEXT_OF.table(
            {
                "text_hash": list(map(doc_id, DOCUMENTS)),
                "doc_id": list(map(doc_id, DOCUMENTS)),
                "external_id": DOCUMENTS,
                "title": DOCUMENTS,
                "text": DOCUMENTS,
            }
        )
        self.ingest = self._made("ingest", {"queries": (QUERY, table), "qrels": (QREL, qrels)})
        first = [self._run("bm25"), self._run("dense"), self._run("hybrid", "bm25", "dense")]
        self.retrieve = self._made("retrieve", {"runs": (RUN, pa.concat_tables(first)), "texts": (TEXT_OF, texts)})
        self.rerank = self._made("rerank", {"runs": (RUN, self._run("reranked"))}, depth=len(DOCUMENTS))

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
        config = EvaluateConfig.model_validate({"rounds": 200, **settings})
        self.times += 1
        artifact = Artifact(self.store, "evaluate", f"f-{self.times}")
        facts = evaluate._evaluate(  # pyright: ignore[reportPrivateUsage]
            artifact, self.rerank, self.retrieve, self.ingest, config, 1, 0
        )
        artifact.complete(facts.pop("flows"), **facts)
        return evaluate.headline_of(artifact), artifact


def test_the_baseline_is_the_best_untrained_system_on_dev(tmp_path: Path) -> None:
    first, artifact = World(tmp_path, SKILL).measured()
    untrained = {name: first.dev[name] for name in ("bm25", "dense", "hybrid", "bm25+dense")}
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
    means = {
        row["system"]: row["mean"] for row in artifact.read_json("comparisons.json") if row["measure"] == "nDCG@10"
    }
    assert [share.system for share in first.shares] == ["reranked+hybrid", "reranked"]
    for share in first.shares:
        assert share.difference == pytest.approx(means[share.system] - means["bm25+dense"])


def test_test_labels_and_rankings_never_enter_the_choice(tmp_path: Path) -> None:
    """With every skill on test the other way round, all that is chosen stays as it was."""
    there, _ = World(tmp_path / "a", SKILL).measured()
    turned = {"bm25": 5.0, "dense": 0.0, "reranked": 0.0}
    other, artifact = World(tmp_path / "b", SKILL, turned).measured()
    assert replace(other, shares=()) == replace(there, shares=())
    means = {
        row["system"]: row["mean"] for row in artifact.read_json("comparisons.json") if row["measure"] == "nDCG@10"
    }
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


def test_without_judged_dev_queries_it_is_the_control_or_the_hybrid(tmp_path: Path) -> None:
    world = World(tmp_path, SKILL, dev=False)
    first, artifact = world.measured()
    assert (first.baseline, first.chosen, first.dev, first.queries) == ("bm25+dense", "default", {}, 0)
    assert first.weights == {"reranked": 0.5, "bm25": 0.25, "dense": 0.25}
    assert first.no_better() == ""
    assert artifact.read_json("fusion.json") is None
    assert world.measured(fusion=False)[0].baseline == "hybrid"
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
    evaluate.run(artifact, inputs, EvaluateConfig(fusion=fusion, rounds=200), context)
    said = [text for text in notices if "no dev query has a relevant document: reranked+hybrid takes even" in text]
    assert len(said) == count
