"""The audit of a panel: how often each judge fails, ties, flips and favours a position, and how judges agree.

For simulated judges it also recovers, from the answers and the known truth, what was injected, and says whether the
interval of each recovered value holds it. Letters: C comparisons, J judges; orders are ab, ba.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.judge import JudgeConfig, SimulatedJudgeConfig
from anmi_ray.errors import DataError
from anmi_ray.judging import agreement, recovery
from anmi_ray.judging.agreement import Reals
from anmi_ray.judging.protocol import ORDERS, PLACE
from anmi_ray.records import find_rows
from anmi_ray.scale import normal_pdf, normal_quantile

Z95 = 1.959963984540054


@dataclass(frozen=True)
class _Answers:
    """p_a of every judge: float[C, J, 2] (orders ab, ba), NaN where it failed or was not asked."""

    judges: list[str]
    p_a: Reals
    difference: Reals | None  # [C] true latent of doc_a minus doc_b, probits
    query: np.ndarray  # [C] int64, which query


def audit(
    judgments: pa.Table, comparisons: pa.Table, truth: pa.Table | None = None, config: JudgeConfig | None = None
) -> dict[str, object]:
    """JSON-able audit of the Judgments of one or more buckets: {"judges": {name: figures}, "panel": figures}.

    With a non-empty `truth`: accuracy against its sign and the correlation of judges' errors; with `config` too,
    `injected` beside `recovered` for simulated judges. Raises DataError for judgments of unknown comparisons or
    compared documents without truth.
    """
    answers = _matrix(judgments, comparisons, truth)
    injected = {judge.name: judge for judge in config.simulated} if config else {}
    figures: dict[str, object] = {}
    residuals: list[Reals] = []
    for index, name in enumerate(answers.judges):
        mine = judgments.filter(pc.equal(judgments["judge"], name))
        p_a = answers.p_a[:, index]
        report = {**_reliability(mine), **_orders(p_a)}
        if answers.difference is not None:
            report |= _accuracy(p_a, answers.difference)
            fit = recovery.fit(p_a, answers.difference, answers.query)
            if fit is not None:
                residuals.append(fit.residual)
                if config and name in injected:
                    report["injected"], report["recovered"] = _check(injected[name], config, report, fit)
        figures[name] = report
    return {"judges": figures, "panel": _panel(answers, residuals)}


def _matrix(judgments: pa.Table, comparisons: pa.Table, truth: pa.Table | None) -> _Answers:
    judges = sorted(pc.unique(judgments["judge"]).to_pylist())
    row = find_rows(comparisons, {"comparison_id": judgments["comparison_id"]})
    if (row < 0).any():
        raise DataError(f"{int((row < 0).sum())} judgments of unknown comparisons", PLACE, "recompute the judge stage")
    p_a = np.full((comparisons.num_rows, len(judges), 2), np.nan)
    column = pc.index_in(judgments["judge"], value_set=pa.array(judges, pa.string())).to_numpy()
    order = pc.index_in(judgments["order"], value_set=pa.array(ORDERS)).to_numpy()
    p_a[row, column, order] = judgments["p_a"].to_numpy(zero_copy_only=False)
    query = pc.index_in(comparisons["query_id"], value_set=pc.unique(comparisons["query_id"])).to_numpy()
    if truth is None or not truth.num_rows:
        return _Answers(judges, p_a, None, query.astype(np.int64))
    rows = [
        find_rows(truth, {"query_id": comparisons["query_id"], "doc_id": comparisons[name]})
        for name in ("doc_a", "doc_b")
    ]
    if any((found < 0).any() for found in rows):
        raise DataError("compared documents without a truth", PLACE, "recompute the judge stage")
    latent = truth["latent"].to_numpy()
    return _Answers(judges, p_a, latent[rows[0]] - latent[rows[1]], query.astype(np.int64))


def _reliability(mine: pa.Table) -> dict[str, object]:
    """Failures by reason, and ties among the answers."""
    reasons = Counter(mine["error"].drop_null().to_pylist())
    answered = mine.num_rows - sum(reasons.values())
    tied = int(pc.sum(pc.equal(mine["p_a"], 0.5)).as_py() or 0)
    return {
        "n": mine.num_rows,
        "answered": answered,
        "failures": dict(sorted(reasons.items())),
        "failure_rate": _share(sum(reasons.values()), mine.num_rows),
        "tie_rate": _share(tied, answered),
    }


def _orders(p_a: Reals) -> dict[str, object]:
    """Position bias and inconsistency over the comparisons answered in both orders.

    The bias is the mean preference for the first shown document, (p_ab + 1 − p_ba)/2 − 1/2 per pair, whose true gap
    cancels; in probits it is Φ⁻¹ of that mean, which the spread of gaps shrinks.
    """
    both = p_a[~np.isnan(p_a).any(axis=1)]
    first, pairs = (both[:, 0] + 1 - both[:, 1]) / 2, len(both)
    signs = np.sign(both - 0.5)
    bias: dict[str, object] = {"pairs": pairs, "probability": None, "probit": None}
    if pairs > 1:
        mean, error = float(first.mean()), float(first.std(ddof=1) / np.sqrt(pairs))
        bias |= {"probability": mean - 0.5, "interval": [mean - 0.5 - Z95 * error, mean - 0.5 + Z95 * error]}
        if 0 < mean < 1:
            probit = float(normal_quantile(mean))
            slack = Z95 * error / float(normal_pdf(probit))
            bias |= {"probit": probit, "probit_interval": [probit - slack, probit + slack]}
    return {
        "position_bias": bias,
        "flip_rate": _share(int((signs[:, 0] * signs[:, 1] < 0).sum()), pairs),
        "order_inconsistent_rate": _share(int((signs[:, 0] != signs[:, 1]).sum()), pairs),
    }


def _accuracy(p_a: Reals, difference: Reals) -> dict[str, object]:
    """Share of answers, and of pairs' means over both orders, on the true side (ties apart)."""
    votes, truth = np.sign(p_a - 0.5), np.sign(difference)
    decided = ~np.isnan(p_a) & (votes != 0) & (truth != 0)[:, None]
    right = (votes == truth[:, None]) & decided
    mean = np.sign(agreement.pair_means(p_a) - 0.5)
    told = ~np.isnan(mean) & (mean != 0) & (truth != 0)
    return {
        "accuracy": _share(int(right.sum()), int(decided.sum())),
        "accuracy_both_orders": _share(int((mean == truth)[told].sum()), int(told.sum())),
    }


