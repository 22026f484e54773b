"""What the report of a run is made from, and report.json, which holds all its numbers; `run` makes the page of it.

What is None or empty is said to be missing in its section.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.evaluation.fusion import WeightSweep
from anmi_ray.evaluation.headline import Headline
from anmi_ray.evaluation.judged import ByJudges
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.reports.page import a_key_a_line, plain

FORMAT = 1  # version of report.json
Json = Mapping[str, Any]


@dataclass(frozen=True)
class TruthSample:
    """A sample of whole queries whose latent relevance is known because their judges were simulated, in Elo points.

    Aligned arrays [N]: `query` numbers the query of each document; truth and ratings may have any mean per query.
    """

    query: NDArray[np.int64]
    truth_elo: NDArray[np.float64]
    rating_elo: NDArray[np.float64]


@dataclass(frozen=True)
class GapSample:
    """Gaps from the anchor in Elo points by category of the negative, and the bands that name them.

    gaps: of all rated candidates.
    bands: name, low, high (None is an open end) and weight of the negatives in it.
    spread_elo: mean over queries of the ratings' standard deviation, without which points mean little.
    chosen: gaps of the candidates that became negatives with a weight above 0.
    """

    gaps: Mapping[str, NDArray[np.float64]]
    bands: Sequence[Json]
    spread_elo: float | None = None
    chosen: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class DesignRound:
    """What is known after round `number` (1, 2, ...), from all that was asked so far.

    queries: those with pairs chosen in this round. pairs: mean over all queries, of all rounds so far. answers: mean
    over judges. Standard errors of ratings in Elo points: mean over documents, and over those that are the best of
    their query; None where nothing was rated. prior_elo: sd of the fit's prior.
    """

    number: int
    queries: int
    pairs: float
    answers: float
    std_err_elo: float | None
    top_std_err_elo: float | None
    prior_elo: float | None = None


@dataclass(frozen=True)
class Rounds:
    """The rounds of an adaptive design, and how many documents count as the best of a query.

    uniform_pairs: about the pairs a query that a uniform graph would need for the last round's error of the best.
    """

    rounds: tuple[DesignRound, ...]
    top: int
    uniform_pairs: float | None


def uniform_pairs(rounds: Sequence[DesignRound]) -> float | None:
    """Pairs a query, extrapolated from the first round, whose graph is uniform.

    What answers add to the prior's precision grows about as their pairs: 1/error² = 1/prior² + c pairs.

    >>> uniform_pairs([DesignRound(1, 9, 100.0, 100.0, 180.0, 200.0), DesignRound(2, 9, 150.0, 150.0, 150.0, 100.0)])
    400.0
    """
    before, after = (_added(one) for one in (rounds[0], rounds[-1]))
    return rounds[0].pairs * after / before if before > 0 and after > 0 else None


def _added(one: DesignRound) -> float:
    """The precision of the best documents' ratings, less the prior's."""
    if not one.top_std_err_elo:
        return 0.0
    return one.top_std_err_elo**-2 - (one.prior_elo**-2 if one.prior_elo else 0.0)


@dataclass(frozen=True)
class ReportData:
    """Everything that the report says; the groups are JSON values as they are in report.json.

    collection: name, documents, queries by split, qrels, rejects (place, reason, rows), labelled queries by split,
        left_out.
    comparisons: a row per system and measure, by labels.
    system, baseline, measure: what the headline compares.
    simulated: True if any judge behind the ratings was simulated.
    serving: what reranking takes (`stages.report.serving`).
    judges, panel: audited values (`audits.judge_audits`, `audits.panel_values`); spent: sentences.
    distilled: what a distilled judge learned from, saved, and its held-out values and reliability curve.
    fits, mining: counts and rates (`audits.fit_facts`, `audits.mining_facts`).
    example: one train query with some of its candidates in the order in which they are shown.
    training: rows of the training log: step, loss, ranking, regression, learning_rate, alpha, dev and further numbers.
    stages: stage, seconds, reused, flows (rows_in = rows_out + rejected).
    queries: text, measure before and after, and the top documents of both systems.
    judged: what judges measured, query by query in judged_metrics.
    """

    run: str
    collection: Json
    metrics: pa.Table
    comparisons: tuple[SystemComparison, ...]
    system: str
    baseline: str
    measure: str
    simulated: bool
    config_yaml: str
    level: float = 0.95
    first: Headline | None = None
    serving: Json | None = None
    fusion: WeightSweep | None = None
    judges: Sequence[Json] = ()
    panel: Sequence[Json] = ()
    spent: tuple[str, ...] = ()
    distilled: Json | None = None
    rounds: Rounds | None = None
    fits: Json | None = None
    truth: TruthSample | None = None
    example: Json | None = None
    gaps: GapSample | None = None
    mining: Json | None = None
    training: Sequence[Mapping[str, float | None]] = ()
    stages: Sequence[Json] = ()
    queries: Sequence[Json] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    relevance: Relevance | None = None
    judged: ByJudges | None = None
    judged_metrics: pa.Table | None = None


def judges_alone(data: ReportData) -> bool:
    """Whether judges measured and no label did."""
    return not data.metrics.num_rows and data.judged is not None and bool(data.judged.comparisons)


def shown(data: ReportData) -> ReportData:
    """The data as a page shows them: with what judges measured in the place of labels where there are none."""
    if data.judged is None or data.judged_metrics is None or not judges_alone(data):
        return data
    found = data.judged
    return replace(data, metrics=data.judged_metrics, comparisons=found.comparisons, measure=found.measure)


def extremes(
    metrics: pa.Table, measure: str, system: str, baseline: str, each: int = 3
) -> tuple[list[bytes], list[bytes]]:
    """Query ids with the largest gains and with the largest losses of `system`, at most `each`, ties by id."""
    values = by_system(metrics, measure)
    ids, after = values[system]
    difference = after - values[baseline][1]
    order = sorted(range(len(ids)), key=lambda i: (-difference[i], ids[i]))
    gains = [ids[i] for i in order if difference[i] > 0][:each]
    losses = [ids[i] for i in reversed(order) if difference[i] < 0][:each]
    return gains, losses


def centred(sample: TruthSample) -> TruthSample:
    """The sample with truth and rating at mean zero in every query."""
    _, group = np.unique(sample.query, return_inverse=True)
    size = np.bincount(group)
    truth = sample.truth_elo - (np.bincount(group, sample.truth_elo) / size)[group]
    rating = sample.rating_elo - (np.bincount(group, sample.rating_elo) / size)[group]
    return TruthSample(sample.query, truth, rating)


def agreement(sample: TruthSample) -> dict[str, float | None] | None:
    """How well ratings recover the truth; None for an empty sample.

    kendall_tau (τ-b), pearson_r: means over queries; a query with a constant side has none. rmse_elo: pooled, after
    centring both on each query's mean, in Elo points.
    """
    if not len(sample.query):
        return None
    from scipy.stats import kendalltau

    middle = centred(sample)
    taus: list[float] = []
    pearsons: list[float] = []
    queries = np.unique(sample.query)
    for query in queries:
        rows = sample.query == query
        truth = middle.truth_elo[rows]
        rating = middle.rating_elo[rows]
        if np.ptp(truth) > 0 and np.ptp(rating) > 0:
            tau: Any = kendalltau(truth, rating)  # a result type of its own that scipy leaves untyped
            taus.append(float(tau.statistic))
            pearsons.append(float(truth @ rating / math.sqrt(float((truth @ truth) * (rating @ rating)))))
    error = middle.rating_elo - middle.truth_elo
    return {
        "queries": len(queries),
        "documents": len(error),
        "kendall_tau": float(np.mean(taus)) if taus else None,
        "pearson_r": float(np.mean(pearsons)) if pearsons else None,
        "rmse_elo": float(np.sqrt(np.mean(error**2))),
    }


def headline_row(data: ReportData) -> SystemComparison | None:
    """The headline's comparison, or None if the system or the measure is missing."""
    wanted = (data.system, data.measure)
    return next((row for row in data.comparisons if (row.system, row.measure) == wanted and row.p is not None), None)


def to_json(data: ReportData) -> str:
    """report.json: every number of the report; NaN is null, ids are hexadecimal, one key of the top a line."""
    content: dict[str, Any] = {"format": FORMAT}
    for item in dataclasses.fields(data):
        content[item.name] = plain(getattr(data, item.name))
    content["metrics"] = _metrics(data.metrics)
    content["judged_metrics"] = None if data.judged_metrics is None else _metrics(data.judged_metrics)
    content["agreement"] = plain(agreement(data.truth)) if data.truth is not None else None
    return a_key_a_line(content)


def _metrics(metrics: pa.Table) -> dict[str, Any]:
    """Columns instead of rows: the queries once, then a list of values per measure and system."""
    measures = list(dict.fromkeys(metrics["measure"].to_pylist()))
    values = {measure: by_system(metrics, measure) for measure in measures}
    queries = sorted(set(metrics["query_id"].to_pylist()))
    return {
        "query_id": [query.hex() for query in queries],
        "values": {
            measure: {
                system: [value.get(query) for query in queries]  # null where a peer failed
                for system, (ids, column) in systems.items()
                for value in [dict(zip(ids, column.tolist(), strict=True))]
            }
            for measure, systems in values.items()
        },
    }
