"""What the report takes from other stages' JSON and tables: the judges' audit, the fits, the negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.records import FIT
from anmi_ray.reports.data import Json

# key of the audit -> how the report names it
FOUND = {
    "failure_rate": "failures (share)",
    "tie_rate": "ties (share)",
    "order_inconsistent_rate": "both orders do not agree (share)",
    "cycle_rate": "cycles among judged triads (share)",
    "accuracy": "right, per answer (share)",
    "accuracy_both_orders": "right, both orders averaged (share)",
}
# columns of Fit whose quantiles over queries the report shows
PER_QUERY = ("documents", "comparisons", "iterations", "min_degree", "max_degree", "diameter", "lambda2")
PER_QUERY += ("never_won", "never_lost", "spread_elo")
EQUAL_P = 0.05  # above it a query's ratings vary no more than noise would
FIRST = "preference for the first shown (share above ½)"


def audited(quantity: str, recovered: float | None, low: float | None = None, high: float | None = None) -> Json:
    """One audited quantity of a judge, with its 95 % interval if known."""
    return {"quantity": quantity, "recovered": recovered, "low": low, "high": high}


def judge_audits(audit: Json, panel: JudgeConfig | None = None) -> list[Json]:
    """The judges of {"judges": {name: figures}}; `panel` says which were simulated."""
    simulated = {judge.name for judge in panel.simulated} if panel else set[str]()
    return [
        {"judge": name, "simulated": name in simulated, "values": _values(figures)}
        for name, figures in audit.get("judges", {}).items()
    ]


def panel_values(audit: Json) -> list[Json]:
    """How the judges of {"panel": figures} agree: Krippendorff's α, and the correlation of their errors by pair."""
    panel = audit.get("panel", {})
    values = [audited("agreement, Krippendorff's α", panel["alpha"])] if "alpha" in panel else []
    correlations = panel.get("error_correlation", {}).items()
    return [*values, *(audited(f"error correlation, {pair}", value) for pair, value in correlations)]


def distilled_values(summary: Json) -> list[Json]:
    """Figures of a distilled judge on held-out pairs, from the summary of its stage."""
    names = {
        "accuracy_consensus": "right where the ensemble agrees",
        "brier": "Brier score",
        "calibration_slope": "slope of the calibration",
    }
    values = []
    for key, name in names.items():
        mean, low, high = summary[key]
        values.append(audited(name, mean, low=low, high=high))
    return [*values, audited("expected calibration error", summary["ece"])]


def confirming(stage: str, audit: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each judge that was asked about single documents."""
    for judge, found in audit.get("judges", {}).items():
        said = "no answer" if found["yes_rate"] is None else f"yes to {found['yes_rate']:.0%}"
        yield f"{stage} {judge}: {said} of {found['questions']:,} documents, {found['failure_rate']:.1%} failed"


def spent(judges: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """A sentence for each judge that reads texts, on what it took: {"judge": totals of its books}."""
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
    """The headline numbers of the mining summary, and what rules that ask judges said of documents."""
    rate, verdicts = summary["false_negative_rate"], summary.get("verdicts", {})
    names = ("examples", "queries", "negatives_per_example", "mean_gap_elo", "mean_gap_se_elo")
    return {
        **{name: summary[name] for name in (*names, "false_negative_gap_elo")},
        "false_negative_rate": rate["mean"],
        "false_negative_low": rate["low"],
        "false_negative_high": rate["high"],
        "validated": verdicts.get("validate"),
        "pseudo_positives": verdicts.get("rocketqa", {}).get("pseudo_positives"),
        "rated_share": summary.get("rated_share"),  # artifacts of older versions have none
    }


def fit_facts(buckets: Iterable[pa.Table], sample: pa.Array, prior: str = "") -> Json:
    """Counts over Fit rows, read once, a bucket at a time, and quantiles over the queries of `sample`.

    equal: queries whose ratings vary no more than noise would. cycle_rate: share of all triads that run in a circle.
    prior: which prior and dispersion were used, in words.
    """
    counts: Counter[str] = Counter()
    kept = [FIT.empty()]
    for fits in buckets:
        rate = pc.fill_null(fits["cycle_rate"], 0.0).to_numpy()
        triads = fits["triads"].to_numpy()
        counts["queries"] += fits.num_rows
        counts["converged"] += int(np.count_nonzero(fits["converged"].to_numpy()))
        counts["disconnected"] += int(np.count_nonzero(fits["components"].to_numpy() > 1))
        counts["equal"] += int(np.count_nonzero(fits["equal_ratings_p"].to_numpy() > EQUAL_P))
        counts["triads"] += int(triads.sum())
        counts["cycles"] += int(np.rint(rate * triads).sum())
        kept.append(fits.filter(pc.is_in(fits["query_id"], value_set=sample)))
    sampled = pa.concat_tables(kept)
    return {
        "queries": counts["queries"],
        "not_converged": counts["queries"] - counts["converged"],
        "disconnected": counts["disconnected"],
        "equal": counts["equal"],
        "triads": counts["triads"],
        "cycle_rate": counts["cycles"] / counts["triads"] if counts["triads"] else None,
        "sampled": sampled.num_rows,
        "quantiles": _quantiles(sampled),
        "prior": prior,
    }


def _quantiles(fits: pa.Table) -> dict[str, Json]:
    """Median, 5 % and 95 % quantile over queries, each the value of some query, of every column in PER_QUERY.

    Also of the deviance over comparisons - documents + components, of queries with more comparisons than a tree.
    """
    columns = {name: fits[name].to_numpy().astype(np.float64) for name in PER_QUERY}
    freedom = columns["comparisons"] - columns["documents"] + fits["components"].to_numpy()
    spare = freedom > 0
    columns["deviance_per_df"] = fits["deviance"].to_numpy()[spare] / freedom[spare]
    found: dict[str, Json] = {}
    for name, values in columns.items():
        if len(values):
            low, median, high = np.quantile(values, [0.05, 0.5, 0.95], method="inverted_cdf").tolist()
            found[name] = {"median": median, "low": low, "high": high}
    return found


def _values(figures: Json) -> list[Json]:
    values: list[Json] = []
    bias = figures.get("position_bias", {})
    if bias.get("probability") is not None:
        low, high = bias.get("interval", (None, None))
        values.append(audited(FIRST, bias["probability"], low, high))
    for key, label in FOUND.items():
        if key in figures:
            low, high = figures.get("intervals", {}).get(key) or (None, None)
            values.append(audited(label, figures[key], low, high))
    return values
