"""Which pairs to ask about: a uniform graph, or those whose answers tell most? At the same number of calls.

    python -m jobs.studies.designs [--queries 100] [--documents 100]

Three simulated judges lean towards the document that is shown first (.1, .3 and -.2 probits where an answer's noise has
sd 1), and half of that noise's variance is alike in both orders of a pair. Ratings are N(0, 1) in probits, the best
document is the known positive. `uniform` is the k-regular graph in both orders (`both`) or one; `top`, `negatives` and
`all` are `compare.design: adaptive` with that objective, in one order, in five rounds, carried out by the functions of
the stages compare and rate. A call is one question to one judge. Nothing of the truth is known to a design but which
document is the positive, which the uniform graphs' fits know too.
In the second table the documents come ranked by a first stage whose score correlates with their true ratings. `top`
chooses by the answers alone, or by the ranks too, as the stages do: their worth is fitted to the answers.
In the third table a design stops at an error (`compare.target_error`), or at 16 opponents a document.

To read: Calls are a query's to each judge. P@10 is the share of the ten truly best among the ten rated best; nDCG@10
has gains of four to the power of the true rating. Of negatives: documents whose fitted gap to the positive is with 95 %
probability at least 150 points, the ten of the smallest fitted gap of a query; false ones are truly nearer than 150
points, and a smaller mean true gap means harder negatives. RMSE, in points, and coverage of the 95 % intervals are of
all ratings less their query's mean, and coverage of those that are rated the best ten. Beside a cell stands its
difference to the first row, with its 95 % interval over queries; in the second table to the row above, which is blind
to ranks. Ratings are what the rate stage gives; ratings and ranks are what the design knows. In the third table calls
are a mean, and those of all queries but the tenth that asks fewest and the tenth that asks most; errors are root mean
squares, in points, of what the objective wants, by the design's covariances and by the truth.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anmi_ray import comparisons, rating
from anmi_ray.comparisons.adaptive import error, objective_matrix
from anmi_ray.config.compare import CompareConfig, Objective
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.records import by_query
from anmi_ray.core.scale import Model, normal_cdf, to_elo
from anmi_ray.stages.compare import known_by
from jobs.studies import harness
from jobs.studies.both_orders import World, world
from jobs.studies.harness import Results, Table

STUDY = harness.study("designs", "Which pairs to ask about", __doc__ or "")
LEANINGS = (0.1, 0.3, -0.2)
TOP, NEAR, SURE = 10, 150.0, 0.95
_ONE = RateConfig(judge_offsets=True)
OBJECTIVES: tuple[Objective, ...] = ("top", "negatives")
TARGETS = (120.0, 100.0, 80.0)  # points
HIGHEST = 16  # degree that ends a design whose target is not reached
FIRST_STAGES = (0.0, 0.5, 0.7)  # correlations
MEASURES = ("P@10", "nDCG@10", "false negatives", "their true gap", "RMSE", "coverage", "coverage, top 10")


@dataclass(frozen=True)
class Design:
    """A row: how pairs are chosen, how many others a document meets, and whether both orders are asked."""

    name: str
    degree: int
    both: bool = False
    ranks: bool = True
    target: float | None = None

    def calls(self, documents: int) -> int:
        """Questions of a query to each judge."""
        return documents * self.degree // 2 * (2 if self.both else 1)


DESIGNS = (
    Design("uniform", 8, both=True),
    Design("uniform", 16),
    Design("uniform", 8),
    Design("uniform", 4),
    Design("top", 3),
    Design("top", 4),
    Design("top", 6),
    Design("negatives", 4),
    Design("negatives", 6),
    Design("all", 8),
    Design("all", 12),
)


def measured(of: World, design: Design) -> Reals:
    """Every measure of every query, float64[7, Q]; NaN where a query has nothing to measure."""
    config = _ONE if not design.both else RateConfig()
    pairs, judgments = asked(of, design, config)
    tables = judgments, pairs, of.candidates
    shared = rating.fit_globals(*tables, config)
    found = rating.rate(*tables, shared, config)
    gaps = dict(by_query(found.gaps))
    truth = to_elo(of.truth, "thurstone")
    rows = []
    for query, ratings in by_query(found.ratings):
        at = of.row(ratings, "doc_id")
        fitted, error = (ratings[name].to_numpy() for name in ("rating_elo", "std_err_elo"))
        measures = (_top(fitted, of.truth[at]), _negatives(gaps[query], of, truth), _errors(fitted, error, truth[at]))
        rows.append([value for each in measures for value in each])
    return np.array(rows).T


def asked(of: World, design: Design, config: RateConfig) -> tuple[pa.Table, pa.Table]:
    """The comparisons of a design and what the judges say of them."""
    orders = "both" if design.both else "one"
    if design.name == "uniform":
        pairs, _ = comparisons.compare(of.candidates, CompareConfig(degree=design.degree), of.seed)
        return pairs, of.judgments(pairs, LEANINGS, orders)
    compare = CompareConfig.model_validate(
        {"design": "adaptive", "objective": design.name, "degree": design.degree, "target_error": design.target}
    )
    pairs, _ = comparisons.first_round(of.candidates, compare, of.seed)
    for number in range(1, compare.rounds):
        judgments = of.judgments(pairs, LEANINGS, orders)
        known, model = believed(of, pairs, judgments, config, design.ranks)
        pairs = comparisons.next_round(pairs, known_by(known), compare, number, model)
    return pairs, of.judgments(pairs, LEANINGS, orders)


def believed(
    of: World, pairs: pa.Table, judgments: pa.Table, config: RateConfig, ranks: bool
) -> tuple[Iterator[rating.QueryBeliefs], Model]:
    """What is known of every query, by ranks too or by answers alone."""
    tables = judgments, pairs, of.candidates
    shared = rating.fit_globals(*tables, config)
    slopes = rating.worth(*tables, shared, config).slopes().tolist() if ranks else (0.0, 0.0)
    return rating.beliefs(*tables, shared, config, slopes), shared.model


def with_ranks(of: World, design: Design) -> list[Reals]:
    """P@10 and nDCG@10 of every query, float64[2, Q] each: of the first stage, of ratings, of ratings and ranks."""
    found: list[list[tuple[float, float]]] = [[], [], []]
    for at, each in scored(of, design):
        for values, scores in zip(found, each, strict=True):
            values.append(_top(scores, of.truth[at]))
    return [np.array(values).T for values in found]


def scored(of: World, design: Design) -> Iterator[tuple[Ints, tuple[Reals, Reals, Reals]]]:
    """For each query, its rows of `of.candidates` and their scores by first stage, ratings, ratings and ranks."""
    pairs, judgments = asked(of, design, _ONE)
    ratings, _ = believed(of, pairs, judgments, _ONE, ranks=False)
    together, _ = believed(of, pairs, judgments, _ONE, ranks=True)
    ranks = of.candidates["rank"].to_numpy()
    for alone, both in zip(ratings, together, strict=True):
        at = of.rows_of(alone.query_id, alone.doc_ids)
        yield at, (-ranks[at].astype(np.float64), alone.mean, both.mean)


def first_stages(queries: int, documents: int) -> tuple[Table, list[dict[str, object]]]:
    """What ranks are worth to the design `top`, by their correlation with the truth."""
    rows: list[tuple[str, ...]] = []
    values: list[dict[str, object]] = []
    for correlation in FIRST_STAGES:
        of = world(queries, documents, first_stage=correlation)
        for degree in (3, 4):
            blind: list[Reals] | None = None
            for ranks in (False, True):
                design = Design("top", degree, ranks=ranks)
                found = with_ranks(of, design)
                cells = [
                    _cell(one[m], before[m], 3)
                    for m in (0, 1)
                    for one, before in zip(found, blind or found, strict=True)
                ]
                chosen = "answers and ranks" if ranks else "answers"
                rows.append((f"{correlation:g}", f"{design.calls(documents):,}", chosen, *cells))
                means = [one.mean(axis=1).tolist() for one in found]
                values.append({"correlation": correlation, "degree": degree, "ranks": ranks, "means": means})
                blind = found
    ranked = ("first stage", "ratings", "ratings and ranks")
    columns = [f"{measure}, {name}" for measure in ("P@10", "nDCG@10") for name in ranked]
    return Table("What a first stage's order is worth", ("correlation", "calls", "chosen by", *columns), rows), values


def targets(queries: int) -> tuple[Table, list[dict[str, object]]]:
    """What designs with a target error ask, and how large the error is that they leave."""
    rows: list[tuple[str, ...]] = []
    values: list[dict[str, object]] = []
    for documents in (100, 30):
        of = world(queries, documents)
        for objective, target in itertools.product(OBJECTIVES, TARGETS):
            pairs, judgments = asked(of, Design(objective, HIGHEST, target=target), _ONE)
            calls = np.array(list(Counter(pairs["query_id"].to_pylist()).values()))
            few, many = np.percentile(calls, (10, 90))
            said, true = _reached(of, pairs, judgments, objective)
            rows.append(
                (objective, str(documents), f"{target:g}", f"{calls.mean():.0f}", f"{few:.0f} to {many:.0f}",
                 f"{said:.0f}", f"{true:.0f}")
            )  # fmt: skip
            values.append({"objective": objective, "documents": documents, "target": target,
                           "calls": float(calls.mean()), "said": said, "true": true})  # fmt: skip
    columns = ("objective", "documents", "target", "calls", "of most queries", "error as known", "true error")
    return Table("Designs that stop at an error", columns, rows), values


def _reached(of: World, pairs: pa.Table, judgments: pa.Table, objective: Objective) -> tuple[float, float]:
    """Root mean squares, in points, of the error of what is wanted: as it is known, and by the truth."""
    known_of, model = believed(of, pairs, judgments, _ONE, ranks=True)
    said: list[float] = []
    true: list[float] = []
    for query, known in known_by(known_of).items():
        beliefs = known.beliefs
        m = objective_matrix(beliefs, objective, model)
        off = beliefs.mean - of.truth[of.rows_of(query, known.doc_ids)]
        variance = error(beliefs, objective, model) ** 2
        said.append(variance)
        true.append(float(variance * (off @ m @ off) / np.sum(m * beliefs.covariance)))
    return tuple(float(to_elo(math.sqrt(np.mean(one)), "thurstone")) for one in (said, true))  # type: ignore[return-value]


def _top(fitted: Reals, latent: Reals) -> tuple[float, float]:
    """Precision and nDCG at ten."""
    found, best = (np.argsort(-values, kind="stable")[:TOP] for values in (fitted, latent))
    gains, discount = 4.0**latent, 1.0 / np.log2(np.arange(2, TOP + 2))
    shared = len(np.intersect1d(found, best))
    return shared / TOP, float(gains[found] @ discount[: len(found)] / (gains[best] @ discount[: len(best)]))


def _negatives(gaps: pa.Table, of: World, truth: Reals) -> tuple[float, float]:
    """Share of false ones among a query's negatives, and the mean of their true gaps."""
    anchor, document = (of.row(gaps, name) for name in ("anchor_id", "doc_id"))
    fitted, error = (gaps[name].to_numpy() for name in ("gap_elo", "gap_se_elo"))
    other = anchor != document
    sure = np.flatnonzero(other & (normal_cdf((fitted - NEAR) / np.where(other, error, 1.0)) >= SURE))
    taken = sure[np.argsort(fitted[sure], kind="stable")[:TOP]]
    true = truth[anchor[taken]] - truth[document[taken]]
    return (float(np.mean(true < NEAR)), float(true.mean())) if len(taken) else (math.nan, math.nan)


