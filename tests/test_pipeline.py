"""The whole path on a small real collection, through Ray, DeepSpeed and the store: what a user can rely on."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from anmi_ray.api import measuring, reranking
from anmi_ray.api.runs import Run
from anmi_ray.cli.run import carry_out
from anmi_ray.config.load import load
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import CANDIDATE, EXAMPLE, QREL, QUERY, RATING, RUN, TEXT_OF, Record
from anmi_ray.models import kinds
from anmi_ray.pipeline.run import run
from anmi_ray.stages import evaluate
from anmi_ray.tables import trec
from tests.commands import printed
from tests.models.tiny import write_tiny_bert
from tests.small import NAMES, Remembering, write_config
from tests.stages.runs import Done
from tests.training.one_task import replace_ray_train

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def finished(ray_local: None, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("pipeline")
    exact = {"depth": 10, "precision": "float32"}  # bfloat16 rounds otherwise beside other texts of a batch
    config = write_config(folder / "small.yaml", small_collection, rerank=exact)
    settings = load(config, [f"execution.root={folder / 'root'}"])
    told = Remembering()
    record = run(settings, told)
    return Done(settings, record, told)


def reports(finished: Done) -> Path:
    return Path(finished.settings.execution.root) / "reports" / finished.settings.name


def test_every_stage_was_computed_and_rows_add_up(finished: Done) -> None:
    assert finished.told.computed == list(NAMES)
    for name in NAMES:
        assert finished.told.flows[name], name
        for flow in finished.told.flows[name]:
            assert flow.rows_in == flow.rows_out + flow.rejected
            assert flow.rows_in > 0


def test_a_second_run_computes_nothing(finished: Done) -> None:
    artifacts = Path(finished.settings.execution.root) / "artifacts"
    before = {path: path.stat().st_mtime_ns for path in artifacts.rglob("*") if path.is_file()}
    told = Remembering()
    again = run(finished.settings, told)
    assert told.computed == []
    assert again["stages"] == finished.record["stages"]
    assert {path: path.stat().st_mtime_ns for path in artifacts.rglob("*") if path.is_file()} == before


def test_a_shorter_run_keeps_of_the_record_what_is_still_the_same(finished: Done) -> None:
    shorter = run(finished.settings, last="rate")
    assert shorter["stages"] == finished.record["stages"]
    assert finished.store.read_json("runs/small.json")["stages"] == finished.record["stages"]
    changed = finished.settings.model_copy(
        update={"mine": finished.settings.mine.model_copy(update={"negatives": 3}), "name": "small"}
    )
    other = run(changed, last="rate")
    assert list(other["stages"]) == list(NAMES[: NAMES.index("mine")])
    assert finished.store.read_json("runs/small.json")["config"]["mine"]["negatives"] == 3
    assert run(finished.settings)["stages"] == finished.record["stages"]


def test_a_report_that_is_not_what_the_name_stands_for_is_put_there_again(finished: Done) -> None:
    page = reports(finished) / "report.html"
    before = page.read_bytes()
    page.write_text("of other settings")
    told = Remembering()
    run(finished.settings, told)
    assert told.computed == []
    assert page.read_bytes() == before


def test_a_missing_train_split_is_said_before_the_work(ray_local: None, small_collection: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "small.yaml", small_collection)
    settings = load(config, [f"execution.root={tmp_path / 'root'}", "corpus.max_train_queries=0"])
    told = Remembering()
    with pytest.raises(DataError, match=r"there is no train query.*corpus\.max_train_queries"):
        run(settings, told)
    assert told.computed == []


def test_documents_and_queries_alone_give_a_model(
    ray_local: None,
    small_collection: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_ray_train(monkeypatch)
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).symlink_to(small_collection / name)
    train = {"student": "late-interaction", "model": str(write_tiny_bert(tmp_path / "tiny")), "freeze_layers": 1}
    train |= {"max_steps": 2, "max_tokens": 48, "dev_points": [0.0, 1.0]}
    judge = {"judges": [{"kind": "similarity"}]}
    config = write_config(tmp_path / "c.yaml", folder, train=train, judge=judge, mine={"anchors": "confirmed"})
    settings = load(config, [f"execution.root={tmp_path / 'root'}", "corpus.unlabelled_dev=12"])
    carry_out(settings, "", "")
    said = capsys.readouterr().out
    assert "queries: 68 train (none labelled), 12 dev (none labelled), 0 test" in said
    assert "no test query is labelled: nothing will be measured" in said
    assert "evaluate: no test query is labelled: nothing was measured" in said
    page = (tmp_path / "root" / "reports" / "small" / "report.html").read_text(encoding="utf-8")
    assert "No test query is labelled: nothing was measured" in page
    shown = printed("show", "small", "--root", settings.execution.root)
    assert "queries: 68 train (none labelled), 12 dev" in shown
    printed("export", "small", "--root", settings.execution.root, "--to", tmp_path / "model")
    assert "train queries | 68, 0 of them labelled" in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert_dev_is_rated_and_teaches_nothing(Run("small", settings.execution.root))


def assert_dev_is_rated_and_teaches_nothing(of: Run) -> None:
    """Dev queries without labels are compared as train queries are, no example is theirs, and dev chose by them."""

    def part(stage: str, name: str, record: Record) -> pa.Table:
        return pa.concat_tables([of.artifact(stage).read_part(name, bucket, record) for bucket in range(4)])

    rated = set(part("rate", "ratings", RATING)["query_id"].to_pylist())
    taught = set(part("mine", "examples", EXAMPLE)["query_id"].to_pylist())
    queries = part("ingest", "queries", QUERY)
    dev = set(queries.filter(pc.equal(queries["split"], "dev"))["query_id"].to_pylist())
    assert len(dev) == 12
    assert dev <= rated
    assert taught
    assert not dev & taught
    measured = [row["dev"] for row in of.artifact("train").read_json("log.json") if row["dev"] is not None]
    assert len(measured) == 2
    assert all(0 < value < 1 for value in measured)
    first = of.headline()
    assert first.chosen == "dev"
    assert first.by_judges == "nDCG@10"


def test_no_label_is_read_before_evaluate(
    ray_local: None, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the labels of train and dev, and with others of test, the same model ranks the same documents."""
    replace_ray_train(monkeypatch)
    train = {"student": "late-interaction", "model": str(write_tiny_bert(tmp_path / "tiny")), "freeze_layers": 1}
    train |= {"max_steps": 2, "max_tokens": 48}
    made: list[dict[str, Any]] = []
    for name in ("labelled", "bare"):
        folder = tmp_path / name
        (folder / "qrels").mkdir(parents=True)
        for file in ("corpus.jsonl", "queries.jsonl"):
            (folder / file).symlink_to(small_collection / file)
        head, *rows = (small_collection / "qrels" / "test.tsv").read_text().splitlines()
        if name == "labelled":
            for split in ("train", "dev"):
                (folder / "qrels" / f"{split}.tsv").symlink_to(small_collection / "qrels" / f"{split}.tsv")
        else:  # the label of another query
            fields = [row.split("\t") for row in rows]
            others = [*fields[1:], fields[0]]
            rows = ["\t".join([mine[0], *other[1:]]) for mine, other in zip(fields, others, strict=True)]
        (folder / "qrels" / "test.tsv").write_text("\n".join([head, *rows]) + "\n")
        parts = {"judge": {"judges": [{"kind": "similarity"}]}, "mine": {"anchors": "confirmed"}, "train": train}
        corpus = {"reader": "beir", "path": str(folder), "labels": ["test"]}
        config = write_config(tmp_path / f"{name}.yaml", folder, **parts, corpus=corpus)
        root = tmp_path / f"{name}-root"
        run(load(config, [f"execution.root={root}"]), last="evaluate")
        found: dict[str, Any] = {}
        for file in (root / "artifacts").rglob("*.*"):
            stage, _, *rest = file.relative_to(root / "artifacts").parts
            if file.suffix == ".parquet":
                found["/".join([stage, *rest])] = pq.read_table(file)
            elif file.suffix == ".safetensors":
                found["/".join([stage, *rest])] = file.read_bytes()
        made.append(found)
    changed = {name for name in made[0] if made[0][name] != made[1].get(name)}
    assert made[0].keys() == made[1].keys()
    assert {name.partition("/")[0] for name in changed} == {"ingest", "evaluate"}


