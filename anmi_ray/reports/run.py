"""The report of a run: report.json, which holds all its numbers, and the page with its headline, charts and tables.

Sections whose data are None or empty say that they are missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from anmi_ray.config.evaluate import START
from anmi_ray.evaluation.fusion import WeightSweep
from anmi_ray.evaluation.headline import Headline, sentence
from anmi_ray.evaluation.judged import ByJudges
from anmi_ray.evaluation.measures import depth_of
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.reports import page
from anmi_ray.reports.page import Json, asset, capital, category_colour, count, decimal, p_value

FORMAT = 1  # version of report.json
_SECTIONS = ("quality", "queries", "judges", "ratings", "negatives", "training", "cost", "provenance")


def uniform_pairs(rounds: Sequence[Json]) -> float | None:
    """Extrapolate pairs per query from the first round, whose graph is uniform.

    rounds: as in `ReportData`. Answers add to the prior's precision about in proportion to their pairs:
    1/error² = 1/prior² + c pairs.

    >>> rounds = [{"pairs": 100.0, "top_std_err_elo": 200.0}, {"pairs": 150.0, "top_std_err_elo": 100.0}]
    >>> uniform_pairs([{**one, "prior_elo": None} for one in rounds])
    400.0
    """
    before, after = (
        one["top_std_err_elo"] ** -2 - (one["prior_elo"] ** -2 if one["prior_elo"] else 0.0)
        if one["top_std_err_elo"]
        else 0.0
        for one in (rounds[0], rounds[-1])
    )
    return rounds[0]["pairs"] * after / before if before > 0 and after > 0 else None


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
    rounds: of an adaptive design (`stages.report.figures.design_rounds`).
    truth: latent relevance, known from simulated judges, and ratings of N documents of whole queries: query int[N], its
        number; truth_elo and rating_elo float[N], in Elo points, of any mean per query.
    example: a train query with some of its candidates, as shown.
    gaps: from the anchor in Elo points, by category of the negative: gaps of all rated candidates, chosen of those that
        became negatives with a positive weight; bands (name, low, high, weight; None: open); spread_elo, the mean over
        queries of the ratings' standard deviation.
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
    rounds: Json | None = None
    fits: Json | None = None
    truth: Json | None = None
    example: Json | None = None
    gaps: Json | None = None
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


def agreement(sample: Json) -> dict[str, float | None] | None:
    """How well ratings recover the truth; None for an empty sample.

    kendall_tau (τ-b), pearson_r: means over queries, without those with a constant side.
    rmse_elo: pooled, in Elo points, after centring both on each query's mean.
    """
    if not len(sample["query"]):
        return None
    from scipy.stats import kendalltau

    taus: list[float] = []
    pearsons: list[float] = []
    queries, group = np.unique(sample["query"], return_inverse=True)
    size = np.bincount(group)
    all_truth, all_ratings = (
        sample[name] - (np.bincount(group, sample[name]) / size)[group] for name in ("truth_elo", "rating_elo")
    )
    for number in range(len(queries)):
        truth, rating = all_truth[group == number], all_ratings[group == number]
        if np.ptp(truth) > 0 and np.ptp(rating) > 0:
            tau: Any = kendalltau(truth, rating)  # untyped in scipy
            taus.append(float(tau.statistic))
            pearsons.append(float(truth @ rating / math.sqrt(float((truth @ truth) * (rating @ rating)))))
    error = all_ratings - all_truth
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
    content = {"format": FORMAT, **page.plain(data), "metrics": _metrics(data.metrics)}
    content["judged_metrics"] = None if data.judged_metrics is None else _metrics(data.judged_metrics)
    content["agreement"] = page.plain(agreement(data.truth)) if data.truth is not None else None
    return page.a_key_a_line(content)


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


def to_html(data: ReportData) -> str:
    """report.html as one self-contained text."""
    top = {"finding": finding(data), "evidence": evidence(data)}
    alone = judges_alone(data)
    asked = bool(data.judges or data.fits)  # else nothing but pseudo-labels trained the model
    data = shown(data)
    measures = list(dict.fromkeys(row.measure for row in data.comparisons))
    # best first under the headline measure, and in that order everywhere
    best = sorted((row for row in data.comparisons if row.measure == data.measure), key=lambda row: -row.mean)
    systems = list(dict.fromkeys(row.system for row in (*best, *data.comparisons)))
    ordered = sorted(data.comparisons, key=lambda row: systems.index(row.system))
    rows = {measure: [row for row in ordered if row.measure == measure] for measure in measures}
    return page.render(
        "run",
        data,
        {name: capital(name) for name in _SECTIONS if name != "judges" or asked},
        script=asset("sort.js.txt"),
        **top,
        json="report.json",
        simulated=data.simulated,
        by_judges=alone,
        asked=asked,
        depth=depth_of(data.measure),
        row=headline_row(data),
        measures=measures,
        rows=rows,
        quantities=list(dict.fromkeys(value["quantity"] for judge in data.judges for value in judge["values"])),
        fig=_figures(data, rows),
        agreement=agreement(data.truth) if data.truth is not None else None,
        categories=_categories(data.gaps) if data.gaps is not None else [],
    )


def finding(data: ReportData) -> str:
    """Whether to deploy the system, and its difference from the baseline."""
    found = shown(data)
    if not found.metrics.num_rows:
        return "No test query is labelled: nothing was measured"
    row = headline_row(found)
    if data.first is not None and (said := sentence(data.first, row and asdict(row), judges_alone(data))):
        return said
    return f"No comparison of {data.system} with {data.baseline} under {found.measure}"


def _references(data: ReportData) -> str:
    """Means of the reranker, of the best untrained system, and of other runs' rerankers; "" without such runs."""
    mean = {row.system: row.mean for row in data.comparisons if row.measure == data.measure}
    others = [name for name in data.references if name in mean]
    if not others or "reranked" not in mean:
        return ""
    who = "reranked" if data.collection["labelled"].get("train", 1) else "judgments alone"
    untrained = next((name for name in (START, data.baseline) if name in mean), "")
    named = {f"nothing trained ({untrained})": untrained} | {name: name for name in others}
    means = ", ".join(f"{name} {decimal(mean[system])}" for name, system in named.items() if system)
    return f"{who} {decimal(mean['reranked'])} {data.measure}: {means}"


