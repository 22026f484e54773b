"""anchor: first stage, ratings and direct answers -> P(relevant) of each rated document of an unlabelled query.

Before it, shortlist finds the documents to ask judges about one by one: the likeliest of queries without a known
positive. Both stages fit the model once to a hash sample of queries, shortlist without answers. With too few documents
for a fit, the probability is the judges' answer, 0 without one.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.base import Settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.arrays import Flags, Ints, Reals, rank_within
from anmi_ray.core.errors import JudgeError
from anmi_ray.core.records import CANDIDATE, COMPARISON, GAP, JUDGMENT, RATING, RELEVANCE, find_rows
from anmi_ray.core.schema import Record
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.rate import uneven_prior
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.mining.relevance import Evidence, RelevanceModel

_QUERIES = 1000  # of the sample: 40,000 documents estimate the model's few parameters to a hundredth
_MODEL = "relevance.json"
_WITHOUT_POSITIVE = "queries without a known positive"
_TO_ASK = "documents to ask about"


def run(artifact: Artifact, inputs: Inputs, config: Settings, context: Context) -> dict[str, Any]:
    """Fit the model to a sample, then run one task per bucket."""
    from anmi_ray.mining.relevance import FEWEST

    confirms = "confirm" in inputs
    model = fitted(artifact, inputs, context) if confirms else telling(artifact, inputs, context)
    if model is None and not confirms:
        raise JudgeError(
            f"fewer than {FEWEST} documents are rated, too few to estimate which are relevant",
            "stage anchor",
            "rate more queries, or label train queries and set mine.anchors: known",
        )
    return {"flows": run_buckets(context, artifact, ("relevance", RELEVANCE), _bucket, dict(inputs), model)}


def choose(artifact: Artifact, inputs: Inputs, config: Settings, context: Context) -> dict[str, Any]:
    """Fit the model to a sample, then choose the documents to ask about, a task per bucket.

    Raises JudgeError, before judges are asked, if ratings do not separate relevant documents from others.
    """
    model = telling(artifact, inputs, context)
    return {"flows": run_buckets(context, artifact, ("comparisons", COMPARISON), _choose, dict(inputs), model)}


def _choose(artifact: Artifact, bucket: int, inputs: Inputs, model: RelevanceModel | None) -> list[Flow]:
    from anmi_ray import mining

    documents, evidence = known(inputs, bucket)
    score = evidence.rating if model is None else model.posterior(evidence)
    pairs = mining.shortlist(inputs["rate"].read_part("gaps", bucket, GAP), documents, score)
    queries = pc.count_distinct(pairs["query_id"]).as_py()
    flows = [Flow(_WITHOUT_POSITIVE, queries, queries), Flow(_TO_ASK, pairs.num_rows, pairs.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
    return flows


def telling(artifact: Artifact, inputs: Inputs, context: Context) -> RelevanceModel | None:
    """Fit without direct answers. Raises JudgeError if ratings do not separate relevant documents."""
    from anmi_ray.mining.relevance import WEAKEST

    model = fitted(artifact, inputs, context)
    if model is not None and not model.is_reliable:
        raise JudgeError(
            f"the judges' ratings do not separate relevant documents from others: {model.said()}; at least {WEAKEST:g} "
            "is needed, and a relevance that does not rise from rank 1 to rank 10",
            f"stage {artifact.stage}",
            "ask better judges or more of them (anmi audit RUN says how they answered), raise compare.degree, or label "
            "train queries and set mine.anchors: known",
        )
    return model


def fitted(artifact: Artifact, inputs: Inputs, context: Context) -> RelevanceModel | None:
    """Return the model of the stage that makes `artifact`, stored there; None if there is too little to fit."""
    from anmi_ray.mining.relevance import RelevanceModel

    kept = artifact.read_json(_MODEL)
    if kept is None:
        kept = run_task(context, _fit, dict(inputs), context.buckets)
        artifact.publish_json(_MODEL, kept)
    return RelevanceModel(**kept["model"]) if kept["model"] else None


def known(inputs: Inputs, bucket: int, sample: pa.Table | None = None) -> tuple[pa.Table, Evidence]:
    """Return a bucket's documents (query_id, doc_id) and the evidence about them, with answers if inputs have any.

    sample: read only these queries.
    """
    from anmi_ray.mining import relevance

    def read(role: str, part: str, record: Record) -> pa.Table:
        table = inputs[role].read_part(part, bucket, record)
        return table if sample is None else of_queries(table, sample)

    ratings, gaps = read("rate", "ratings", RATING), read("rate", "gaps", GAP)
    candidates = read("retrieve", "candidates", CANDIDATE)
    return relevance.evidence(ratings, gaps, candidates, _answers(inputs, bucket), uneven_prior(inputs["rate"]))


def _answers(inputs: Inputs, bucket: int) -> pa.Table | None:
    """Return the judges' answers about single documents; None if they were not asked yet."""
    if "confirm" not in inputs:
        return None
    from anmi_ray import judging

    comparisons = inputs["shortlist"].read_part("comparisons", bucket, COMPARISON)
    return judging.confirmations(inputs["confirm"].read_part("judgments", bucket, JUDGMENT), comparisons)


