"""The second round on a small real collection: who is asked, at what cost, what is fitted, what mining makes of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray import judging
from anmi_ray.cli.show import described
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import CANDIDATE, COMPARISON, EXAMPLE, GAP, JUDGMENT, RATING, RUN
from anmi_ray.pipeline.stages import names_of
from tests.judging.serving import Chat, serving
from tests.models.tiny import write_tiny_bert, write_tiny_classifier
from tests.small import start_from
from tests.stages.runs import Done, Key, World, served

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("trained_in_one_task")]
BUCKETS = 4
# positives stand far above in the simulation: a wide band has enough in it
VALIDATED = ("mine.rule=validated", "mine.allow=[{rule: validate, high: 450}]")


def verdicts(done: Done) -> dict[str, dict[str, int]]:
    return done.artifact("mine").read_json("summary.json")["verdicts"]


def positives_of(done: Done) -> set[tuple[bytes, bytes]]:
    rows = done.part("retrieve", "candidates", CANDIDATE).to_pylist()
    return {(row["query_id"], row["doc_id"]) for row in rows if row["is_positive"]}


def direct_of(done: Done) -> dict[Key, float]:
    """By pair, the mean over judges of the mean over orders, each judge by half a vote for every order answered."""
    votes: dict[bytes, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    keys: dict[bytes, Key] = {}
    for judge, compare in (("judge", "compare"), ("validate", "borderline")):
        for row in done.part(compare, "comparisons", COMPARISON).to_pylist():
            keys[row["comparison_id"]] = row["query_id"], row["doc_a"], row["doc_b"]
        for row in done.part(judge, "judgments", JUDGMENT).to_pylist():
            if row["p_a"] is not None:
                votes[row["comparison_id"]][row["judge"]].append(row["p_a"])
    found = {}
    for comparison, by_judge in votes.items():
        mean = [np.mean(both) for both in by_judge.values()]
        found[keys[comparison]] = float(np.average(mean, weights=[len(both) / 2 for both in by_judge.values()]))
    return found


@pytest.fixture(scope="module")
def world(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("validation"), small_collection)
    start_from(prepared, world.root, "rate")
    return world


@pytest.fixture(scope="module")
def done(world: World) -> Done:
    return world.carry_out(*VALIDATED, last="report")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as number:
        yield number


def test_borderline_documents_are_asked_about_once(done: Done) -> None:
    names = names_of(done.settings)
    assert done.told.computed == list(names[names.index("borderline") :])  # what is before was prepared
    wanted, known, before = done.pairs("borderline"), done.pairs("borderline", "known"), done.pairs("compare")
    assert len(wanted) > 50
    assert len(known) > 5
    assert not wanted & before
    assert known <= before
    positives = positives_of(done)
    assert all(((q, a) in positives) != ((q, b) in positives) for q, a, b in wanted)
    borderline = set()
    for row in done.part("rate", "gaps", GAP).to_pylist():
        a, b = sorted((row["anchor_id"], row["doc_id"]))
        if 80 <= row["gap_elo"] <= 450 and (row["query_id"], row["doc_id"]) not in positives:
            borderline.add((row["query_id"], a, b))
    assert wanted | known == borderline
    counts = {"borderline documents": len(borderline), "compared before": len(known), "to ask about": len(wanted)}
    assert {flow.unit: flow.rows_out for flow in done.told.flows["borderline"]} == counts
    assert done.flow("validate", "judgments").rows_in == 6 * len(wanted)


def test_judges_see_the_same_truth_in_both_rounds(done: Done) -> None:
    """The panel answers as if all pairs had been asked at once."""
    config, seed = done.settings.judge, done.settings.seed
    for bucket in range(BUCKETS):
        made = {stage: done.artifact(stage) for stage in ("compare", "borderline", "judge", "validate", "retrieve")}
        rounds = [made[stage].read_part("comparisons", bucket, COMPARISON) for stage in ("compare", "borderline")]
        candidates = made["retrieve"].read_part("candidates", bucket, CANDIDATE)
        whole = judging.judge(pa.concat_tables(rounds), candidates, config, seed).to_pylist()
        parts = [made[stage].read_part("judgments", bucket, JUDGMENT).to_pylist() for stage in ("judge", "validate")]
        assert sorted(map(repr, whole)) == sorted(map(repr, parts[0] + parts[1]))


def test_judgments_of_both_rounds_are_fitted(done: Done) -> None:
    games = {}
    for stage in ("rate", "refit"):
        table = done.part(stage, "ratings", RATING)
        games[stage] = {(row["query_id"], row["doc_id"]): row["games"] for row in table.to_pylist()}
    dispersion = {s: done.artifact(s).read_json("globals.json")["dispersion"] for s in games}
    asked = {(q, doc) for q, a, b in done.pairs("borderline") for doc in (a, b)}
    for key, count in games["rate"].items():
        more = games["refit"][key] * dispersion["refit"] - count * dispersion["rate"]
        assert (more > 0.9) == (key in asked)
        assert more > -1e-9


def test_mining_keeps_the_verdicts(done: Done) -> None:
    held, positives = done.pairs("borderline") | done.pairs("borderline", "known"), positives_of(done)
    direct = {pair: p if pair[:2] in positives else 1 - p for pair, p in direct_of(done).items()}  # for the anchor
    counts = verdicts(done)["validate"]
    p = np.array([direct.get(pair, np.nan) for pair in held])
    for name, found in (("rejected", p < 0.65), ("reduced", (p >= 0.65) & (p <= 0.75)), ("full", p > 0.75)):
        assert counts[name] >= found.sum() > 0, name
    assert counts["borderline"] >= len(held)
    assert sum(counts.values()) == 2 * counts["borderline"]
    seen = 0
    for row in done.part("mine", "examples", EXAMPLE).to_pylist():
        anchor, *docs = row["doc_ids"]
        for doc, weight, category in zip(docs, row["weights"][1:], row["categories"][1:], strict=True):
            pair = (row["query_id"], *sorted((anchor, doc)))
            if category != "random" and weight > 0 and pair in held and pair in direct:
                assert weight == (1.0 if direct[pair] > 0.75 else 0.3), pair
                assert direct[pair] >= 0.65
                seen += 1
    assert seen > 30


def test_the_report_and_show_tell_of_the_second_round(done: Done) -> None:
    content = json.loads(done.report("report.json"))
    assert content["mining"]["validated"] == verdicts(done)["validate"]
    assert [stage["stage"] for stage in content["stages"]] == list(names_of(done.settings))[:-1]
    assert "<dt>validated</dt>" in done.report("report.html")
    _, _, table, *_ = described(done.settings.name, done.settings.execution.root, 0)
    assert [name for name in table.columns[0].cells if name] == list(names_of(done.settings))  # type: ignore[union-attr]


def test_a_second_run_computes_nothing_and_lost_buckets_come_back_the_same(world: World, done: Done) -> None:
    assert world.carry_out(*VALIDATED, last="evaluate").told.computed == []
    held: dict[Path, bytes] = {}
    for stage in ("borderline", "validate", "refit", "mine"):
        folder = done.folder(stage)
        held |= {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        (folder / "manifest.json").unlink()
        for path in folder.glob("*/00001.parquet"):  # as if killed after three buckets
            path.unlink()
    kept = {path: path.stat().st_mtime_ns for path in held if path.exists() and path.suffix == ".parquet"}
    again = world.carry_out(*VALIDATED, last="evaluate")
    assert again.told.computed == ["borderline", "validate", "refit", "mine"]
    assert {path: path.read_bytes() for path in held} == held
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_server_is_asked_in_both_rounds_of_one_budget(world: World, port: int) -> None:
    """It always says A: all w are one half, gaps are near 0, and a band around that holds every document."""
    chat = Chat(port, "second")
    chat.setup()
    few = ("corpus.max_train_queries=10", "name=served", "mine.rule=validated")
    band = "mine.allow=[{rule: validate, low: -1000, high: 1000}]"
    first = world.carry_out(*few, band, served(chat), last="judge")
    asked = len(chat.log())
    assert asked == 2 * len(first.pairs("compare")) > 0
    limit = {"calls": asked + 60}
    short = world.carry_out(*few, band, served(chat, budget=limit))
    wanted = short.pairs("borderline")
    by_query = {query: 2 * sum(pair[0] == query for pair in wanted) for query, *_ in wanted}
    bought = len(chat.log()) - asked
    assert 0 < bought <= 60 < 2 * len(wanted)
    judged = short.part("validate", "judgments", JUDGMENT).to_pylist()
    answered = {row["query_id"] for row in judged if row["p_a"] is not None}
    assert sum(by_query[query] for query in answered) == bought  # whole queries
    assert {row["error"] for row in judged if row["p_a"] is None} == {"budget"}
    assert {row["key"] for row in short.artifact("validate").rejects().to_pylist()} == {
        query.hex() for query in by_query.keys() - answered
    }
    assert short.artifact("validate").manifest()["spent"]["llm"]["calls"] == bought  # type: ignore[index]
    assert verdicts(short)["validate"]["unjudged"] >= len(wanted) - bought // 2
    everything = world.carry_out(*few, band, served(chat))
    assert everything.pairs("borderline") == wanted
    assert len(chat.log()) == asked + 2 * len(wanted)
    assert all(entry["visit"] == 0 for entry in chat.log())  # nothing was asked twice
    assert verdicts(everything)["validate"]["unjudged"] == 0
    assert verdicts(everything)["validate"]["rejected"] == verdicts(everything)["validate"]["borderline"]


def test_nothing_borderline_is_no_error(world: World) -> None:
    found = world.carry_out("mine.rule=validated", "mine.allow=[{rule: validate, low: 9000, high: 9001}]", "name=none")
    assert found.flow("borderline", "borderline documents").rows_in == 0
    assert found.flow("validate", "judgments").rows_in == 0
    assert found.part("refit", "gaps", GAP).equals(found.part("rate", "gaps", GAP))
    assert verdicts(found)["validate"] == dict.fromkeys(("borderline", "rejected", "reduced", "full", "unjudged"), 0)


def test_a_cross_encoder_says_what_is_relevant(world: World, tmp_path: Path) -> None:
    model = write_tiny_classifier(tmp_path / "reranker", ["score"])
    more = ("mine.rule=rocketqa", "name=pointwise", "mine.random_negatives=0", "mine.negatives=20")
    scores = world.carry_out(*more, f"mine.allow=[{{rule: rocketqa, model: {model}}}]").part("mine", "relevance", RUN)
    values = np.unique(1 / (1 + np.exp(-scores["score"].to_numpy())))
    low = float(values[len(values) // 4 : len(values) // 4 + 2].mean())
    rule = f"{{rule: rocketqa, model: {model}, negative_below: {low}}}"
    found = world.carry_out(*more, f"mine.allow=[{rule}]")
    assert found.told.computed == ["mine"]
    again, gaps = found.part("mine", "relevance", RUN), found.part("rate", "gaps", GAP)
    assert again.equals(scores)
    pairs = list(zip(scores["query_id"].to_pylist(), scores["doc_id"].to_pylist(), strict=True))
    assert set(pairs) == set(zip(gaps["query_id"].to_pylist(), gaps["doc_id"].to_pylist(), strict=True))
    p = dict(zip(pairs, (1 / (1 + np.exp(-scores["score"].to_numpy()))).tolist(), strict=True))
    rows, positives = found.part("mine", "examples", EXAMPLE).to_pylist(), positives_of(found)
    taken = [(row["query_id"], doc) for row in rows for doc, w in zip(row["doc_ids"], row["weights"], strict=True) if w]
    negatives = [pair for pair in taken if pair not in positives]
    assert negatives
    assert all(p[pair] < low for pair in negatives)
    counts, beside = verdicts(found)["rocketqa"], [(row["query_id"], row["doc_id"]) for row in gaps.to_pylist()]
    asked = [p[pair] for pair in beside if pair not in positives]
    expected = len(asked), sum(one < low for one in asked), sum(one > 0.9 for one in asked)
    assert tuple(counts[name] for name in ("documents", "negatives", "pseudo_positives")) == expected
    assert 0 < expected[1] < expected[0]


def test_a_model_without_a_head_is_refused(world: World, tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "encoder")
    with pytest.raises(ConfigError, match="was not trained to classify"):
        world.carry_out("mine.rule=rocketqa", f"mine.allow=[{{rule: rocketqa, model: {model}}}]", "name=headless")
