"""Collections in BEIR layout for studies: exported, and cut by their queries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core import identity
from anmi_ray.core.schema import Record
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.store import Artifact

Grade = tuple[str, str, int]  # query, document, grade


@dataclass(frozen=True)
class Part:
    """A collection, or a half of one: what is trained on, and the queries that are tested."""

    collection: str
    number: int
    experiment: Experiment

    @property
    def name(self) -> str:
        """Of the part, and of the model that was trained on it."""
        return f"{self.collection}-{self.number}"


def by_collection(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """The parts of every collection, in order."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.collection, []).append(part)
    return found


def all_parts(artifact: Artifact, part: str, record: Record, count: int) -> pa.Table:
    """The rows of a part's `count` buckets or shards."""
    return pa.concat_tables([artifact.read_part(part, at, record) for at in range(count)])


def view(folder: str, target: Path, splits: Mapping[str, Iterable[Grade]]) -> Path:
    """`target` as a collection with the documents and queries of `folder`, as links, and judgments of its own."""
    files = BeirFiles(folder)
    (target / "qrels").mkdir(parents=True, exist_ok=True)
    for name in (files.find("corpus.jsonl"), files.find("queries.jsonl")):
        if not (target / name).exists():
            (target / name).symlink_to((Path(folder) / name).resolve())
    for split, grades in splits.items():
        lines = [f"{query}\t{document}\t{grade}" for query, document, grade in grades]
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
        (target / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return target


def halves(folder: str, target: Path, least_grade: int = 1) -> list[Path]:
    """Two collections whose train queries are the other's test queries; lower grades than the least train nothing."""
    files = BeirFiles(folder)
    rows = list(files.grades(files.find("qrels/test.tsv")))
    names = sorted({query for query, _, grade in rows if grade >= least_grade})
    by_id = {identity.query_id(name): name for name in names}
    first = {by_id[one] for one in identity.hash_sample(sorted(by_id), len(by_id) // 2, "transfer", "halves")}
    made = []
    for number, trained in enumerate((first, set(names) - first)):
        splits = {}
        for split, floor in (("train", least_grade), ("test", 1)):
            kept = [row for row in rows if row[0] in names and (row[0] in trained) == (split == "train")]
            splits[split] = [(query, doc, grade if grade >= floor else 0) for query, doc, grade in kept]
        made.append(view(folder, target / str(number), splits))
    return made


def exported(config: CorpusConfig, folder: Path) -> Path:
    """A collection of any reader in BEIR layout, its splits as they are."""
    if (folder / "queries.jsonl").exists():
        return folder
    reader = corpus.read(config)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    name: dict[bytes, str] = {}
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for table in reader.documents():
            for row in table.to_pylist():
                name[row["doc_id"]] = row["external_id"]
                line = {"_id": row["external_id"], "title": row["title"], "text": row["text"]}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    queries = {row["query_id"]: row for row in reader.queries().to_pylist()}
    rows = reader.qrels().to_pylist()
    for split in ("train", "dev", "test"):
        lines = [f"{queries[one['query_id']]['external_id']}\t{name[one['doc_id']]}\t{one['grade']}"
                 for one in rows if queries[one["query_id"]]["split"] == split]  # fmt: skip
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for row in queries.values():
            file.write(json.dumps({"_id": row["external_id"], "text": row["text"]}, ensure_ascii=False) + "\n")
    return folder


def judged_queries(path: Path, target: Path) -> Path:
    """The collection without queries that nobody judged: where labels are hidden they would be train queries too."""
    files = BeirFiles(str(path))
    names = {split: files.find_optional(f"qrels/{split}.tsv") for split in ("train", "dev", "test")}
    splits = {split: list(files.grades(name)) for split, name in names.items() if name}
    judged = {query for rows in splits.values() for query, _, _ in rows}
    target = view(str(path), target, splits)
    (target / "queries.jsonl").unlink()
    lines = (json.dumps({"_id": key, "text": text}) for key, text in files.queries() if key in judged)
    (target / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


def count_test_queries(of: Experiment) -> int:
    """How many test queries have a relevant document; reads the collection, computes nothing."""
    reader = corpus.read(of.corpus)
    for _ in reader.documents():
        pass
    queries = reader.queries()  # after the documents, and before the judgments: a reader reads in this order
    qrels = reader.qrels()
    judged = pc.unique(qrels.filter(pc.greater(qrels["grade"], 0))["query_id"])
    asked = queries.filter(pc.equal(queries["split"], "test"))["query_id"]
    return pc.sum(pc.is_in(asked, value_set=judged)).as_py() or 0
