"""A corpus changes: must all of its documents be asked about again?

    python -m jobs.studies.changed_corpus [--queries 200] [--documents 100]

Of a query's candidates 8 opponents each were asked about, in one order, to three simulated judges, who lean by .1, .3
and -.2 probits where an answer's noise has sd 1. Then documents of N(.5, 1) arrive, the old ones are N(0, 1), and push
out as many of those that the retriever, whose score correlates .5 with the truth, ranks last. No document is a known
positive. Ways to rate the candidates of now, by the functions of the stages compare and rate:
`anew`: another graph, all asked; with 8 opponents, 4, or adaptively (`top`, 4). `reused`: what a run does by itself; it
draws the graph by the query's id over the new list, and finds in the answer log what was asked before. `joined`: the
answers about pairs that stay, and of a graph drawn over the new list the pairs that hold a new document; of 8 opponents
or 4. `joined, gone kept`: the answers about documents that have gone stay in the fit too. `joined, top`: the same, but
a new document meets two others, and the calls of `joined, gone kept, 4` that are left go where the objective `top`
wants them. `fixed`: old ratings stand as they are, only new documents are rated. `online`: Elo with K = 32, halved
after 80 games, goes on over the answers.
Claims: (1) `joined` is as good as `anew`: nDCG@10 and P@10 are less by no more than .02, and the RMSE of all greater
by no more than 5 points. It holds where the 95 % interval over queries lies within, fails where it lies beyond, else
nothing can be told. (2) The answer log spares a run the questions about pairs of
documents that stay. It fails where fewer than half of them are drawn again. (3) The rating of a document that stays
can be compared with its rating of before. It fails where more than a tenth are told as changed at 5 %.

To read: calls are a query's to each judge. RMSE, in points, and coverage of the 95 % intervals are of ratings less the
mean of the candidates of now. nDCG@10 has gains of four to the power of the true rating. Differences are from `anew`,
with 95 % intervals over queries. Of documents that stay: how far the mean of their ratings moved, in points, and how
far that of the truth did, as the candidates' mean moves the other way; the shares that a test of two independent
ratings at 5 % tells as changed, as they are and less these documents' own means; and the sd of the moves about theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from anmi_ray.core.arrays import Reals
from anmi_ray.core.records import by_query
from anmi_ray.core.scale import to_elo
from anmi_ray.evaluation.replicates import Contrast, contrast
from jobs.studies import harness
from jobs.studies.changes import DEGREE, WAYS, Change, NowRated, changed, fitted
from jobs.studies.designs import TOP
from jobs.studies.harness import Results, Table

STUDY = harness.study("changed_corpus", "A corpus changes", __doc__ or "")
SHARES = (0.05, 0.2, 0.5)
MEASURES = ("RMSE", "RMSE, new", "RMSE, old", "P@10", "nDCG@10", "coverage", "coverage, new", "coverage, old")
MARGINS = {"RMSE": 5.0, "P@10": -0.02, "nDCG@10": -0.02}  # the most that is no loss; above 0: more is worse
AGAIN = 0.5  # of the pairs that stay: fewer drawn again are too few
CHANGED = 0.1  # of the documents that stay: more told as changed is too many
MOVED = ("moved", "truth's mean", "told as changed", "told, less own mean", "sd")
Rows = list[tuple[str, ...]]


def measured(of: Change, found: NowRated) -> Reals:
    """Every measure of every query, float64[8, Q]; coverage is NaN where there are no errors."""
    truth = to_elo(of.every.truth, "thurstone")
    found_: list[list[float]] = []
    for q in range(len(found.calls)):
        at = np.flatnonzero(of.after & (of.query == q))
        point = np.nan_to_num(found.rating[at])  # who met nobody is taken for the mean
        off = point - (truth[at] - truth[at].mean())
        groups = (np.ones(len(at), np.bool_), of.fresh[at], of.before[at])
        inside = np.where(np.isnan(found.error[at]), np.nan, np.abs(off) <= 1.96 * found.error[at])
        rmse = [float(np.sqrt(np.mean(np.square(off[one])))) for one in groups]
        cover = [float(np.nanmean(inside[one])) if not np.isnan(inside[one]).all() else math.nan for one in groups]
        found_.append([*rmse, *_top(point, of.every.truth[at]), *cover])
    return np.array(found_).T


def _top(fitted_: Reals, latent: Reals) -> tuple[float, float]:
    """Precision and nDCG at ten."""
    found, best = (np.argsort(-values, kind="stable")[:TOP] for values in (fitted_, latent))
    gains, discount = 4.0**latent, 1.0 / np.log2(np.arange(2, TOP + 2))
    return len(np.intersect1d(found, best)) / TOP, float(gains[found] @ discount / (gains[best] @ discount))


def verdict(one: Contrast, margin: float) -> str:
    """Whether a difference is no loss beyond the margin, by its interval; below 0 the margin is of what is lost."""
    low, high = (one.low, one.high) if margin > 0.0 else (-one.high, -one.low)
    return "holds" if high <= abs(margin) else "fails" if low > abs(margin) else "cannot tell"


def level(name: str, values: Reals) -> Contrast:
    """A mean over queries with its interval."""
    return contrast(name, "", [values[None, :]])


def less_anew(name: str, values: Reals, reference: Reals) -> dict[str, tuple[Contrast, str]]:
    """A way's differences from `anew` and their verdicts, by the measures that claim 1 is of."""
    found: dict[str, tuple[Contrast, str]] = {}
    for measure, margin in MARGINS.items():
        m = MEASURES.index(measure)
        one = contrast(name, "anew", [(values[m] - reference[m])[None, :]])
        found[measure] = one, verdict(one, margin)
    return found


