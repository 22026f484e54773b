"""mine: gaps -> weighted training examples, one per anchor.

Before it, borderline finds the documents that judges compare with their anchor if a rule validates. Pairs that were
compared already are not asked again: they are in its part `known`, and their judgments count.

Some rules need more than gaps: direct judgments where a rule validates, P(relevant) by a cross-encoder, and a mixture
that is fitted once to the gaps of a sample of queries.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray import mining
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import (
    CANDIDATE,
    COMPARISON,
    EXAMPLE,
    GAP,
    QUERY,
    RATING,
    RELEVANCE,
    RUN,
    TEXT_OF,
    find_rows,
)
from anmi_ray.core.scale import sigmoid
from anmi_ray.mining.mixture import Mixture, fit
from anmi_ray.models import loading
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.stages.ingest import of_queries, queries_of, sample_queries
from anmi_ray.stages.rate import settings_of, sources_of
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.models.reranker import Reranker

# By mine.anchors, the stages that decide which documents may be anchors in addition to known positives.
CONFIRMING: dict[str, tuple[str, ...]] = {
    "known": (),
    "confirmed": ("anchor",),
    "rated": ("anchor",),
    "retrieved": ("anchor",),
}
_SUMMARY_QUERIES = 5000
_MIXTURE_QUERIES = 5000
_SYSTEM = "relevance"
# Share of candidates that are borderline (80 to 150 points) and not yet compared with their anchor, rounded up:
# .6 % by the quickstart's panel, .5 % by SciFact's, 1.3 % by the similarity judge on a small collection.
_BORDERLINE_SHARE = 0.015
_TO_ASK = "to ask about"
_PAIR = ("query_id", "doc_a", "doc_b")


def run(artifact: Artifact, inputs: Inputs, config: MineConfig, context: Context) -> dict[str, Any]:
    """Fit the mixture if a rule weighs by one, then run one task per bucket."""
    mixture = None
    if isinstance(config.weigh, BetaMixture | GaussianMixture):
        mixture = artifact.read_json("mixture.json")
        if mixture is None:
            mixture = run_task(context, _mixture, inputs, config, context.buckets)
            artifact.publish_json("mixture.json", mixture)
    flows = run_buckets(context, artifact, ("examples", EXAMPLE), _bucket, inputs, config, context.seed, mixture)
    if artifact.read_json("summary.json") is None:
        summary = run_task(context, _summary, artifact, inputs, config, context.buckets)
        artifact.publish_json("summary.json", summary)
    return {"flows": flows}


class Tables(NamedTuple):
    """Tables of one bucket."""

    ratings: pa.Table
    gaps: pa.Table
    candidates: pa.Table
    direct: pa.Table | None
    confirmed: pa.Table | None

    def of(self, queries: pa.Table) -> Tables:
        """The rows of some queries."""
        return Tables(*(None if table is None else of_queries(table, queries) for table in self))

    def negatives(self, config: MineConfig, relevance: pa.Table | None = None) -> mining.Negatives:
        """Return the pool as the rules see it."""
        beside = mining.RuleInputs(self.direct, relevance, confirmed=self.confirmed)
        return mining.pooled(self.ratings, self.gaps, self.candidates, config, beside).pool.negatives


def read(inputs: Inputs, bucket: int, config: MineConfig) -> Tables:
    """Return the inputs of the rules of `config` for a bucket, without dev queries, which must not train."""
    rate = inputs["rate"]
    tables = Tables(
        rate.read_part("ratings", bucket, RATING),
        rate.read_part("gaps", bucket, GAP),
        _with_text_keys(inputs["retrieve"], bucket),
        _direct(inputs, bucket) if config.validation else None,
        confirmed(inputs, bucket),
    )
    return tables.of(queries_of(inputs["ingest"], bucket, "train")) if "ingest" in inputs else tables


def _with_text_keys(retrieve: Artifact, bucket: int) -> pa.Table:
    """The candidates of a bucket, with a column `text_key` that copies of a document share."""
    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    texts = retrieve.read_part("texts", bucket, TEXT_OF)
    texts = texts.filter(pc.is_in(texts["doc_id"], value_set=pc.unique(candidates["doc_id"])))
    keys = identity.id_array(map(identity.copy_hash, texts["title"].to_pylist(), texts["text"].to_pylist()))
    row = find_rows(texts, {"doc_id": candidates["doc_id"]})
    return candidates.append_column("text_key", keys.take(pa.array(row)))


def confirmed(inputs: Inputs, bucket: int) -> pa.Table | None:
    """Return P(relevant) of documents of queries without a known positive; None if judges were not asked."""
    anchor = inputs.get("anchor", inputs.get("pseudo"))
    return None if anchor is None else anchor.read_part("relevance", bucket, RELEVANCE)


def _direct(inputs: Inputs, bucket: int) -> pa.Table:
    """Return the judges' preferences as in `RuleInputs`; NaN for borderline pairs without an answer."""
    from anmi_ray import rating

    config = settings_of(inputs["rate"])
    answers = sources_of(inputs).answers(bucket)
    table = rating.preferences(*answers, config.judge_weights)
    parts = [inputs["borderline"].read_part(part, bucket, COMPARISON) for part in ("comparisons", "known")]
    pairs = pa.concat_tables(parts).select(_PAIR)
    silent = pairs.filter(pa.array(find_rows(table, {name: pairs[name] for name in _PAIR}) < 0))
    silent = silent.append_column("preference", pa.array(np.full(silent.num_rows, np.nan)))
    table = pa.concat_tables([table, silent.cast(table.schema)])
    borderline = find_rows(pairs, {name: table[name] for name in _PAIR}) >= 0
    return table.append_column("was_borderline", pa.array(borderline))


