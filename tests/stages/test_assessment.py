"""Judges measure held-out queries of a small real collection: who is asked what, and what comes of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from anmi_ray.api.export import export
from anmi_ray.api.prompts import preview_prompts
from anmi_ray.api.runs import Run
from anmi_ray.cli.run import carry_out
from anmi_ray.cli.show import described
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import NOTHING
from anmi_ray.core.records import COMPARISON, JUDGMENT, METRIC, QREL, QUERY, RUN
from anmi_ray.evaluation.judged import ByJudges
from anmi_ray.stages.ingest import HIDDEN
from tests.commands import printed
from tests.judging.serving import Chat, serving
from tests.models.tiny import write_tiny_bert
from tests.small import start_from
from tests.stages.runs import Done, World

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("trained_in_one_task")]
TRUTH = {"similarity_slope": 0.0, "relevance_sd": 0.0}
ORACLE = {"kind": "simulated", "name": "oracle", "noise_sd": 0.01}
KNOWS = {"judges": [ORACLE], "truth": TRUTH, "shared_noise": {"document_sd": 0.0, "pair_sd": 0.0}}
GUESSES = {"judges": [{"kind": "null", "name": "dice"}]}


def panel(settings: dict[str, Any]) -> str:
    return f"evaluate.judge={json.dumps(settings)}"


@pytest.fixture(scope="module")
def world(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("assessment")
    train = {"student": "late-interaction", "model": str(write_tiny_bert(folder / "bert")), "freeze_layers": 1}
    world = World(folder, small_collection, train={**train, "max_steps": 4, "max_tokens": 48, "dev_points": [0.5, 1.0]})
    start_from(prepared, world.root, "mine")
    return world


@pytest.fixture(scope="module")
def labelled(world: World) -> Done:
    return world.carry_out("name=labelled", last="report")


@pytest.fixture(scope="module")
def known(world: World, labelled: Done) -> Done:
    return world.carry_out("name=known", "evaluate.judged=all", panel(KNOWS), last="report")


def by_judges(done: Done) -> ByJudges:
    found = Run(done.settings.name, done.settings.execution.root).by_judges()
    assert found is not None
    return found


def test_the_top_of_every_system_is_asked_about_once(labelled: Done, known: Done) -> None:
    assert known.told.computed == ["pool", "assess", "evaluate", "report"]
    queries = known.part("ingest", "queries", QUERY)
    held_out = set(queries.filter(pc.not_equal(queries["split"], "train"))["query_id"].to_pylist())
    pairs = known.pairs("pool")
    assert {pair[2] for pair in pairs} == {NOTHING}
    wanted = set[tuple[bytes, bytes]]()
    for stage in ("retrieve", "rerank"):
        runs = known.part(stage, "runs", RUN)
        top = runs.filter(pc.less_equal(runs["rank"], 10)).to_pylist()
        wanted |= {(row["query_id"], row["doc_id"]) for row in top}
    assert {query for query, _ in wanted} <= held_out
    # fusions with even weights may bring up a document from below
    assert wanted <= {pair[:2] for pair in pairs}
    assert len(pairs) < 1.2 * len(wanted)
    judgments = known.part("assess", "judgments", JUDGMENT)
    assert judgments["order"].unique().to_pylist() == ["ab"]
    assert judgments.num_rows == len(pairs)


def test_what_labels_measure_is_the_same_beside_judges(labelled: Done, known: Done) -> None:
    for name in ("comparisons.json", "fusion.json", "headline.json"):
        one, other = (done.store.read(f"{done.artifact('evaluate').path}/{name}") for done in (labelled, known))
        assert one == other
    assert labelled.artifact("evaluate").read_json("by_judges.json") is None
    one, other = (done.artifact("evaluate").read_part("metrics", 0, METRIC) for done in (labelled, known))
    assert one.equals(other)
    rows = labelled.artifact("evaluate").read_json("comparisons.json")
    assert rows
    assert all(0 < row["judged"] < 0.5 for row in rows)  # a label or two among ten documents


def test_judges_who_know_order_systems_as_labels_do_and_dice_do_not(world: World, known: Done) -> None:
    found = by_judges(known)
    assert found.own_panel
    assert found.simulated
    assert found.fault == ""
    assert all(row.judged is not None and row.judged > 0.9 for row in found.comparisons)
    assert found.agreement is not None
    assert found.agreement.auc == pytest.approx(1.0)
    assert found.agreement.kappa == pytest.approx(1.0)
    assert found.agreement.tau is not None
    assert found.agreement.tau > 0.8
    dice = by_judges(world.carry_out("name=dice", "evaluate.judged=all", panel(GUESSES), last="report"))
    assert dice.agreement is not None
    assert dice.agreement.auc == pytest.approx(0.5, abs=0.15)
    assert dice.agreement.kappa == pytest.approx(0.0, abs=0.15)
    assert "not calibrated" in dice.calibration
    spread = [
        max(row.mean for row in one.comparisons) - min(row.mean for row in one.comparisons) for one in (found, dice)
    ]
    assert spread[1] < spread[0] / 2


def test_unlabelled_queries_are_held_out_chosen_on_and_measured(
    world: World, labelled: Done, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Labels of train are read alone; those that are hidden only the simulated judges are told."""
    without = (
        "corpus.labels=[train]",
        "corpus.dev_fraction=0",
        "corpus.unlabelled_dev=12",
        "corpus.unlabelled_test=15",
    )
    settings = world.settings("name=without", *without, "evaluate.judged=unlabelled", panel(KNOWS))
    carry_out(settings, "", "")
    said = capsys.readouterr().out
    assert "no test query is labelled: judges alone measured" in said
    assert "on 15 of 15 test queries: " in said
    assert "oracle, a separate panel, simulated" in said
    assert "dev queries that judges judged" in said
    run, done = Run("without", settings.execution.root), world.recorded("without", settings)
    queries = done.part("ingest", "queries", QUERY)
    splits = {
        split: set(queries.filter(pc.equal(queries["split"], split))["query_id"].to_pylist())
        for split in ("dev", "test")
    }
    assert {split: len(ids) for split, ids in splits.items()} == {"dev": 12, "test": 15}
    qrels = done.part("ingest", "qrels", QREL)
    assert not splits["test"] & set(qrels["query_id"].to_pylist())
    hidden = {(row["query_id"], row["doc_id"]) for row in done.part("ingest", HIDDEN, QREL).to_pylist()}
    named = {
        row["comparison_id"]: (row["query_id"], row["doc_a"])
        for row in done.part("pool", "comparisons", COMPARISON).to_pylist()
    }
    judgments = done.part("assess", "judgments", JUDGMENT).to_pylist()
    assert {named[row["comparison_id"]] for row in judgments if row["p_a"] > 0.5} == hidden & set(named.values())
    assert hidden & set(named.values())
    found = by_judges(done)
    rows = run.systems()
    assert [row["system"] for row in rows] == [row.system for row in found.comparisons]
    assert {row["by"] for row in rows} == {"judges"}
    metrics = run.table("metrics")
    assert set(metrics["system"].to_pylist()) == {row["system"] for row in rows}
    assert json.loads(printed("show", "without", "--root", settings.execution.root, "--json"))["systems"] == rows
    assert found.queries <= 15
    assert found.agreement is None
    first = run.headline()
    assert first.chosen == "dev"
    assert first.by_judges == "nDCG@10"
    assert ", by judges, not labels" in done.report("report.html")
    shown = "\n".join(map(str, described("without", settings.execution.root, 0)))
    assert "by judges, on 15 of 15" in shown
    export("without", settings.execution.root, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "**Measured by judges, not by people's labels**: judges, not people, gave these gains: oracle" in card
    assert "metric_value" not in card  # the hub would show it as a benchmark's


def test_a_budget_of_its_own_ends_the_asking_and_not_the_run(world: World, labelled: Done) -> None:
    """What it leaves is asked by a later run, and nothing twice."""
    with serving() as port:
        chat = Chat(port, "assess")
        chat.setup()
        endpoint = chat.config(input_price=1.0, output_price=1.0, max_tokens=2).model_dump(exclude_defaults=True)
        judge = {"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}
        served = ("name=served", "evaluate.judged=all")
        shown = "\n".join(preview_prompts(world.settings(*served, panel({"judges": [judge]})), None, None, None))
        assert "judge llm" in shown
        assert "One word, yes or no" in shown
        short = world.carry_out(*served, panel({"judges": [judge], "budget": {"calls": 40}}), last="report")
        asked = len(chat.log())
        assert 0 < asked <= 40 < len(short.pairs("pool"))
        measured = by_judges(short)
        assert "have no answer" in measured.fault
        whole = world.carry_out(*served, panel({"judges": [judge]}), last="report")
        assert whole.told.computed == ["assess", "evaluate", "report"]
        questions = [entry["question"] for entry in chat.log()]
        assert asked < len(questions) == len(set(questions)) <= len(whole.pairs("pool"))
        assert all("One word, yes or no" in one for one in questions)
        assert not by_judges(whole).simulated
        assert by_judges(whole).fault == ""
        assert by_judges(whole).queries > measured.queries


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("evaluate.judged=unlabelled", "corpus.unlabelled_dev=0", "corpus.unlabelled_test=0"),
            "corpus.unlabelled_test are 0",
        ),
        ((panel(KNOWS),), "set judged to unlabelled or all"),
        (("evaluate.judged=all", panel(KNOWS), f"judge.judges={json.dumps([ORACLE])}"), "got the same judges"),
        (
            ("evaluate.judged=all", panel({"judges": [{"kind": "imported", "name": "file", "path": "p.csv"}]})),
            "only compare",
        ),
    ],
)
def test_what_could_not_measure_is_refused(world: World, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        world.settings(*settings)
