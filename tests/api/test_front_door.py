"""What `import anmi_ray` gives: it is light, every example does what it says on a small finished run, mistakes."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import anmi_ray
from anmi_ray.api.export import export
from anmi_ray.api.reranking import rerank_run
from anmi_ray.api.runs import _TABLES  # pyright: ignore[reportPrivateUsage]
from anmi_ray.core.errors import AnmiError, ConfigError, DataError
from anmi_ray.evaluation.relevance import RelevanceCurve
from anmi_ray.models.pairs import document_text
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.stages.evaluate import FUSED
from tests.commands import anmi, printed
from tests.evaluation.scored_pairs import relevance
from tests.small import start_from, write_config

HEAVY = ("torch", "ray", "numba", "transformers", "pandas", "pyarrow", "pydantic")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def workplace(
    prepared: Path, small_collection: Path, trained_in_one_task: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A working directory with the quickstart's settings, smaller, and its run, finished under results/."""
    folder = tmp_path_factory.mktemp("notebook")
    start_from(prepared, folder / "results", "mine")
    (folder / "jobs" / "configs").mkdir(parents=True)
    train = {"lists_per_step": 8, "max_steps": 2, "max_tokens": 64, "dev_points": [0.5, 1.0]}
    write_config(folder / "jobs" / "configs" / "quickstart.yaml", small_collection, name="quickstart", train=train)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = anmi_ray.run(anmi_ray.load("jobs/configs/quickstart.yaml"))
        assert run.report is not None
        assert Path(run.report).exists()
    return folder


@pytest.fixture
def run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> anmi_ray.Run:
    monkeypatch.chdir(workplace)
    return anmi_ray.Run("quickstart")


@pytest.fixture
def config(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workplace)
    return Path("jobs/configs/quickstart.yaml")


def imported_by(statement: str) -> list[str]:
    """The modules that a fresh interpreter has after a statement."""
    code = f"import json, sys, anmi_ray; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_it_imports_nothing_else_and_loading_settings_nothing_heavy() -> None:
    modules = imported_by("dir(anmi_ray)")
    assert [name for name in modules if name in HEAVY or name.startswith("anmi_ray")] == ["anmi_ray"]
    modules = imported_by("anmi_ray.change(anmi_ray.load('jobs/configs/quickstart.yaml'), name='other')")
    assert [name for name in modules if name in HEAVY[:4]] == []


def test_names_are_there_and_others_are_not() -> None:
    assert set(anmi_ray.__all__) <= set(dir(anmi_ray))
    assert all(inspect.getdoc(getattr(anmi_ray, name)) for name in anmi_ray.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        anmi_ray.trian  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", [name for name in anmi_ray.__all__ if name != "AnmiError"])
def test_examples_do_what_they_say(
    name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workplace)
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(anmi_ray, name), name, globs={"anmi_ray": anmi_ray})
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(example)
    assert results.attempted
    assert results.failed == 0, capsys.readouterr().out


def test_changes_are_those_of_the_command_line(config: Path) -> None:
    loaded = anmi_ray.load(config, train={"learning_rate": 1e-5, "epochs": 2}, **{"mine.rule": "simans"})
    before = anmi_ray.load(config)
    assert anmi_ray.change(before) == before
    assert (
        anmi_ray.change(before, **{"train.learning_rate": 1e-5, "train.epochs": 2}, mine={"rule": "simans"}) == loaded
    )
    of_the_run = resolve(before)
    of_another_name = resolve(anmi_ray.change(before, name="other"))
    others = [name for name, stage in of_another_name.items() if stage.fingerprint != of_the_run[name].fingerprint]
    assert others == ["report"]  # which stands under the run's name


def test_all_tables_go_by_the_ids_of_the_collection(run: anmi_ray.Run) -> None:
    documents = set(run.table("texts")["doc_id"].to_pylist())
    queries = set(run.table("queries")["query_id"].to_pylist())
    for name in _TABLES:
        table = run.table(name)  # type: ignore[arg-type]
        assert table.num_rows, name
        assert pa.concat_tables(run.buckets(name)).equals(table)  # type: ignore[arg-type]
        for column in ("query_id", "doc_id", "doc_a", "doc_b", "anchor_id"):
            if column in table.column_names:
                ids = set(table[column].to_pylist())
                assert ids <= (queries if column == "query_id" else documents), (name, column)


def test_rows_of_a_runs_tables_belong_together(run: anmi_ray.Run) -> None:
    gaps = run.table("gaps")
    known = set(zip(gaps["query_id"].to_pylist(), gaps["anchor_id"].to_pylist(), strict=True))
    for row in run.table("examples").to_pylist():
        assert len(row["doc_ids"]) == len(row["gaps"])
        assert (row["query_id"], row["doc_ids"][0]) in known
    comparisons = run.table("comparisons").to_pylist()
    compared = {row["comparison_id"]: (row["query_id"], row["doc_a"], row["doc_b"]) for row in comparisons}
    for row in run.table("judgments").to_pylist():
        assert compared[row["comparison_id"]] == (row["query_id"], row["doc_a"], row["doc_b"])
    metrics = run.table("metrics")
    for row in run.systems():
        of_system = pc.and_(pc.equal(metrics["system"], row["system"]), pc.equal(metrics["measure"], row["measure"]))
        assert pc.mean(metrics.filter(of_system)["value"]).as_py() == pytest.approx(row["mean"])


