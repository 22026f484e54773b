"""Data of a run's report, and report.json, which holds all its numbers; `run` renders the page from it.

Sections whose data are None or empty say that they are missing.
"""

from __future__ import annotations

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
    """Latent relevance, known from simulated judges, and ratings of whole queries; N documents.

    query: int[N], number of each document's query.
    truth_elo, rating_elo: float[N] in Elo points, of any mean per query.
    """

    query: NDArray[np.int64]
    truth_elo: NDArray[np.float64]
    rating_elo: NDArray[np.float64]


@dataclass(frozen=True)
class GapSample:
    """Gaps from the anchor in Elo points, by category of the negative.

    gaps: of all rated candidates.
    bands: name, low, high (None: open), and weight of the negatives in each.
    spread_elo: mean over queries of the ratings' standard deviation.
    chosen: gaps of the candidates that became negatives with a positive weight.
    """

    gaps: Mapping[str, NDArray[np.float64]]
    bands: Sequence[Json]
    spread_elo: float | None = None
    chosen: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class DesignRound:
    """State of an adaptive design after round `number` (1, 2, ...).

    queries: those with pairs chosen in this round.
    pairs: mean per query, over rounds 1 to `number`.
    answers: mean per judge.
    std_err_elo, top_std_err_elo: mean standard error of all documents and of each query's best, in Elo points.
    prior_elo: standard deviation of the fit's prior.
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
    """Rounds of an adaptive design.

    top: how many documents count as the best of a query.
    uniform_pairs: pairs per query that a uniform graph would need for the last round's error of the best.
    """

    rounds: tuple[DesignRound, ...]
    top: int
    uniform_pairs: float | None


def uniform_pairs(rounds: Sequence[DesignRound]) -> float | None:
    """Extrapolate pairs per query from the first round, whose graph is uniform.

    Answers add to the prior's precision about in proportion to their pairs: 1/error² = 1/prior² + c pairs.

    >>> uniform_pairs([DesignRound(1, 9, 100.0, 100.0, 180.0, 200.0), DesignRound(2, 9, 150.0, 150.0, 150.0, 100.0)])
    400.0
    """
    before, after = (
        one.top_std_err_elo**-2 - (one.prior_elo**-2 if one.prior_elo else 0.0) if one.top_std_err_elo else 0.0
        for one in (rounds[0], rounds[-1])
    )
    return rounds[0].pairs * after / before if before > 0 and after > 0 else None


@dataclass(frozen=True)
class ReportData:
    """Contents of report.json, with its keys.

    collection: name, documents, queries by split, qrels, rejects (place, reason, rows), labelled queries by split,
        left_out.
    comparisons: a row per system and measure, by labels.
    system, baseline, measure: of the headline.
    simulated: True if any judge behind the ratings was simulated.
    serving: cost of reranking (`stages.report.figures`).
    judges, panel: audited values (`audits.judge_audits`, `audits.panel_values`).
    spent: the judges' calls, tokens and dollars, a sentence each.
    distilled: what a distilled judge learned from and saved, its held-out values, and its reliability curve.
    fits, mining: counts and rates (`audits.fit_facts`, `audits.mining_facts`).
    example: a train query with some of its candidates, as shown.
    training: rows of the training log.
    stages: stage, seconds, reused, flows (rows_in = rows_out + rejected).
    queries: text, measure before and after, and the top documents of both systems.
    judged, judged_metrics: what judges measured, in total and query by query.
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
    """True if judges measured and no label did."""
    return not data.metrics.num_rows and data.judged is not None and bool(data.judged.comparisons)


def shown(data: ReportData) -> ReportData:
    """The data for the page: measured by judges in the absence of labels."""
    if data.judged is None or data.judged_metrics is None or not judges_alone(data):
        return data
    found = data.judged
    return replace(data, metrics=data.judged_metrics, comparisons=found.comparisons, measure=found.measure)


def extremes(
    metrics: pa.Table, measure: str, system: str, baseline: str, each: int = 3
) -> tuple[list[bytes], list[bytes]]:
    """Ids of the queries with the largest gains and the largest losses of `system`, at most `each`; ties by id."""
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

    kendall_tau (τ-b), pearson_r: means over queries, without those with a constant side.
    rmse_elo: pooled, in Elo points, after centring both on each query's mean.
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
            tau: Any = kendalltau(truth, rating)  # untyped in scipy
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
    """The headline's comparison; None if the system or the measure is missing."""
    wanted = (data.system, data.measure)
    return next((row for row in data.comparisons if (row.system, row.measure) == wanted and row.p is not None), None)


def to_json(data: ReportData) -> str:
    """report.json: NaN is null, ids are hexadecimal, one top-level key per line."""
    content = {"format": FORMAT, **plain(data), "metrics": _metrics(data.metrics)}
    content["judged_metrics"] = None if data.judged_metrics is None else _metrics(data.judged_metrics)
    content["agreement"] = plain(agreement(data.truth)) if data.truth is not None else None
    return a_key_a_line(content)


def _metrics(metrics: pa.Table) -> dict[str, Any]:
    """The query ids once, then a list of values per measure and system."""
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
