"""Export a run's judgments, ratings and gaps with their errors as a dataset, without texts.

Tables in Parquet by the collection's own ids and a README.md with the hub's metadata, so that
`datasets.load_dataset(folder, "gaps")` and any reader of Parquet load them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anmi_ray import __version__
from anmi_ray.api.export import public_model
from anmi_ray.api.runs import Run, TableName
from anmi_ray.store.folders import new_folder
from anmi_ray.store.runs import collection_of

TABLES: tuple[TableName, ...] = ("queries", "judgments", "ratings", "gaps")
TEMPLATE = Path(__file__).parent / "templates" / "dataset.md.j2"
_SHARES = {"ties": "tie_rate", "orders differ": "order_inconsistent_rate", "right": "accuracy_both_orders"}


def export_dataset(
    name: str, root: str, to: Path, license: str | None = None, title: str | None = None, texts: bool = False
) -> Path:
    """Write the tables of run `name` to the folder `to`, with a card; return `to`.

    texts: also write the documents' texts, which have their own licence.
    Raises ConfigError if the run is unknown, has no gaps yet, or `to` is neither absent nor an empty folder; StoreError
    if the storage fails or a file is damaged.
    """
    run = Run(name, root)
    wanted: tuple[TableName, ...] = (*TABLES, *(("texts",) if texts else ()))
    readers = {table: run.buckets(table) for table in wanted}  # first: names a missing stage
    with new_folder(to) as beside:
        counts: dict[str, int] = {}
        counted: Counter[tuple[str, str]] = Counter()
        for table, buckets in readers.items():
            counts[table] = _write(
                _once(buckets) if table == "texts" else buckets, beside / f"{table}.parquet", counted
            )
        (beside / "README.md").write_text(_card(run, counts, counted, license, title or name), encoding="utf-8")
    return to


def _write(buckets: Iterator[pa.Table], file: Path, counted: Counter[tuple[str, str]]) -> int:
    """Write a table and return its rows; `counted` gets each judge's answers and failures."""
    rows = 0
    writer: pq.ParquetWriter | None = None
    for bucket in buckets:
        writer = writer or pq.ParquetWriter(file, bucket.schema, compression="zstd")
        writer.write_table(bucket)
        rows += bucket.num_rows
        if file.stem == "judgments":
            for judge in pc.unique(bucket["judge"]).to_pylist():
                own = bucket.filter(pc.equal(bucket["judge"], judge))
                counted[judge, "failed"] += own["p_a"].null_count
                counted[judge, "asked"] += own.num_rows
    assert writer is not None, "every run has a bucket"
    writer.close()
    return rows


def _once(buckets: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield each document once; several buckets may have it."""
    seen: set[str] = set()
    for bucket in buckets:
        new = [document not in seen for document in bucket["doc_id"].to_pylist()]
        seen.update(bucket["doc_id"].to_pylist())
        yield bucket.filter(pa.array(new, pa.bool_()))


def _card(
    run: Run, counts: Mapping[str, int], counted: Mapping[tuple[str, str], int], license: str | None, title: str
) -> str:
    from huggingface_hub import DatasetCard, DatasetCardData

    config = run.record["config"]
    judges = config["judge"]["judges"]
    if any(judge["kind"] == "distilled" for judge in judges):
        judges = [*judges, *config["distill"]["judge"]["judges"]]
    data = DatasetCardData(
        license=license or "unknown",
        pretty_name=title,
        task_categories=["text-ranking"],
        tags=["reranking", "pairwise preferences", "anmi_ray"],
        configs=[
            {"config_name": table, "data_files": f"{table}.parquet", **({"default": True} if table == "gaps" else {})}
            for table in counts
        ],
    )
    stages = {stage: artifact.fingerprint for stage, artifact in run.artifacts.items()}
    versions = {"anmi_ray": __version__, **run.record["environment"].get("versions", {})}
    card = DatasetCard.from_template(
        data,
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        name=title,
        run=run.name,
        collection=collection_of(run.record),
        license=license,
        counts={table: f"{rows:,}" for table, rows in counts.items()},
        judges=list(_judges(run, counted)),
        simulated=any(judge["kind"] == "simulated" for judge in judges),
        texts="texts" in counts,
        provenance=[
            (
                "judged",
                ", ".join(f"{stage} {stages[stage]}" for stage in ("compare", "judge", "rate") if stage in stages),
            ),
            (
                "pairs",
                f"{config['compare'].get('design', 'regular')}, {config['compare']['degree']} opponents a document",
            ),
            ("ratings", str(config["rate"].get("model", ""))),
            ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ],
    )
    return str(card)


def _judges(run: Run, counted: Mapping[tuple[str, str], int]) -> Iterator[dict[str, str]]:
    """Yield a row per judge: description, answers, and shares of its stored audit with their intervals."""
    _, audited = run.audit()
    known = {judge["name"]: judge for judge in run.record["config"]["judge"]["judges"]}
    for name in sorted({judge for judge, _ in counted}):
        judge, figures = known.get(name, {}), audited["judges"].get(name, {})
        model = judge.get("model") or ""
        cells = {"judge": name, "kind": judge.get("kind", ""), "model": public_model(str(model))}
        cells |= {"asked": f"{counted[name, 'asked']:,}", "failed": f"{counted[name, 'failed']:,}"}
        for column, share in _SHARES.items():
            value, ends = figures.get(share), figures.get("intervals", {}).get(share)
            cells[column] = "" if value is None else f"{100 * value:.1f} %"
            if ends is not None:
                cells[column] += f" [{100 * ends[0]:.1f}, {100 * ends[1]:.1f}]"
        yield cells