def test_texts_are_ranked_alike_by_name_run_and_folder(run: anmi_ray.Run) -> None:
    texts = ["how to sort a list in place", "the quick brown fox", "sorted() returns a new list"]
    rankings = [anmi_ray.rerank(model, "sort a list", texts, threads=1) for model in ("quickstart", run, run.model)]
    assert rankings[0].equals(rankings[1])
    assert rankings[0].equals(rankings[2])
    assert pc.all(pc.less_equal(pc.pairwise_diff(rankings[0]["score"].combine_chunks(), 1).drop_null(), 0)).as_py()
    assert [texts[index] for index in rankings[0]["index"].to_pylist()] == rankings[0]["text"].to_pylist()
    assert anmi_ray.rerank(run, "sort a list", []).num_rows == 0


def test_texts_that_are_hardly_relevant_are_left_out(run: anmi_ray.Run, tmp_path: Path) -> None:
    """Twelve dev queries are too few to fit anything to; a folder says it in a file."""
    texts = ["how to sort a list in place", "the quick brown fox", "sorted() returns a new list"]
    assert run.relevance() is None
    with pytest.raises(ConfigError, match=r"no calibrated P\(relevant\)"):
        anmi_ray.rerank(run, "sort a list", texts, min_relevance=0.5)
    assert "12 dev queries; 20 are needed" in printed("show", run.name)
    folder = export(run.name, run.root, tmp_path / "model")
    everything = anmi_ray.rerank(folder, "sort a list", texts, threads=1)
    best, second, _ = everything["score"].to_pylist()
    curve = RelevanceCurve("logistic", intercept=-50.0 * (best + second) / 2, slope=50.0)
    replace(relevance(), curve=curve).write(folder)
    found = anmi_ray.rerank(folder, "sort a list", texts, min_relevance=0.5, threads=1)
    assert found.column_names == ["rank", "score", "index", "text", "relevance"]
    assert found.drop_columns("relevance").equals(everything.slice(0, 1))
    assert found["relevance"].to_pylist() == pytest.approx(curve.of([best]).tolist())
    everyone = anmi_ray.rerank(folder, "sort a list", texts, min_relevance=0, threads=1)
    assert everyone.drop_columns("relevance").equals(everything)
    assert anmi_ray.rerank(folder, "sort a list", [], min_relevance=0.5).num_rows == 0


def test_a_fusion_is_served_as_it_was_measured(run: anmi_ray.Run, tmp_path: Path) -> None:
    """The command, given the run's first stage, comes to the run's fused scores, and the function to the command's."""
    folder = export(run.name, run.root, tmp_path / "model")
    there = Path(str(run.report)).parent
    files = {name: there / f"{name}.trec" for name in ("bm25", "dense")}
    collection = Path(run.record["config"]["corpus"]["path"])
    rerank_run(folder, collection, there / "hybrid.trec", tmp_path / "fused.trec", 10, 1, files)
    scores = {
        name: {
            (query, doc): float(score) for query, _, doc, _, score, _ in map(str.split, path.read_text().splitlines())
        }
        for name, path in {**files, "served": tmp_path / "fused.trec", "run": there / f"{FUSED}.trec"}.items()
    }
    served = scores["served"]
    measured = np.array([scores["run"][key] for key in served])
    # the run scores in bfloat16 where the processor has it
    np.testing.assert_allclose(list(served.values()), measured, atol=0.1)
    query = next(iter(served))[0]
    docs = [doc for asked, doc in served if asked == query]
    text_of = {row["doc_id"]: document_text(row["title"], row["text"]) for row in run.table("texts").to_pylist()}
    asked = next(row["text"] for row in run.table("queries").to_pylist() if row["query_id"] == query)
    # a document that a retriever has not found gets its lowest score of the query
    lowest = {name: min(score for (one, _), score in scores[name].items() if one == query) for name in files}
    given = {name: [scores[name].get((query, doc), lowest[name]) for doc in docs] for name in files}
    ranking = anmi_ray.rerank(folder, asked, [text_of[doc] for doc in docs], scores=given, threads=1)
    expected = [served[query, docs[at]] for at in ranking["index"].to_pylist()]
    np.testing.assert_allclose(ranking["score"].to_pylist(), expected, atol=1e-4)
    assert anmi_ray.rerank(run, asked, ["a", "b"], scores={"bm25": [1, 2], "dense": [2, 1]}).num_rows == 2
    with pytest.raises(ConfigError, match="expected scores of bm25, dense"):
        anmi_ray.rerank(folder, asked, ["a"], scores={"bm25": [1.0]})
    with pytest.raises(DataError, match="each of 2 texts"):
        anmi_ray.rerank(folder, asked, ["a", "b"], scores={"bm25": [1.0], "dense": [1.0, 2.0]})
    (folder / "fusion.json").write_text('{"weights": {"reranked": 1}}')
    with pytest.raises(DataError, match=r"fusion\.json"):
        rerank_run(folder, collection, there / "hybrid.trec", tmp_path / "again.trec", 10, 1, files)
    (folder / "fusion.json").unlink()
    with pytest.raises(ConfigError, match="no fusion weights"):
        anmi_ray.rerank(folder, asked, ["a"], scores={"bm25": [1.0], "dense": [1.0]})