def compared(of: Change, share: float) -> tuple[Rows, Rows, list[dict[str, Any]]]:
    """Of every way its levels, its differences from `anew`, and both as values."""
    results = {name: way(of) for name, way in WAYS.items()}
    figures = {name: measured(of, found) for name, found in results.items()}
    full = float(results["anew"].calls.mean())
    levels: Rows = []
    less: Rows = []
    values: list[dict[str, Any]] = []
    for name, found in results.items():
        calls = float(found.calls.mean())
        means = [None if np.isnan(one).all() else float(np.nanmean(one)) for one in figures[name]]
        by_measure = dict(zip(MEASURES, means, strict=True))
        levels.append((f"{share:.0%}", name, f"{calls:.0f}", *(_shown(*one) for one in by_measure.items())))
        values.append({"share": share, "way": name, "calls": calls, **by_measure})
        if name == "anew":
            continue
        told = less_anew(name, figures[name], figures["anew"])
        less.append((f"{share:.0%}", name, f"{calls / full:.0%}", *(_told(*one) for one in told.items())))
        values[-1] |= {f"{m}, less anew": {**asdict(one), "verdict": said} for m, (one, said) in told.items()}
    return levels, less, values


def _shown(measure: str, value: float | None) -> str:
    return "" if value is None else f"{value:.{0 if 'RMSE' in measure else 3}f}"


def _told(measure: str, told: tuple[Contrast, str]) -> str:
    (one, said), digits = told, 1 if measure == "RMSE" else 3
    return f"{one.difference:+.{digits}f} [{one.low:+.{digits}f}, {one.high:+.{digits}f}] {said}"


def drawn_again(queries: int, documents: int) -> tuple[Table, list[dict[str, Any]]]:
    """How many of the pairs that stay a run's own graph holds again."""
    cases = {"one replaced": (1, 1), "one added": (1, 0), "one gone": (0, 1)}
    cases |= {f"{share:.0%} replaced": (round(share * documents),) * 2 for share in SHARES}
    rows: Rows = []
    values: list[dict[str, Any]] = []
    for name, (arrived, gone) in cases.items():
        of = changed(queries, documents, arrived, gone)
        pairs = of.graph(DEGREE, 0)
        total = pairs.num_rows / queries
        again = total - of.calls(pairs)
        kept = np.array([one.num_rows for _, one in by_query(of.kept)])
        share = level(name, again / kept)
        said = "holds" if share.low >= AGAIN else "fails" if share.high < AGAIN else "cannot tell"
        rows.append((name, f"{total:.0f}", f"{kept.mean():.0f}", f"{again.mean():.0f}", harness.interval(share), said))
        values.append({"case": name, "pairs": total, "stay": float(kept.mean()), "share": asdict(share)})
    columns = ("change", "pairs of a query", "old pairs that stay", "drawn again", "share", "claim 2")
    return Table("Pairs that a run's own graph has again", columns, rows), values


