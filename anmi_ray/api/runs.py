"""A run by its name: its tables with the ids of the collection, its figures, its model."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import records
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.schema import Record
from anmi_ray.store import Artifact, Store
from anmi_ray.store.runs import find_run

if TYPE_CHECKING:
    from anmi_ray.corpus.lookup import CorpusFiles
    from anmi_ray.corpus.parsing import Document, Judged, Query
    from anmi_ray.evaluation.fusion import ServedFusion
    from anmi_ray.evaluation.headline import Headline
    from anmi_ray.evaluation.judged import ByJudges
    from anmi_ray.evaluation.relevance import Relevance
    from anmi_ray.stages.elsewhere import Elsewhere

TableName = Literal[
    "queries", "texts", "candidates", "comparisons", "judgments", "ratings", "fits", "gaps", "examples", "metrics"
]
_DOCUMENTS = ("doc_id", "doc_a", "doc_b", "anchor_id", "doc_ids")


@dataclass(frozen=True)
class _Source:
    """Where the rows of a table are.

    stages: those that write it, in order
    every: True if all of them count; else the last one that the run reached
    pairs: for each stage, the one whose comparisons say which documents a row compares
    """

    record: Record
    stages: tuple[str, ...]
    every: bool = False
    pairs: tuple[str, ...] = ()


_FITTED = ("rate", "refit")
_TABLES = {
    "queries": _Source(records.QUERY, ("ingest",)),
    "texts": _Source(records.TEXT_OF, ("retrieve",)),
    "candidates": _Source(records.CANDIDATE, ("retrieve",)),
    "comparisons": _Source(records.COMPARISON, ("compare", "borderline"), every=True),
    "judgments": _Source(records.JUDGMENT, ("judge", "validate"), every=True, pairs=("compare", "borderline")),
    "ratings": _Source(records.RATING, _FITTED),
    "fits": _Source(records.FIT, _FITTED),
    "gaps": _Source(records.GAP, _FITTED),
    "examples": _Source(records.EXAMPLE, ("mine",)),
    "metrics": _Source(records.METRIC, ("evaluate",)),
}


class Run:
    """A run under a root, a folder or a URI. Raise ConfigError if no run has that name.

    record: settings, fingerprints of stages, environment
    artifacts: by stage, complete or not

    >>> run = anmi_ray.Run("quickstart", root="results")
    >>> run.table("ratings").column_names
    ['query_id', 'doc_id', 'rating_elo', 'std_err_elo', 'latent', 'games', 'component']
    >>> sum(bucket.num_rows for bucket in run.buckets("judgments")) == run.table("judgments").num_rows
    True
    >>> list(run.table("gaps").to_pandas().columns)
    ['query_id', 'anchor_id', 'doc_id', 'gap_elo', 'gap_se_elo', 'anchor_kind']
    >>> sorted(row["system"] for row in run.systems() if row["measure"] == "nDCG@10")
    ['bm25', 'bm25+dense', 'dense', 'hybrid', 'reranked', 'reranked+hybrid']
    """

    def __init__(self, name: str, root: str | Path = "results") -> None:
        self.name = name
        self.root = os.fspath(root)
        self.store, self.record = find_run(name, self.root)
        stages = self.record["stages"].items()
        self.artifacts = {stage: Artifact(self.store, stage, recorded["fingerprint"]) for stage, recorded in stages}

    def __repr__(self) -> str:
        return f"Run({self.name!r}, root={str(self.root)!r})"

    def _repr_html_(self) -> str:
        """Show a notebook the verdict and the systems by the first measure, or the last complete stage."""
        from html import escape

        if (artifact := self.artifacts.get("evaluate")) is None or artifact.manifest() is None:
            made = [name for name in self.record.get("path", self.artifacts) if name in self.artifacts]
            return f"<p>run <b>{escape(self.name)}</b>, up to {made[-1] if made else 'no stage'}</p>"
        systems = self.systems()
        rows = [row for row in systems if row["measure"] == systems[0]["measure"]]
        cells = (
            f"<tr><td>{escape(row['system'])}</td><td>{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]</td></tr>"
            for row in rows
        )
        head = f"<tr><th>{len(rows)} systems</th><th>{escape(rows[0]['measure'])}</th></tr>" if rows else ""
        return f"<p>run <b>{escape(self.name)}</b>: {escape(self.verdict())}</p><table>{head}{''.join(cells)}</table>"

    def table(self, name: TableName) -> pa.Table:
        """Return all rows of a table (see `buckets`); `.to_pandas()` makes a data frame."""
        return pa.concat_tables(self.buckets(name))

    def buckets(self, name: TableName) -> Iterator[pa.Table]:
        """Yield the rows of a table, whole queries at a time, for runs larger than memory.

        Names: queries, texts (of documents), candidates, comparisons, judgments, ratings, fits, gaps, examples,
        metrics. Columns are those of the record; queries and documents have the collection's own ids, and judgments
        name the documents they compare. Raise ConfigError for an unknown table, or if its stage is not complete.
        """
        if name not in _TABLES:
            near = difflib.get_close_matches(name, _TABLES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"the tables are {', '.join(get_args(TableName))}"
            raise ConfigError(f"unknown table '{name}'", f"run {self.name}", hint)
        source = _TABLES[name]
        reached = [stage for stage in source.stages if stage in self.record["stages"]] or [source.stages[0]]
        pairs = dict(zip(source.stages, source.pairs, strict=False))
        # not in the generator: an error is raised before the first bucket is requested
        rounds = [
            (self.artifact(stage, name), self.artifact(pairs[stage]) if pairs else None)
            for stage in (reached if source.every else reached[-1:])
        ]
        return self._tables(name, rounds)

    def systems(self) -> list[dict[str, Any]]:
        """Return a row for each system and measure on test queries: mean, interval, difference from the baseline.

        `by` is "labels", or "judges" if no test query is labelled; `by_judges` has judges' figures next to those of
        labels. Empty if nothing was measured. Raise ConfigError if the run is not evaluated.
        """
        from anmi_ray.stages import by_judges

        return by_judges.systems(self.artifact("evaluate", "measures"))

    def headline(self) -> Headline:
        """Return what the report compares, how its baseline was chosen, and what dev queries say about both.

        Raise ConfigError if the run is not evaluated.
        """
        from anmi_ray.stages.evaluate import headline_of

        return headline_of(self.artifact("evaluate", "headline"))

    def verdict(self) -> str:
        """Return Deploy, Do not deploy or Undecided, with the reranked system's difference from the baseline.

        By the first measure on test queries; "" if nothing was measured.
        """
        from anmi_ray.evaluation import headline

        evaluate = self.artifacts.get("evaluate")
        if evaluate is None or evaluate.manifest() is None or (content := evaluate.read_json("headline.json")) is None:
            return ""
        found = headline.from_json(content)
        row = next((row for row in self.systems() if row["system"] == found.system), None)
        return headline.sentence(found, row, row is not None and row["by"] == "judges")

    def by_judges(self) -> ByJudges | None:
        """Return what judges measured on test queries (evaluate.judged); None if none were asked.

        Raise ConfigError if the run is not evaluated.
        """
        from anmi_ray.stages import by_judges

        return by_judges.measurements(self.artifact("evaluate", "measures by judges"))

    def elsewhere(self) -> list[Elsewhere]:
        """Return the model's measures on other collections (evaluate.also), with those of the first stage and start."""
        from anmi_ray.stages import elsewhere

        return elsewhere.measured(self.store, self.name)

    def fusion(self) -> ServedFusion | None:
        """Return the fusion that the run measured; None if it was not evaluated, not fused, or had no dev query."""
        from anmi_ray.evaluation.fusion import of_sweep

        evaluate = self.artifacts.get("evaluate")
        sweep = evaluate.read_json("fusion.json") if evaluate is not None and evaluate.manifest() is not None else None
        return of_sweep(sweep) if sweep and "parts" in sweep else None  # missing in the first release

    def relevance(self) -> Relevance | None:
        """Return P(relevant) of the model's scores; None without an evaluation or a fitted curve."""
        from anmi_ray.stages import relevance

        evaluate = self.artifacts.get("evaluate")
        return None if evaluate is None else relevance.of(evaluate)

    def audit(self) -> tuple[str, dict[str, Any]]:
        """Return the stage that asked the judges, and the audit it stored over a sample of queries, as of `audit`.

        If the run only distilled a judge, it is the ensemble's. A stage that failed after asking has one, too. Raise
        ConfigError without an audit.
        """
        stages = {**self.record["stages"], **self.record.get("failed", {})}
        stage = "label" if "judge" not in stages and "label" in stages else "judge"
        recorded = stages.get(stage)
        artifact = None if recorded is None else Artifact(self.store, stage, recorded["fingerprint"])
        figures = None if artifact is None else artifact.read_json("audit.json")
        if figures is None:
            raise self._lacks("audit", stage)
        return stage, {"source": {"run": self.name, "root": self.root}, **figures}

    @property
    def report(self) -> str | None:
        """Return the location of the report, or None."""
        path = f"reports/{self.name}/report.html"
        return self.store.where(path) if self.store.exists(path) else None

    @property
    def model(self) -> Path:
        """Return the folder of the trained model on this machine; fetch it if the root is elsewhere.

        Raise ConfigError if the run has no model.
        """
        from anmi_ray.store.folders import local_folder

        return local_folder(self.artifact("train", "model"), "model")

    def artifact(self, stage: str, what: str = "") -> Artifact:
        """Return a stage artifact. Raise ConfigError if the run has not reached it (`what`: name in the message)."""
        artifact = self.artifacts.get(stage)
        if artifact is None or artifact.manifest() is None:
            raise self._lacks(what or f"artifact of {stage}", stage)
        return artifact

    def _lacks(self, what: str, stage: str) -> ConfigError:
        what = f"the run has no {what}: its {stage} stage is not complete"
        return ConfigError(what, f"{self.root}/runs/{self.name}.json", "run it first: anmi run CONFIG")

    def _tables(self, name: str, rounds: list[tuple[Artifact, Artifact | None]]) -> Iterator[pa.Table]:
        record = _TABLES[name].record
        buckets = range((self.artifact("ingest").manifest() or {})["buckets"])
        if record is records.METRIC:  # one part has the queries of all buckets
            queries = pa.concat_tables(self._queries(bucket) for bucket in buckets)
            from anmi_ray.stages import by_judges

            part = by_judges.NAME if {row["by"] for row in self.systems()} == {"judges"} else name
            yield _named(rounds[0][0].read_part(part, 0, record), queries, None)
            return
        for bucket in buckets:
            queries = self._queries(bucket)
            texts = None
            if name != "queries":
                retrieve = self.artifact("retrieve")
                texts = retrieve.read_part("texts", bucket, records.TEXT_OF, ["doc_id", "external_id"])
            for artifact, pairs in rounds:
                table = artifact.read_part(name, bucket, record)
                if pairs is not None:  # insert the compared documents after the query
                    compared = pairs.read_part("comparisons", bucket, records.COMPARISON)
                    ids = compared["comparison_id"].combine_chunks()
                    rows = pc.index_in(table["comparison_id"], value_set=ids)
                    for position, column in ((2, "doc_a"), (3, "doc_b")):
                        table = table.add_column(position, column, compared[column].take(rows))
                yield _named(table, queries, texts)

    def _queries(self, bucket: int) -> pa.Table:
        return self.artifact("ingest").read_part("queries", bucket, records.QUERY, ["query_id", "external_id"])