def _check(
    judge: SimulatedJudgeConfig, config: JudgeConfig, report: dict[str, object], fit: recovery.Recovered
) -> tuple[dict[str, float], dict[str, object]]:
    """What was configured, and what the answers show of it, with an interval and whether that holds it.

    `inside` is None where the refitted model is not the judge's own (heavy tails, lapses).
    """
    injected = recovery.injected(judge, config.shared_noise)
    failed = report["n"] - report["answered"]  # type: ignore[operator]
    values = fit.values | {"failure_rate": recovery.binomial(failed, report["n"])}  # type: ignore[arg-type]
    recovered: dict[str, object] = {
        name: {
            "value": value,
            "low": low,
            "high": high,
            "inside": low <= injected[name] <= high if name == "failure_rate" or recovery.exact(judge) else None,
        }
        for name, (value, low, high) in values.items()
    }
    return injected, recovered


def _panel(answers: _Answers, residuals: list[Reals]) -> dict[str, object]:
    """Agreement between judges, and the correlation of their residuals about the truth (0: independent errors)."""
    means = np.full(answers.p_a.shape[:2], np.nan)
    for j in range(len(answers.judges)):
        means[:, j] = agreement.pair_means(answers.p_a[:, j])
    panel: dict[str, object] = {
        "comparisons": len(answers.p_a),
        "alpha": agreement.krippendorff(means),
        "alpha_pairs": _pairs(answers.judges, lambda i, j: agreement.krippendorff(means[:, [i, j]])),
    }
    if len(residuals) == len(answers.judges) > 1:
        panel["error_correlation"] = _pairs(
            answers.judges, lambda i, j: agreement.correlation(residuals[i], residuals[j])
        )
    return panel


def _pairs(judges: list[str], figure: Callable[[int, int], float | None]) -> dict[str, object]:
    return {f"{a} ~ {b}": figure(i, j) for i, a in enumerate(judges) for j, b in enumerate(judges) if i < j}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
