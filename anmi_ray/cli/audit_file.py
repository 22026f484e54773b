"""`anmi audit`: how far to trust each judge, from a file of answers or from what a run has stored of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.judging import Imported, audit, read_judgments
from anmi_ray.rating.graph import count_triads
from anmi_ray.tables import formats, trec
from anmi_ray.tables.preferences import ANSWERS, read_preferences

if TYPE_CHECKING:
    from anmi_ray.reports.pictures import DecidedAlike, PositionBias

_COMMAND = "command line"
_REASONS = 5  # failures named in the summary


@dataclass(frozen=True)
class Outputs:
    """Files to write."""

    json: Path | None = None
    plot: Path | None = None
    rejects: Path | None = None


@dataclass(frozen=True)
class Audited:
    """Figures as `judging.audit` makes them, of what, and what to say before them."""

    figures: Mapping[str, Any]
    name: str
    said: list[str]


def is_file(subject: str) -> bool:
    """Whether RUN|FILE names a file: there is one, or the name ends like one."""
    path = Path(subject)
    if path.is_file():
        return True
    try:
        formats.format_of(path)
    except ConfigError:
        return False
    return True


def audit_file(file: Path, outputs: Outputs, grades: Path | None, max_reject_fraction: float) -> Audited:
    """Audit a file's answers, and write what was asked for.

    Raises ConfigError, DataError or StoreError; nothing but the rejects is written then.
    """
    formats.check_outputs(vars(outputs), [path for path in (file, grades) if path is not None])
    read = read_judgments(read_preferences(file, ANSWERS))
    if outputs.rejects is not None:
        formats.write_table(read.rejects, outputs.rejects)
    read.refuse_rejects(max_reject_fraction)
    if not read.judgments.num_rows:
        raise DataError("holds no answer to audit", str(file), "give rows in which two documents are compared")
    qrels = None if grades is None else trec.read_qrels(grades)
    figures = audit(read.judgments, read.comparisons, grades=qrels, log_length=_lengths(read), triads=count_triads)
    rows = {"read": read.rows, "rejected": {reason: count for reason, (count, _) in read.reasons().items()}}
    figures = {"source": {"file": str(file), "rows": rows}, **figures}
    said = read.said()
    if grades is not None:
        said.append(_graded(figures, grades))
    return _written(Audited(figures, file.name, said), outputs)


def audit_run(name: str, root: str, outputs: Outputs) -> Audited:
    """The audit that a run's judge stage stored, over a sample of its queries, written as `audit_file` does.

    Of a run that went no further than distilling a judge it is that of the ensemble.
    Raises ConfigError where there is no such run, or no audit in it.
    """
    from anmi_ray.store import Artifact
    from anmi_ray.store.runs import find_run

    formats.check_outputs(vars(outputs), [])
    store, record = find_run(name, root)
    judged = next((stage for stage in ("judge", "label") if stage in record["stages"]), None)
    known = record["stages"].get(judged or "")
    figures = Artifact(store, judged, known["fingerprint"]).read_json("audit.json") if judged and known else None
    if figures is None:
        place = f"{root}/runs/{name}.json"
        raise ConfigError("the run has no audit: its judge stage is not complete", place, "carry out the run first")
    of = " of the ensemble" if judged == "label" else ""
    said = [f"run {name}: its stored audit{of}, over a sample of {figures['queries']:,} queries"]
    return _written(Audited({"source": {"run": name, "root": root}, **figures}, f"run {name}", said), outputs)


def _lengths(read: Imported) -> np.ndarray | None:
    return None if np.isnan(read.log_length).all() else read.log_length


def _graded(figures: Mapping[str, Any], grades: Path) -> str:
    found = figures["panel"]["graded"]
    if not found["comparisons"]:
        remedy = "give grades of the compared documents, with query and document ids as they stand in the answers"
        raise DataError("grades no pair that was compared", str(grades), remedy)
    return f"grades         {found['comparisons']:,} comparisons of graded documents, {found['different']:,} unlike"


def _written(audited: Audited, outputs: Outputs) -> Audited:
    if outputs.json is not None:
        text = json.dumps(audited.figures, indent=1, ensure_ascii=False, allow_nan=False)
        formats.write_text(text + "\n", outputs.json)
    if outputs.plot is not None:
        draw(audited.figures, outputs.plot, f"Judges of {audited.name}")
    return audited


def draw(figures: Mapping[str, Any], path: Path, heading: str) -> None:
    """Draw an audit as .svg or .html."""
    from anmi_ray.reports import pictures  # Altair is slow to import: only where something is drawn

    drawn = pictures.audit(_biases(figures), _agreement(figures))
    note = "Intervals respect queries: answers about one query are not independent."
    formats.write_text(pictures.content(drawn, path.suffix, heading, note), path)


def _biases(figures: Mapping[str, Any]) -> list[PositionBias]:
    from anmi_ray.reports.pictures import PositionBias

    rows = []
    for name, found in figures["judges"].items():
        bias = found["position_bias"]
        low, high = bias.get("interval") or (None, None)
        counts = bias["pairs"], bias.get("first_preferred", 0), bias.get("second_preferred", 0)
        rows.append(PositionBias(name, bias["probability"], low, high, *counts))
    return rows


def _agreement(figures: Mapping[str, Any]) -> DecidedAlike | None:
    """The pairs of judges as a matrix; None for a single judge."""
    from anmi_ray.reports.pictures import DecidedAlike

    names, found = list(figures["judges"]), figures["panel"].get("agreement_pairs")
    if not found:
        return None
    share, pairs = np.full((len(names), len(names)), np.nan), np.zeros((len(names), len(names)), np.int64)
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            one = found.get(f"{a} ~ {b}")
            if i < j and one is not None:
                share[i, j] = share[j, i] = np.nan if one["share"] is None else one["share"]
                pairs[i, j] = pairs[j, i] = one["pairs"]
    return DecidedAlike(names, share, pairs)


def summary(figures: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the table: failures by reason, lengths, agreement, and how intervals came to be."""
    for name, found in figures["judges"].items():
        reasons = sorted(found["failures"].items(), key=lambda item: -item[1])
        if reasons:
            more = f", and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
            said = ", ".join(f"{count:,} {reason}" for reason, count in reasons[:_REASONS])
            yield f"failures       {name or '(unnamed)'}: {said}{more}"
    panel = figures["panel"]
    if len(figures["judges"]) > 1 and panel.get("alpha") is not None:
        ends = panel.get("alpha_interval")
        interval = f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""
        yield f"agreement      Krippendorff's α {panel['alpha']:.3f}{interval}"
        pairs = {name: one for name, one in panel.get("agreement_pairs", {}).items() if one["share"] is not None}
        if pairs:
            low, high = (pick(pairs, key=lambda name: pairs[name]["share"]) for pick in (min, max))
            yield (
                f"               decided alike: {100 * pairs[low]['share']:.1f} % ({low}) "
                f"to {100 * pairs[high]['share']:.1f} % ({high})"
            )
    if "intervals" in figures:
        yield f"intervals      {figures['intervals']}"
