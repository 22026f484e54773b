"""Preferences of a file: their pairs are compared, their answers count, and what cannot be used is said by line."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.comparisons.compare import NOT_CANDIDATES, NOT_COMPARED
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError, DataError, JudgeError
from anmi_ray.core.identity import comparison_id, doc_id, query_id, uniforms
from anmi_ray.core.records import CANDIDATE, COMPARISON, EXAMPLE, FIT, IMPORTED, JUDGMENT, QUERY, RATING, TEXT_OF
from anmi_ray.judging.imported import NOT_IN_FILE
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.run import run
from anmi_ray.planning.plan import costs, plan
from anmi_ray.stages.judge import importing
from anmi_ray.store import Artifact, Flow, Store
from anmi_ray.tables import streams
from tests.small import Remembering, start_from, write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]
Row = tuple[str, str, str, str, str, float]  # query, doc_a, doc_b, judge, order, preference
COLUMNS = ("query_id", "doc_a", "doc_b", "judge", "order", "preference")
BUCKETS = 4


class World:
    """A collection whose candidates are known: every test runs over the same root."""

    def __init__(self, folder: Path, collection: Path, prepared: Path) -> None:
        self.folder, self.store = folder, Store(str(start_from(prepared, folder / "root", "retrieve")))
        self.config = write_config(folder / "small.yaml", collection, compare={})
        record = run(self.settings(), last="retrieve")
        queries = self.parts(record, "ingest", "queries", QUERY)
        self.dev, self.held_out = (
            queries.filter(pc.equal(queries["split"], split))["external_id"].to_pylist() for split in ("dev", "test")
        )
        self.random, self.compared = (self.candidates(record, random) for random in (True, False))

    def candidates(self, record: dict[str, Any], random: bool) -> dict[str, list[str]]:
        """By query, the documents that were drawn at random, or those that are compared."""
        queries, texts = (
            self.parts(record, "ingest", "queries", QUERY),
            self.parts(record, "retrieve", "texts", TEXT_OF),
        )
        names = dict(zip(queries["query_id"].to_pylist(), queries["external_id"].to_pylist(), strict=True))
        documents = dict(zip(texts["doc_id"].to_pylist(), texts["external_id"].to_pylist(), strict=True))
        found: dict[str, list[str]] = {}
        for row in self.parts(record, "retrieve", "candidates", CANDIDATE).to_pylist():
            if (row["source"] == "random") == random:
                found.setdefault(names[row["query_id"]], []).append(documents[row["doc_id"]])
        return found

    def artifact(self, record: dict[str, Any], stage: str) -> Artifact:
        return Artifact(self.store, stage, record["stages"][stage]["fingerprint"])

    def settings(self, *overrides: str) -> Experiment:
        return load(self.config, [f"execution.root={self.folder / 'root'}", *overrides])

    def preferences(self, judges: Sequence[str] = ("",), orders: str = "ab ba", queries: int = 30) -> list[Row]:
        """All pairs of the first six candidates of some queries: each document has a worth that its judges see."""
        rows: list[Row] = []
        for query, documents in sorted(self.compared.items())[:queries]:
            for a, b in combinations(sorted(documents)[:6], 2):
                for judge in judges:
                    better = _worth(a) > _worth(b)
                    rows += [(query, a, b, judge, order, float(better)) for order in orders.split()]
        return rows

    def write(self, name: str, rows: Sequence[Row]) -> Path:
        path = self.folder / name
        with path.open("w", newline="") as file:
            if path.suffix == ".csv":
                csv.writer(file).writerows([COLUMNS, *rows])
            else:
                file.writelines(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows)
        return path

    def carry_out(
        self, path: Path, *more: str, last: str = "judge", judge: str = ""
    ) -> tuple[dict[str, Any], dict[str, list[Flow]]]:
        told = Remembering()
        chosen = f", judge: {judge}" if judge else ""
        panel = f"judge.judges=[{{kind: imported, path: {path}{chosen}}}]"
        if not any(one.startswith("compare.") for one in more):
            more = ("compare.design=imported", f"compare.path={path}", *more)
        record = run(self.settings(panel, *more), told, last=last)
        self.notices = told.notices
        return record, told.flows

    def parts(self, record: dict[str, Any], stage: str, part: str, kind: Any) -> pa.Table:
        artifact = self.artifact(record, stage)
        return pa.concat_tables([artifact.read_part(part, bucket, kind) for bucket in range(BUCKETS)])


def _worth(document: str) -> float:
    from anmi_ray.core.identity import id_array, id_matrix

    return float(uniforms(id_matrix(id_array([doc_id(document)])), "worth")[0])


def key(query: str, a: str, b: str) -> bytes:
    return comparison_id(query_id(query), *sorted((doc_id(a), doc_id(b))))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def world(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("importing"), small_collection, prepared)


def test_a_file_alone_anchors_queries_that_nobody_labelled(world: World) -> None:
    """One document of a query is preferred to the others, which are alike: it anchors, by its rank and its rating."""
    best = {query: min(sorted(documents)[:6], key=_worth) for query, documents in world.compared.items()}
    rows = [(query, a, b, judge, order, 1.0 if a == best[query] else 0.0 if b == best[query] else 0.5)
            for query, a, b, judge, order, _ in world.preferences(queries=len(best))]  # fmt: skip
    unlabelled = ("rate.hide_positives=1", "mine.anchors=rated")
    record, _ = world.carry_out(world.write("best.csv", rows), *unlabelled, last="mine")
    examples = world.parts(record, "mine", "examples", EXAMPLE).to_pylist()
    anchors = {(row["query_id"], row["doc_ids"][0]) for row in examples}
    assert anchors <= {(query_id(query), doc_id(document)) for query, document in best.items()}
    assert len(anchors) > len(best) / 2
    with pytest.raises(JudgeError, match="documents are rated"):
        world.carry_out(world.write("few.csv", rows[:600]), *unlabelled, last="mine")


def test_dev_queries_that_nobody_labelled_are_rated_too(world: World) -> None:
    """The file speaks of train and dev queries: both are rated, the dev queries to choose on."""
    free = ("name=free", "corpus.labels=[]", "corpus.unlabelled_dev=12", "mine.anchors=rated")
    record = run(world.settings("judge.judges=[{kind: similarity}]", *free), last="retrieve")
    queries = world.parts(record, "ingest", "queries", QUERY)
    rows: list[Row] = [(query, a, b, "", "ab", 1.0) for query, docs in world.candidates(record, random=False).items()
                       for a, b in combinations(docs[:5], 2)]  # fmt: skip
    record, _ = world.carry_out(world.write("dev.csv", rows), *free, last="rate")
    dev = set(queries.filter(pc.equal(queries["split"], "dev"))["query_id"].to_pylist())
    rated = set(world.parts(record, "rate", "ratings", RATING)["query_id"].to_pylist())
    assert len(dev) == 12
    assert dev < rated


def test_a_files_pairs_are_compared_judged_and_rated(world: World) -> None:
    rows = world.preferences()
    record, told = world.carry_out(world.write("both.csv", rows), last="rate")
    pairs = {key(query, a, b): (query, a, b) for query, a, b, *_ in rows}
    comparisons = world.parts(record, "compare", "comparisons", COMPARISON)
    assert set(comparisons["comparison_id"].to_pylist()) == set(pairs)
    assert pc.unique(comparisons["design"]).to_pylist() == ["imported"]
    train = len(world.compared)
    assert told["compare"] == [Flow("preferences", len(rows), len(rows)), Flow("queries", train, 30, train - 30)]
    judgments = world.parts(record, "judge", "judgments", JUDGMENT)
    assert judgments.num_rows == len(rows)
    assert judgments["error"].null_count == len(rows)
    for row in judgments.to_pylist():
        _, a, b = pairs[row["comparison_id"]]
        first = a if doc_id(a) < doc_id(b) else b
        assert row["p_a"] == float(_worth(first) > _worth(b if first == a else a))
    ratings = world.parts(record, "rate", "ratings", RATING)
    assert world.parts(record, "rate", "fits", FIT).num_rows == 30
    worths = {doc_id(d): _worth(d) for documents in world.compared.values() for d in documents}
    for query in pc.unique(ratings["query_id"]).to_pylist():
        of = ratings.filter(pc.equal(ratings["query_id"], query)).sort_by("rating_elo")
        seen = [worths[d] for d in of["doc_id"].to_pylist()]
        assert seen == sorted(seen)


def test_one_order_leaves_the_other_as_a_named_failure(world: World) -> None:
    """The order that a file has: ab is the file's doc_a first, which may be the record's second."""
    rows = world.preferences(orders="ab", queries=5)
    rows = [(q, b, a, j, o, 1 - p) if i % 2 else (q, a, b, j, o, p) for i, (q, a, b, j, o, p) in enumerate(rows)]
    record, told = world.carry_out(world.write("one.csv", rows))
    table = world.parts(record, "judge", "judgments", JUDGMENT)
    assert Counter(table["error"].to_pylist()) == {None: len(rows), NOT_IN_FILE: len(rows)}
    assert told["judge"] == [Flow("judgments", 2 * len(rows), len(rows), len(rows))]
    answered = {row["comparison_id"]: row for row in table.to_pylist() if row["error"] is None}
    for query, a, b, _, _, p in rows:
        row = answered[key(query, a, b)]
        swapped = doc_id(a) > doc_id(b)
        assert (row["order"], row["p_a"]) == ("ba", 1 - p) if swapped else ("ab", p)


def test_rows_that_cannot_be_used_are_counted_by_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    good = world.preferences(queries=3)
    query, a, b, *rest = good[0]
    strange: list[Row] = [
        ("nobody asked", a, b, *rest),
        (world.held_out[0], a, b, *rest),
        (query, a, "no such document", *rest),
        (query, a, world.random[query][0], *rest),
        good[0],
        (query, a, a, *rest),
        (query, a, b, "", "0", 1.0),
        (world.dev[0], a, b, *rest),
    ]  # type: ignore[list-item]
    path = world.write("strange.csv", [*good, *strange])
    with pytest.raises(DataError, match=r"3 of 98 rows cannot be used \(3.1%, allowed 1.0%\): 1 .*strange.csv:9"):
        world.carry_out(path)
    monkeypatch.setattr(importing, "_MAX_REJECTED", 0.5)
    record, told = world.carry_out(path, "compare.design=imported", f"compare.path={path}")
    line = len(good) + 2
    rejects = world.artifact(record, "compare").rejects()
    rejects = rejects.filter(pc.starts_with(rejects["place"], str(path)))
    assert {row["place"]: row["reason"] for row in rejects.to_pylist()} == {
        f"{path}:{line}": "unknown query",
        f"{path}:{line + 1}": "a test query",
        f"{path}:{line + 2}": "unknown document",
        f"{path}:{line + 3}": NOT_CANDIDATES,
        f"{path}:{line + 4}": "repeated: an earlier row has its query, documents, judge, order and round",
        f"{path}:{line + 5}": "document compared with itself",
        f"{path}:{line + 6}": "order neither ab nor ba",
        f"{path}:{line + 7}": NOT_COMPARED,
    }
    assert rejects["key"][0].as_py()
    assert told["compare"][0] == Flow("preferences", len(good) + 8, len(good), 8)


def test_orders_in_words_and_blanks_around_names_change_nothing(world: World) -> None:
    rows = world.preferences(judges=("me",), queries=4)
    order_words = {"ab": "A-B", "ba": "Swapped "}
    loose = [(f"{q} ", f"\u00a0{a}", b, f"{judge}\t", order_words[order], p) for q, a, b, judge, order, p in rows]
    found = []
    for name, written in (("plain.csv", rows), ("loose.csv", loose)):
        record, _ = world.carry_out(world.write(name, written))
        found.append(world.parts(record, "judge", "judgments", JUDGMENT).drop_columns("judge"))
    assert found[0].equals(found[1])
    assert any(f"{3 * len(rows):,}" in notice for notice in world.notices)


def test_repeats_in_different_batches_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the task itself, for its worker would not see smaller batches."""
    rows = world.preferences(queries=6)
    path = world.write("apart.csv", [*rows, *rows[:40]])
    monkeypatch.setattr(streams, "BLOCK", 500)
    artifact = Artifact(world.store, "import", "apart")
    ingest = Artifact(world.store, "ingest", resolve(world.settings())["ingest"].fingerprint)
    read = importing._spread(artifact, path, ingest, BUCKETS)
    assert read["batches"] > 5
    flows = [flow for bucket in range(BUCKETS) for flow in importing._gather(artifact, bucket, read["batches"])]
    kept = pa.concat_tables([artifact.read_part("preferences", bucket, IMPORTED) for bucket in range(BUCKETS)])
    assert sorted(kept["place"].to_pylist()) == sorted(f"{path}:{n}" for n in range(2, len(rows) + 2))
    assert sum(flow.rejected for flow in flows if flow.unit == "rows") == 40
    repeated = artifact.rejects()
    assert sorted(repeated["place"].to_pylist()) == sorted(f"{path}:{n}" for n in range(len(rows) + 2, len(rows) + 42))


