"""DistilledData becomes one HTML page that loads nothing: ten figures of a distilled pairwise judge, explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from anmi_ray.errors import from_os_error
from anmi_ray.evaluation import distilled_figures as draw
from anmi_ray.evaluation.distilled_report import DistilledData, analyse, to_json
from anmi_ray.evaluation.page import asset, count, decimal, percent, template
from anmi_ray.evaluation.pairwise import KINDS
from anmi_ray.evaluation.rules_report import Estimate

LEVEL = 0.95


def write_page(predictions: pa.Table, model: str, out: Path, others: Sequence[str] = (), **more: Any) -> DistilledData:
    """Write distilled.html and distilled.json of `model` into the folder `out`; the rest as `distilled_report.analyse`.

    Equal predictions give equal bytes. Raises DataError as that does, StoreError where the storage refuses.
    """
    data = analyse(predictions, model, others, **more)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "distilled.html").write_text(render(data), encoding="utf-8")
        (out / "distilled.json").write_text(to_json(data), encoding="utf-8")
    except OSError as error:
        raise from_os_error(error, str(out)) from None
    return data


def render(data: DistilledData) -> str:
    """The page. Its policy forbids every load from elsewhere and every script."""
    flat = not data.segments
    beside = [(row.name, row.accuracy) for row in data.predictors if row.name in data.other_buckets]
    return template("distilled.html.j2", bracket=bracket).render(
        data=data,
        style=Markup(asset("report.css")),
        shades=[f"{0.05 + 0.95 * k / (draw.SHADES - 1):.2f}" for k in range(draw.SHADES)],
        kinds=KINDS,
        finding=finding(data),
        evidence=evidence(data),
        flat=flat,
        ties=next((claim for claim in data.claims if claim.sentence.startswith("E|C|")), None),
        fig={
            "accuracy": draw.accuracy(data.checkpoints, beside),
            "triangles": [(step, draw.triangle(points, step)) for step, points in data.triangles],
            "folded": draw.folded_triangle(data.points, marked="wanted"),
            "circles": draw.folded_triangle(data.points, circles=data.circles),
            "held": draw.held(data.circles),
            "by_radius": draw.cumulative(data.cumulative, by_rank=False),
            "by_rank": draw.cumulative(data.cumulative, by_rank=True),
            "buckets": draw.rank_buckets(data.radius_buckets),
            "calibration": draw.calibration(data.mean_buckets, list(data.other_buckets.items())[:3], data.model),
            "strip": None if flat else draw.folded_triangle(data.points, strip=data.strip),
            "halves": None if flat else draw.halves(data.strip),
            "confidence": None if flat else draw.confidence(data.points),
            "mean_segments": None if flat else draw.segments(data.segments, decided=False),
            "decided_segments": None if flat else draw.segments(data.segments, decided=True),
        },
        level=LEVEL,
    )


def finding(data: DistilledData) -> str:
    """How often the model sides with a unanimous ensemble."""
    found = data.predictors[0].accuracy
    name = data.model[:1].upper() + data.model[1:]
    if found.mean is None:
        return f"{name}: the judges agree on none of the held-out pairs"
    return f"{name} sides with the ensemble in {percent(found.mean)} of the pairs on which all its judges agree"


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