def test_known_positives_never_enter_an_evaluated_run(finished: Done) -> None:
    candidates = finished.part("retrieve", "candidates", CANDIDATE)
    queries = finished.part("ingest", "queries", QUERY)
    train = queries.filter(pc.equal(queries["split"], "train"))["query_id"]
    assert set(candidates["query_id"].to_pylist()) <= set(train.to_pylist())
    assert pc.sum(candidates["is_positive"]).as_py() > 0
    for stage in ("retrieve", "rerank"):
        runs = finished.part(stage, "runs", RUN)
        assert runs.num_rows
        assert not pc.any(pc.is_in(runs["query_id"], value_set=train.combine_chunks())).as_py()
    hybrid = finished.part("retrieve", "runs", RUN)
    hybrid = hybrid.filter(pc.equal(hybrid["system"], "hybrid"))
    reranked = finished.part("rerank", "runs", RUN)
    pairs = [set(zip(t["query_id"].to_pylist(), t["doc_id"].to_pylist(), strict=True)) for t in (hybrid, reranked)]
    assert pairs[0] == pairs[1]


def test_no_held_out_query_is_judged_or_trained_on(finished: Done) -> None:
    queries = finished.part("ingest", "queries", QUERY)
    held_out = set(queries.filter(pc.not_equal(queries["split"], "train"))["query_id"].to_pylist())
    examples = finished.part("mine", "examples", EXAMPLE)
    ratings = finished.part("rate", "ratings", RATING)
    assert examples.num_rows
    assert not held_out & set(examples["query_id"].to_pylist())
    assert not held_out & set(ratings["query_id"].to_pylist())


