"""The audit of a panel: metrics of each judge, and agreement between judges.

Letters: C comparisons, J judges; orders are ab, ba.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import DataError
from anmi_ray.core.records import find_rows
from anmi_ray.judging.audit import judge_metrics
from anmi_ray.judging.audit.intervals import (
    MIN_QUERIES,
    ROUNDS,
    Queries,
    Reals,
    alpha_of,
    alpha_terms,
    correlation,
    krippendorff,
    pair_means,
)
from anmi_ray.judging.audit.judge_metrics import Longs, Triads, World
from anmi_ray.judging.protocol import ORDERS, PLACE, document_rows

Figure = TypeVar("Figure")


def audit(
    judgments: pa.Table,
    comparisons: pa.Table,
    truth: pa.Table | None = None,
    *,
    grades: pa.Table | None = None,
    log_length: Reals | None = None,
    triads: Triads | None = None,
    leanings: Mapping[str, float] | None = None,
) -> dict[str, object]:
    """Return the JSON audit of Judgments: {"judges": {name: metrics}, "panel": metrics}.

    truth: of simulated judges, for accuracy and the correlation of errors.
    grades: Qrel rows, used instead without truth, over comparisons of differently graded documents.
    log_length: float[C], ln(length of doc_a / length of doc_b) per comparison, NaN if unknown, for length bias.
    triads: counts triads and cyclic ones (`rating.graph.count_triads`), for cycle rates.
    leanings: if pairs were asked in one order drawn by hash, each judge's fitted position bias in probits.
    Raises DataError for judgments of unknown comparisons or compared documents without truth.
    """
    judges, answers, failed = _matrix(judgments, comparisons)
    known = truth is not None and truth.num_rows > 0
    world = _world(comparisons, truth if known else grades, "latent" if known else "grade", log_length, triads)
    found: dict[str, object] = {}
    errors: list[Reals] = []
    for index, name in enumerate(judges):
        p_a = answers[:, index]
        mine = judgments.filter(pc.equal(judgments["judge"], name))
        leaning = None if leanings is None else leanings.get(name)
        found[name] = {**_counts(mine), **judge_metrics.figures(p_a, failed[:, index], world, leaning)}
        if world.difference is not None:
            errors.append(_residuals(p_a, world.difference) if known else _errors(p_a, world.difference))
    how = f"95 %, {ROUNDS} bootstrap rounds over queries; linearized over comparisons below {MIN_QUERIES} queries"
    panel = _panel(judges, pair_means(answers), world.queries, errors)
    if world.difference is not None and not known:
        differ = np.abs(world.difference[~np.isnan(world.difference)]) > 0
        panel["graded"] = {"comparisons": len(differ), "different": int(differ.sum())}
    return {"judges": found, "panel": panel, "intervals": how}


def _matrix(judgments: pa.Table, comparisons: pa.Table) -> tuple[list[str], Reals, Reals]:
    """Return the judges, their p_a float[C, J, 2] (NaN if it failed or was not asked), and failures float[C, J]."""
    judges = sorted(pc.unique(judgments["judge"]).to_pylist())
    row = find_rows(comparisons, {"comparison_id": judgments["comparison_id"]})
    if (row < 0).any():
        raise DataError(f"{int((row < 0).sum())} judgments of unknown comparisons", PLACE, "recompute the judge stage")
    p_a = np.full((comparisons.num_rows, len(judges), 2), np.nan)
    failed = np.zeros(p_a.shape)
    column = pc.index_in(judgments["judge"], value_set=pa.array(judges, pa.string())).to_numpy()
    order = pc.index_in(judgments["order"], value_set=pa.array(ORDERS)).to_numpy()
    p_a[row, column, order] = judgments["p_a"].to_numpy(zero_copy_only=False)
    failed[row, column, order] = judgments["error"].is_valid().to_numpy()
    return judges, p_a, failed.sum(axis=2)


def _world(
    comparisons: pa.Table, relevance: pa.Table | None, column: str, log_length: Reals | None, triads: Triads | None
) -> World:
    """Return the World of comparisons; a truth must have a value for every document."""
    query_ids, query = _ranks(comparisons["query_id"])
    _, document = _ranks(pa.chunked_array([*comparisons["doc_a"].chunks, *comparisons["doc_b"].chunks]))
    a = document[: len(query)]
    b = document[len(query) :]
    queries = Queries(query, len(query_ids))
    if relevance is None:
        return World(queries, a, b, None, log_length, triads)
    rows = document_rows(comparisons, relevance)
    if column == "latent" and any((row < 0).any() for row in rows):
        raise DataError("compared documents without a truth", PLACE, "recompute the judge stage")
    value = np.append(relevance[column].to_numpy().astype(np.float64), np.nan)  # row -1 is the NaN
    return World(queries, a, b, value[rows[0]] - value[rows[1]], log_length, triads)


def _ranks(ids: pa.ChunkedArray) -> tuple[list[bytes], Longs]:
    """Return the sorted distinct ids and each row's rank, so that bootstraps do not depend on row order."""
    known = sorted(pc.unique(ids).to_pylist())
    rank = pc.index_in(ids, value_set=pa.array(known, ids.type)).to_numpy()
    return known, rank.astype(np.int64)


