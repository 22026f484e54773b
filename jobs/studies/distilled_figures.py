"""What do a distilled judge's predictions on held-out pairs look like?

    python -m jobs.studies.distilled_figures RUN [--root results]

Draws the ten figures of the source document from a finished run whose panel holds `{kind: distilled}`, or from one that
`anmi run CONFIG --until distill` made. Nothing is trained or judged.

A prediction is the point (P_A, P_B): the probabilities that the first and the second document is better. What is
missing to 1 is P(tie). C is the ensemble's mean score: 0 if all its judges prefer the first document, 1 if all prefer
the second. E[C] = P_B + P(tie)/2, and E|C| stands for E|2C − 1| = P_A + P_B, which is 1 if all judges are expected to
agree. A folded pair is turned so that the judge prefers its first document.

To read: in figures 2 to 9 green means that the ensemble agrees with the judge and red that it does not. Figures 8 to 10
need a target that knows ties (`distill.target: ternary` or `two-head`): at E[C] = ½, low E|C| is a predicted tie and
high E|C| a pair that is hard to decide. Intervals are 95 %, over queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.transforms import Affine2D

from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import PREDICTION
from anmi_ray.evaluation import pairwise
from anmi_ray.evaluation.pairwise import (
    BUCKETS,
    JUDGE,
    Pairs,
    Predictor,
    accuracy,
    bootstrap,
    brier,
    buckets,
    calibration,
    compare,
    hits,
    mean,
    ratio,
)
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.store import Artifact
from anmi_ray.store.runs import find_run
from jobs.studies import harness
from jobs.studies.harness import Results, Table

STUDY = harness.study("distilled_figures", "A distilled judge in ten figures", __doc__ or "")
KINDS = ("all for the preferred", "rather the preferred", "even", "rather the other", "all for the other")
COLOURS = ("#0d6b68", "#86bdb4", "#cfcabd", "#e9ad97", "#bf4a35")
LINE = "#7a6bb0"
STEPS = 6  # triangles of figure 2
RADII = (0.25, 0.5, 0.75)
STRIP_MEAN, STRIP_SHARE = 0.45, 0.1  # figure 8: the tenth of the pairs whose E[C] is nearest to .45
COLUMNS, ROWS = 5, 4  # figure 10
FOLDED = ((0.0, 0.0), (1.0, 0.0), (0.5, 0.5))  # corners of the folded triangle
# (E[C], E|C|) -> (P_A, P_B)
TO_TRIANGLE = Affine2D([[-1.0, 0.5, 0.5], [1.0, 0.5, -0.5], [0.0, 0.0, 1.0]])


def decided(pairs: Pairs) -> Reals:
    """E|C| = P_A + P_B of every pair."""
    return np.minimum(pairs.first_P + pairs.second_P, 1.0)


def observed(pairs: Pairs) -> Reals:
    """|2C − 1| of every pair."""
    return np.abs(2 * pairs.score_P - 1)


def folded(pairs: Pairs) -> Pairs:
    """Turn every pair so that the judge prefers its first document."""
    over = pairs.second_P > pairs.first_P
    return replace(
        pairs,
        first_P=np.where(over, pairs.second_P, pairs.first_P),
        second_P=np.where(over, pairs.first_P, pairs.second_P),
        score_P=np.where(over, 1.0 - pairs.score_P, pairs.score_P),
    )


def kinds(score_P: Reals) -> Ints:
    """The kind of every score, int[P], an index of KINDS.

    >>> kinds(np.array([0, 1, 2, 3, 4, 5, 6]) / 6).tolist()
    [0, 1, 1, 2, 3, 3, 4]
    """
    lean = 2 * score_P - 1
    size = np.where(np.abs(lean) < 1 / 6 + 1e-9, 0, np.where(np.abs(lean) < 1 - 1e-9, 1, 2))
    return (2 + np.sign(lean) * size).astype(np.int64)


def shares(score_P: Reals) -> Reals:
    """The share of each kind among scores, float[5]; 0 if there are none."""
    return np.bincount(kinds(score_P), minlength=len(KINDS)) / max(len(score_P), 1)


def radius(pairs: Pairs) -> Reals:
    """Distance of every point to (1, 0), where the first document wins for sure."""
    return np.hypot(1.0 - pairs.first_P, pairs.second_P)


def cumulative(fold: Pairs) -> tuple[Reals, Reals, Reals]:
    """The pairs within a growing circle around (1, 0): its radius, their share of all, and the kinds' shares [5, P]."""
    distance = radius(fold)
    order = np.argsort(distance, kind="stable")
    count = np.arange(1, len(fold) + 1)
    kind = np.cumsum(np.eye(len(KINDS))[kinds(fold.score_P)[order]], axis=0) / count[:, None]
    return distance[order], count / len(fold), kind.T