def _bucket(
    artifact: Artifact, bucket: int, inputs: Inputs, config: MineConfig, seed: int, mixture: dict[str, Any] | None
) -> list[Flow]:
    tables = read(inputs, bucket, config)
    gaps = mining.measured(tables.gaps, config, tables.confirmed)
    scores = _scored(inputs, bucket, gaps, config.pointwise) if config.pointwise else None
    relevance = None if scores is None else relevance_of(scores)
    fitted = Mixture.from_dict(mixture) if mixture else None
    beside = mining.RuleInputs(tables.direct, relevance, fitted, tables.confirmed)
    examples, rejects = mining.mine(tables.ratings, tables.gaps, tables.candidates, config, seed, beside)
    rated, out = (pc.count_distinct(table["query_id"]).as_py() for table in (tables.ratings, examples))
    flows = [Flow("train queries", rated, out, rated - out)]
    parts = {"examples": (EXAMPLE, examples)} | ({} if scores is None else {"relevance": (RUN, scores)})
    artifact.commit_bucket(bucket, parts, flows, rejects)
    return flows


@lru_cache(maxsize=1)
def _scorer(source: loading.ModelSource) -> Reranker:
    """Return the reranker, loaded once per worker process. Raises ConfigError if it is not one."""
    from anmi_ray.models import classifier

    return classifier.load_scorer(source, use=classifier.Resources(threads=1))


def _scored(inputs: Inputs, bucket: int, gaps: pa.Table, model: str) -> pa.Table:
    """Return a Run of every document with a gap by the model's logit."""
    from anmi_ray.stages.rerank.ranking import rerank

    pairs = gaps.group_by(["query_id", "doc_id"], use_threads=False).aggregate([])
    pairs = pairs.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    if not pairs.num_rows:
        return RUN.empty()
    run = pairs.append_column("rank", pa.array(np.arange(pairs.num_rows, dtype=np.int32)))  # ties go by it
    queries = inputs["ingest"].read_part("queries", bucket, QUERY)
    texts = inputs["retrieve"].read_part("texts", bucket, TEXT_OF)
    scores = rerank(run, queries, texts, _scorer(loading.resolve(model)), _SYSTEM)
    bad = int((~np.isfinite(scores["score"].to_numpy())).sum())
    if bad:
        raise DataError(f"{bad:,} of {len(scores):,} scores are not finite", f"model {model}", "give another model")
    return scores


def relevance_of(run: pa.Table) -> pa.Table:
    """Return P(relevant), the logistic function of the logits."""
    score = run["score"].to_numpy()
    return pa.table({"query_id": run["query_id"], "doc_id": run["doc_id"], "relevance": sigmoid(score)})


def _mixture(inputs: Inputs, config: MineConfig, buckets: int) -> dict[str, Any]:
    """Fit the mixture to the gaps of a hash sample of queries, without known positives, whatever their buckets."""
    assert isinstance(config.weigh, BetaMixture | GaussianMixture)
    sample, buckets = sample_queries(inputs["rate"], "gaps", buckets, _MIXTURE_QUERIES, "mixture")
    tables = (read(inputs, bucket, config).of(sample) for bucket in range(buckets))
    gaps = [mining.mixture_gaps(one.negatives(config)) for one in tables]
    return asdict(fit(np.concatenate(gaps), config.weigh))