def _counts(mine: pa.Table) -> dict[str, object]:
    """Return a judge's numbers of questions and answers, and its failures by reason."""
    reasons = Counter(mine["error"].drop_null().to_pylist())
    answered = mine.num_rows - sum(reasons.values())
    return {"n": mine.num_rows, "answered": answered, "failures": dict(sorted(reasons.items()))}


def _errors(p_a: Reals, difference: Reals) -> Reals:
    """Return the error of each preference: 0 right, 1 wrong, NaN for equal documents."""
    mean = pair_means(p_a)
    return np.where(difference > 0, 1 - mean, np.where(difference < 0, mean, np.nan))


def _residuals(p_a: Reals, difference: Reals) -> Reals:
    """Each mean preference minus what the true difference predicts, by isotonic regression; NaN without an answer."""
    from scipy import optimize

    mean = pair_means(p_a)
    answered = np.flatnonzero(~np.isnan(mean))
    rising = answered[np.argsort(difference[answered], kind="stable")]
    residual = np.full(len(mean), np.nan)
    if len(rising):
        residual[rising] = mean[rising] - optimize.isotonic_regression(mean[rising]).x
    return residual


def _panel(judges: list[str], means: Reals, queries: Queries, errors: list[Reals]) -> dict[str, object]:
    """Return agreement between judges in means[C, J], and the correlation of their errors (0: independent).

    agreement_pairs: share of the comparisons decided by both judges in which they agree.
    """
    panel: dict[str, object] = {
        "comparisons": len(means),
        "queries": queries.count,
        "alpha": krippendorff(means),
        "alpha_interval": _alpha_interval(means, queries),
        "alpha_pairs": _pairs(judges, lambda i, j: krippendorff(means[:, [i, j]])),
        "agreement_pairs": _agreement(judges, np.sign(means - 0.5), queries),
    }
    if len(errors) == len(judges) > 1:
        panel["error_correlation"] = _pairs(judges, lambda i, j: correlation(errors[i], errors[j]))
    return panel


def _alpha_interval(means: Reals, queries: Queries) -> list[float] | None:
    """Return a bootstrap interval of α over queries, None below MIN_QUERIES."""
    terms = alpha_terms(means)
    sums = np.stack([queries.sums(column) for column in terms.T], axis=1)
    if np.count_nonzero(sums[:, 1]) < MIN_QUERIES:
        return None
    drawn = alpha_of(queries.resampled(sums))
    return None if np.isnan(drawn).all() else np.nanquantile(drawn, [0.025, 0.975]).tolist()


def _agreement(judges: list[str], sides: Reals, queries: Queries) -> dict[str, object]:
    """{"a ~ b": share, interval and number of comparisons}; sides[C, J] is 1, -1, 0 for a tie, NaN."""
    products = _pairs(judges, lambda i, j: sides[:, i] * sides[:, j])
    parts = {pair: ((p > 0).astype(float), (np.abs(p) > 0).astype(float)) for pair, p in products.items()}
    return {
        pair: {"share": share.value, "interval": share.interval, "pairs": round(share.whole)}
        for pair, share in queries.shares(parts).items()
    }


def _pairs(judges: list[str], figure: Callable[[int, int], Figure]) -> dict[str, Figure]:
    return {f"{a} ~ {b}": figure(i, j) for i, a in enumerate(judges) for j, b in enumerate(judges) if i < j}
