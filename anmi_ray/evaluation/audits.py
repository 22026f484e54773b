"""What other stages report as JSON or tables, as the report's own types: the judges' audit, the fits, the negatives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.evaluation.report import FitFacts, JudgeAudit, JudgeValue, MiningFacts

# key of the audit -> how the report names it; what is injected comes first, because it can be checked
INJECTED = {
    "noise_sd": "noise (probit)",
    "position_bias": "position bias (probit)",
    "tie_width": "tie width (probit)",
    "failure_rate": "failures (share)",
}
FOUND = {
    "failure_rate": "failures (share)",
    "tie_rate": "ties (share)",
    "flip_rate": "reversed by the order (share)",
    "accuracy": "right, per answer (share)",
    "accuracy_both_orders": "right, both orders averaged (share)",
}
FIRST = "preference for the first shown (share above ½)"


def judge_audits(audit: Mapping[str, Any], simulated: Collection[str] = ()) -> tuple[JudgeAudit, ...]:
    """The judges of {"judges": {name: figures}}; one with injected values, or named in `simulated`, was simulated."""
    return tuple(
        JudgeAudit(name, "injected" in figures or name in simulated, tuple(_values(figures)))
        for name, figures in audit.get("judges", {}).items()
    )


def panel_values(audit: Mapping[str, Any]) -> tuple[JudgeValue, ...]:
    """How the judges of {"panel": figures} agree: Krippendorff's α, and the correlation of their errors by pair."""
    panel = audit.get("panel", {})
    values = [JudgeValue("agreement, Krippendorff's α", panel["alpha"])] if "alpha" in panel else []
    correlations = panel.get("error_correlation", {}).items()
    return (*values, *(JudgeValue(f"error correlation, {pair}", value) for pair, value in correlations))


def mining_facts(summary: Mapping[str, Any]) -> MiningFacts:
    """The headline numbers of the mining summary."""
    rate = summary["false_negative_rate"]
    return MiningFacts(
        summary["examples"],
        summary["queries"],
        summary["negatives_per_example"],
        summary["mean_gap_elo"],
        summary["mean_gap_se_elo"],
        summary["false_negative_gap_elo"],
        rate["mean"],
        rate["low"],
        rate["high"],
    )


def fit_facts(fits: pa.Table, prior: str = "") -> FitFacts:
    """Counts over Fit rows; `prior` says in words which prior and dispersion were used."""
    rows = fits.num_rows
    return FitFacts(
        rows,
        rows - (pc.sum(fits["converged"]).as_py() or 0),
        pc.sum(pc.greater(fits["components"], 1)).as_py() or 0,
        float(np.median(fits["iterations"].to_numpy())) if rows else None,
        float(np.mean(fits["spread_elo"].to_numpy())) if rows else None,
        prior,
    )


def _values(figures: Mapping[str, Any]) -> list[JudgeValue]:
    injected, recovered = figures.get("injected", {}), figures.get("recovered", {})
    values = [
        JudgeValue(label, found["value"], injected.get(key), found["low"], found["high"], found.get("inside"))
        for key, label in INJECTED.items()
        if (found := recovered.get(key)) is not None
    ]
    bias = figures.get("position_bias", {})
    if bias.get("probability") is not None:
        low, high = bias.get("interval", (None, None))
        values.append(JudgeValue(FIRST, bias["probability"], None, low, high))
    known = {value.quantity for value in values}
    values += [JudgeValue(label, figures[key]) for key, label in FOUND.items() if key in figures and label not in known]
    return values
