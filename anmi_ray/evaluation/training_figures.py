"""What the report draws of a training log: losses, dev, schedules, gradients of both terms, what is learned beside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from anmi_ray.evaluation import figures

Rows = Sequence[Mapping[str, float | None]]
STEP = "optimiser step"
BAND_COLOURS = ("k-danger", "k-soft", "k-goldilocks", "k-medium", "k-easy")


def curves(rows: Rows) -> dict[str, Markup]:
    """Figures by name, those whose columns the log has: loss, dev, schedule, gradients, temperature, bands."""
    drawn = {
        "loss": _lines(
            rows, (("loss", "main", "total"), ("ranking", "second", "ranking"), ("regression", "third", "regression")),
            "training loss",
        ),
        "gradients": _lines(
            rows,
            (("gradient_share", "main", "ranking term's share"), ("gradient_cosine", "second", "cosine of both terms")),
            "gradients, last layer",
        ),
        "temperature": _lines(rows, (("temperature", "main", "temperature"),), "learned temperature"),
        "bands": _bands(rows),
        "dev": _dev(rows),
        "schedule": _schedule(rows),
    }  # fmt: skip
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _lines(rows: Rows, columns: Sequence[tuple[str, str, str]], label: str, zero: bool = False) -> Markup | None:
    """Curves of (column, css class, name), those with two points and more, thinned; None where there is none."""
    found = [(css, name, figures.smooth(points)) for column, css, name in columns if (points := _curve(rows, column))]
    series = [one for one in found if len(one[2]) > 1]
    return figures.lines(series, STEP, label, zero=zero) if series else None


def _dev(rows: Rows) -> Markup | None:
    points = _curve(rows, "dev")
    if len(points) < 2:
        return None
    best = max(points, key=lambda point: point[1])
    return figures.lines([("main", "dev", points)], STEP, "dev measure", mark=best)


def _schedule(rows: Rows) -> Markup | None:
    """The learning rate as a share of its peak, and alpha."""
    peak = max((value for _, value in _curve(rows, "learning_rate")), default=0.0)
    if peak <= 0:
        return None
    scaled = [{**row, "rate": rate / peak} for row in rows if (rate := row.get("learning_rate")) is not None]
    columns = (("rate", "main", "learning rate / peak"), ("alpha", "second", "α, share of the ranking term"))
    return _lines(scaled, columns, "schedule", zero=True)


def _bands(rows: Rows) -> Markup | None:
    """Probabilities of the bands of gaps, of at most five: the smallest gaps, the largest, evenly chosen between."""
    names = sorted({name for row in rows for name in row if name.startswith("band_")}, key=lambda name: int(name[5:]))
    if len(names) < 2:
        return None
    count = min(len(names), len(BAND_COLOURS))
    chosen = [round(i * (len(names) - 1) / (count - 1)) for i in range(count)]
    colours = [BAND_COLOURS[round(i * (len(BAND_COLOURS) - 1) / (count - 1))] for i in range(count)]
    said = {0: " (smallest gaps)", len(names) - 1: " (largest)"}
    columns = [(names[i], css, f"{i + 1}{said.get(i, '')}") for i, css in zip(chosen, colours, strict=True)]
    return _lines(rows, columns, "probability of bands", zero=True)


def _curve(rows: Rows, name: str) -> list[tuple[float, float]]:
    """(step, value) where both are known and finite."""
    pairs = [(row.get("step"), row.get(name)) for row in rows]
    return [(float(x), float(y)) for x, y in pairs if x is not None and y is not None and math.isfinite(x + y)]
