"""The page of a distilled pairwise judge: ten figures of its predictions on held-out pairs, explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from anmi_ray.core.errors import from_os_error
from anmi_ray.evaluation.distilled import DistilledData, analyse
from anmi_ray.evaluation.pairwise import KINDS
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports.page import a_key_a_line, capital, count, decimal, percent, plain, render

FORMAT = 2  # version of distilled.json
LEVEL = 0.95
_SECTIONS = {
    "learning": "Learning",
    "triangle": "The triangle",
    "radius": "Confidence as a radius",
    "calibration": "Calibration",
    "ties": "Ties and hard pairs",
    "others": "Against others",
}
_PREFERRED = ("all for it", "rather it", "even", "rather the other", "all for the other")


def write_page(predictions: pa.Table, model: str, out: Path, others: Sequence[str] = (), **more: Any) -> DistilledData:
    """Write distilled.html and distilled.json of `model` into the folder `out`; the rest as `analyse`.

    Equal predictions give equal bytes. Raises DataError as that does, StoreError where the storage refuses.
    """
    data = analyse(predictions, model, others, **more)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "distilled.html").write_text(to_html(data), encoding="utf-8")
        (out / "distilled.json").write_text(to_json(data), encoding="utf-8")
    except OSError as error:
        raise from_os_error(error, str(out)) from None
    return data


def to_json(data: DistilledData) -> str:
    """distilled.json: every number of the page, one key of the top a line; `score_kinds` names the shares' columns."""
    return a_key_a_line({"format": FORMAT, "score_kinds": list(KINDS), **_rounded(plain(data))})


def _rounded(value: Any) -> Any:
    """Numbers to nine digits: what is behind them may differ from one machine's arithmetic to another's."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def to_html(data: DistilledData) -> str:
    """distilled.html as one self-contained text."""
    mended = (
        f"{count(data.mended)} of {count(data.pairs)} predictions said E|C| below |2 E[C] − 1|, which no judge can be; "
        "they are drawn on the triangle's side."
    )
    return render(
        "distilled",
        data,
        finding(data),
        evidence(data),
        _SECTIONS,
        "distilled.json",
        data.true_known,
        [*data.notes, *([mended] if data.mended else [])],
        filters={"bracket": bracket},
        kinds=_colours(KINDS),
        preferred=_colours(_PREFERRED),
        flat=not data.segments,
        fig=_figures(data),
        level=LEVEL,
    )


def _colours(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"var(--s{k})", name) for k, name in enumerate(names)]


def _figures(data: DistilledData) -> dict[str, Any]:
    """Every figure, by name; those of the second dimension only where there is one."""
    from anmi_ray.reports import distilled_charts as draw  # Altair is slow to import: only where something is drawn

    figures = {
        "accuracy": _accuracy(data),
        "triangles": [(step, draw.triangle(points, step)) for step, points in data.triangles],
        "folded": draw.folded_triangle(data.points, marked="wanted"),
        "circles": draw.folded_triangle(data.points, circles=data.circles),
        "held": draw.kind_bars(
            [(f"r ≤ {one.radius:g}", f"{one.n:,} pairs", one.kinds if one.n else ()) for one in data.circles],
            "scores within the circles",
        ),
        "by_radius": draw.cumulative(data.cumulative, by_rank=False),
        "by_rank": draw.cumulative(data.cumulative, by_rank=True),
        "buckets": draw.rank_buckets(data.radius_buckets),
        "calibration": draw.calibration(
            {
                name: [(one.predicted, one.observed) for one in buckets]
                for name, buckets in {data.model: data.mean_buckets, **data.other_buckets}.items()
            },
            "predicted μ, mean of the bucket",
            "mean score of the ensemble",
        ),
    }
    if not data.segments:
        return figures
    halves = [
        (f"{name}: mean {1 - one.predicted_decided:.2f}", f"{one.n:,} pairs", one.kinds if one.n else ())
        for name, one in zip(("high P(tie)", "low P(tie)"), data.strip, strict=True)
    ]
    return figures | {
        "strip": draw.folded_triangle(data.points, strip=data.strip),
        "halves": draw.kind_bars(halves, "scores within the strip by P(tie)"),
        "confidence": draw.confidence(data.points),
        "mean_segments": draw.segments(data.segments, decided=False),
        "decided_segments": draw.segments(data.segments, decided=True),
    }


def _accuracy(data: DistilledData) -> Markup:
    """Accuracy on full-consensus pairs by step; the other predictors are lines across."""
    from anmi_ray.reports import charts

    known = [(row.step, row.accuracy) for row in data.checkpoints if row.accuracy.mean is not None]
    across = [
        (row.name, row.accuracy.mean)
        for row in data.predictors
        if row.name in data.other_buckets and row.accuracy.mean is not None
    ]
    spread = [charts.IntervalLine(step, one.mean, one.low, one.high) for step, one in known]
    curve = charts.Curve("accuracy", [(float(step), one.mean) for step, one in known if one.mean is not None])
    return charts.lines([curve], "training step", "accuracy on full-consensus pairs", across=across, spread=spread)


def finding(data: DistilledData) -> str:
    """How often the model sides with a unanimous ensemble."""
    found = data.predictors[0].accuracy
    if found.mean is None:
        return f"{capital(data.model)}: the judges agree on none of the held-out pairs"
    said = f"sides with the ensemble in {percent(found.mean)} of the pairs on which all its judges agree"
    return f"{capital(data.model)} {said}"


def evidence(data: DistilledData) -> str:
    """The interval, the numbers of pairs and queries, and how far the probabilities can be trusted."""
    first = data.predictors[0]
    of = f"{count(data.consensus)} of {count(data.pairs)} held-out pairs of {count(data.queries)} queries, "
    of += f"step {count(data.step)}"
    interval = "" if first.accuracy.low is None else f"{percent(LEVEL, 0)} CI {bracket(first.accuracy, 1, 100)} %, "
    slope = first.calibration.slope
    if slope.mean is None:
        return f"({interval}{of}). Its predictions do not differ from pair to pair"
    return f"({interval}{of}). Calibration slope {decimal(slope.mean, 2)} ({bracket(slope, 2)}); 1 is calibrated"


def bracket(found: Estimate | None, places: int = 3, scale: float = 1.0) -> str:
    """The ends of an interval; a dash where there is none.

    >>> bracket(Estimate(0.5, 0.41, 0.6, 10), 2)
    '0.41 to 0.60'
    """
    if found is None or found.low is None or found.high is None:
        return "—"
    return f"{decimal(scale * found.low, places)} to {decimal(scale * found.high, places)}"