def evidence(data: ReportData) -> str:
    """The p-value, the number of queries, and other runs' means; empty without a comparison."""
    data = shown(data)
    row = headline_row(data)
    if row is None:
        return ""
    details = f"({p_value(row.p)}) on {count(row.queries)} held-out {'query' if row.queries == 1 else 'queries'}"
    return ". ".join(filter(None, (details, capital(_references(data)))))


def _figures(data: ReportData, rows: Mapping[str, Sequence[SystemComparison]]) -> dict[str, Any]:
    """Charts by name, those that the data allow."""
    from anmi_ray.reports import charts  # Altair is slow to import

    quality = {name: charts.by_system(some, data.system, data.baseline, data.level) for name, some in rows.items()}
    drawn: dict[str, Any] = {"quality": quality}
    values = by_system(data.metrics, data.measure)
    if {data.system, data.baseline} <= set(values):
        difference = values[data.system][1] - values[data.baseline][1]  # ordered by query id
        if np.any(difference):
            drawn["per_query"] = charts.per_query(difference, data.measure, data.system, data.baseline)
    if data.fusion is not None:
        best = (data.fusion.chosen[0], data.fusion.value)
        curve = charts.Curve("dev", data.fusion.curve())
        drawn["fusion"] = charts.lines([curve], "weight of the reranked score", f"dev {data.fusion.measure}", ring=best)
    if data.gaps is not None and any(len(values) for values in data.gaps["gaps"].values()):
        bands = [(band["name"], band["low"], band["high"]) for band in data.gaps["bands"]]
        drawn["gaps"] = charts.histogram(data.gaps["gaps"], data.gaps["chosen"], bands, "gap below the anchor (Elo)")
    if data.relevance is not None:
        curves = {"dev, out of fold": data.relevance.dev.curve}
        if data.relevance.test is not None:
            curves = {"test": data.relevance.test.curve, **curves}  # the first has intervals
        drawn["relevance"] = charts.calibration(curves, "P(relevant), mean of the documents", "share that is relevant")
    if data.distilled is not None and data.distilled["curve"]:
        curve = {", ".join(data.distilled["judges"]): data.distilled["curve"]}
        drawn["distilled"] = charts.calibration(curve, "predicted score", "the ensemble's score")
    return drawn | charts.training(data.training)


def _categories(sample: Json) -> list[dict[str, Any]]:
    """Rows of the table next to the gap histogram: category, band, weight, documents, share, median gap."""
    gaps, chosen = sample["gaps"], sample["chosen"]
    total = sum(map(len, gaps.values()))
    bands = {band["name"]: band for band in sample["bands"]}
    names = sorted(gaps, key=lambda n: (list(bands).index(n) if n in bands else len(bands), n))
    return [
        {
            "name": name,
            "colour": category_colour(name),
            "band": _band(bands[name]["low"], bands[name]["high"]) if name in bands else "",
            "weight": bands[name]["weight"] if name in bands else None,
            "documents": len(gaps[name]),
            "chosen": len(chosen.get(name, ())),
            "share": len(gaps[name]) / total if total else 0.0,
            "median": float(np.median(gaps[name])) if len(gaps[name]) else None,
        }
        for name in names
    ]


def _band(low: float | None, high: float | None) -> str:
    if low is None:
        return "all" if high is None else f"< {high:g}"
    return f"> {low:g}" if high is None else f"{low:g}–{high:g}"