def segments(fold: Pairs) -> Ints:
    """Equal-population segments: COLUMNS by E[C], each cut into ROWS by E|C|; int[P], numbered column by column."""
    column = buckets(fold.mean_P, COLUMNS)
    segment = np.empty(len(fold), dtype=np.int64)
    for c in range(COLUMNS):
        inside = np.flatnonzero(column == c)
        segment[inside] = c * ROWS + buckets(decided(fold)[inside], ROWS)
    return segment


def strip(fold: Pairs) -> tuple[Flags, Flags]:
    """The pairs with E[C] nearest to STRIP_MEAN: the half with the lower E|C|, and the other half."""
    nearest = np.argsort(np.abs(fold.mean_P - STRIP_MEAN), kind="stable")[: max(2, round(STRIP_SHARE * len(fold)))]
    half = buckets(decided(fold)[nearest], 2)
    low, high = (np.isin(np.arange(len(fold)), nearest[half == k]) for k in range(2))
    return low, high


def mean_within(pairs: Pairs, values_P: Reals, inside: Flags) -> Estimate:
    """The mean of `values_P` over the pairs `inside`, with its interval over queries."""
    return bootstrap(pairs, np.stack([inside * values_P, inside.astype(np.float64)], axis=1), ratio)


def figures(predictions: pa.Table, model: str, others: Sequence[str] = ()) -> Iterator[tuple[str, Figure]]:
    """Draw the figures 1 to 10; 8 to 10 only if E|C| varies. predictions: a Prediction table."""
    steps = pairwise.steps_of(predictions, model)
    last = pairwise.read(predictions, model)
    fold = folded(last)
    beside = {name: pairwise.read(predictions, name) for name in others}
    yield "1", learning({step: pairwise.read(predictions, model, step) for step in steps}, beside)
    shown = [steps[k] for k in np.unique(np.linspace(0, len(steps) - 1, STEPS).round().astype(int))]
    yield "2", triangles({step: pairwise.read(predictions, model, step) for step in shown})
    yield "3", wanted(fold)
    yield "4", circles(fold)
    yield "5", grown(fold, by_rank=False)
    yield "6", grown(fold, by_rank=True)
    yield "7", ranked(fold)
    if np.ptp(decided(last)) > 1e-6:
        yield "8", strips(fold)
        yield "9", confidence(fold)
        yield "10", segmented(fold)


def axes(columns: int = 1, height: float = 3.6, width: float = 4.8) -> tuple[Figure, list[Axes]]:
    """A figure with plots next to each other."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def dots(axis: Axes, x: Reals, y: Reals, score_P: Reals, faded: bool = False) -> None:
    """Points in the colour of their score's kind."""
    axis.scatter(x, y, s=7, c=[COLOURS[k] for k in kinds(score_P)], linewidths=0, alpha=0.15 if faded else 1.0)


def on_triangle(axis: Axes) -> Polygon:
    """The folded triangle as the background of a plot."""
    outline = Polygon(FOLDED, closed=True, facecolor="#fcfbf8", edgecolor="#8a939a", zorder=0)
    axis.add_patch(outline)
    axis.set(xlim=(0, 1.02), ylim=(0, 0.52), aspect="equal")
    axis.set(xlabel="P(the preferred document is better)", ylabel="P(the other is better)")
    return outline