def _named(table: pa.Table, queries: pa.Table, texts: pa.Table | None) -> pa.Table:
    """Replace ids of queries and documents by the collection's own; drop hashes of texts."""
    for position, column in enumerate(table.column_names):
        if column == "query_id":
            table = table.set_column(position, column, _names(table[column], queries["query_id"], queries))
        elif column in _DOCUMENTS and texts is not None:
            named = _names(table[column], texts["doc_id"], texts)
            table = table.set_column(position, column, named)
    return table.drop_columns([name for name in ("external_id", "text_hash") if name in table.column_names])


def _names(ids: pa.ChunkedArray, known: pa.ChunkedArray, named: pa.Table) -> pa.Array:
    """Return the external ids of a column of ids, or of lists of ids."""
    flat = ids.combine_chunks()
    if pa.types.is_list(ids.type):
        members = _names(pa.chunked_array([flat.flatten()]), known, named)
        return pa.ListArray.from_arrays(pc.subtract(flat.offsets, flat.offsets[0]), members)
    rows = pc.index_in(flat, value_set=known.combine_chunks())
    return named["external_id"].combine_chunks().take(rows)


def collection_of(place: Path, root: str) -> CorpusFiles:
    """Return the files of a BEIR folder, or of the run under `root` with that name. Raise DataError without either."""
    from anmi_ray.corpus.beir import BeirFiles

    name = str(place)
    if "/" in name or Path(name).is_dir() or not Store(root).exists(f"runs/{name}.json"):
        return BeirFiles(name)
    return RunFiles(Run(name, root))


