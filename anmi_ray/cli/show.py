"""`anmi show`: what a run is made of, and the rows across every boundary. Reads manifests, never data but rejects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from anmi_ray.pipeline.stages import recorded_names
from anmi_ray.reports import audits
from anmi_ray.store import Artifact, Flow, Store
from anmi_ray.store.runs import find_run


def show(name: str, root: str, rejects: int) -> Iterator[str | Table]:
    """Lines and tables that describe run `name`. Raises ConfigError when there is no such run."""
    store, record = find_run(name, root)
    where = record["environment"]
    machine = f"{where['processor']}, {where['cores']} cores"
    yield f"run {name} over {record['corpus_name']}; {machine}; revision {where['git'] or 'unknown'}"
    yield _boundaries(store, record)
    for name in ("label", "judge", "validate"):
        if name in record["stages"]:
            manifest = Artifact(store, name, record["stages"][name]["fingerprint"]).manifest() or {}
            yield from (f"{name} {said}" for said in audits.spent(manifest.get("spent", {})))
    trained = record["stages"].get("train", {}).get("fingerprint")
    yield from (f"curves: {where}" for where in (store.read_json(f"tracking/{trained}/curves.json") or {}).values())
    for name in recorded_names(record):
        known = record["stages"].get(name)
        if known is not None:
            yield from _rejects(Artifact(store, name, known["fingerprint"]), rejects)


def _boundaries(store: Store, record: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (
        ("stage", "left"),
        ("artifact", "left"),
        ("seconds", "right"),
        ("rows of", "left"),
        ("in", "right"),
        ("out", "right"),
        ("rejected", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for name in recorded_names(record):
        known = record["stages"].get(name)
        if known is None:
            table.add_row(name, "-", "", "not run", "", "", "", "")
            continue
        artifact = Artifact(store, name, known["fingerprint"])
        timing = store.read_json(f"timings/{name}-{artifact.fingerprint}.json") or {}
        seconds = f"{timing['seconds']:.1f}" if "seconds" in timing else ""
        head = (name, artifact.fingerprint, seconds)
        for flow in (Flow(**flow) for flow in (artifact.manifest() or {"flows": []})["flows"]):
            counts = (f"{count:,}" for count in (flow.rows_in, flow.rows_out, flow.rejected))
            table.add_row(*head, flow.unit, *counts, "in = out + rejected")
            head = ("", "", "")
        if head[0]:
            table.add_row(*head, "not complete", "", "", "", "")
    return table


def _rejects(artifact: Artifact, limit: int) -> Iterator[str]:
    table = artifact.rejects()
    if not table.num_rows:
        return
    counts = table.group_by("reason").aggregate([([], "count_all")]).sort_by([("count_all", "descending")])
    said = ", ".join(f"{row['count_all']:,} {row['reason']}" for row in counts.to_pylist())
    yield f"{artifact.stage} rejects: {said}"
    for row in table.slice(0, limit).to_pylist():
        detail = f" ({row['detail']})" if row["detail"] else ""
        yield f"  {row['place']}: {row['key']}: {row['reason']}{detail}"