def test_rounds_are_comparisons_of_their_own(world: World) -> None:
    rows = world.preferences(queries=4, orders="ab")
    path = world.write("rounds.jsonl", rows)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, "round": n}) + "\n" for line in lines for n in (0, 1)))
    record, told = world.carry_out(path, last="rate")
    comparisons = world.parts(record, "compare", "comparisons", COMPARISON)
    assert Counter(comparisons["round"].to_pylist()) == {0: len(rows), 1: len(rows)}
    assert told["judge"] == [Flow("judgments", 4 * len(rows), 2 * len(rows), 2 * len(rows))]
    assert world.parts(record, "rate", "fits", FIT)["comparisons"].to_pylist() == [30] * 4


def test_judges_of_a_file_are_told_apart(world: World) -> None:
    rows = world.preferences(judges=("ann", "bob"), queries=4)
    rows = [(*row[:5], 1 - row[5]) if row[3] == "bob" else row for row in rows]
    path = world.write("judges.csv", rows)
    with pytest.raises(ConfigError, match=r"holds answers of 2 judges \(ann, bob\)") as caught:
        world.carry_out(path)
    assert "judge" in (caught.value.remedy or "")
    with pytest.raises(ConfigError, match="has no answers of judge eve; its judges are ann, bob"):
        world.carry_out(path, judge="eve")
    ann, bob = (world.parts(world.carry_out(path, judge=n)[0], "judge", "judgments", JUDGMENT) for n in ("ann", "bob"))
    assert ann["p_a"].to_pylist() == [1 - p for p in bob["p_a"].to_pylist()]
    assert ann.num_rows == len(rows) / 2


