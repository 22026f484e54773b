"""What the report of a run is made from, and report.json, which holds all its numbers; `run` makes the page of it.

What is None or empty is said to be missing in its section.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.evaluation.fusion import WeightSweep
from anmi_ray.evaluation.headline import Headline
from anmi_ray.evaluation.judged import ByJudges
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.evaluation.significance import Estimate, SystemComparison, by_system
from anmi_ray.reports.page import a_key_a_line, plain
from anmi_ray.reports.rounds import Rounds

FORMAT = 1  # version of report.json


@dataclass(frozen=True)
class RejectCount:
    """Rows refused in one stage or file for one reason."""

    place: str
    reason: str
    rows: int


@dataclass(frozen=True)
class Collection:
    """What was searched: counts of documents, of queries by split (labelled: with a relevant document; left_out: those
    without that are no part of it), of relevance grades, and what was refused.
    """

    name: str
    documents: int
    queries: Mapping[str, int]
    qrels: int
    rejects: tuple[RejectCount, ...] = ()
    labelled: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0


@dataclass(frozen=True)
class JudgeValue:
    """One audited quantity of a judge; `injected` is what a simulated judge was told to have.

    `inside` says whether the interval holds the injected value; None where that is not to be expected.
    """

    quantity: str
    recovered: float | None
    injected: float | None = None
    low: float | None = None
    high: float | None = None
    inside: bool | None = None


@dataclass(frozen=True)
class JudgeAudit:
    """The audit of one judge."""

    judge: str
    simulated: bool
    values: tuple[JudgeValue, ...]


@dataclass(frozen=True)
class DistilledFacts:
    """A judge learned from `judgments` of an ensemble about `pairs` pairs, where the run has `asked` pairs to judge.

    saved: share of the ensemble's judgments that all of those would have taken.
    values: figures on `test_pairs` pairs of queries that it did not learn from.
    curve: (predicted, observed) mean scores of equal buckets of these pairs.
    """

    judges: tuple[str, ...]
    ensemble: tuple[str, ...]
    pairs: int
    judgments: int
    asked: int
    saved: float | None
    test_pairs: int | None = None
    values: tuple[JudgeValue, ...] = ()
    curve: tuple[tuple[float, Estimate], ...] = ()


@dataclass(frozen=True)
class TruthSample:
    """A sample of whole queries whose latent relevance is known because their judges were simulated, in Elo points.

    Aligned arrays [N]: `query` numbers the query of each document; truth and ratings may have any mean per query.
    """

    query: NDArray[np.int64]
    truth_elo: NDArray[np.float64]
    rating_elo: NDArray[np.float64]


@dataclass(frozen=True)
class Quantiles:
    """Median, 5 % and 95 % quantile over queries; each is the value of some query."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class FitFacts:
    """How the fits of the train queries went.

    `equal` counts queries whose ratings vary no more than noise would (p > .05 in the test of equal ratings);
    `cycle_rate` is the share of all `triads` that run in a circle. `quantiles` are of `sampled` queries, by the Fit
    record's columns, and `deviance_per_df` of the deviance over comparisons - documents + components.
    """

    queries: int
    not_converged: int
    disconnected: int
    equal: int
    triads: int
    cycle_rate: float | None
    sampled: int
    quantiles: Mapping[str, Quantiles]
    prior: str = ""


@dataclass(frozen=True)
class RatedDocument:
    """A candidate of the example query with its rating and standard error, in Elo points."""

    title: str
    text: str
    rating_elo: float
    std_err_elo: float
    is_positive: bool
    truth_elo: float | None = None


@dataclass(frozen=True)
class RatedQuery:
    """One train query with some of its candidates, in the order in which they are to be shown."""

    query: str
    documents: tuple[RatedDocument, ...]
    candidates: int
    comparisons: int


@dataclass(frozen=True)
class GapBand:
    """A range of gaps [low, high) in Elo points with the weight its negatives get; None is an open end."""

    name: str
    low: float | None
    high: float | None
    weight: float


@dataclass(frozen=True)
class GapSample:
    """Gaps from the anchor in Elo points by category of the negative, and the bands that name them.

    `gaps` are of all rated candidates, `chosen` of those that became negatives with a weight above 0. `spread_elo` is
    the mean over queries of the ratings' standard deviation, without which points mean little.
    """

    gaps: Mapping[str, NDArray[np.float64]]
    bands: tuple[GapBand, ...]
    spread_elo: float | None = None
    chosen: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True)
class MiningFacts:
    """What was mined; the false negative rate is the weighted share of chosen negatives with a true gap below δ₀."""

    examples: int
    queries: int
    negatives_per_example: float | None
    mean_gap_elo: float | None
    mean_gap_se_elo: float | None
    false_negative_gap_elo: float
    false_negative_rate: float | None
    false_negative_low: float | None = None
    false_negative_high: float | None = None
    validated: Mapping[str, int] | None = None  # borderline documents by what their direct judgment said
    pseudo_positives: int | None = None
    rated_share: float | None = None  # of the negatives' weight, on rated ones; random ones have the rest


