"""Pictures of `anmi rate --plot` and `anmi audit --plot`: ratings with their errors, position biases, agreement.

Letters: D documents of a query, J judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.reports.charts import IntervalLine, intervals, matrix
from anmi_ray.reports.page import decimal, of_pictures, signed
from anmi_ray.reports.theme import MAIN, SECOND, short, to_svg

Z = 1.96  # half a 95 % interval in standard errors
MAX_DOCUMENTS = 120  # of one query in a picture; more would not be read


@dataclass(frozen=True)
class RatedList:
    """One query's ratings, float64[D] in Elo points; names [D]; known bool[D] known positives; component int[D]."""

    query: str
    names: Sequence[str]
    rating: NDArray[np.float64]
    std_err: NDArray[np.float64]
    known: NDArray[np.bool_]
    component: NDArray[np.int32]


@dataclass(frozen=True)
class PositionBias:
    """A judge's preference for the document shown first, less a half, with its interval; None where not known.

    first and second count the pairs with unlike verdicts that went to what was shown first, or second.
    """

    judge: str
    bias: float | None
    low: float | None
    high: float | None
    pairs: int
    first: int
    second: int


@dataclass(frozen=True)
class DecidedAlike:
    """share float[J, J] of the pairs decided by both judges that went the same way, NaN where there are none."""

    judges: Sequence[str]
    share: NDArray[np.float64]
    pairs: NDArray[np.int64]


def content(pictures: Sequence[Markup], suffix: str, heading: str, note: str) -> str:
    """What a file of these pictures holds: one SVG (.svg), or a page with a heading and a note."""
    return to_svg(pictures) if suffix == ".svg" else of_pictures(heading, note, pictures)


def ratings(found: RatedList) -> Markup:
    """Every document of a query on a line of its own, best first in each component, with its 95 % interval."""
    rows = np.argsort(-found.rating, kind="stable")[:MAX_DOCUMENTS]
    rows = rows[np.argsort(found.component[rows], kind="stable")]
    breaks = np.flatnonzero(np.diff(found.component[rows])) + 0.5  # between two components
    lines = [_rated(found, int(i), k) for k, i in enumerate(rows)]
    count = len(found.names)
    groups = len(np.unique(found.component))
    said = f"{count:,} documents" if len(rows) == count else f"the first {len(rows)} of {count:,} documents"
    if groups > 1:
        said += f" in {groups} groups that no comparison connects: a group's mean is 0, groups are not comparable"
    if found.known.any():
        said += "; ✓ known positive"
    title = [f"query {short(found.query, 60)}", said]
    label = "rating in Elo points with its 95 % interval; 0 is the mean"
    step = 24.0 if len(rows) <= 30 else 17.0
    return intervals(
        lines, f"ratings of query {found.query}", label, 0.0, breaks=breaks.tolist(), title=title, step=step
    )


def _rated(found: RatedList, i: int, place: int) -> IntervalLine:
    rating = float(found.rating[i])
    half = Z * float(found.std_err[i])
    low = rating - half
    high = rating + half
    name = f"✓ {short(found.names[i])}" if found.known[i] else found.names[i]
    said = f"{decimal(rating, 0)} ± {decimal(half, 0)}"
    tooltip = f"{found.names[i]}: {rating:.1f} [{low:.1f}, {high:.1f}]"
    return IntervalLine(place, rating, low, high, name, said, tooltip, SECOND if found.known[i] else MAIN)


def audit(biases: Sequence[PositionBias], alike: DecidedAlike | None) -> list[Markup]:
    """What there is to draw of an audit; no bias where there is agreement only."""
    drawn = []
    if alike is None or any(row.bias is not None for row in biases):
        drawn.append(position_biases(biases))
    return drawn if alike is None else [*drawn, agreement(alike)]


def position_biases(rows: Sequence[PositionBias]) -> Markup:
    """The position biases; 0 is a judge that the order leaves cold."""
    title = [
        "Position bias: preference for the document shown first, above ½, with its 95 % interval",
        "first : second counts the pairs whose verdict changed with the order, by the side that it went to",
    ]
    lines = [_bias(row, place) for place, row in enumerate(rows)]
    return intervals(lines, "position bias of every judge", "percentage points", 0.0, title=title, step=26.0)


def _bias(row: PositionBias, place: int) -> IntervalLine:
    name = row.judge or "(unnamed)"
    if row.bias is None:
        return IntervalLine(place, None, None, None, name, "no pair in both orders")
    said = signed(100 * row.bias, 1)
    low, high = (None if end is None else 100 * end for end in (row.low, row.high))
    if low is not None and high is not None:
        said += f" [{signed(low, 1)}, {signed(high, 1)}]"
    tooltip = f"{name}: {said}, {row.pairs:,} pairs"
    return IntervalLine(place, 100 * row.bias, low, high, name, f"{said} · {row.first:,} : {row.second:,}", tooltip)


def agreement(found: DecidedAlike) -> Markup:
    """How often every two judges decide alike; the lightest and the darkest shade are the least and the most."""
    known = found.share[~np.isnan(found.share)]
    low = float(min(np.floor(20 * known.min()) / 20, 0.95)) if len(known) else 0.5
    high = float(max(np.ceil(20 * known.max()) / 20, low + 0.05)) if len(known) else 1.0
    names = [name or "(unnamed)" for name in found.judges]
    cells = []
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            share = float(found.share[i, j])
            if i != j and not np.isnan(share):
                said = f"{first} ~ {second}: {100 * share:.1f} % of {found.pairs[i, j]:,}"
                cells.append({"row": i, "column": j, "value": share, "tooltip": said})
    title = ["Agreement: of the pairs that both judges decided, the share decided alike, in %"]
    return matrix(names, cells, (low, high), "decided alike", "agreement of every two judges", title)