def test_beside_another_design_a_file_answers_what_it_has(world: World) -> None:
    rows = world.preferences(queries=40)
    record, _ = world.carry_out(world.write("beside.jsonl", rows), "compare.degree=4")
    comparisons = world.parts(record, "compare", "comparisons", COMPARISON)
    asked = set(comparisons["comparison_id"].to_pylist())
    held = {key(query, a, b) for query, a, b, *_ in rows}
    table = world.parts(record, "judge", "judgments", JUDGMENT)
    answered = table.filter(pc.is_valid(table["p_a"]))["comparison_id"].to_pylist()
    assert set(answered) == asked & held
    assert asked - held
    assert len(answered) == 2 * len(asked & held) > 20


def test_a_file_changed_under_its_path_gives_new_artifacts(world: World) -> None:
    rows = world.preferences(queries=8)
    path = world.write("changing.csv", rows)
    first, _ = world.carry_out(path)
    same, _ = world.carry_out(world.write("moved.csv", rows))
    fingerprints = [{name: of["fingerprint"] for name, of in run["stages"].items()} for run in (first, same)]
    assert fingerprints[0] == fingerprints[1]
    world.write("changing.csv", rows[:-2])
    second, _ = world.carry_out(path)
    for stage in ("compare", "judge"):
        assert first["stages"][stage]["fingerprint"] != second["stages"][stage]["fingerprint"]
    assert first["stages"]["retrieve"] == second["stages"]["retrieve"]
    before, after = (world.parts(one, "judge", "judgments", JUDGMENT).num_rows for one in (first, second))
    assert (before, after) == (len(rows), len(rows) - 2)


