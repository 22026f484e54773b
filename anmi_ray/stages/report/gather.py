"""Gather and render a run's report from its artifacts, sampled by hash where they are large.

Samples are bounded and of whole queries, so the size of a report does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from numpy.typing import NDArray

from anmi_ray import mining
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.mine import MineConfig
from anmi_ray.core import scale
from anmi_ray.core.identity import ID
from anmi_ray.core.records import (
    CANDIDATE,
    COMPARISON,
    EXAMPLE,
    FIT,
    GAP,
    METRIC,
    PREDICTION,
    QREL,
    QUERY,
    RATING,
    RUN,
    TEXT_OF,
    TRUTH,
    Record,
)
from anmi_ray.corpus.counts import of_manifest
from anmi_ray.evaluation import fusion
from anmi_ray.evaluation.headline import Headline
from anmi_ray.evaluation.pairwise import JUDGE, read, reliability
from anmi_ray.evaluation.significance import LEVEL, SystemComparison
from anmi_ray.reports import audits
from anmi_ray.reports import run as report
from anmi_ray.reports.run import to_html
from anmi_ray.runtime.stage import Inputs
from anmi_ray.stages import by_judges, relevance
from anmi_ray.stages.evaluate import headline_of
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.mine import confirmed
from anmi_ray.stages.report.figures import design_rounds, serving
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.files import with_checksum

_SAMPLE = 300  # queries behind the scatter and the histogram
_SHOWN = 12  # documents of the example query
_SNIPPET = 300


class _Run:
    """The artifacts of one run, by the stages that made them."""

    def __init__(self, artifacts: Inputs) -> None:
        self.artifacts = artifacts
        self.store = artifacts["ingest"].store
        self.fit = next(name for name in ("refit", "rate", "pseudo") if name in artifacts)  # ratings and gaps
        self.has_fits = self.fit != "pseudo"
        self.compared = [name for name in ("compare", "borderline") if name in artifacts]  # the rounds' comparisons
        self.buckets = int(self.manifest("ingest")["buckets"])

    def manifest(self, stage: str) -> dict[str, Any]:
        return self.artifacts[stage].manifest() or {}

    def part(self, stage: str, part: str, record: Record, queries: pa.Array | None = None) -> pa.Table:
        """A part of all buckets; only rows of `queries` are kept when given."""
        tables = self.tables(stage, part, record)
        if queries is not None:
            tables = (table.filter(pc.is_in(table["query_id"], value_set=queries)) for table in tables)
        return pa.concat_tables(tables)

    def tables(self, stage: str, part: str, record: Record) -> Iterator[pa.Table]:
        """A part, one bucket's table after another."""
        return (self.artifacts[stage].read_part(part, bucket, record) for bucket in range(self.buckets))

    def texts(self, docs: pa.Array) -> dict[bytes, tuple[str, str]]:
        """Title and text of documents."""
        tables = self.tables("retrieve", "texts", TEXT_OF)
        texts = pa.concat_tables(table.filter(pc.is_in(table["doc_id"], value_set=docs)) for table in tables)
        return {row["doc_id"]: (row["title"], row["text"]) for row in texts.to_pylist()}


def write(artifact: Artifact, inputs: Inputs, experiment: Experiment, described: Mapping[str, Any]) -> list[Flow]:
    """Write report.json and report.html into the artifact; described: the environment of the run."""
    data = gather(experiment, described, _Run(inputs))
    artifact.store.publish(f"{artifact.path}/report.json", with_checksum(report.to_json(data)).encode())
    artifact.store.publish(f"{artifact.path}/report.html", to_html(data).encode())
    return [Flow("stages", len(inputs), len(inputs))]