def _fit(inputs: Inputs, buckets: int) -> dict[str, Any]:
    from anmi_ray.mining import relevance

    sample, buckets = sample_queries(inputs["rate"], "gaps", buckets, _QUERIES, "relevance")
    parts = [known(inputs, bucket, sample)[1] for bucket in range(buckets)]
    first = np.cumsum([0, *(int(part.query.max(initial=-1)) + 1 for part in parts)])  # numbers of a bucket's queries
    parts = [part._replace(query=part.query + start) for part, start in zip(parts, first[:-1], strict=True)]
    model = relevance.fit(relevance.Evidence._make(np.concatenate(column) for column in zip(*parts, strict=True)))
    return {"model": asdict(model) if model else None, "said": model.said() if model else "too few documents"}


def _bucket(artifact: Artifact, bucket: int, inputs: Inputs, model: RelevanceModel | None) -> list[Flow]:
    from anmi_ray.mining.anchors import LIKELY, POSSIBLE

    documents, evidence = known(inputs, bucket)
    alone = np.nan_to_num(evidence.answer)
    probability, by_judges = (alone, alone) if model is None else (model.posterior(evidence), model.by_judges(evidence))
    asked = evidence.asked if "confirm" in inputs else _likeliest(inputs, bucket, documents, probability)
    least = POSSIBLE if model else LIKELY  # answers alone are not calibrated
    answer = pa.array(evidence.answer, mask=~evidence.asked)
    rows, flows = with_anchors(documents, evidence.query, probability, by_judges, answer, asked, least)
    artifact.commit_bucket(bucket, {"relevance": (RELEVANCE, rows)}, flows, None)
    return flows


def with_anchors(
    documents: pa.Table, query: Ints, probability: Reals, by_judges: Reals, answer: pa.Array, asked: Flags, least: float
) -> tuple[pa.Table, list[Flow]]:
    """Return the RELEVANCE rows of `documents`, and flows of their queries, of those with an anchor, and of anchors.

    asked: documents that may anchor: the likeliest of a query above `least`, the others above LIKELY.
    """
    from anmi_ray.mining.anchors import LIKELY

    likeliest = rank_within(query, -np.where(asked, probability, 0.0)) == 0
    may_anchor = asked & (probability > np.where(likeliest, least, LIKELY))
    counts = {
        _WITHOUT_POSITIVE: len(np.unique(query)),
        "of them with an anchor": len(np.unique(query[may_anchor])),
        "anchors": int(may_anchor.sum()),
    }
    values = {"probability": probability, "by_judges": by_judges, "answer": answer, "may_anchor": may_anchor}
    rows = RELEVANCE.table({"query_id": documents["query_id"], "doc_id": documents["doc_id"], **values})
    return rows, [Flow(unit, count, count) for unit, count in counts.items()]


def _likeliest(inputs: Inputs, bucket: int, documents: pa.Table, probability: Reals) -> Flags:
    """Return bool[N]: whether judges would be asked about the document."""
    from anmi_ray import mining

    pairs = mining.shortlist(inputs["rate"].read_part("gaps", bucket, GAP), documents, probability)
    asked = pairs.select(["query_id", "doc_a"]).rename_columns(["query_id", "doc_id"])
    return find_rows(asked, {name: documents[name] for name in asked.column_names}) >= 0


def _of(stage: Stage, experiment: Experiment) -> Stage:
    """Read answers only if judges are asked about single documents."""
    return stage if experiment.mine.anchors == "confirmed" else replace(stage, inputs=("rate", "retrieve"))


def read_of_dev(stage: Stage, experiment: Experiment) -> Stage:
    """Return `stage`, reading the probabilities of dev queries' documents if judges rate them."""
    return replace(stage, inputs=(*stage.inputs, STAGE.name)) if experiment.rates_dev else stage


def _cost(load: Workload) -> StageCost:
    """Count what it found, else assume all compared queries: those without a known positive are not known before."""
    from anmi_ray.mining.borderline import ASKED

    pairs = load.found(_TO_ASK, ASKED * load.compared)
    work = f"at most {pairs:,} documents to ask about, {ASKED} of each query without a known positive"
    return StageCost(work, pairs)


SHORTLIST = Stage(
    name="shortlist",
    version=5,
    inputs=("rate", "retrieve"),
    does="find the likeliest documents of queries without a known positive",
    run=choose,
    cost=_cost,
    settings="mine",
    config=lambda _: Settings(),
)
STAGE = Stage(
    name="anchor",
    version=7,
    inputs=("rate", "retrieve", "shortlist", "confirm"),
    does="estimate which documents answer queries without a known positive, from first stage, ratings and answers",
    run=run,
    settings="mine",
    config=lambda _: Settings(),
    of=_of,
)