def _unlike(change: Callable[[World, Row], Row]) -> Callable[[World], list[Row]]:
    return lambda world: [change(world, row) for row in world.preferences(queries=1)[:2]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            _unlike(lambda _, row: ("x" + row[0], *row[1:])),
            "none of its queries is in the collection, such as",
        ),
        (_unlike(lambda _, row: (row[0], "x" + row[1], "x" + row[2], *row[3:])), "none of its pairs is of known doc"),
        (_unlike(lambda world, row: (world.held_out[0], *row[1:])), "its queries are test queries or unknown"),
        (
            _unlike(lambda world, row: (row[0], world.random[row[0]][0], world.random[row[0]][1], *row[3:])),
            "no pair of the file has two candid",
        ),
        (lambda world: [], "no preferences"),
    ],
)
def test_a_file_of_which_nothing_can_be_used_is_an_error(
    world: World, make: Callable[[World], list[Row]], message: str
) -> None:
    path = world.write("useless.csv", make(world))
    with pytest.raises(DataError, match=message) as caught:
        world.carry_out(path)
    assert str(path) in (caught.value.place or "")
    assert caught.value.remedy


def test_a_plan_knows_imported_pairs(world: World) -> None:
    path = world.write("planned.csv", world.preferences(queries=3))
    settings = world.settings(
        "compare.design=imported", f"compare.path={path}", f"judge.judges=[{{kind: imported, path: {path}}}]"
    )
    counts = {"documents": 500, "train": 40, "dev": 5, "test": 5}
    work = {name: cost.work for name, cost in costs(settings, counts).items()}
    assert work["compare"] == f"at most 90 pairs of {path}"
    assert work["judge"] == "180 judgments by 1 in-process judges, both orders"
    assert len(plan(settings).blocks) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("compare.design=imported",), "needs `path`"),
        (("compare.path=x.csv",), "belongs to design: imported"),
        (
            ("compare.design=imported", "compare.path=x.csv", "compare.degree=4"),
            "belongs to designs k-regular and adaptive",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("seed: 0")
    with pytest.raises(ConfigError, match=message):
        load(config, overrides)