def gather(experiment: Experiment, described: Mapping[str, Any], run: _Run) -> report.ReportData:
    """Everything that the report says, from the artifacts."""
    evaluate = run.artifacts["evaluate"]
    apart = experiment.train.student != "cross-encoder"
    environment = {**described, **described["versions"]}
    first = headline_of(evaluate)
    settings = experiment.model_dump(mode="json", exclude={"execution"})
    metrics = evaluate.read_part("metrics", 0, METRIC)
    comparisons = tuple(SystemComparison(**row) for row in evaluate.read_json("comparisons.json"))
    sweep = evaluate.read_json("fusion.json")
    part = "fits" if run.has_fits else "ratings"
    chosen, _ = sample_queries(run.artifacts[run.fit], part, run.buckets, _SAMPLE, "report")
    sample = chosen["query_id"].combine_chunks()
    audit = (run.artifacts["judge"].read_json("audit.json") or {}) if "judge" in run.artifacts else {}
    summary = run.artifacts["mine"].read_json("summary.json")
    judged = by_judges.measurements(evaluate)
    judged_metrics = evaluate.read_part(by_judges.NAME, 0, METRIC) if judged is not None else None
    return report.ReportData(
        run=experiment.name,
        collection=_collection(run, experiment.corpus.name),
        metrics=metrics,
        comparisons=comparisons,
        system=first.system,
        baseline=first.baseline,
        measure=first.measure,
        level=LEVEL,
        first=first,
        serving=serving(run.artifacts["rerank"], run.artifacts["train"], range(run.buckets), apart),
        simulated=experiment.simulated is not None,
        config_yaml=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        fusion=fusion.from_json(sweep) if sweep else None,
        judges=(*audits.judge_audits(audit, experiment.judge), *_ensemble(run, experiment)),
        panel=audits.panel_values(audit),
        spent=_spent(run),
        distilled=_distilled(run, experiment),
        rounds=design_rounds(run.artifacts, experiment, range(run.buckets)),
        fits=audits.fit_facts(run.tables(run.fit, "fits", FIT), _prior(run)) if run.has_fits else None,
        mining=audits.mining_facts(summary) if summary else None,
        truth=_truth(run, sample, experiment.simulated[0]) if experiment.simulated else None,
        example=_example(run, sample, experiment.simulated[0] if experiment.simulated else None),
        gaps=_gaps(run, sample, experiment),
        training=tuple(run.artifacts["train"].read_json("log.json") or ()),
        stages=_stages(run),
        queries=_extremes(run, metrics, first, first.measure)
        or (_extremes(run, judged_metrics, first, judged.measure) if judged and judged_metrics else ()),
        environment={name: str(value) for name, value in environment.items() if name != "versions"},
        references=tuple(peer.name for peer in experiment.rerank.peers if peer.run is not None),
        relevance=relevance.of(evaluate),
        judged=judged,
        judged_metrics=judged_metrics,
    )


def _collection(run: _Run, name: str) -> dict[str, Any]:
    rejects = run.artifacts["ingest"].rejects()
    kinds = pa.array([place.split(" ", 1)[0] for place in rejects["place"].to_pylist()], type=pa.string())
    counted = pa.table({"place": kinds, "reason": rejects["reason"]}).group_by(["place", "reason"])
    rows = counted.aggregate([([], "count_all")]).sort_by([("place", "ascending"), ("count_all", "descending")])
    flows = {flow["unit"]: flow for flow in run.manifest("ingest")["flows"]}
    counts = of_manifest(run.manifest("ingest"))
    return {
        "name": name,
        "documents": counts.documents,
        "queries": counts.queries,
        "qrels": flows["qrels"]["rows_out"],
        "rejects": rows.rename_columns(["place", "reason", "rows"]).to_pylist(),
        "labelled": counts.labelled,
        "left_out": counts.left_out,
    }


def _truth(run: _Run, sample: pa.Array, stage: str) -> report.Json | None:
    truth = run.part(stage, "truth", TRUTH, sample)
    ratings = run.part(run.fit, "ratings", RATING, sample).select(["query_id", "doc_id", "rating_elo"])
    joined = ratings.join(truth, ["query_id", "doc_id"], join_type="inner", use_threads=False)
    if not joined.num_rows:
        return None
    joined = joined.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    number = np.unique(np.array(joined["query_id"].to_pylist(), dtype=object), return_inverse=True)[1]
    # The truth is in probits whatever model is fitted.
    points = joined["latent"].to_numpy() * scale.elo_per_latent("thurstone")
    return {"query": number.astype(np.int64), "truth_elo": points, "rating_elo": joined["rating_elo"].to_numpy()}


