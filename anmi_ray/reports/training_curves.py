"""What a run's page draws of its training log: losses, dev, schedules, gradients of both terms, what is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from anmi_ray.reports.charts import Curve, lines, smooth
from anmi_ray.reports.page import CATEGORIES, category_colour
from anmi_ray.reports.theme import MAIN, SECOND, THIRD

Rows = Sequence[Mapping[str, float | None]]
_BANDS = tuple(category_colour(name) for name in CATEGORIES[:-1])  # all but random
# figure -> the label of its axis, and its curves: column of the log, colour, name
_CURVES = {
    "loss": (
        "training loss",
        (("loss", MAIN, "total"), ("ranking", SECOND, "ranking"), ("regression", THIRD, "regression")),
    ),
    "gradients": (
        "gradients, last layer",
        (
            ("gradient_share", MAIN, "ranking term's share"),
            ("gradient_cosine", SECOND, "cosine of both terms"),
        ),
    ),
    "temperature": ("learned temperature", (("temperature", MAIN, "temperature"),)),
}


def curves(rows: Rows) -> dict[str, Markup]:
    """Charts by name, those whose columns the log has: loss, dev, schedule, gradients, temperature, bands."""
    drawn = {name: _lines(rows, columns, label) for name, (label, columns) in _CURVES.items()}
    drawn |= {"dev": _dev(rows), "schedule": _schedule(rows), "bands": _bands(rows)}
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _lines(rows: Rows, columns: Sequence[tuple[str, str, str]], label: str, zero: bool = False) -> Markup | None:
    """Curves of (column, colour, name), those with two points and more, thinned; None where there is none."""
    found = [Curve(name, smooth(_curve(rows, column)), colour) for column, colour, name in columns]
    shown = [one for one in found if len(one.points) > 1]
    return lines(shown, "optimiser step", label, zero=zero) if shown else None


def _dev(rows: Rows) -> Markup | None:
    points = _curve(rows, "dev")
    if len(points) < 2:
        return None
    best = max(points, key=lambda point: point[1])
    return lines([Curve("dev", points)], "optimiser step", "dev measure", ring=best)


def _schedule(rows: Rows) -> Markup | None:
    """The learning rate as a share of its peak, and alpha."""
    peak = max((value for _, value in _curve(rows, "learning_rate")), default=0.0)
    if peak <= 0:
        return None
    scaled = [{**row, "rate": rate / peak} for row in rows if (rate := row.get("learning_rate")) is not None]
    columns = (("rate", MAIN, "learning rate / peak"), ("alpha", SECOND, "α, share of the ranking term"))
    return _lines(scaled, columns, "schedule", zero=True)


def _bands(rows: Rows) -> Markup | None:
    """Probabilities of the bands of gaps, of at most five: the smallest gaps, the largest, evenly chosen between."""
    names = sorted({name for row in rows for name in row if name.startswith("band_")}, key=lambda name: int(name[5:]))
    if len(names) < 2:
        return None
    shown = min(len(names), len(_BANDS))
    chosen = [round(i * (len(names) - 1) / (shown - 1)) for i in range(shown)]
    colours = [_BANDS[round(i * (len(_BANDS) - 1) / (shown - 1))] for i in range(shown)]
    said = {0: " (smallest gaps)", len(names) - 1: " (largest)"}
    columns = [(names[i], colour, f"{i + 1}{said.get(i, '')}") for i, colour in zip(chosen, colours, strict=True)]
    return _lines(rows, columns, "probability of bands", zero=True)


def _curve(rows: Rows, name: str) -> list[tuple[float, float]]:
    """(step, value) where both are known and finite."""
    pairs = [(row.get("step"), row.get(name)) for row in rows]
    return [(float(x), float(y)) for x, y in pairs if x is not None and y is not None and math.isfinite(x + y)]