class RunFiles:
    """The documents, queries and grades that a run has read, with the collection's own ids, as `lookup.CorpusFiles`."""

    def __init__(self, run: Run) -> None:
        self.place = f"run {run.name}"
        self._ingest = run.artifact("ingest", "collection")
        self._counts = self._ingest.manifest() or {}

    def documents(self) -> Iterator[Document]:
        return _rows(self._parts("documents", records.DOCUMENT, "shards"), "external_id", "title", "text")

    def queries(self) -> Iterator[Query]:
        return _rows(self._parts("queries", records.QUERY, "buckets"), "external_id", "text")

    def find_optional(self, name: str) -> str | None:
        return None if name.startswith("qrels/") and Path(name).name not in self.names("qrels") else name

    def names(self, folder: str) -> list[str]:
        return [f"{split}.tsv" for split, count in self._counts["labelled"].items() if count]

    def judged(self, name: str) -> Iterator[tuple[str, Judged]]:
        queries = pa.concat_tables(self._parts("queries", records.QUERY, "buckets"))
        queries = queries.filter(pc.equal(queries["split"], Path(name).stem))
        named = dict(_rows([queries], "query_id", "external_id"))
        grades = [row for row in _rows(self._parts("qrels", records.QREL, "buckets")) if row[0] in named]
        wanted = {document for _, document, _ in grades}
        for document, external in _rows(self._parts("documents", records.DOCUMENT, "shards"), "doc_id", "external_id"):
            if document in wanted:
                named[document] = external
        return ((self.place, (named[query], named[document], grade)) for query, document, grade in grades)

    def _parts(self, part: str, record: Record, count: str) -> Iterator[pa.Table]:
        return (self._ingest.read_part(part, number, record) for number in range(self._counts[count]))


def _rows(tables: Iterable[pa.Table], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of tables, those columns or all."""
    for table in tables:
        yield from zip(*(table[name].to_pylist() for name in names or table.column_names), strict=True)