def _gaps(run: _Run, sample: pa.Array, experiment: Experiment) -> report.Json | None:
    found = (
        mining.measured(gaps, experiment.mine, confirmed(run.artifacts, bucket))
        for bucket, gaps in enumerate(run.tables(run.fit, "gaps", GAP))
    )
    gaps = pa.concat_tables(table.filter(pc.is_in(table["query_id"], value_set=sample)) for table in found)
    if not gaps.num_rows:
        return None
    values = gaps["gap_elo"].to_numpy()
    bands = bands_of(experiment.mine)
    examples = run.part("mine", "examples", EXAMPLE, sample)
    weights, chosen = (pc.list_flatten(examples[name]).to_numpy(zero_copy_only=False) for name in ("weights", "gaps"))
    rated = ~np.isnan(chosen) & (weights > 0) & (pc.list_flatten(examples["tiers"]).to_numpy() > 0)

    def by_category(gap_elo: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        number = np.searchsorted(np.array(experiment.mine.edges), gap_elo, side="right")
        return {band["name"]: gap_elo[number == i] for i, band in enumerate(bands)}

    spread = run.part(run.fit, "fits", FIT, sample)["spread_elo"].to_numpy() if run.has_fits else None
    return {
        "gaps": by_category(values),
        "bands": bands,
        "spread_elo": None if spread is None else float(np.mean(spread)),
        "chosen": by_category(chosen[rated]),
    }


def bands_of(config: MineConfig) -> list[dict[str, Any]]:
    """The bands of the gap, as a page shows them."""
    edges = [None, *config.edges, None]
    return [
        {"name": band.category, "low": low, "high": high, "weight": band.weight}
        for band, (low, high) in zip(config.bands, pairwise(edges), strict=True)
    ]


def _example(run: _Run, sample: pa.Array, told: str | None) -> dict[str, Any] | None:
    """The first sampled query, its candidates by rating; `told`: the stage whose simulated judges know the truth."""
    if not len(sample):
        return None
    chosen = sample[:1]
    query = run.part("ingest", "queries", QUERY, chosen).to_pylist()[0]
    ratings = run.part(run.fit, "ratings", RATING, chosen).sort_by([("rating_elo", "descending")])
    candidates = run.part("retrieve", "candidates", CANDIDATE, chosen)
    positives = {row["doc_id"] for row in candidates.to_pylist() if row["is_positive"]}
    truth: dict[bytes, float] = {}
    if told is not None:
        table = run.part(told, "truth", TRUTH, chosen)
        latent = table["latent"].to_numpy() - np.mean(table["latent"].to_numpy())
        points = latent * scale.elo_per_latent("thurstone")
        truth = dict(zip(table["doc_id"].to_pylist(), points.tolist(), strict=True))
    texts = run.texts(pc.unique(ratings["doc_id"]))
    rows = ratings.to_pylist()
    kept = [row for i, row in enumerate(rows) if i < _SHOWN or row["doc_id"] in positives]
    return {
        "query": query["text"],
        "documents": [
            {
                "title": texts[row["doc_id"]][0],
                "text": texts[row["doc_id"]][1][:_SNIPPET],
                "rating_elo": row["rating_elo"],
                "std_err_elo": row["std_err_elo"],
                "is_positive": row["doc_id"] in positives,
                "truth_elo": truth.get(row["doc_id"]),
            }
            for row in kept
        ],
        "candidates": len(rows),
        "comparisons": sum(run.part(one, "comparisons", COMPARISON, chosen).num_rows for one in run.compared),
    }


def _ensemble(run: _Run, experiment: Experiment) -> list[report.Json]:
    """The audits of the judges that a distilled one learned from."""
    if "label" not in run.artifacts:
        return []
    found = audits.judge_audits(run.artifacts["label"].read_json("audit.json") or {}, experiment.ensemble)
    return [{**audit, "judge": f"{audit['judge']} (ensemble)"} for audit in found]


def _spent(run: _Run) -> tuple[str, ...]:
    """Return the judges' spend by round."""
    rounds = {"label": "ensemble, ", "judge": "", "confirm": "confirmation, ", "validate": "validation, "}
    rounds["assess"] = "held-out queries, "
    made = {stage: name for stage, name in rounds.items() if stage in run.artifacts}
    spent = {name: audits.spent(run.manifest(stage).get("spent", {})) for stage, name in made.items()}
    return tuple(f"{name}{said}" for name, of_round in spent.items() for said in of_round)


def _distilled(run: _Run, experiment: Experiment) -> dict[str, Any] | None:
    """What distilling a judge cost and saved; None if the panel has none.

    saved: share of the ensemble's judgments that all pairs of the run would have taken. values: figures on pairs of
    queries that it did not learn from. curve: (predicted, observed) mean scores of equal buckets of these pairs.
    """
    if experiment.ensemble is None:
        return None
    made = run.artifacts["distill"]
    judges = experiment.ensemble.judges
    rounds = [stage for stage in ("judge", "validate") if stage in run.artifacts]
    pairs = _judged(run, "label") // len(judges)
    asked = sum(_judged(run, stage) for stage in rounds) // len(experiment.judge.judges)
    summary = made.read_json("summary.json")
    held_out = read(made.read_part("predictions", 0, PREDICTION), JUDGE)
    return {
        "judges": [judge.name for judge in experiment.judge.distilled],
        "ensemble": [judge.name for judge in judges],
        "pairs": pairs // 2,
        "judgments": pairs * len(judges),
        "asked": asked // 2,
        "saved": 1 - pairs / asked if asked else None,
        "test_pairs": summary["test_pairs"],
        "values": audits.distilled_values(summary),
        "curve": reliability(held_out),
    }


def _judged(run: _Run, stage: str) -> int:
    """Judgments of a stage, those that failed among them."""
    return sum(flow["rows_in"] for flow in run.manifest(stage)["flows"] if flow["unit"] == "judgments")


def _stages(run: _Run) -> list[dict[str, Any]]:
    """How long every stage took in the run that computed it, and what passed through it."""
    times = []
    for name, artifact in run.artifacts.items():
        timing = run.store.read_json(f"timings/{name}-{artifact.fingerprint}.json") or {"seconds": 0.0}
        flows = [Flow(**flow) for flow in run.manifest(name)["flows"]]
        times.append({"stage": name, "seconds": timing["seconds"], "reused": False, "flows": flows})
    return times


def _extremes(run: _Run, metrics: pa.Table, first: Headline, measure: str) -> list[dict[str, Any]]:
    """The queries that lose most, then those that gain most, with the top five documents of both systems."""
    if not metrics.num_rows:
        return []
    system, baseline = first.system, first.baseline
    gains, losses = report.extremes(metrics, measure, system, baseline)
    chosen = pa.array([*losses, *gains], type=ID)
    if not len(chosen):
        return []
    queries = {row["query_id"]: row["text"] for row in run.part("ingest", "queries", QUERY, chosen).to_pylist()}
    relevant = {
        (row["query_id"], row["doc_id"])
        for row in run.part("ingest", "qrels", QREL, chosen).to_pylist()
        if row["grade"] > 0
    }
    fused = of_queries(run.artifacts["evaluate"].read_part("fused", 0, RUN), pa.table({"query_id": chosen}))
    ranked = [run.part("retrieve", "runs", RUN, chosen), run.part("rerank", "runs", RUN, chosen), fused]
    runs = pa.concat_tables(ranked)
    runs = runs.filter(pc.less_equal(runs["rank"], 5)).sort_by([("rank", "ascending")])
    texts = run.texts(pc.unique(runs["doc_id"]))
    hits: dict[tuple[bytes, str], list[dict[str, Any]]] = {}
    for row in runs.to_pylist():
        title, text = texts[row["doc_id"]]
        is_relevant = (row["query_id"], row["doc_id"]) in relevant
        hit = {"title": title, "text": text[:_SNIPPET], "relevant": is_relevant}
        hits.setdefault((row["query_id"], row["system"]), []).append(hit)
    values = {
        (row["query_id"], row["system"]): row["value"]
        for row in of_queries(metrics, pa.table({"query_id": chosen})).to_pylist()
        if row["measure"] == measure
    }
    return [
        {
            "query": queries[query],
            "before": values[query, baseline],
            "after": values[query, system],
            "baseline_hits": hits.get((query, baseline), []),
            "system_hits": hits.get((query, system), []),
        }
        for query in chosen.to_pylist()
    ]


def _prior(run: _Run) -> str:
    """In words, which global numbers the ratings were fitted with."""
    known = run.artifacts[run.fit].read_json("globals.json") or {}
    if not known:
        return ""
    sigma = f"{known['sigma0']:.2f}" if known["sigma0"] is not None else "none"
    return (
        f"prior sd {sigma} {'probit' if known['model'] == 'thurstone' else 'logit'} ({known['sigma0_how']}), known "
        f"positives: {known['positive_how']}, dispersion {known['dispersion']:.2f} ({known['dispersion_how']})"
    )