def _summary(artifact: Artifact, inputs: Inputs, config: MineConfig, buckets: int) -> dict[str, object]:
    """Return counts, weights and the estimated share of false negatives, over a hash sample of queries."""
    sample, first = sample_queries(artifact, "examples", buckets, _SUMMARY_QUERIES, "mine")
    examples = [of_queries(artifact.read_part("examples", bucket, EXAMPLE), sample) for bucket in range(first)]
    read = ((inputs["rate"].read_part("gaps", bucket, GAP), confirmed(inputs, bucket)) for bucket in range(first))
    gaps = [mining.measured(of_queries(rows, sample), config, confirmed_rows) for rows, confirmed_rows in read]
    summary = mining.summary(pa.concat_tables(examples), pa.concat_tables(gaps), config)
    return summary | _verdicts(artifact, inputs, config, buckets)


def _verdicts(artifact: Artifact, inputs: Inputs, config: MineConfig, buckets: int) -> dict[str, object]:
    """Return `mining.verdicts` over a hash sample of rated queries, mined or not; empty if no rule asks."""
    if config.validation is None and not any(rule.rule == "rocketqa" for rule in config.allow):
        return {}
    sample, buckets = sample_queries(inputs["rate"], "gaps", buckets, _SUMMARY_QUERIES, "mine")
    totals: dict[str, Counter[str]] = {}
    for bucket in range(buckets):
        relevance = relevance_of(artifact.read_part("relevance", bucket, RUN)) if config.pointwise else None
        negatives = read(inputs, bucket, config).of(sample).negatives(config, relevance)
        for rule, counts in mining.verdicts(negatives, config).items():
            totals.setdefault(rule, Counter()).update(counts)
    return {"verdicts": {rule: dict(counts) for rule, counts in totals.items()}}


def find_borderline(artifact: Artifact, inputs: Inputs, config: MineConfig, context: Context) -> dict[str, Any]:
    """Run one task per bucket."""
    return {"flows": run_buckets(context, artifact, ("comparisons", COMPARISON), _borderline, inputs, config)}


def _borderline(artifact: Artifact, bucket: int, inputs: Inputs, config: MineConfig) -> list[Flow]:
    rate = inputs["rate"]
    gaps = rate.read_part("gaps", bucket, GAP)
    if "ingest" in inputs:  # dev queries, which are rated to choose by, have no example
        gaps = of_queries(gaps, queries_of(inputs["ingest"], bucket, "train"))
    found = mining.borderline(
        rate.read_part("ratings", bucket, RATING),
        gaps,
        inputs["retrieve"].read_part("candidates", bucket, CANDIDATE),
        inputs["compare"].read_part("comparisons", bucket, COMPARISON),
        config,
        confirmed(inputs, bucket),
    )
    wanted, known = found.wanted.num_rows, found.known.num_rows
    counts = {"borderline documents": wanted + known, "compared before": known, _TO_ASK: wanted}
    flows = [Flow(unit, count, count) for unit, count in counts.items()]
    parts = {"comparisons": (COMPARISON, found.wanted), "known": (COMPARISON, found.known)}
    artifact.commit_bucket(bucket, parts, flows, None)
    return flows


def _cost_of_borderline(load: Workload) -> StageCost:
    """Count what it found, else a share of the candidates."""
    pairs = load.found(_TO_ASK, round(_BORDERLINE_SHARE * load.candidates))
    return StageCost(f"about {pairs:,} borderline documents to ask about", pairs)


def _of(stage: Stage, experiment: Experiment) -> Stage:
    """Add the inputs of rules that validate or ask a model, of rated dev queries, and of confirmed anchors."""
    config = experiment.mine
    judged = ("judge", "compare", "validate", "borderline") if config.validation else ()
    questions = ("ingest",) if config.pointwise or experiment.rates_dev else ()
    inputs = (*stage.inputs, *judged, *questions, *CONFIRMING[config.anchors])
    played_by = {"rate": "refit"} if config.validation else {}
    played_by = {"rate": "pseudo", "anchor": "pseudo"} if config.anchors == "retrieved" else played_by
    return replace(stage, inputs=inputs, played_by=played_by)


def _also(config: MineConfig, *_: Any) -> dict[str, str]:
    return {} if config.pointwise is None else {"model": loading.resolve(config.pointwise).revision or "unpinned"}


BORDERLINE = Stage(
    name="borderline",
    version=1,
    inputs=("rate", "compare", "retrieve"),
    does="find borderline documents that were not compared with their anchor",
    run=find_borderline,
    cost=_cost_of_borderline,
    settings="mine",
    config=lambda experiment: experiment.mine.asking,
    of=lambda stage, experiment: replace(
        stage, inputs=(*stage.inputs, *["ingest"] * experiment.rates_dev, *CONFIRMING[experiment.mine.anchors])
    ),
)
STAGE = Stage(
    name="mine",
    version=8,
    inputs=("rate", "retrieve"),
    does="choose and weigh negatives by their gap",
    run=run,
    of=_of,
    also=_also,
)
