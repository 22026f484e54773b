"""A realistic ReportData made from hashed chance: what a finished quickstart would report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.records import METRIC
from anmi_ray.evaluation import significance
from anmi_ray.evaluation.fusion import WeightSweep, simplex
from anmi_ray.evaluation.headline import Headline
from anmi_ray.reports.audits import audited
from anmi_ray.reports.page import Json
from anmi_ray.reports.run import ReportData
from anmi_ray.store import Flow
from tests.evaluation.scored_pairs import relevance

MEASURES = ("nDCG@10", "MRR@10", "Recall@100")
TITLES = (
    ("heapq.nsmallest", "Return a list with the n smallest elements from the dataset defined by iterable."),
    ("functools.lru_cache", "Decorator to wrap a function with a memoizing callable that saves the most recent calls."),
    ("itertools.groupby", "Make an iterator that returns consecutive keys and groups from the iterable."),
    ("bisect.insort_left", "Insert item x in list a, and keep it sorted assuming a is sorted."),
    ("contextlib.ExitStack", "Context manager for dynamic management of a stack of exit callbacks."),
    ("asyncio.Semaphore", "A semaphore manages an internal counter which is decremented by each acquire call."),
    ("json.JSONEncoder", "Extensible JSON encoder for Python data structures, with optional sorted keys."),
    ("pathlib.Path.glob", "Iterate over this subtree and yield all existing files of any kind matching the pattern."),
)


def band(name: str, low: float | None, high: float | None, weight: float) -> Json:
    """A band of gaps."""
    return {"name": name, "low": low, "high": high, "weight": weight}


BANDS = (
    band("danger", None, 100.0, 0.0),
    band("soft", 100.0, 200.0, 0.5),
    band("goldilocks", 200.0, 400.0, 1.0),
    band("medium", 400.0, 600.0, 0.7),
    band("easy", 600.0, None, 0.3),
)


def metrics(queries: int = 276) -> pa.Table:
    """Metric rows of five systems whose quality differs by query and by system."""
    ids = sorted(identity.query_id(f"q{i}") for i in range(queries))
    random = identity.rng("synthetic-metrics")
    hardness = random.normal(0.1, 1.0, queries)
    rows: dict[str, list[object]] = {name: [] for name in METRIC.schema.names}
    systems = {"bm25": -0.45, "dense": -0.3, "hybrid": 0.0, "reranked": 0.5, "reranked+hybrid": 0.6}
    for measure, shift in zip(MEASURES, (0.0, -0.1, 1.6), strict=True):
        for system, skill in systems.items():
            skill = min(skill, 0.0) if measure == "Recall@100" else skill
            latent = hardness + skill + shift + random.normal(0, 0.7 if skill else 0.0, queries)
            values = np.round(1 / (1 + np.exp(-1.6 * latent)), 1 if measure == "Recall@100" else 2)
            rows["query_id"] += ids
            rows["system"] += [system] * queries
            rows["measure"] += [measure] * queries
            rows["value"] += values.tolist()
    return METRIC.table(rows)


def truth(queries: int = 40, documents: int = 30) -> Json:
    """Ratings that shrink and blur the truth."""
    random = identity.rng("synthetic-truth")
    latent = random.normal(0, 277.0, queries * documents)
    rating = 0.85 * latent + random.normal(0, 105.0, len(latent))
    return {"query": np.repeat(np.arange(queries), documents), "truth_elo": latent, "rating_elo": rating}


def gaps_of(
    gaps: Mapping[str, NDArray[np.float64]],
    bands: Sequence[Json] = (),
    spread_elo: float | None = None,
    chosen: Mapping[str, NDArray[np.float64]] | None = None,
) -> Json:
    return {"gaps": gaps, "bands": bands, "spread_elo": spread_elo, "chosen": chosen or {}}


def gaps() -> Json:
    """Gaps from an anchor near the top, in five categories with a little overlap."""
    random = identity.rng("synthetic-gaps")
    values = random.normal(390.0, 260.0, 9_000)
    seen = values + random.normal(0, 25.0, len(values))
    names = np.digitize(seen, [100, 200, 400, 600])
    taken = identity.rng("synthetic-chosen").random(len(values)) < np.clip(1 - np.abs(seen - 380) / 420, 0, 1) * (
        seen > 150
    )
    by_category = {band["name"]: names == i for i, band in enumerate(BANDS)}
    chosen = {name: values[rows & taken] for name, rows in by_category.items()}
    return gaps_of({name: values[rows] for name, rows in by_category.items()}, BANDS, 268.4, chosen)


def training(steps: int = 900) -> tuple[dict[str, float | None], ...]:
    """A falling loss with noise, a dev measure every 100 steps."""
    random = identity.rng("synthetic-training")
    names = ("ranking", "regression", "alpha")
    rows: list[dict[str, float | None]] = []
    for step in range(5, steps + 1, 5):
        noise = random.normal(size=len(names))
        means = (1.1 + 1.5 * np.exp(-step / 180), 0.42 + 0.6 * np.exp(-step / 260), 0.5 + step / 3000)
        noisy = (np.array(means) + (0.12, 0.05, 0.0) * noise).tolist()
        row: dict[str, float] = dict(zip(names, noisy, strict=True))
        row["loss"] = row["alpha"] * row["ranking"] + (1 - row["alpha"]) * row["regression"]
        row["learning_rate"] = 2e-5 * min(step / 90, (steps - step) / (steps - 90))
        rows.append({"step": float(step), **row, "dev": 0.58 - 0.11 * np.exp(-step / 220) if step % 100 == 0 else None})
    return tuple(rows)


def hit(title: str, text: str, relevant: bool) -> Json:
    """A document of a ranking."""
    return {"title": title, "text": text, "relevant": relevant}


def ranked(query: str, before: float, after: float, baseline_hits: Sequence[Json], system_hits: Sequence[Json]) -> Json:
    """A query's two rankings."""
    hits = {"baseline_hits": baseline_hits, "system_hits": system_hits}
    return {"query": query, "before": before, "after": after, **hits}