def test_the_command_reranks_by_the_name_of_a_run(run: anmi_ray.Run, tmp_path: Path) -> None:
    """As by its exported folder, with its fusion; twelve dev queries say no P(relevant)."""
    folder = export(run.name, run.root, tmp_path / "model")
    there = Path(str(run.report)).parent
    how = ["rerank", "--collection", run.record["config"]["corpus"]["path"], "--ranking", there / "hybrid.trec"]
    how += [*("--fuse", f"bm25={there / 'bm25.trec'}"), *("--fuse", f"dense={there / 'dense.trec'}"), "--threads", "1"]
    named, root = ["--model", run.name, "--out", tmp_path / "named.trec"], ["--root", Path(run.root).resolve()]
    printed(*how, "--model", folder, "--out", tmp_path / "folder.trec")
    printed(*how, *named, *root)
    assert (tmp_path / "named.trec").read_text() == (tmp_path / "folder.trec").read_text()
    said = anmi(*how, *named, "--min-relevance", ".5").stderr
    assert f"run {run.name}: the model has no calibrated P(relevant)" in said
    said = anmi(*how, *named, "--table", tmp_path / "named.csv").stderr
    assert f"since run {run.name} has no calibrated P(relevant)" in said


def test_data_frames_and_files_are_rated_alike(tmp_path: Path) -> None:
    table = pa.table({"query_id": ["q"] * 2, "doc_a": ["x", "y"], "doc_b": ["y", "z"], "preference": [0.9, 0.6]})
    file = tmp_path / "preferences.csv"
    table.to_pandas().to_csv(file, index=False)
    anchors = {"query_id": ["q", "q"], "doc_id": ["x", "nobody"]}
    rated = [anmi_ray.rate(source, anchors, prior=1.0) for source in (table, table.to_pandas(), str(file))]
    assert all(one.ratings.equals(rated[0].ratings) for one in rated)
    assert rated[0].strangers == 1
    assert set(rated[0].gaps["anchor_id"].to_pylist()) == {"x"}


def refused(kind: type[AnmiError], *words: str) -> pytest.RaisesExc[AnmiError]:
    """One message with a place and a remedy, which has these words in this order."""
    return pytest.RaisesExc(
        kind, match="(?s)" + ".*".join(words), check=lambda error: bool(error.place and error.remedy)
    )


def test_mistakes_in_settings(config: Path) -> None:
    with refused(ConfigError, "no such configuration file"):
        anmi_ray.load("absent.yaml")
    with refused(ConfigError, "did you mean train.learning_rate"):
        anmi_ray.load(config, train={"learning_rat": 1e-5})
    with refused(ConfigError, "experiment quickstart", "compare.degree"):
        anmi_ray.change(anmi_ray.load(config), **{"compare.degree": 1})


def test_mistakes_about_runs(run: anmi_ray.Run, config: Path, tmp_path: Path) -> None:
    with refused(ConfigError, "no run of that name; there are? quickstart"):
        anmi_ray.Run("quickstat")
    with refused(ConfigError, "did you mean ratings"):
        run.table("rating")  # type: ignore[arg-type]
    with refused(ConfigError, "did you mean train"):
        anmi_ray.run(anmi_ray.load(config), last="trian")
    with refused(ConfigError, "comes after"):
        anmi_ray.run(anmi_ray.load(config), first="mine", last="rate")
    with refused(DataError, "holds no model"):
        anmi_ray.rerank(tmp_path, "query", ["text"])
    with refused(ConfigError, "no run of that name"):
        anmi_ray.rerank("nothing", "query", ["text"])


def test_stages_that_a_run_has_not_reached(config: Path) -> None:
    short = anmi_ray.run(anmi_ray.load(config, name="short", mine={"negatives": 3}), last="rate")
    assert short.table("ratings").num_rows
    assert short.report is None
    with refused(ConfigError, "no examples: its mine stage is not complete"):
        short.buckets("examples")
    with refused(ConfigError, "no measures: its evaluate stage"):
        short.systems()
    with refused(ConfigError, "no model: its train stage"):
        anmi_ray.rerank(short, "query", ["text"])
