"""Measurement of held-out queries by judges' answers about pooled documents, instead of labels or next to them.

The gain of a document is P(it answers the query): the mean over the judges who answered, calibrated on labels if some
of these queries have them. Gains are in thousandths, since ir_measures needs whole grades; nDCG does not depend on the
scale. Unjudged documents have no gain. Letters: N pooled documents, S systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray
from pydantic import TypeAdapter
from scipy import special

from anmi_ray.core.identity import ID, rng
from anmi_ray.core.records import QREL, find_rows
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.significance import SystemComparison, by_system

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]
YES = 0.5  # above it the judges' mean answer is a yes
GRADES = 1000  # of a gain of 1: more levels cost the library memory for each
_FOLDS = 5
ENOUGH = 20  # labelled queries from which on two numbers are fitted to them, and they alone choose
_PAIR = ("query_id", "doc_id")


@dataclass(frozen=True)
class LabelAgreement:
    """Agreement of judges with labels, on queries that have both; None if unknown.

    graded: True if only documents with a label were compared; else documents without one count as not relevant.
    auc: of answers against labels.
    kappa: Cohen's, of answers above 1/2.
    tau: Kendall's tau-b of the systems' order by mean measure.
    """

    queries: int
    documents: int
    graded: bool
    auc: float | None
    kappa: float | None
    tau: float | None


@dataclass(frozen=True)
class ByJudges:
    """Systems as measured by judges on test queries.

    measure: nDCG to the pool's depth.
    own_panel: True if `evaluate.judge` names a separate panel.
    simulated: True if any of them is simulated.
    asked, queries: test queries with answers, and those with a confirmed document; the others measure nothing.
    calibration: scale of the gains, in words.
    comparisons: a row per system, with the baseline.
    win_rates: by two systems, the share of queries on which the first ranks better, ties half.
    agreement: with labels, if there are any.
    fault: a problem of all figures, or "".
    """

    measure: str
    judges: tuple[str, ...]
    own_panel: bool
    simulated: bool
    asked: int
    queries: int
    documents: int
    calibration: str
    comparisons: tuple[SystemComparison, ...] = ()
    win_rates: Mapping[str, Mapping[str, float]] | None = None
    agreement: LabelAgreement | None = None
    fault: str = ""

    def said(self) -> str:
        """Source of the gains, in a sentence."""
        whose = "a separate panel" if self.own_panel else "the run's own panel"
        simulated = ", simulated" if self.simulated else ""
        names = ", ".join(self.judges)
        return f"judges, not people, gave these gains: {names}, {whose}{simulated}; {self.calibration}"


def from_json(content: Mapping[str, Any]) -> ByJudges:
    """Read measurements from JSON."""
    return TypeAdapter(ByJudges).validate_python(content)


def gains(answers: pa.Table, probability: Reals) -> pa.Table:
    """Qrels of thousandths of `probability` float[N], for the queries with a document that judges confirm.

    answers: query_id, doc_id, answer (NaN: no judge answered). Queries without a confirmed document measure nothing,
    like those without a relevant document by labels.
    """
    answer = answers["answer"].to_numpy()
    confirmed = pc.unique(answers.filter(pa.array(answer > YES))["query_id"])
    kept = np.isfinite(answer) & pc.is_in(answers["query_id"], value_set=confirmed).to_numpy()
    return graded(answers.filter(pa.array(kept)), probability[kept])


def tell(qrels: pa.Table) -> bool:
    """True if any query has a relevant document."""
    return bool(pc.any(pc.greater(qrels["grade"], 0)).as_py())


def labels_choose(qrels: pa.Table, by_judges: pa.Table) -> bool:
    """True if labels (`qrels`) measure dev, not judges: enough queries have one, or as many as judges measure."""
    labelled, judged = (
        pc.count_distinct(rows.filter(pc.greater(rows["grade"], 0))["query_id"]).as_py() for rows in (qrels, by_judges)
    )
    return labelled >= min(ENOUGH, judged)


def graded(pairs: pa.Table, probability: Reals) -> pa.Table:
    """Qrels of `pairs` (query_id, doc_id) whose grades are thousandths of `probability` float[N]."""
    grades = np.rint(GRADES * probability).astype(np.int32)
    return QREL.table({**{name: pairs[name] for name in _PAIR}, "grade": pa.array(grades)})


def calibrated(answers: pa.Table, qrels: pa.Table, seed: int = 0) -> tuple[Reals, str]:
    """P(relevant) float[N] of `answers` as in `gains`, and the method in words.

    With enough labelled queries: a logistic regression of label on the answer's logit, fitted out of fold for these and
    on all of them for the others. Else, or if answers do not rise with labels, the answers as they are. Documents
    without a label count as not relevant.
    """
    answer = answers["answer"].to_numpy()
    query = np.array(answers["query_id"].to_pylist(), dtype=object)
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))
    labelled = np.isin(query, np.array(relevant["query_id"].to_pylist(), dtype=object)) & np.isfinite(answer)
    label = find_rows(relevant, {name: answers[name] for name in _PAIR}) >= 0
    names = np.unique(query[labelled])
    if len(names) < ENOUGH:
        return answer, "not calibrated: too few of these queries have labels"
    logit = special.logit(np.clip(np.nan_to_num(answer, nan=YES), 1e-3, 1 - 1e-3))
    fold_of = dict(zip(names, rng("judged folds", seed).permutation(len(names)) % _FOLDS, strict=True))
    fold = np.array([fold_of.get(one, -1) for one in query])
    probability = np.full(len(answer), np.nan)
    for number in (-1, *range(_FOLDS)):
        mine = np.isfinite(answer) & (fold == number)
        line = logistic(logit[labelled & (fold != number)], label[labelled & (fold != number)])
        if line is None:
            return answer, "not calibrated: answers do not rise with labels"
        probability[mine] = special.expit(line[0] + line[1] * logit[mine])
    return probability, f"calibrated on the labels of {len(names):,} queries, out of fold"


def logistic(x: Reals, y: Flags | Reals) -> Reals | None:
    """Intercept and slope of y in [0, 1] on x; None if all y are alike or the slope is not positive."""
    if not len(y) or y.min() == y.max():
        return None
    from scipy import optimize  # slow to import

    def loss(line: Reals) -> tuple[float, Reals]:
        z = line[0] + line[1] * x
        error = special.expit(z) - y
        value = float(np.mean(np.logaddexp(0.0, z) - y * z)) + 1e-6 * float(line @ line)
        return value, np.array([error.mean(), (error * x).mean()]) + 2e-6 * line

    coefficients = optimize.minimize(loss, np.zeros(2), jac=True, method="BFGS").x
    return coefficients if coefficients[1] > 0 else None


def win_rates(metrics: pa.Table, measure: str, systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """By two systems, the share of their common queries on which the first is better, ties half."""
    values = {name: dict(zip(ids, v.tolist(), strict=True)) for name, (ids, v) in by_system(metrics, measure).items()}
    rates: dict[str, dict[str, float]] = {}
    for a in systems:
        for b in systems:
            both = sorted(values[a].keys() & values[b].keys())
            if a != b and both:
                sign = [np.sign(values[a][query] - values[b][query]) for query in both]
                rates.setdefault(a, {})[b] = float(0.5 + 0.5 * np.mean(sign))
    return rates


def judged_share(runs: pa.Table, judged: pa.Table, queries: pa.Array, depth: int) -> dict[str, float]:
    """By system, the share of the top `depth` documents of `queries` in the rows `known`."""
    top = runs.filter(pc.and_(pc.less_equal(runs["rank"], depth), pc.is_in(runs["query_id"], value_set=queries)))
    is_judged = find_rows(judged, {name: top[name] for name in _PAIR}) >= 0
    share = pa.table({"system": top["system"], "held": is_judged.astype(np.float64)}).group_by("system")
    rows = share.aggregate([("held", "mean")]).to_pylist()
    return {row["system"]: row["held_mean"] for row in rows}


def with_shares(rows: Sequence[SystemComparison], shares: Mapping[str, float]) -> tuple[SystemComparison, ...]:
    """The rows, each with the share of its system."""
    return tuple(replace(row, judged=shares.get(row.system)) for row in rows)


def agreement(
    answers: pa.Table, qrels: pa.Table, by_labels: pa.Table, by_judges: pa.Table, names: tuple[str, str]
) -> LabelAgreement | None:
    """Agreement of `answers` (as in `gains`) with labels, and of the systems' order; None if no query has both.

    by_labels, by_judges: Metric rows under the first and second of the measures `names`.
    """
    relevant = qrels.filter(pc.greater(qrels["grade"], 0))
    both = answers.filter(pc.is_in(answers["query_id"], value_set=pc.unique(relevant["query_id"])))
    both = both.filter(pc.is_finite(both["answer"]))
    if not both.num_rows:
        return None
    keys = {name: both[name] for name in _PAIR}
    label = find_rows(relevant, keys) >= 0
    graded = find_rows(qrels, keys) >= 0
    has_both = bool(label[graded].any() and not label[graded].all())
    answer = both["answer"].to_numpy()
    if has_both:
        answer, label = answer[graded], label[graded]
    queries = pc.unique(both["query_id"])
    return LabelAgreement(
        len(queries),
        len(answer),
        has_both,
        auc(answer, label),
        kappa(answer > YES, label),
        _tau(by_labels, by_judges, names),
    )


def auc(score: ArrayLike, label: ArrayLike) -> float | None:
    """Area under the ROC curve; None unless both labels occur.

    >>> auc([0.9, 0.4, 0.4, 0.1], [True, True, False, False])
    0.875
    """
    yes = np.asarray(label, dtype=bool)
    values = np.asarray(score, dtype=np.float64)
    if yes.all() or not yes.any():
        return None
    from scipy.stats import mannwhitneyu

    result: Any = mannwhitneyu(values[yes], values[~yes], method="asymptotic")  # scipy leaves the result type untyped
    return float(result.statistic / (yes.sum() * (~yes).sum()))


def kappa(a: ArrayLike, b: ArrayLike) -> float | None:
    """Cohen's kappa of two raters' yes and no; None if undefined.

    >>> kappa([True, True, False, False], [True, False, False, False])
    0.5
    """
    first, second = np.asarray(a, dtype=bool), np.asarray(b, dtype=bool)
    p, q = first.mean(), second.mean()
    chance = p * q + (1 - p) * (1 - q)
    # a chance below one is below it by far more than rounding
    return float((np.mean(first == second) - chance) / (1 - chance)) if chance < 1 - 1e-12 else None


def _tau(by_labels: pa.Table, by_judges: pa.Table, names: tuple[str, str]) -> float | None:
    """Kendall's tau-b of the systems' means on the queries measured by both."""
    both = set(by_labels["query_id"].to_pylist()) & set(by_judges["query_id"].to_pylist())
    ids = pa.array(sorted(both), type=ID)
    labelled, judged = (table.filter(pc.is_in(table["query_id"], value_set=ids)) for table in (by_labels, by_judges))
    systems = _systems(labelled, names[0]) & _systems(judged, names[1])
    if len(both) < 2 or len(systems) < 2:
        return None
    order = sorted(systems)
    means = [
        [round(measures.mean(table, one, name), 12) for one in order]
        for table, name in zip((labelled, judged), names, strict=True)
    ]
    if min(np.ptp(values) for values in means) == 0:
        return None
    from scipy.stats import kendalltau

    result: Any = kendalltau(*means)  # scipy leaves the result type untyped
    return float(result.statistic)


def _systems(metrics: pa.Table, measure: str) -> set[str]:
    return set(metrics.filter(pc.equal(metrics["measure"], measure))["system"].to_pylist())