def pair(query: str, before: float, after: float, start: int) -> Json:
    """A query with its two rankings; the relevant document moves up or down."""
    hits = [hit(*TITLES[(start + i) % len(TITLES)], relevant=i == 4) for i in range(5)]
    top = [hits[4], *hits[:4]]
    return ranked(query, before, after, hits if before < after else top, top if before < after else hits)


def document(title: str, text: str, rating: float, std_err: float, is_positive: bool, truth: float) -> Json:
    """A document of the example query."""
    points = {"rating_elo": rating, "std_err_elo": std_err}
    return {"title": title, "text": text, **points, "is_positive": is_positive, "truth_elo": truth}


def example() -> Json:
    """Eight documents of one query."""
    ratings = (412.0, 333.0, 190.0, 121.0, 12.0, -96.0, -240.0, -388.0)
    documents = [
        document(title, text, rating, 88.0 + 4 * i, i == 1, rating * 1.1 + (-1) ** i * 60)
        for i, ((title, text), rating) in enumerate(zip(TITLES, ratings, strict=True))
    ]
    query = "find the n smallest values of an iterable without sorting all of it"
    return {"query": query, "documents": documents, "candidates": 50, "comparisons": 200}


def judges() -> list[Json]:
    """Three simulated judges."""
    return [
        {
            "judge": name,
            "simulated": True,
            "values": [
                audited("right, per answer (share)", 0.9 - noise / 5, 0.88 - noise / 5, 0.92 - noise / 5),
                audited("preference for the first shown (share above ½)", bias, bias - 0.04, bias + 0.03),
                audited("failures (share)", 0.0098, 0.0091, 0.0105),
                audited("flip rate (share)", 0.12),
            ],
        }
        for name, noise, bias in (("careful", 0.6, 0.0), ("hasty", 1.0, 0.3), ("verbose", 0.8, -0.15))
    ]


def fits() -> Json:
    """Fits of 50 documents with 8 opponents each."""
    prior = "empirical prior, σ₀ 0.97 probit; dispersion 1.08"
    counts = {
        "queries": 1_918,
        "documents": 50.0,
        "comparisons": 200.0,
        "not_converged": 0,
        "disconnected": 1,
        "equal": 12,
    }
    return {**counts, "triads": 107_408, "cycle_rate": 0.0361, "prior": prior}


def first(table: pa.Table) -> Headline:
    """The reranked system against the hybrid, which dev chose; the control is dense."""
    shares = significance.compare(table, "dense", ["reranked"], "nDCG@10", rounds=1_000)[1:]
    dev = {"bm25": 0.41, "dense": 0.44, "hybrid": 0.5, "reranked": 0.58}
    return Headline("reranked", "hybrid", "dev", "dense", "nDCG@10", 131, dev, {"reranked": 0.7, "dense": 0.3}, shares)


