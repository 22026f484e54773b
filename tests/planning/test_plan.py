"""Plans of what is not here: calls, tokens, GPU hours and dollars follow from the settings alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.judging.spend import gpu_hours
from anmi_ray.pipeline.stages import names_of
from anmi_ray.planning.plan import costs, plan
from anmi_ray.runtime.costs import StageCost
from anmi_ray.store import Store, runs
from tests.commands import anmi, printed, refused
from tests.corpus.layouts import SMALL, write_beir, write_jsonl

CONFIGS = Path(__file__).parents[2] / "jobs/configs"
CAMPAIGN = CONFIGS / "campaign-1m.yaml"
QUICKSTART = CONFIGS / "quickstart-labels.yaml"


def told(*overrides: str) -> tuple[dict[str, dict[str, str]], str]:
    """The table, as stage -> column -> cell, and all else that is said."""
    planned = plan(load(CAMPAIGN, overrides))
    [table] = [block for block in planned.blocks if isinstance(block, Table)]
    columns = {str(column.header): list(column.cells) for column in table.columns}
    rows = {
        str(stage): {name: str(cells[row]) for name, cells in columns.items()}
        for row, stage in enumerate(columns["stage"])
    }
    return rows, "\n".join(planned.lines)


def test_a_million_queries_over_a_billion_documents() -> None:
    """The last row of the sizes that this is designed for."""
    rows, said = told()
    assert "1,000,000,000 documents; queries: 1,000,000 train" in said
    assert rows["compare"]["work"].startswith("400,000,000 pairs")
    assert rows["judge"]["work"].count("800,000,000 calls") == 3  # 2.4 billion judgments
    assert {row["state"] for row in rows.values()} == {"on paper"}
    assert rows["judge"]["calls"] == "2,400,000,000"
    assert rows["judge"]["million tokens"] == f"{2400 * 1101:,.2f}"
    assert not any(rows[stage].get("work") for stage in ("ingest", "retrieve", "rate", "mine", "evaluate", "report"))
    expected = sum(gpu_hours(8e8 * 1101, size * 1e9, "H100") or 0 for size in (8.2, 8.0, 12.2))
    hours = float(rows["judge"]["GPU hours"].replace(",", ""))
    assert hours == pytest.approx(expected, rel=1e-3)
    dollars = float(rows["judge"]["dollars"].replace(",", ""))
    assert dollars == pytest.approx(hours * 2.5, rel=1e-3)
    assert "nothing is sent" in said


def test_questions_about_single_documents_are_planned_at_most() -> None:
    """Four of every train query, in one order, of the judges that can say; which queries need it is not known yet."""
    rows, _ = told("mine.anchors=confirmed")
    assert list(rows)[list(rows).index("rate") :][1:3] == ["shortlist", "confirm"]
    assert rows["shortlist"]["work"].startswith("at most 4,000,000 documents")
    assert rows["confirm"]["work"].count("4,000,000 calls") == 3
    hours = {stage: float(rows[stage]["GPU hours"].replace(",", "")) for stage in ("judge", "confirm")}
    assert hours["confirm"] == pytest.approx(hours["judge"] * 4 / 800, rel=0.1)


def test_what_judges_measure_is_planned_and_where_its_texts_go() -> None:
    """Some twenty documents of every held-out query, once; of a panel of its own the server is named."""
    server = {"base_url": "http://127.0.0.1:9/v1", "model": "other", "input_price": 1.0, "output_price": 1.0}
    judge = {"kind": "api", "name": "other", "endpoint": server, "prompt": {"template": "letters"}}
    rows, said = told(
        "evaluate.judged=all", f"evaluate.judge={json.dumps({'judges': [judge]})}", "plan.test=1000", "plan.dev=0"
    )
    assert list(rows)[-4:-1] == ["pool", "assess", "evaluate"]
    assert "20,000 calls to other" in rows["assess"]["work"]
    assert float(rows["assess"]["dollars"].replace(",", "")) > 1
    assert "texts of dev and test queries and their top are sent to http://127.0.0.1:9/v1" in said
    rows, _ = told("evaluate.judged=all", "plan.test=1000", "plan.dev=0")
    assert rows["assess"]["work"].count("20,000 calls") == 3  # the training panel


def test_what_is_planned_grows_with_rows_alone() -> None:
    """Ten times the queries and the documents: ten times of all."""

    def planned(times: int) -> dict[str, StageCost]:
        counts = {"documents": 10_000_000, "train": 10_000, "dev": 1000, "test": 1000}
        return costs(Experiment(), {name: times * n for name, n in counts.items()})

    small, large = planned(1), planned(10)
    assert large["compare"].pairs == 10 * small["compare"].pairs > 0


ENCODER = {"kind": "encoder", "model": "m", "max_tokens": 128}
PAIRWISE = {**ENCODER, "name": "pair", "form": "pairwise", "first_label": "A", "second_label": "B"}
DISTILLED = {"judges": [{"kind": "distilled"}, {"kind": "similarity"}]}
DISTILL = {"form": "pairwise", "sample": {"pairs": 1000}, "max_tokens": 100, "epochs": 2}


@pytest.mark.parametrize(
    ("settings", "stage", "work"),
    [
        ({}, "compare", "40,000 pairs"),
        ({}, "judge", "240,000 judgments by 3"),
        ({"judge": {"judges": [ENCODER, {"kind": "similarity"}]}}, "judge", "80,000 judgments by 1 in-process"),
        ({"judge": {"judges": [ENCODER, PAIRWISE]}}, "judge", "10,000 inputs to encoder"),
        ({"judge": {"judges": [PAIRWISE]}}, "judge", "80,000 inputs to pair, of at most 128 tokens each"),
        ({"judge": DISTILLED, "distill": DISTILL}, "label", "6,000 judgments by 3"),
        ({"judge": DISTILLED, "distill": DISTILL}, "judge", "80,000 judgments by 1 in-process"),
        ({"judge": DISTILLED, "distill": DISTILL}, "judge", "80,000 inputs to distilled, of at most 100 tokens each"),
        ({"judge": DISTILLED, "distill": {**DISTILL, "form": "pointwise"}}, "judge", "10,000 inputs to distilled"),
        ({"mine": {"rule": "validated"}}, "borderline", "about 700 borderline documents"),
        ({"mine": {"rule": "validated"}}, "validate", "4,200 judgments by 3"),
    ],
)
def test_the_plan_counts_what_the_settings_say(settings: dict[str, Any], stage: str, work: str) -> None:
    experiment = Experiment.model_validate({"retrieve": {"candidates": 20}, "compare": {"degree": 8}, **settings})
    found = {"flows": [{"unit": "to ask about", "rows_out": 700}]}
    counts = {"documents": 5000, "train": 500, "dev": 50, "test": 100}
    planned = costs(experiment, counts, manifest=lambda one: found if one.name == "borderline" else None)
    assert tuple(planned) == names_of(experiment)
    assert any(part.startswith(work) for part in planned[stage].work.split("; "))
    if stage == "borderline":  # an estimate until they are found
        assert "150 borderline documents" in costs(experiment, counts)[stage].work


def test_scoring_on_gpus_is_planned_there_where_the_models_size_is_known() -> None:
    """The model is not here, and is not looked for."""
    asked = "plan.test=1000", "plan.dev=0", "rerank.depth=100", 'plan.parameters={"org/reranker": 0.1}'
    known = *asked, "train.model=org/reranker"
    on_cpu, _ = told(*known)
    on_gpu, _ = told(*known, "execution.score.gpus=.5")
    unknown, _ = told(*asked, "train.model=org/other", "execution.score.gpus=.5")
    assert not any(rows["rerank"].get("GPU hours") for rows in (on_cpu, unknown))
    expected = gpu_hours(2 * 100_000 * 512, 1e8, "H100") or 0.0  # and of the start
    assert on_gpu["rerank"]["GPU hours"] == f"{expected:,.1f}"


def test_a_model_of_unknown_size_has_no_gpu_hours() -> None:
    rows, said = told("judge.judges.0.model=unheard/of")
    assert "set plan.parameters" in said
    assert float(rows["judge"]["GPU hours"].replace(",", "")) > 0  # those of the others


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["plan.prompt_tokens=null"], "plan.prompt_tokens: the tokens of qwen's prompts"),
        (["plan.train=0"], "documents and train are given together"),
        (["execution.askers=[4, 2]"], "the fewest must not be above the most"),
    ],
)
def test_what_is_missing_is_named(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        told(*overrides)
    assert said in str(caught.value)


def test_planning_settings_change_no_result() -> None:
    given: dict[str, Any] = {"judge": {"target_hours": 3.0}, "execution": {"askers": [1, 4], "cpus": 7}}
    experiment = Experiment.model_validate(given)
    assert result_settings(experiment) == {}


def test_a_collection_without_labels_is_planned_and_said_to_be_one(tmp_path: Path) -> None:
    beir = tmp_path / "beir"
    write_beir(beir, replace(SMALL, queries=[*SMALL.queries, ("new", "a question that nobody judged")]))
    settings = ["corpus.reader=beir", f"corpus.path={beir}", f"execution.root={tmp_path / 'root'}"]
    said = printed("plan", QUICKSTART, "corpus.split_seed=0", *settings)
    assert "queries: 8 train (7 labelled), 1 dev, 4 test;" in said
    assert "no test query" not in said
    assert "1 train queries are not labelled: what simulated judges see" in said
    settings.append("mine.anchors=rated")
    told = printed("plan", QUICKSTART, *settings, "corpus.labels=[test]")
    assert "8 relevance grades are kept for the simulated panel alone" in told
    known = anmi("plan", QUICKSTART, *settings, "corpus.labels=[test]", "mine.anchors=known")
    assert (known.returncode, "mine.anchors: known" in known.stderr) == (2, True)
    settings.append("judge.judges=[{kind: similarity}]")
    hidden = printed("plan", QUICKSTART, *settings, "corpus.labels=[]")
    assert "queries: 13 train (none labelled), 0 dev, 0 test;" in hidden
    assert "relevance grades that are there and are not read: qrels/test.tsv, qrels/train.tsv" in hidden
    assert "no test query is labelled: nothing will be measured" in hidden
    left_out = anmi("plan", QUICKSTART, *settings, "corpus.labels=[test]", "corpus.unlabelled=leave-out")
    assert "9 unlabelled queries are left out" in left_out.stdout
    assert "to do: " in left_out.stdout
    assert "stage compare: there is no train query: 4 test queries are labelled; 9 " in left_out.stderr
    assert "(corpus.unlabelled)\n  remedy: " in left_out.stderr
    assert left_out.returncode == 2
    (beir / "queries.jsonl").write_text("")
    assert "queries.jsonl: holds no usable query" in refused("plan", QUICKSTART, *settings)


def test_sizes_that_take_every_query_are_named(tmp_path: Path) -> None:
    """Absolute numbers of held-out queries, of a small collection; and what becomes of the queries otherwise."""
    write_beir(tmp_path / "beir", replace(SMALL, qrels={}))
    settings = ["corpus.reader=beir", f"corpus.path={tmp_path / 'beir'}", f"execution.root={tmp_path / 'root'}"]
    settings.append("judge.judges=[{kind: api, endpoint: {base_url: 'http://127.0.0.1:9/v1', model: m}}]")
    settings += ["mine.anchors=confirmed", "evaluate.judged=unlabelled"]
    offline = partial(plan, offline=True)
    by_default = offline(load(QUICKSTART, settings))
    assert by_default.problem is None
    assert "queries: 8 train (none labelled), 2 dev (none labelled), 2 test" in by_default.lines[0]
    assert not any("nothing will be measured" in line for line in by_default.lines)
    assert any("judges measure (evaluate.judged: unlabelled)" in line for line in by_default.lines)
    assert any("nothing will be measured" in line for line in offline(load(QUICKSTART, settings[:-1])).lines)
    few = offline(load(QUICKSTART, [*settings, "corpus.unlabelled_dev=5"]))
    assert few.problem is None
    assert any("5 are held out for dev (corpus.unlabelled_dev: 5)" in line for line in few.lines)
    problem = offline(load(QUICKSTART, [*settings, "corpus.unlabelled_dev=100", "corpus.unlabelled_test=10"])).problem
    assert isinstance(problem, DataError)
    assert problem.place == "stage compare"
    for size in (
        "2 are held out for dev (corpus.unlabelled_dev: 100)",
        "10 are held out for test (corpus.unlabelled_te",
    ):
        assert size in problem.message
    remedy = re.findall(r"corpus\.unlabelled_\w+=[\d.]+", problem.remedy or "")
    assert offline(load(QUICKSTART, [*settings, *remedy])).problem is None
    own = ["judge", CONFIGS / "own-documents.yaml", "--dry-run", "corpus.unlabelled_test=100"]
    files = write_jsonl(tmp_path / "table", replace(SMALL, qrels={}))
    own.append(f"corpus.documents={files['documents']}")
    own.append(f"corpus.queries={files['queries']}")
    assert "(corpus.unlabelled_test: 100)" in refused(*own, f"corpus.columns={json.dumps(files.get('columns', {}))}")


@pytest.mark.slow
def test_a_root_keeps_its_buckets(tmp_path: Path) -> None:
    Store(str(tmp_path)).buckets(4)
    rooted = load(QUICKSTART, [f"execution.root={tmp_path}"])
    assert "4 buckets" in plan(rooted).lines[0]
    assert runs.buckets_kept(Store(str(tmp_path)), rooted.execution) is None
    changed = load(QUICKSTART, [f"execution.root={tmp_path}", "execution.buckets=16"])
    first, said, *_ = plan(changed).lines
    assert "4 buckets" in first
    assert said == "execution.buckets: 16 is for a new root (--root); this one keeps the 4 of its first run"


@pytest.mark.slow
def test_a_plan_of_what_a_run_would_refuse_exits_with_2(tmp_path: Path) -> None:
    """The table is printed all the same."""
    Store(str(tmp_path)).publish_json("runs/taken.json", {"corpus": "another's hash", "corpus_name": "another"})
    done = anmi("plan", QUICKSTART, "name=taken", f"execution.root={tmp_path}")
    assert done.returncode == 2
    assert "to do: " in done.stdout
    assert "run taken: the name belongs to a run over another corpus (another)\n  remedy: " in done.stderr
