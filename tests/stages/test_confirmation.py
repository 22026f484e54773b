"""Queries whose positives are hidden, on a small real collection: who is asked, and what anchors are made of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import NOTHING
from anmi_ray.core.records import CANDIDATE, COMPARISON, EXAMPLE, GAP, JUDGMENT, RELEVANCE
from anmi_ray.mining.anchors import LIKELY, POSSIBLE
from anmi_ray.mining.relevance import RelevanceModel
from anmi_ray.stages import anchor
from tests.judging.serving import Chat, serving
from tests.small import start_from
from tests.stages.runs import Done, World, served
from tests.stages.test_validation import VALIDATED

pytestmark = [pytest.mark.ray, pytest.mark.slow]
HIDDEN = ("rate.hide_positives=1", "mine.anchors=confirmed", "name=hidden")
Pair = tuple[bytes, bytes]  # query, document


@pytest.fixture(scope="module")
def world(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("confirmation"), small_collection)
    start_from(prepared, world.root, "judge")
    return world


@pytest.fixture(scope="module")
def done(world: World) -> Done:
    return world.carry_out(*HIDDEN)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as number:
        yield number


def said(done: Done) -> dict[Pair, list[float]]:
    """By document asked about, what judges answered."""
    rows = done.part("shortlist", "comparisons", COMPARISON).to_pylist()
    pair = {row["comparison_id"]: (row["query_id"], row["doc_a"]) for row in rows}
    found: dict[Pair, list[float]] = {one: [] for one in pair.values()}
    for row in done.part("confirm", "judgments", JUDGMENT).to_pylist():
        if row["p_a"] is not None:
            found[pair[row["comparison_id"]]].append(row["p_a"])
    return found


def confirmed(done: Done) -> set[Pair]:
    """Who anchors: asked about, and likelier than not to answer the query, or else the likeliest."""
    rows = done.part("anchor", "relevance", RELEVANCE).to_pylist()
    found = {(row["query_id"], row["doc_id"]) for row in rows if row["may_anchor"]}
    assert found <= {pair for pair, answers in said(done).items() if answers}
    return found


def negatives(done: Done) -> set[Pair]:
    """Documents with weight beside an anchor that are not possible positives."""
    found = set[Pair]()
    for row in done.part("mine", "examples", EXAMPLE).to_pylist():
        beside = zip(row["doc_ids"][1:], row["weights"][1:], row["categories"][1:], strict=True)
        found |= {(row["query_id"], doc) for doc, weight, category in beside if weight and category != "positive"}
    return found


def test_the_likeliest_of_the_best_rated_are_asked_about_once_and_alone(done: Done) -> None:
    assert done.told.computed == ["rate", "shortlist", "confirm", "anchor", "mine"]
    inputs = {name: done.artifact(name) for name in ("rate", "retrieve")}
    model = RelevanceModel(**(done.artifact("shortlist").read_json("relevance.json") or {})["model"])
    likely: dict[bytes, list[tuple[float, float, bytes]]] = defaultdict(list)
    for bucket in range(done.settings.execution.buckets):
        documents, known = anchor.known(inputs, bucket)
        rows = zip(documents["query_id"].to_pylist(), documents["doc_id"].to_pylist(), strict=True)
        for (query, doc), rating, p in zip(rows, known.rating, model.posterior(known), strict=True):
            likely[query].append((-rating, -p, doc))
    best = {query: sorted((p, doc) for _, p, doc in sorted(rows)[:8]) for query, rows in likely.items()}
    wanted = {(query, doc) for query, rows in best.items() for _, doc in rows[:4]}
    assert {pair[2] for pair in done.pairs("shortlist")} == {NOTHING}
    assert {pair[:2] for pair in done.pairs("shortlist")} == wanted
    judgments = done.part("confirm", "judgments", JUDGMENT)
    assert judgments["order"].unique().to_pylist() == ["ab"]
    assert judgments.num_rows == 3 * len(wanted)


def test_confirmed_documents_anchor_and_are_no_negatives(done: Done) -> None:
    wanted = confirmed(done)
    examples = done.part("mine", "examples", EXAMPLE).to_pylist()
    assert {(row["query_id"], row["doc_ids"][0]) for row in examples} <= wanted
    assert not negatives(done) & wanted
    # a query's examples may be refused for want of negatives, never for want of an anchor
    refused = {row["key"]: row["reason"] for row in done.artifact("mine").rejects().to_pylist()}
    asked = {query for query, _ in said(done)}
    without = asked - {query for query, _ in wanted}
    assert {bytes.fromhex(key) for key, why in refused.items() if why.startswith("nothing among")} == without
    assert set(refused.values()) <= {"nothing among its candidates answers it", "no negative left"}
    found = {flow.unit: flow.rows_out for flow in done.told.flows["anchor"]}
    assert found["queries without a known positive"] == len(asked)
    assert found["of them with an anchor"] == len(asked) - len(without) > 0
    assert found["anchors"] == len(wanted)


def test_rank_and_rating_anchor_where_nobody_can_be_asked(world: World, done: Done) -> None:
    """Of the documents that would be asked about, those likelier than not to answer by these alone, or the best."""
    found = world.carry_out(HIDDEN[0], "mine.anchors=rated", "name=rated")
    assert found.told.computed == ["anchor", "mine"]
    rows = found.part("anchor", "relevance", RELEVANCE).to_pylist()
    asked = set(said(done))
    anchors = {(row["query_id"], row["doc_id"]) for row in rows if row["may_anchor"]}
    all_p = {(row["query_id"], row["doc_id"]): row["probability"] for row in rows}
    p = {pair: all_p[pair] for pair in asked}
    best = {query: max(p[pair] for pair in p if pair[0] == query) for query, _ in p}
    assert anchors == {pair for pair in p if p[pair] > LIKELY or p[pair] == best[pair[0]] > POSSIBLE}
    assert all(row["answer"] is None for row in rows)
    examples = found.part("mine", "examples", EXAMPLE).to_pylist()
    assert examples
    assert {(row["query_id"], row["doc_ids"][0]) for row in examples} <= anchors
    refused = {row["key"]: row["reason"] for row in found.artifact("mine").rejects().to_pylist()}
    without = {query for query, _ in asked} - {query for query, _ in anchors}
    assert {bytes.fromhex(key) for key, why in refused.items() if why.startswith("nothing among")} == without


def test_judges_that_know_the_truth_confirm_what_is_relevant(done: Done) -> None:
    rows = done.part("retrieve", "candidates", CANDIDATE).to_pylist()
    positive = {(row["query_id"], row["doc_id"]) for row in rows if row["is_positive"]}
    asked, wanted = set(said(done)), confirmed(done)
    of_positive = len(positive & wanted) / len(positive & asked)
    assert of_positive > 0.6
    assert len(wanted - positive) / len(asked - positive) < 0.1


def test_a_part_of_the_queries_may_have_known_positives(world: World, done: Done) -> None:
    """Where all positives are known nothing is asked, and mining is what it is with known anchors."""
    known = world.carry_out("name=known")
    both = world.carry_out("mine.anchors=confirmed", "name=both")
    assert both.flow("shortlist", "documents to ask about").rows_in == 0
    assert both.part("mine", "examples", EXAMPLE).equals(known.part("mine", "examples", EXAMPLE))
    without = world.carry_out(HIDDEN[0], "name=without")
    assert set(without.artifact("mine").rejects()["reason"].to_pylist()) == {"no gap to a known positive"}


def test_borderline_documents_are_validated_against_confirmed_anchors(world: World, done: Done) -> None:
    found = world.carry_out(*HIDDEN[:2], "name=validated", *VALIDATED)
    assert found.told.computed == ["borderline", "validate", "refit", "mine"]
    wanted = confirmed(found)
    pairs = found.pairs("borderline") | found.pairs("borderline", "known")
    assert len(pairs) > 20
    assert all(((query, a) in wanted) != ((query, b) in wanted) for query, a, b in pairs)
    rows = found.part("refit", "gaps", GAP).to_pylist()
    assert wanted <= {(row["query_id"], row["anchor_id"]) for row in rows}  # whatever the second fit rates them
    anchors = {(row["query_id"], row["doc_ids"][0]) for row in found.part("mine", "examples", EXAMPLE).to_pylist()}
    assert anchors == wanted
    assert not negatives(found) & wanted


def test_a_server_is_asked_about_single_documents_in_the_rounds_one_budget(world: World, port: int) -> None:
    """It says A of pairs, and yes of every other document. What a budget ended is asked later, and nothing twice."""
    chat = Chat(port, "direct")
    chat.setup()
    settings = (*HIDDEN[:2], "name=served")
    first = world.carry_out(*settings, served(chat), last="rate")
    asked = len(chat.log())
    assert asked == 2 * len(first.pairs("compare")) > 0
    short = world.carry_out(*settings, served(chat, budget={"calls": asked + 30}))
    bought = len(chat.log()) - asked
    wanted = short.pairs("shortlist")
    answered = {query for (query, _), answers in said(short).items() if answers}
    assert 0 < bought <= 30 < len(wanted)
    assert sum(query in answered for query, *_ in wanted) == bought  # whole queries
    assert short.artifact("confirm").manifest()["spent"]["llm"]["calls"] == bought  # type: ignore[index]
    reasons = {row["key"]: row["reason"] for row in short.artifact("mine").rejects().to_pylist()}
    silent = {bytes.fromhex(key) for key, why in reasons.items() if why == "no judge answered about its candidates"}
    assert silent == {query for query, *_ in wanted} - answered
    whole = world.carry_out(*settings, served(chat))
    assert whole.pairs("shortlist") == wanted
    assert all(entry["visit"] == 0 for entry in chat.log())  # nothing was asked twice
    questions = [entry["question"] for entry in chat.log()[asked:]]
    assert len(questions) == len({one for one in questions}) <= len(wanted)
    assert all("One word, yes or no" in one and "document-B" not in one for one in questions)
    assert 0 < len(confirmed(whole)) < len(wanted)
    examples = whole.part("mine", "examples", EXAMPLE).to_pylist()
    assert {(row["query_id"], row["doc_ids"][0]) for row in examples} <= confirmed(whole)


def test_a_panel_that_only_compares_is_refused(world: World) -> None:
    judge = {"kind": "encoder", "name": "pairs", "model": "folder", "form": "pairwise"}
    with pytest.raises(ConfigError, match="only compare two") as raised:
        world.settings(*HIDDEN, f"judge={json.dumps({'judges': [judge]})}")
    assert "kind api" in str(raised.value)
    world.settings(HIDDEN[0], "mine.anchors=rated", f"judge={json.dumps({'judges': [judge]})}")