def stacked(axis: Axes, rows: Mapping[str, Reals]) -> None:
    """A horizontal bar of the kinds' shares for each name."""
    left = np.zeros(len(rows))
    for k, (kind, colour) in enumerate(zip(KINDS, COLOURS, strict=True)):
        share = np.array([row[k] for row in rows.values()])
        axis.barh(list(rows), share, left=left, color=colour, label=kind)
        left += share
    axis.invert_yaxis()
    axis.set(xlim=(0, 1), xlabel="share of the pairs within")
    axis.legend(fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def learning(by_step: Mapping[int, Pairs], beside: Mapping[str, Pairs]) -> Figure:
    """Figure 1: accuracy on full-consensus pairs by training step; dashed: the other predictors."""
    figure, (axis,) = axes()
    found = {step: accuracy(pairs) for step, pairs in by_step.items()}
    known = [(step, one.mean, one.low, one.high) for step, one in found.items() if one.mean is not None]
    if known:
        step, mean, low, high = np.array(known, dtype=float).T
        axis.vlines(step, low, high, color=COLOURS[0])
        axis.plot(step, mean, color=COLOURS[0], marker="o")
    for number, (name, pairs) in enumerate(beside.items()):
        level = accuracy(pairs).mean
        if level is not None:
            axis.axhline(level, color="#8a939a", linestyle=("--", ":", "-.")[number % 3], label=name)
    axis.set(xlabel="training step", ylabel="accuracy on full-consensus pairs")
    if beside:
        axis.legend(frameon=False)
    return figure


def triangles(by_step: Mapping[int, Pairs]) -> Figure:
    """Figure 2: all predictions at some of the steps."""
    figure, panels = axes(len(by_step), height=2.6, width=2.4)
    for axis, (step, pairs) in zip(panels, by_step.items(), strict=True):
        axis.add_patch(Polygon([(0, 0), (1, 0), (0, 1)], closed=True, facecolor="#fcfbf8", edgecolor="#8a939a"))
        axis.plot([0, 0.5], [0, 0.5], color="#8a939a", linestyle="--", linewidth=1)
        dots(axis, pairs.first_P, pairs.second_P, pairs.score_P)
        axis.set(title=f"step {step:,}", aspect="equal", xlabel="P(A)", ylabel="P(B)")
    return figure


def wanted(fold: Pairs) -> Figure:
    """Figure 3: the folded triangle, with the corner that a sure prediction lies in."""
    figure, (axis,) = axes()
    corner = Circle((1, 0), RADII[0], facecolor=LINE, alpha=0.15)
    axis.add_patch(corner)
    corner.set_clip_path(on_triangle(axis))
    dots(axis, fold.first_P, fold.second_P, fold.score_P)
    return figure


def circles(fold: Pairs) -> Figure:
    """Figure 4: circles around that corner, and what they hold."""
    figure, (axis, bars) = axes(2)
    outline = on_triangle(axis)
    dots(axis, fold.first_P, fold.second_P, fold.score_P)
    for limit in RADII:
        circle = Circle((1, 0), limit, facecolor="none", edgecolor=LINE, linewidth=1.5)
        axis.add_patch(circle)
        circle.set_clip_path(outline)
    within = {limit: radius(fold) <= limit for limit in RADII}
    stacked(
        bars, {f"r ≤ {limit:g}\n{inside.sum():,}": shares(fold.score_P[inside]) for limit, inside in within.items()}
    )
    return figure


def grown(fold: Pairs, by_rank: bool) -> Figure:
    """Figures 5 and 6: kinds within the growing circle, over its radius (line: yield) or over rank (line: radius)."""
    figure, (axis,) = axes()
    distance, rank, kind = cumulative(fold)
    across, line = (rank, distance) if by_rank else (distance, rank)
    axis.stackplot(across, kind, colors=COLOURS)
    axis.plot(across, line, color=LINE, linewidth=2, label="radius" if by_rank else "yield")
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="rank, surest first (share of all pairs)" if by_rank else "radius r")
    axis.set(ylabel="share of the pairs within")
    axis.legend(loc="lower right")
    return figure