def _errors(fitted: Reals, error: Reals, true: Reals) -> tuple[float, float, float]:
    off = (fitted - fitted.mean()) - (true - true.mean())
    inside = np.abs(off) <= 1.96 * error
    best = np.argsort(-fitted, kind="stable")[:TOP]
    return float(np.sqrt(np.mean(off * off))), float(inside.mean()), float(inside[best].mean())


def _cell(values: Reals, reference: Reals, digits: int) -> str:
    """A mean, and its difference to the reference's, query by query."""
    less = (values - reference)[~np.isnan(values - reference)]
    text = f"{np.nanmean(values):.{digits}f}"
    if not less.any():
        return text
    half = 1.96 * float(less.std(ddof=1)) / math.sqrt(len(less))
    return f"{text} ({less.mean():+.{digits}f} ± {half:.{digits}f})"


def main(words: Sequence[str] | None = None) -> None:
    """Simulate, print the table."""
    parser = harness.parser(STUDY)
    parser.add_argument("--queries", type=int, default=100, help="simulated queries a row")
    parser.add_argument("--documents", type=int, default=100, help="documents a query")
    given = parser.parse_args(words)

    def run() -> Results:
        of = world(given.queries, given.documents)
        found = {design: measured(of, design) for design in DESIGNS}
        reference = found[DESIGNS[0]]
        digits = (3, 3, 3, 0, 0, 3, 3)
        rows = []
        for design, values in found.items():
            cells = [_cell(*one) for one in zip(values, reference, digits, strict=True)]
            calls = f"{design.calls(given.documents):,}"
            rows.append((design.name, "both" if design.both else "one", calls, *cells))
        table = Table("Designs at their calls", ("design", "orders", "calls", *MEASURES), rows)
        values = [
            {"design": design.name, "both": design.both, "calls": design.calls(given.documents)}
            | dict(zip(MEASURES, np.nanmean(of_design, axis=1).tolist(), strict=True))
            for design, of_design in found.items()
        ]
        ranked, of_ranks = first_stages(given.queries, given.documents)
        stopped, of_targets = targets(given.queries)
        found_all = {"designs": values, "first stages": of_ranks, "targets": of_targets}
        return Results([table, ranked, stopped], values=found_all)

    harness.carry_out(STUDY, given, run)


if __name__ == "__main__":
    main()
