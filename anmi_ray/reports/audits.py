"""Figures of the report from other stages' JSON and tables: the judges' audit, the fits, the negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.reports.page import Json

# key of the audit -> how the report names it
FOUND = {
    "failure_rate": "failures (share)",
    "tie_rate": "ties (share)",
    "order_inconsistent_rate": "both orders do not agree (share)",
    "cycle_rate": "cycles among judged triads (share)",
    "accuracy": "right, per answer (share)",
    "accuracy_both_orders": "right, both orders averaged (share)",
}
EQUAL_P = 0.05  # above it a query's ratings vary no more than noise
FIRST = "preference for the first shown (share above ½)"


def audited(quantity: str, recovered: float | None, low: float | None = None, high: float | None = None) -> Json:
    """One audited quantity of a judge, with its 95 % interval if known."""
    return {"quantity": quantity, "recovered": recovered, "low": low, "high": high}


def judge_audits(audit: Json, panel: JudgeConfig | None = None) -> list[Json]:
    """Audited values of every judge; `panel` tells which were simulated."""
    simulated = {judge.name for judge in panel.simulated} if panel else set[str]()
    found: list[Json] = []
    for name, figures in audit.get("judges", {}).items():
        bias, intervals = figures.get("position_bias", {}), figures.get("intervals", {})
        values = [(label, figures[key], intervals.get(key)) for key, label in FOUND.items() if key in figures]
        if bias.get("probability") is not None:
            values.insert(0, (FIRST, bias["probability"], bias.get("interval")))
        audit_values = [audited(label, value, *(ends or (None, None))) for label, value, ends in values]
        found.append({"judge": name, "simulated": name in simulated, "values": audit_values})
    return found


def panel_values(audit: Json) -> list[Json]:
    """Agreement of the panel: Krippendorff's α, and the correlation of errors by pair of judges."""
    panel = audit.get("panel", {})
    values = [audited("agreement, Krippendorff's α", panel["alpha"])] if "alpha" in panel else []
    correlations = panel.get("error_correlation", {}).items()
    return [*values, *(audited(f"error correlation, {pair}", value) for pair, value in correlations)]


def distilled_values(summary: Json) -> list[Json]:
    """Figures of a distilled judge on held-out pairs, from the summary of its stage."""
    return [
        audited("right where the ensemble agrees", *summary["accuracy_consensus"]),
        audited("Brier score", *summary["brier"]),
        audited("slope of the calibration", *summary["calibration_slope"]),
        audited("expected calibration error", summary["ece"]),
    ]


def confirming(stage: str, audit: Mapping[str, Any]) -> Iterator[str]:
    """A sentence per judge that was asked about single documents."""
    for judge, found in audit.get("judges", {}).items():
        said = "no answer" if found["yes_rate"] is None else f"yes to {found['yes_rate']:.0%}"
        yield f"{stage} {judge}: {said} of {found['questions']:,} documents, {found['failure_rate']:.1%} failed"


def spent(judges: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """A sentence per judge on its calls, tokens and dollars, from totals by judge."""
    found = []
    for judge, total in judges.items():
        said = f"{judge}: {total['questions']:,.0f} questions in {total['calls']:,.0f} calls"
        if total["prompt_tokens"]:
            said += f", {total['prompt_tokens'] / 1e6:,.2f} M prompt tokens"
        if total["dollars"]:
            said += f", {total['dollars']:,.2f} dollars"
        if total["calls_uncounted"]:
            said += f", and at most {total['calls_uncounted']:,.0f} calls more by processes that were killed"
        found.append(said)
    return tuple(found)


def mining_facts(summary: Json) -> Json:
    """The headline numbers of the mining summary, and the verdicts of rules that ask judges."""
    rate, verdicts = summary["false_negative_rate"], summary.get("verdicts", {})
    names = (
        "examples",
        "queries",
        "negatives_per_example",
        "mean_gap_elo",
        "mean_gap_se_elo",
        "false_negative_gap_elo",
    )
    return {
        **{name: summary[name] for name in names},
        "false_negative_rate": rate["mean"],
        "false_negative_low": rate["low"],
        "false_negative_high": rate["high"],
        "validated": verdicts.get("validate"),
        "pseudo_positives": verdicts.get("rocketqa", {}).get("pseudo_positives"),
        "rated_share": summary.get("rated_share"),  # artifacts of older versions have none
    }


def fit_facts(buckets: Iterable[pa.Table], prior: str = "") -> Json:
    """Count over Fit rows, a bucket at a time.

    documents, comparisons: means over queries.
    equal: queries whose ratings vary no more than noise.
    cycle_rate: share of circular triads.
    prior: prior and dispersion, in words.
    """
    counts: Counter[str] = Counter()
    for fits in buckets:
        rate = pc.fill_null(fits["cycle_rate"], 0.0).to_numpy()
        triads = fits["triads"].to_numpy()
        counts["queries"] += fits.num_rows
        counts["converged"] += int(np.count_nonzero(fits["converged"].to_numpy()))
        counts["disconnected"] += int(np.count_nonzero(fits["components"].to_numpy() > 1))
        counts["equal"] += int(np.count_nonzero(fits["equal_ratings_p"].to_numpy() > EQUAL_P))
        counts["triads"] += int(triads.sum())
        counts["cycles"] += int(np.rint(rate * triads).sum())
        for name in ("documents", "comparisons"):
            counts[name] += int(fits[name].to_numpy().sum())
    return {
        "queries": counts["queries"],
        **{name: counts[name] / max(counts["queries"], 1) for name in ("documents", "comparisons")},
        "not_converged": counts["queries"] - counts["converged"],
        "disconnected": counts["disconnected"],
        "equal": counts["equal"],
        "triads": counts["triads"],
        "cycle_rate": counts["cycles"] / counts["triads"] if counts["triads"] else None,
        "prior": prior,
    }