def ranked(fold: Pairs) -> Figure:
    """Figure 7: kinds in equal buckets by rank of r; lines: predicted and observed mean for the preferred document."""
    figure, (axis,) = axes()
    count = min(BUCKETS, len(fold))
    bucket = buckets(radius(fold), count)
    x = np.arange(count) + 0.5
    bottom = np.zeros(count)
    kind = np.array([shares(fold.score_P[bucket == b]) for b in range(count)])
    for share, colour in zip(kind.T, COLOURS, strict=True):
        axis.bar(x, share, bottom=bottom, color=colour, width=0.92)
        bottom += share
    axis.plot(
        x, [1 - fold.mean_P[bucket == b].mean() for b in range(count)], color=LINE, linewidth=2, label="predicted"
    )
    for_preferred = 1.0 - fold.score_P
    found = [mean_within(fold, for_preferred, bucket == b) for b in range(count)]
    mean, low, high = (np.array([getattr(one, end) for one in found], dtype=float) for end in ("mean", "low", "high"))
    axis.vlines(x, low, high, color="black")
    axis.plot(x, mean, color="black", marker="o", markersize=3, label="observed")
    axis.set(xlim=(0, count), ylim=(0, 1), xlabel=f"rank of r, surest first, {count} buckets")
    axis.set(ylabel="share; mean for the preferred document")
    axis.legend(loc="lower left")
    return figure


def strips(fold: Pairs) -> Figure:
    """Figure 8: pairs of the same E[C], in two halves by P(tie)."""
    figure, (axis, bars) = axes(2)
    outline = on_triangle(axis)
    low, high = strip(fold)
    inside = low | high
    mean = fold.mean_P[inside]
    area = Rectangle((mean.min(), 0), np.ptp(mean), 1, transform=TO_TRIANGLE + axis.transData, color=LINE, alpha=0.2)
    axis.add_patch(area)
    area.set_clip_path(outline)
    for chosen in (inside, ~inside):
        dots(axis, fold.first_P[chosen], fold.second_P[chosen], fold.score_P[chosen], faded=chosen is not inside)
    rows = {"high": low, "low": high}  # low E|C| is a high P(tie)
    stacked(
        bars,
        {
            f"{name} P(tie)\nmean {1 - decided(fold)[half].mean():.2f}": shares(fold.score_P[half])
            for name, half in rows.items()
        },
    )
    return figure


def confidence(fold: Pairs) -> Figure:
    """Figure 9: the folded triangle by what the distances to its two sides measure, E[C] and E|C|."""
    figure, (axis,) = axes()
    axis.plot([0, 0.5], [1, 0], color="#8a939a", linewidth=1)
    dots(axis, fold.mean_P, decided(fold), fold.score_P)
    for x, y, text in ((0.48, 0.05, "ties"), (0.48, 0.95, "hard pairs"), (0.12, 0.95, "clear pairs")):
        axis.annotate(
            text, (x, y), ha="right", weight="bold", bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0}
        )
    axis.set(xlim=(0, 0.5), ylim=(0, 1), xlabel="E[C], folded: 0 is sure of the preferred document", ylabel="E|C|")
    return figure


def segmented(fold: Pairs) -> Figure:
    """Figure 10: observed means in segments of equal population: for the preferred document, and of |2C − 1|."""
    figure, panels = axes(2)
    segment = segments(fold)
    values = {"score for the preferred document": (1.0 - fold.score_P, 0.5), "|2C − 1|": (observed(fold), 0.0)}
    for axis, (title, (value, least)) in zip(panels, values.items(), strict=True):
        outline = on_triangle(axis)
        for number in np.unique(segment):
            inside = segment == number
            x, y = fold.mean_P[inside], decided(fold)[inside]
            mean = mean_within(fold, value, inside).mean or 0.0
            shade = mpl.colormaps["BuGn"](float(np.clip((mean - least) / (1 - least), 0, 1)))
            corner, size = (x.min(), y.min()), (np.ptp(x), np.ptp(y))
            area = Rectangle(corner, *size, transform=TO_TRIANGLE + axis.transData, facecolor=shade, edgecolor="white")
            axis.add_patch(area)
            area.set_clip_path(outline)
            a, b = TO_TRIANGLE.transform((float(np.median(x)), float(np.median(y))))
            axis.annotate(f"{mean:.2f}", (float(a), float(b)), ha="center", va="center", fontsize=6)
        axis.set(title=f"observed {title}")
    return figure