@dataclass(frozen=True)
class StageFlow:
    """Rows of one unit through a stage; rows_in = rows_out + rejected."""

    unit: str
    rows_in: int
    rows_out: int
    rejected: int


@dataclass(frozen=True)
class StageTime:
    """How long a stage took (the run that computed it, in seconds), and what passed through it."""

    stage: str
    seconds: float
    reused: bool
    flows: tuple[StageFlow, ...] = ()


@dataclass(frozen=True)
class Hit:
    """One ranked document as a reader sees it."""

    title: str
    text: str
    relevant: bool


@dataclass(frozen=True)
class QueryPair:
    """A query's top documents under the baseline and under the system, and its headline measure under both."""

    query: str
    before: float
    after: float
    baseline_hits: tuple[Hit, ...]
    system_hits: tuple[Hit, ...]


@dataclass(frozen=True)
class Serving:
    """What reranking takes, as measured on the held-out queries, and the model that it takes.

    seconds: of scoring the top `depth` documents of `queries` queries on `cores` cores (None: a cluster's or a GPU's),
    start of the processes included; None where it was not measured whole. `documents`: how many were encoded, each once
    for all queries; None where every pair was read for itself. `parameters` of the model, `model_bytes` of its weights.
    """

    depth: int
    queries: int
    seconds: float | None = None
    cores: int | None = None
    documents: int | None = None
    parameters: int | None = None
    model_bytes: int | None = None

    @property
    def query_ms(self) -> float | None:
        """Milliseconds a query, of all that were scored together."""
        return None if self.seconds is None or not self.queries else 1000 * self.seconds / self.queries

    @property
    def alone_ms(self) -> float | None:
        """About the milliseconds of a query whose documents are encoded for it alone; None if that is no other."""
        return None if self.seconds is None or not self.documents else 1000 * self.seconds * self.depth / self.documents


@dataclass(frozen=True)
class ReportData:
    """Everything that the report says.

    `system` and `baseline` are what the headline compares, under `measure`; `comparisons` holds a row per system for
    every measure, by labels; `judged` what judges measured, query by query in `judged_metrics`. `simulated` is true if
    any judge behind the ratings, and so behind the model, was simulated.
    `training` rows are the training log: step, loss, ranking, regression, learning_rate, alpha, dev, absent or None
    where not measured; further numbers are kept in report.json.
    """

    run: str
    collection: Collection
    metrics: pa.Table
    comparisons: tuple[SystemComparison, ...]
    system: str
    baseline: str
    measure: str
    simulated: bool
    config_yaml: str
    level: float = 0.95
    first: Headline | None = None
    serving: Serving | None = None
    fusion: WeightSweep | None = None
    judges: tuple[JudgeAudit, ...] = ()
    panel: tuple[JudgeValue, ...] = ()
    spent: tuple[str, ...] = ()
    distilled: DistilledFacts | None = None
    rounds: Rounds | None = None
    fits: FitFacts | None = None
    truth: TruthSample | None = None
    example: RatedQuery | None = None
    gaps: GapSample | None = None
    mining: MiningFacts | None = None
    training: tuple[Mapping[str, float | None], ...] = ()
    stages: tuple[StageTime, ...] = ()
    queries: tuple[QueryPair, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    relevance: Relevance | None = None
    judged: ByJudges | None = None
    judged_metrics: pa.Table | None = None


@dataclass(frozen=True)
class Agreement:
    """How well ratings recover the truth: means over queries of Kendall's τ-b and of Pearson's r, and the pooled RMSE.

    The RMSE is after centring both on each query's mean, in Elo points; queries with a constant side have no τ, r.
    """

    queries: int
    documents: int
    kendall_tau: float | None
    pearson_r: float | None
    rmse_elo: float


def centred(sample: TruthSample) -> TruthSample:
    """The sample with truth and rating at mean zero in every query."""
    _, group = np.unique(sample.query, return_inverse=True)
    size = np.bincount(group)
    truth = sample.truth_elo - (np.bincount(group, sample.truth_elo) / size)[group]
    rating = sample.rating_elo - (np.bincount(group, sample.rating_elo) / size)[group]
    return TruthSample(sample.query, truth, rating)


def agreement(sample: TruthSample) -> Agreement | None:
    """Agreement of ratings with the truth, per query; None for an empty sample."""
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
    return Agreement(
        len(queries),
        len(error),
        float(np.mean(taus)) if taus else None,
        float(np.mean(pearsons)) if pearsons else None,
        float(np.sqrt(np.mean(error**2))),
    )


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
