"""A small real collection in BEIR layout, cut out of the standard library's documentation, for whole runs in tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.compute as pc

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.load import load
from anmi_ray.core.identity import rng
from anmi_ray.pipeline.run import run
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Flow

NAMES = ("ingest", "retrieve", "compare", "judge", "rate", "mine", "train", "rerank", "evaluate", "report")
# each process that runs a model or asks starts for seconds, and the cores are shared with other tests
ALONE: dict[str, object] = {"buckets": 4, "threads": 1, "askers": 1, "raters": 1, "train": {"threads": 1}}


class Remembering(Reporter):
    """Keeps the names of the stages that were computed, the rows of all, and notices."""

    def __init__(self) -> None:
        self.computed: list[str] = []
        self.flows: dict[str, list[Flow]] = {}
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        if seconds is not None:
            self.computed.append(name)
        self.flows[name] = flows


def write_collection(folder: Path, train: int = 48, dev: int = 12, test: int = 20, others: int = 240) -> Path:
    """Write a collection of so many queries per split, their relevant documents, and `others` more documents."""
    config = CorpusConfig(max_train_queries=train, max_dev_queries=dev, max_test_queries=test)
    reader = corpus.read(config)
    documents = [row for table in reader.documents() for row in table.to_pylist()]
    queries, qrels = reader.queries(), reader.qrels()
    names = {row["doc_id"]: row["external_id"] for row in documents}
    relevant = set(pc.unique(qrels["doc_id"]).to_pylist())
    (folder / "qrels").mkdir(parents=True)
    kept = 0
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for row in documents:
            if row["doc_id"] not in relevant:
                kept += 1
                if kept > others:
                    continue
            file.write(json.dumps({"_id": row["external_id"], "title": row["title"], "text": row["text"]}) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for row in queries.to_pylist():
            file.write(json.dumps({"_id": row["external_id"], "text": row["text"]}) + "\n")
    rows = qrels.to_pylist()
    for split in ("train", "dev", "test"):
        chosen = {r["query_id"]: r["external_id"] for r in queries.to_pylist() if r["split"] == split}
        lines = [
            f"{chosen[r['query_id']]}\t{names[r['doc_id']]}\t{r['grade']}" for r in rows if r["query_id"] in chosen
        ]
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return folder


def write_config(path: Path, collection: Path, **overrides: object) -> Path:
    """A configuration over `collection` that trains for a few steps only."""
    settings: dict[str, object] = {
        "name": "small",
        "corpus": {"reader": "beir", "path": str(collection)},
        "retrieve": {"depth": 30, "candidates": 14, "random_negatives": 3, "dense": {"max_tokens": 32}},
        "compare": {"degree": 4},
        "mine": {"negatives": 4, "random_negatives": 1, "rated_extra": 1},
        "train": {"lists_per_step": 8, "epochs": 1, "max_tokens": 64, "dev_points": [0.5, 1.0]},
        "rerank": {"depth": 10},
        "execution": ALONE,
        **overrides,
    }
    path.write_text(json.dumps(settings), encoding="utf-8")
    return path


def write_prepared(folder: Path, collection: Path) -> None:
    """Carry out the run of `write_config` over `collection` as far as mine, with `folder` as its root."""
    config = write_config(folder.with_name(f"{folder.name}.yaml"), collection)
    run(load(config, [f"execution.root={folder}"]), last="mine")


def start_from(prepared: Path, root: Path, last: str) -> Path:
    """Make `root` hold what the root `prepared` does up to the stage `last`, but for its runs: a run over the same
    collection whose settings are those of `write_config` so far finds its artifacts there."""
    left_out = {prepared / "artifacts" / name for name in NAMES[NAMES.index(last) + 1 :]}
    left_out |= {prepared / name for name in ("runs", "reports", "progress", "timings")}
    shutil.copytree(prepared, root, ignore=lambda folder, names: [n for n in names if Path(folder, n) in left_out])
    return root


def write_topics(folder: Path, topics: int = 12, relevant: int = 5, others: int = 120) -> Path:
    """Write a collection of test queries alone, a topic each, with so many relevant documents; made up, seeded.

    A document is 20 words, of which a relevant one has one to three of its topic's: no ranking is perfect.
    """
    random = rng("topics", topics, relevant, others)
    stems = [f"{a}{b}{c}" for a in "bdfgkl" for b in ("an", "er", "il", "os") for c in ("ta", "mo", "ri", "su", "ne")]
    common, own = stems[: len(stems) // 2], stems[len(stems) // 2 :]

    def words(topic: int | None) -> str:
        drawn = [common[i] for i in random.integers(0, len(common), 20)]
        count = 0 if topic is None else int(random.integers(1, 4))
        for place in random.permutation(20)[:count].tolist():
            drawn[place] = own[(3 * (topic or 0) + place % 3) % len(own)]
        return " ".join(drawn)

    rows = [(f"t{t}d{i}", t) for t in range(topics) for i in range(relevant)]
    documents = [*((name, words(topic)) for name, topic in rows), *((f"o{i}", words(None)) for i in range(others))]
    queries = [(f"q{t}", " ".join(own[(3 * t + i) % len(own)] for i in range(3))) for t in range(topics)]
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": key, "title": "", "text": text}) + "\n" for key, text in texts]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    judged = [f"q{topic}\t{name}\t{2 + i % 2}" for i, (name, topic) in enumerate(rows)]
    judged += [f"q{topic}\to{topic}\t{topic % 2}" for topic in range(topics)]
    text = "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n"
    (folder / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
    return folder