def shown(one: Estimate | None, places: int = 3) -> str:
    """A mean with its interval."""
    if one is None or one.mean is None:
        return ""
    span = "" if one.low is None else f" [{one.low:.{places}f}, {one.high:.{places}f}]"
    return f"{one.mean:.{places}f}{span}"


def steps_table(predictions: pa.Table, model: str) -> Table:
    """A checkpoint a row: its figures, mean P(tie), and the mean change of a pair's P(tie) since the one before."""
    rows, before = [], None
    for step in pairwise.steps_of(predictions, model):
        pairs = pairwise.read(predictions, model, step)
        tie = 1.0 - decided(pairs)
        slope = calibration(pairs).slope
        moved = "" if before is None else f"{np.abs(tie - before).mean():.3f}"
        rows.append(
            (f"{step:,}", shown(accuracy(pairs)), shown(brier(pairs), 4), shown(slope, 2), f"{tie.mean():.3f}", moved)
        )
        before = tie
    return Table(
        "By training step", ("step", "accuracy on consensus", "Brier", "slope", "P(tie)", "change of P(tie)"), rows
    )


def differences(pairs: Pairs, model: Pairs) -> tuple[Estimate, Estimate]:
    """Accuracy on consensus and Brier score of `pairs` minus those of the model's predictions of the same pairs."""
    right, consensus = hits(pairs)
    change = np.stack([(right - hits(model)[0]) * consensus, consensus], axis=1).astype(np.float64)
    squares = (pairs.mean_P - pairs.score_P) ** 2 - (model.mean_P - model.score_P) ** 2
    return bootstrap(pairs, change, ratio), mean(squares, pairs)


def predictors_table(compared: Sequence[Predictor]) -> Table:
    """A predictor a row; differences are to the judge, paired over queries."""
    rows = []
    for one in compared:
        by_accuracy, by_brier = (None, None) if one is compared[0] else differences(one.pairs, compared[0].pairs)
        rows.append(
            (
                one.name, shown(one.accuracy), shown(by_accuracy), shown(one.brier, 4), shown(by_brier, 4),
                f"{one.calibration.ece:.3f}", shown(one.calibration.rms),
            )
        )  # fmt: skip
    columns = ("predictor", "accuracy on consensus", "difference", "Brier", "difference", "ECE", "calibration rms")
    return Table("At the last step", columns, rows)


def main(words: Sequence[str] | None = None) -> None:
    """Draw the figures of a run, print the tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("run", help="name of a run that distilled a judge")
    given = parser.parse_args(words)
    out = given.out or Path(given.root) / "studies"

    def run() -> Results:
        store, record = find_run(given.run, given.root)
        if "distill" not in record["stages"]:
            raise ConfigError(
                "the run distilled no judge",
                given.run,
                "name a run with a distilled judge: anmi run CONFIG --until distill",
            )
        made = Artifact(store, "distill", record["stages"]["distill"]["fingerprint"])
        predictions = made.read_part("predictions", 0, PREDICTION)
        others = sorted(set(predictions["model"].unique().to_pylist()) - {JUDGE})
        out.mkdir(parents=True, exist_ok=True)
        links = []
        for number, figure in figures(predictions, JUDGE, others):
            name = f"{STUDY.name}-{given.run}-{number}.svg"
            figure.savefig(out / name)
            links.append(f"![Figure {number}]({name})")
        pairs, queries = (pc.count_distinct(predictions[name]).as_py() for name in ("comparison_id", "query_id"))
        note = f"Run {given.run}: {pairs:,} held-out pairs of {queries:,} queries."
        tables = [steps_table(predictions, JUDGE), predictors_table(compare(predictions, JUDGE, others))]
        return Results(tables, [note, *links])

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
