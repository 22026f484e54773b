"""What studies of retrieval share: collections in BEIR layout, retrieved by a run's own stages, read back as tables.

A study's collections are runs of the main path up to retrieve under ROOT, so what is there is not made again. Runs are
written of test queries: `tested` gives a collection all of whose judged queries are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from anmi_ray import experiment
from anmi_ray.config.experiment import Experiment, validate
from anmi_ray.console import ConsoleReporter
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.errors import ConfigError
from anmi_ray.records import DOCUMENT, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.store import Artifact, Store

LAST = "retrieve"
DEPTH = 200  # documents of every ranking: without a query's known positives a hundred are left
_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Retrieved:
    """A collection as retrieve left it: the tables of all buckets, and the ids of its documents in their order."""

    queries: pa.Table
    qrels: pa.Table
    runs: pa.Table
    texts: pa.Table
    documents: list[bytes]


def folders(options: Sequence[str], known: Sequence[str] = ()) -> dict[str, str]:
    """The folders of --data NAME=FOLDER by name; `known`: the names that there are. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in options:
        name, sign, folder = text.partition("=")
        if not sign or not name or not folder or name in found:
            raise ConfigError(f"{text!r} is not NAME=FOLDER, or its name stands twice", "--data", "see --help")
        found[name] = folder
    if known and (strangers := sorted(set(found) - set(known))):
        raise ConfigError(
            f"no collection is called {', '.join(strangers)}", "--data", f"choose from {', '.join(known)}"
        )
    if not found:
        raise ConfigError("no collection is given", "--data", "give --data NAME=FOLDER, a folder in BEIR layout")
    return found


def collection(name: str, folder: str, root: str, **retrieve: Any) -> Experiment:
    """The experiment that retrieves for the queries of a folder in BEIR layout, DEPTH deep. Raises ConfigError."""
    content = {
        "name": name,
        "corpus": {"reader": "beir", "path": folder, "dev_fraction": 0.0},
        "retrieve": {"depth": DEPTH, "random_negatives": 0, **retrieve},
        "execution": {"root": root},
    }
    return validate(content, name)


def tested(folder: str, target: Path) -> str:
    """`folder` if it has test queries only, else `target`: its documents and queries as links, all judged ones tested.

    A pair that several splits judge keeps the grade of the last of train, dev, test.
    """
    files = BeirFiles(folder)
    names = {split: files.find_optional(f"qrels/{split}.tsv") for split in _SPLITS}
    if not names["train"] and not names["dev"]:
        return folder
    grades = {(query, doc): grade for name in names.values() if name for query, doc, grade in files.grades(name)}
    (target / "qrels").mkdir(parents=True, exist_ok=True)
    for name in (files.find("corpus.jsonl"), files.find("queries.jsonl")):
        if not (target / name).exists():
            (target / name).symlink_to((Path(folder) / name).resolve())
    lines = [f"{query}\t{doc}\t{grade}" for (query, doc), grade in grades.items()]
    text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    (target / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
    return str(target)


def retrieved(of: Experiment, console: Console | None = None) -> Retrieved:
    """Retrieve, with Ray, unless it is done, and read what is there. Raises AnmiError."""
    store, resolved = Store(of.execution.root), experiment.resolve(of)
    made = {name: Artifact(store, name, resolved[name].fingerprint) for name in ("ingest", LAST)}
    if any(one.manifest() is None for one in made.values()):
        experiment.run(of, ConsoleReporter(console or Console(stderr=True)), last=LAST)
    buckets = range(store.buckets(of.execution.buckets))
    shards = range(int((made["ingest"].manifest() or {})["shards"]))
    documents = [made["ingest"].read_part("documents", shard, DOCUMENT)["doc_id"].to_pylist() for shard in shards]
    return Retrieved(
        queries=pa.concat_tables([made["ingest"].read_part("queries", bucket, QUERY) for bucket in buckets]),
        qrels=pa.concat_tables([made["ingest"].read_part("qrels", bucket, QREL) for bucket in buckets]),
        runs=pa.concat_tables([made[LAST].read_part("runs", bucket, RUN) for bucket in buckets]),
        texts=pa.concat_tables([made[LAST].read_part("texts", bucket, TEXT_OF) for bucket in buckets]),
        documents=[doc for ids in documents for doc in ids],
    )