def test_ratings_put_known_positives_first(finished: Done) -> None:
    candidates = finished.part("retrieve", "candidates", CANDIDATE)
    ratings = finished.part("rate", "ratings", RATING)
    keys = ["query_id", "doc_id"]
    joined = ratings.join(candidates.select([*keys, "is_positive"]), keys, join_type="inner", use_threads=False)
    positive, points = joined["is_positive"].to_numpy(zero_copy_only=False), joined["rating_elo"].to_numpy()
    assert points[positive].mean() - points[~positive].mean() > 150


def test_the_model_folder_scores_alike_in_sentence_transformers(finished: Done) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    from anmi_ray.models.cross_encoder import CrossEncoder
    from anmi_ray.models.pairs import document_text

    folder = finished.folder("train") / "model"
    texts = finished.part("retrieve", "texts", TEXT_OF).slice(0, 40).to_pylist()
    queries = ["parse a date", "walk a tree of directories"] * 20
    documents = [document_text(row["title"], row["text"]) for row in texts]
    ours = CrossEncoder.load(str(folder), threads=1).score(queries, documents)
    theirs = Theirs(str(folder), device="cpu").predict(list(zip(queries, documents, strict=True)))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert ours.std() > 1e-3
    assert (folder / "README.md").exists()


def test_the_report_and_its_files(finished: Done) -> None:
    assert "simulated" in finished.report("report.html")
    content = json.loads(finished.report("report.json"))
    untrained = ("bm25", "dense", "hybrid", "bm25+dense")
    assert {row["system"] for row in content["comparisons"]} == {*untrained, "reranked", "reranked+hybrid"}
    assert finished.report("reranked.trec")
    first = content["first"]
    assert content["baseline"] == first["baseline"] == evaluate.baseline_of(finished.artifact("evaluate"))
    assert first["dev"][first["baseline"]] == max(first["dev"][name] for name in untrained)
    assert content["serving"]["seconds"] > 0
    assert content["serving"]["queries"] == 32
    gains = [pair["after"] - pair["before"] for pair in content["queries"]]
    assert [gain > 0 for gain in gains] == sorted(gain > 0 for gain in gains)  # those that lose stand first


def test_the_end_of_a_run_says_what_it_was_compared_with(finished: Done, capsys: pytest.CaptureFixture[str]) -> None:
    carry_out(finished.settings, "", "")
    said, first = capsys.readouterr().out, evaluate.headline_of(finished.artifact("evaluate"))
    assert f"baseline: {first.baseline}, the best untrained system on 12 dev queries" in said
    assert f"nDCG@10 − {first.baseline}" in said
    assert (first.no_better() in said) if first.no_better() else ("no better than" not in said)


def test_the_commands_on_files_agree_with_the_run(
    finished: Done, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid, out = reports(finished) / "hybrid.trec", tmp_path / "reranked.trec"
    rankings, name, root = (
        [hybrid, reports(finished) / "reranked.trec"],
        Path(finished.settings.name),
        finished.settings.execution.root,
    )
    measured = measuring.evaluate(small_collection, rankings, "test", ["nDCG@10"])
    assert measuring.evaluate(name, rankings, "test", ["nDCG@10"], root=root) == measured
    known = {
        row["system"]: row["mean"]
        for row in finished.artifact("evaluate").read_json("comparisons.json")
        if row["measure"] == "nDCG@10"
    }
    for row in measured["systems"]:
        assert row["mean"] == pytest.approx(known[row["system"]], abs=1e-9)
    model = finished.folder("train") / "model"
    monkeypatch.setattr(kinds, "load_reranker", partial(kinds.load_reranker, dtype="float32"))  # as the run
    flow = reranking.rerank_run(model, small_collection, hybrid, out, finished.settings.rerank.depth, threads=1)
    assert flow.rejected == 0
    of_run = tmp_path / "of-run.trec"
    reranking.rerank_run(model, name, hybrid, of_run, finished.settings.rerank.depth, threads=1, root=root)
    assert of_run.read_text() == out.read_text()
    again, before = trec_scores(out), trec_scores(reports(finished) / "reranked.trec")
    assert len(again) == 20 * finished.settings.rerank.depth
    assert all(score == pytest.approx(before[pair], abs=1e-4) for pair, score in again.items())
    remeasured = measuring.evaluate(small_collection, [out], "test", ["nDCG@10"])
    assert remeasured["systems"][0]["mean"] == pytest.approx(known["reranked"], abs=5e-3)


def trec_scores(path: Path) -> dict[tuple[bytes, bytes], float]:
    """The scores of a run file, by query and document."""
    run = trec.read_run(path).table
    pairs = zip(run["query_id"].to_pylist(), run["doc_id"].to_pylist(), strict=True)
    return dict(zip(pairs, run["score"].to_pylist(), strict=True))


def test_qrels_of_the_collection_are_what_is_measured(finished: Done, small_collection: Path) -> None:
    lines = (small_collection / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    queries = finished.part("ingest", "queries", QUERY)
    test = queries.filter(pc.equal(queries["split"], "test"))["query_id"]
    qrels = finished.part("ingest", "qrels", QREL)
    assert len(lines) == pc.sum(pc.is_in(qrels["query_id"], value_set=test.combine_chunks())).as_py()
