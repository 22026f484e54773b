"""Pictures of `anmi rate --plot` and `anmi audit --plot`: ratings with their errors, position biases, agreement.

Letters: D documents of a query, J judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.core.scale import Z95
from anmi_ray.reports.charts import IntervalLine, intervals, matrix
from anmi_ray.reports.page import decimal, of_pictures, signed
from anmi_ray.reports.theme import MAIN, SECOND, short, to_svg

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
class DecidedAlike:
    """share float[J, J] of the pairs decided by both judges that went the same way, NaN where there are none."""

    judges: Sequence[str]
    share: NDArray[np.float64]
    pairs: NDArray[np.int64]


def content(pictures: Sequence[Markup], suffix: str, heading: str, note: str) -> str:
    """What a file of these pictures holds: one SVG (.svg), or a page with a heading and a note."""
    return to_svg(pictures) if suffix == ".svg" else of_pictures(heading, note, pictures)


def rated_list(ratings: pa.Table, gaps: pa.Table, query: str) -> RatedList:
    """A query of Rating and Gap tables; known positives are the anchors that its gaps are measured to."""
    rows = ratings.filter(pc.equal(ratings["query_id"], query))
    anchored = gaps.filter(pc.and_(pc.equal(gaps["query_id"], query), pc.equal(gaps["anchor_kind"], "known")))
    return RatedList(
        query,
        rows["doc_id"].to_pylist(),
        rows["rating_elo"].to_numpy(),
        rows["std_err_elo"].to_numpy(),
        pc.is_in(rows["doc_id"], value_set=pc.unique(anchored["anchor_id"])).to_numpy(),
        rows["component"].to_numpy(),
    )


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
    half = Z95 * float(found.std_err[i])
    low = rating - half
    high = rating + half
    name = f"✓ {short(found.names[i])}" if found.known[i] else found.names[i]
    said = f"{decimal(rating, 0)} ± {decimal(half, 0)}"
    tooltip = f"{found.names[i]}: {rating:.1f} [{low:.1f}, {high:.1f}]"
    return IntervalLine(place, rating, low, high, name, said, tooltip, SECOND if found.known[i] else MAIN)


def of_audit(figures: Mapping[str, Any]) -> list[Markup]:
    """What there is to draw of the figures of `judging.audit`: no bias where there is agreement only."""
    biases = {name: judge["position_bias"] for name, judge in figures["judges"].items()}
    alike = _decided_alike(figures)
    drawn = []
    if alike is None or any(bias["probability"] is not None for bias in biases.values()):
        drawn.append(_position_biases(biases))
    return drawn if alike is None else [*drawn, agreement(alike)]


def _decided_alike(figures: Mapping[str, Any]) -> DecidedAlike | None:
    """The pairs of judges as a matrix; None for a single judge."""
    names = list(figures["judges"])
    agreement_pairs = figures["panel"].get("agreement_pairs")
    if not agreement_pairs:
        return None
    share = np.full((len(names), len(names)), np.nan)
    pairs = np.zeros((len(names), len(names)), np.int64)
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            agreed = agreement_pairs.get(f"{a} ~ {b}")
            if i < j and agreed is not None:
                share[i, j] = share[j, i] = np.nan if agreed["share"] is None else agreed["share"]
                pairs[i, j] = pairs[j, i] = agreed["pairs"]
    return DecidedAlike(names, share, pairs)


def _position_biases(biases: Mapping[str, Mapping[str, Any]]) -> Markup:
    """The position bias of every judge; 0 is a judge that the order leaves cold."""
    title = [
        "Position bias: preference for the document shown first, above ½, with its 95 % interval",
        "first : second counts the pairs whose verdict changed with the order, by the side that it went to",
    ]
    lines = [_bias(place, name or "(unnamed)", bias) for place, (name, bias) in enumerate(biases.items())]
    return intervals(lines, "position bias of every judge", "percentage points", 0.0, title=title, step=26.0)


def _bias(place: int, name: str, bias: Mapping[str, Any]) -> IntervalLine:
    if bias["probability"] is None:
        return IntervalLine(place, None, None, None, name, "no pair in both orders")
    points = 100 * bias["probability"]
    said = signed(points, 1)
    low, high = (None if end is None else 100 * end for end in bias.get("interval") or (None, None))
    if low is not None and high is not None:
        said += f" [{signed(low, 1)}, {signed(high, 1)}]"
    tooltip = f"{name}: {said}, {bias['pairs']:,} pairs"
    changed = f"{bias.get('first_preferred', 0):,} : {bias.get('second_preferred', 0):,}"
    return IntervalLine(place, points, low, high, name, f"{said} · {changed}", tooltip)


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