def drift(of: Change, share: float) -> tuple[Rows, list[dict[str, Any]]]:
    """How far the ratings of documents that stay move across the change, and how many are told as changed."""
    before = fitted(of, of.before, of.asked, of.before)
    rows: Rows = []
    values: list[dict[str, Any]] = []
    for name in ("anew", "joined"):
        found = {measure: level(name, one) for measure, one in _moved(of, before, WAYS[name](of)).items()}
        cells = [harness.interval(one, places=0) for one in list(found.values())[:2]]
        for one in (found["told as changed"], found["told, less own mean"]):
            cells.append(f"{harness.interval(one)} {verdict(one, CHANGED)}")
        rows.append((f"{share:.0%}", name, *cells, f"{found['sd'].difference:.0f}"))
        values.append({"share": share, "way": name} | {measure: asdict(one) for measure, one in found.items()})
    return rows, values


def _moved(of: Change, before: NowRated, now: NowRated) -> dict[str, Reals]:
    """By query, of documents that stay: how far their mean rating moved, and should; how many are told; the sd."""
    truth = to_elo(of.every.truth, "thurstone")
    found: list[tuple[float, ...]] = []
    for q in range(len(now.calls)):
        here = of.query == q
        at = np.flatnonzero(here & of.before & of.after & ~np.isnan(now.rating + before.rating))
        moved = now.rating[at] - before.rating[at]
        own = moved - moved.mean()
        width = 1.96 * np.hypot(now.error[at], before.error[at])
        true = float(truth[here & of.before].mean() - truth[here & of.after].mean())
        told = [float(np.mean(np.abs(one) > width)) for one in (moved, own)]
        found.append((float(moved.mean()), true, *told, float(own.std())))
    return dict(zip(MOVED, np.array(found).T, strict=True))


def main(words: Sequence[str] | None = None) -> None:
    """Simulate, print the tables."""
    parser = harness.parser(STUDY)
    parser.add_argument("--queries", type=int, default=200, help="simulated queries of every share")
    parser.add_argument("--documents", type=int, default=100, help="documents a query")
    given = parser.parse_args(words)

    def run() -> Results:
        levels: Rows = []
        less: Rows = []
        moved: Rows = []
        values: dict[str, Any] = {"ways": [], "drift": []}
        notes: list[str] = []
        for share in SHARES:
            arrived = round(share * given.documents)
            of = changed(given.queries, given.documents, arrived, arrived)
            of_levels, of_less, of_ways = compared(of, share)
            of_drift, drifts = drift(of, share)
            levels, less, moved = levels + of_levels, less + of_less, moved + of_drift
            values["ways"] += of_ways
            values["drift"] += drifts
            notes.append(f"With {share:.0%} replaced {_new_at_top(of)}.")
        again, values["drawn again"] = drawn_again(given.queries, given.documents)
        columns = ("replaced", "way", "calls", *MEASURES)
        claimed = ("replaced", "way", "of anew's calls", *(f"{m}, less anew" for m in MARGINS))
        drifted = ("replaced", "way", *MOVED)
        tables = [Table("Ratings after the change", columns, levels), Table("Claim 1", claimed, less)]
        tables += [again, Table("Claim 3, documents that stay", drifted, moved)]
        return Results(tables, notes, values)

    harness.carry_out(STUDY, given, run)


def _new_at_top(of: Change) -> str:
    """How often new documents are truly among the best ten, and the best."""
    best = [
        at[np.argsort(-of.every.truth[at])[:TOP]]
        for at in (np.flatnonzero(of.after & (of.query == q)) for q in range(int(of.query[-1]) + 1))
    ]
    share = np.mean([of.fresh[one].mean() for one in best])
    first = np.mean([of.fresh[one[0]] for one in best])
    return f"{share:.0%} of the ten best are new, and in {first:.0%} of the queries the best is"


if __name__ == "__main__":
    main()