def stage(name: str, seconds: float, reused: bool, *flows: tuple[str, int, int]) -> Json:
    """A stage's time, and rows in and rejected of every unit."""
    found = [Flow(unit, rows, rows - rejected, rejected) for unit, rows, rejected in flows]
    return {"stage": name, "seconds": seconds, "reused": reused, "flows": found}


def report_data() -> ReportData:
    """All sections filled."""
    table = metrics()
    comparisons = tuple(
        row for measure in MEASURES for row in significance.compare(table, "hybrid", None, measure, rounds=1_000)
    )
    weights = tuple(simplex(3, 10))
    sweep = tuple(0.52 + 0.09 * w - 0.06 * w**4 - 0.05 * (bm25 - 0.1) ** 2 for w, bm25, _ in weights)
    best = weights[int(np.argmax(sweep))]
    parts = ("reranked", "bm25", "dense")
    return ReportData(
        run="quickstart",
        collection={
            "name": "Python docstrings",
            "documents": 6_412,
            "queries": {"train": 1_918, "dev": 131, "test": 276},
            "qrels": 2_325,
            "rejects": [
                {"place": "documents", "reason": "empty text", "rows": 14},
                {"place": "queries", "reason": "duplicate of another split", "rows": 3},
            ],
            "labelled": {},
            "left_out": 0,
        },
        metrics=table,
        comparisons=comparisons,
        system="reranked",
        baseline="hybrid",
        measure="nDCG@10",
        first=first(table),
        serving={
            "depth": 100,
            "queries": 407,
            "seconds": 78.4,
            "cores": 2,
            "documents": 5_120,
            "parameters": 22_713_216,
            "model_bytes": 90_864_192,
        },
        simulated=True,
        config_yaml="name: quickstart\nseed: 0\ncompare:\n  degree: 8\nrate:\n  model: thurstone\n  prior: empirical\n",
        relevance=relevance(),
        fusion=WeightSweep(
            "nDCG@10", 131, "minmax", parts, weights, sweep, best, max(sweep), (0.0, 0.1, 0.9), 0.57, 0.52
        ),
        judges=judges(),
        panel=(audited("agreement, Krippendorff's α", 0.61), audited("error correlation, careful ~ hasty", 0.02)),
        spent=("careful: 1,200 questions in 1,300 calls, 1.20 M prompt tokens, 0.45 dollars",),
        fits=fits(),
        truth=truth(),
        example=example(),
        gaps=gaps(),
        mining={
            "examples": 1_871,
            "queries": 1_871,
            "negatives_per_example": 6.4,
            "mean_gap_elo": 352.0,
            "mean_gap_se_elo": 128.0,
            "false_negative_gap_elo": 100.0,
            "false_negative_rate": 0.018,
            "false_negative_low": 0.015,
            "false_negative_high": 0.021,
            "validated": None,
            "pseudo_positives": None,
            "rated_share": None,
        },
        training=training(),
        stages=(
            stage("ingest", 4.2, True, ("documents", 6_426, 14), ("queries", 2_328, 3), ("qrels", 2_325, 0)),
            stage("retrieve", 61.0, True, ("queries", 2_325, 0)),
            stage("compare", 2.1, True, ("train queries", 1_918, 0)),
            stage("judge", 5.4, False, ("judgments", 2_301_600, 23_016)),
            stage("rate", 9.3, False, ("train queries", 1_918, 1)),
            stage("mine", 1.6, False, ("train queries", 1_917, 46)),
            stage("train", 412.7, False, ("examples", 1_871, 0)),
            stage("rerank", 78.4, False, ("queries", 407, 0)),
            stage("evaluate", 3.8, False),
        ),
        queries=(
            pair("find the n smallest values of an iterable without sorting all of it", 0.39, 1.0, 0),
            pair("cache the results of a function call", 0.43, 1.0, 3),
            pair("read every file below a folder that matches a pattern", 1.0, 0.39, 5),
        ),
        environment={
            "anmi_ray": "0.1.0",
            "git revision": "0123abc",
            "python": "3.11.9",
            "torch": "2.13.0+cpu",
            "hardware": "2 cores, 8 GB, no GPU",
            "threads": "2",
            "models": "all-MiniLM-L6-v2 (package 0.1.0)",
        },
    )
