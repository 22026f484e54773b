"""evaluate: runs and qrels -> metrics per query, comparisons with the baseline, the headline, TREC run files.

The baseline, if the settings name none, is the best of the systems that nothing was trained for, chosen on dev queries;
the model that training started from is one of them, alone and fused. Peers are measured alike; one that failed on some
queries is compared on the others. The fusion weights of the reranked scores with the partners' (the first stage's, and
other rerankers' if configured) are chosen on dev queries; test queries are only measured. The fusion of the first
stage's scores alone is the control. Only qrels and runs are read: a known positive that was added to candidates is in
neither. If judges were asked about top documents (`evaluate.judged`), their answers make a second table, and are what
unlabelled dev queries choose by. The same grades calibrate the trained model's scores (`stages/relevance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.evaluate import FIRST_STAGE, START, EvaluateConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.retrieve import RETRIEVERS
from anmi_ray.core.records import METRIC, QREL, RUN, TEXT_OF
from anmi_ray.evaluation import fusion, headline, judged, measures, significance
from anmi_ray.evaluation.fusion import FUSED
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, run_task
from anmi_ray.stages import by_judges, relevance
from anmi_ray.stages.anchor import read_of_dev
from anmi_ray.stages.ingest import of_queries, queries_of, stacked
from anmi_ray.store import Artifact, Flow
from anmi_ray.tables import trec

_WEIGHT_STEPS = 10  # weights tried on dev are tenths: a hundred queries cannot distinguish finer ones
START_FUSED = "start+hybrid"
_FUSIONS = {"reranked": FUSED, START: START_FUSED}  # by the reranker that leads them
Sweeps = Mapping[str, fusion.WeightSweep]


def run(artifact: Artifact, inputs: Inputs, config: EvaluateConfig, context: Context) -> dict[str, Any]:
    """Run one task over the held-out queries."""
    args = (artifact, inputs["rerank"], inputs["retrieve"], inputs["ingest"], config, context.buckets, context.seed)
    pooled = (inputs["pool"], inputs["assess"]) if "assess" in inputs else None
    facts = run_task(context, _evaluate, *args, pooled, inputs.get("anchor"))
    if config.fusion and artifact.read_json("fusion.json") is None:
        context.notice(f"no dev query has a relevant document: {FUSED} takes even weights; dev qrels would choose them")
    by_judge = by_judges.measurements(artifact)
    if not facts["measured"]:
        measured = "judges alone measured" if by_judge is not None and by_judge.comparisons else "nothing was measured"
        context.notice(f"no test query is labelled: {measured}")
    if by_judge is not None and by_judge.fault:
        context.notice(f"by judges: {by_judge.fault}")
    if facts["unfitted"] and (inputs["ingest"].manifest() or {}).get("splits", {}).get("dev"):
        context.notice(f"no P(relevant) is fitted to the model's scores: {facts['unfitted']}")
    return facts


def _held_out(
    rerank: Artifact, retrieve: Artifact, ingest: Artifact, buckets: int, split: str
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the runs of all systems, qrels and queries of a split."""

    def of_bucket(bucket: int) -> tuple[pa.Table, ...]:
        queries = queries_of(ingest, bucket, split)
        runs = [of_queries(source.read_part("runs", bucket, RUN), queries) for source in (retrieve, rerank)]
        return pa.concat_tables(runs), of_queries(ingest.read_part("qrels", bucket, QREL), queries), queries

    runs, qrels, queries = stacked(map(of_bucket, range(buckets)))
    return runs, qrels, queries


def _system(runs: pa.Table, system: str) -> pa.Table:
    return runs.filter(pc.equal(runs["system"], system))


def _evaluate(
    artifact: Artifact,
    rerank: Artifact,
    retrieve: Artifact,
    ingest: Artifact,
    config: EvaluateConfig,
    buckets: int,
    seed: int,
    asked: tuple[Artifact, Artifact] | None = None,
    anchor: Artifact | None = None,
) -> dict[str, Any]:
    """Measure everything; `asked` (pool, assess): if judges measure too, `anchor`: if they rate dev queries."""
    reranked = rerank.manifest() or {}
    depth, peers = int(reranked["depth"]), list(reranked.get("peers", ()))
    runs, qrels, queries = _held_out(rerank, retrieve, ingest, buckets, "test")
    measured = judged.tell(qrels)
    dev_runs, dev_qrels, dev_queries = _held_out(rerank, retrieve, ingest, buckets, "dev")
    assessed = None if asked is None else by_judges.read(*asked, pa.concat_tables([qrels, dev_qrels]), buckets, seed)
    gains = None if anchor is None else by_judges.rated(anchor, dev_queries, buckets)
    choice = _choice(dev_qrels, dev_queries, assessed, gains, config)
    sweeps: Sweeps = {}
    if config.fusion and judged.tell(choice.qrels):
        sweeps = {name: _sweep(name, dev_runs, choice, config, depth, seed) for name in _rerankers(runs)}
    fused = fusions(runs, sweeps, config, depth)
    runs = pa.concat_tables([runs, fused])
    present = set(pc.unique(runs["system"]).to_pylist())
    present |= set((retrieve.manifest() or {}).get("retrievers", ())) if present else set()  # those without hits too
    values = measures.evaluate(runs, qrels, config.measures, sorted(present)) if measured else METRIC.empty()
    metrics = by_judges.without_failed(values, runs, peers)
    order = (*RETRIEVERS, "hybrid", control(config), START, START_FUSED, "reranked", FUSED, *peers)
    systems = [name for name in dict.fromkeys(order) if name in present]
    comparable = systems or pc.unique(dev_runs["system"]).to_pylist() or ["hybrid"]  # without a test query: dev's
    first = _headline(dev_runs, choice, sweeps, config, [name for name in comparable if name not in peers])
    compare = partial(significance.compare, metrics, seed=seed)
    of = config.measures if measured else ()
    shares = _labelled_shares(runs, qrels, config) if measured else {}
    compared = [judged.with_shares(compare(first.baseline, systems, measure, partial=peers), shares) for measure in of]
    if first.control and measured:
        trained = [name for name in (FUSED, "reranked") if name in present]
        first = replace(first, shares=compare(first.control, trained, first.measure)[1:])
    artifact.publish_json("comparisons.json", [asdict(row) for rows in compared for row in rows])
    artifact.publish_json("headline.json", asdict(first))
    artifact.publish_json("fusion.json", asdict(sweeps["reranked"]) if sweeps else None)
    _write_trec(artifact, runs, queries, retrieve, systems, buckets)
    count = len(pc.unique(metrics["query_id"]))
    flows = [Flow("test queries", count, count)]
    parts = {"metrics": (METRIC, metrics), "fused": (RUN, fused)}
    if assessed is not None:
        by_judge, rows = by_judges.measure(assessed, runs, queries, config, systems, first.baseline, peers, seed)
        names = (config.measures[0], assessed.measure)
        by_judge = replace(by_judge, agreement=judged.agreement(assessed.about(queries), qrels, metrics, rows, names))
        artifact.publish_json(f"{by_judges.NAME}.json", asdict(by_judge))
        parts[by_judges.NAME] = (METRIC, rows)
        flows.append(Flow("test queries by judges", by_judge.queries, by_judge.queries))
    of_dev = choice.known, _system(dev_runs, "reranked")
    of_test = _known_of_test(choice, qrels, queries, assessed), _system(runs, "reranked")
    unfitted = relevance.publish(artifact, of_dev, of_test, depth, seed)
    artifact.commit_bucket(0, parts, flows, None)
    facts = {"systems": systems, "baseline": first.baseline, "measured": measured}
    return {"flows": flows, **facts, "unfitted": unfitted}


def headline_of(artifact: Artifact) -> headline.Headline:
    """Return the comparison in the headline of a complete artifact."""
    return headline.from_json(artifact.read_json("headline.json"))


def baseline_of(artifact: Artifact) -> str:
    """Return the baseline of a complete artifact; in old roots that of the settings, or the hybrid."""
    manifest = artifact.manifest() or {}
    return manifest.get("baseline") or manifest.get("settings", {}).get("baseline") or "hybrid"


@dataclass(frozen=True)
class _Choice:
    """Grades of dev queries that choose; known: the same as relevance in [0, 1]."""

    qrels: pa.Table
    measure: str
    known: relevance.KnownRelevance

    @property
    def judges(self) -> bool:
        """True if they come from judges, not from labels."""
        return self.known.by == "judges"


def _choice(
    qrels: pa.Table,
    queries: pa.Table,
    assessed: by_judges.Assessed | None,
    rated: pa.Table | None,
    config: EvaluateConfig,
) -> _Choice:
    """Choose by labels if enough dev queries have any, else by judges: their ratings if any, else direct answers."""
    by_labels = _Choice(qrels, config.measures[0], relevance.by_labels(qrels))
    if rated is not None:
        judges = _Choice(rated, config.measures[0], relevance.by_gains(rated))
    elif assessed is not None:
        answers = relevance.by_answers(assessed.about(queries))
        judges = _Choice(assessed.gains(queries), assessed.measure, answers)
    else:
        return by_labels
    return by_labels if judged.labels_choose(qrels, judges.qrels) else judges


def _known_of_test(
    choice: _Choice, qrels: pa.Table, queries: pa.Table, assessed: by_judges.Assessed | None
) -> relevance.KnownRelevance | None:
    """Return the test Qrels: by labels or judges as on dev if available, else by the other."""
    found = [relevance.by_labels(qrels)]
    if assessed is not None:
        found.append(relevance.by_answers(assessed.about(queries)))
    if choice.judges:
        found.reverse()
    return next((known for known in found if known.rows.num_rows), None)


def _labelled_shares(runs: pa.Table, qrels: pa.Table, config: EvaluateConfig) -> dict[str, float]:
    """Return by system the share of the top documents of labelled queries that have a label."""
    labelled = pc.unique(qrels.filter(pc.greater(qrels["grade"], 0))["query_id"])
    return judged.judged_share(runs, qrels, labelled, measures.depth_of(config.measures[0]))


def _headline(
    runs: pa.Table, choice: _Choice, sweeps: Sweeps, config: EvaluateConfig, systems: Sequence[str]
) -> headline.Headline:
    """Return the systems to compare, from dev runs and grades; `systems` are the run's own, without peers."""
    dev: dict[str, float] = {}
    queries = 0
    if judged.tell(choice.qrels):
        single = [name for name in systems if name in (*FIRST_STAGE, *_FUSIONS)]
        metrics = measures.evaluate(runs, choice.qrels, [choice.measure], single)
        queries = len(pc.unique(metrics["query_id"]))
        dev = {name: measures.mean(metrics, name, choice.measure) for name in single}
    for name, sweep in sweeps.items():
        dev[_FUSIONS[name]] = sweep.cross
        dev.setdefault(control(config), sweep.control_cross)
    without = control(config) if config.fusion and control(config) in systems else ""
    # without dev queries the first one is the baseline: its difference is what training added
    order = (START, without, "hybrid", *RETRIEVERS, START_FUSED)
    untrained = [name for name in dict.fromkeys(order) if name in systems]
    chosen = headline.BY_DEV if dev else headline.BY_DEFAULT
    return headline.Headline(
        system=FUSED if config.fusion else "reranked",
        baseline=config.baseline or headline.best(dev, untrained),
        chosen=headline.BY_SETTINGS if config.baseline else chosen,
        control=without,
        measure=config.measures[0],
        queries=queries,
        dev=dev,
        weights=_weights("reranked", sweeps, config) if config.fusion else {"reranked": 1.0},
        by_judges=choice.measure if choice.judges and dev else "",
    )


def control(config: EvaluateConfig) -> str:
    """Return the name of the fusion of the first stage's partners alone."""
    return "+".join(config.first_stage)


def _partners(reranker: str, config: EvaluateConfig) -> tuple[str, ...]:
    """Return the partners for fusion, other rerankers last; the start is fused with the first stage only."""
    return (*config.first_stage, *(config.other_rerankers if reranker == "reranked" else ()))


def _weights(reranker: str, sweeps: Sweeps, config: EvaluateConfig) -> dict[str, float]:
    """Return the fusion weights chosen on dev, or equal ones if no dev query is judged."""
    partners = _partners(reranker, config)
    even = (0.5, *[0.5 / len(partners)] * len(partners))
    return dict(zip((reranker, *partners), sweeps[reranker].chosen if sweeps else even, strict=True))


def _rerankers(runs: pa.Table) -> list[str]:
    """Return the rerankers in `runs` that lead fusions."""
    return [name for name in _FUSIONS if name == "reranked" or _system(runs, name).num_rows]


def fusions(runs: pa.Table, sweeps: Sweeps, config: EvaluateConfig, depth: int) -> pa.Table:
    """Return the runs of all fusions, with the weights of `sweeps` (by reranker) or even ones; none without fusion."""
    if not config.fusion:
        return RUN.empty()
    fused = pa.concat_tables([_fused(name, runs, sweeps, config, depth) for name in _rerankers(runs)])
    return fused.sort_by([(name, "ascending") for name in ("query_id", "system", "rank")])


def _fused(reranker: str, runs: pa.Table, sweeps: Sweeps, config: EvaluateConfig, depth: int) -> pa.Table:
    """Return the fusion; for the trained reranker also the control, if several systems of the first stage are fused."""
    partners = _partners(reranker, config)
    wanted = {_FUSIONS[reranker]: tuple(_weights(reranker, sweeps, config).values())}
    count = len(config.first_stage)
    if reranker == "reranked" and count > 1:
        even = (0.0, *[1.0 / count] * count, *[0.0] * (len(partners) - count))
        wanted[control(config)] = sweeps[reranker].control if sweeps else even
    tables = [_system(runs, name) for name in partners]
    own, hybrid = _system(runs, reranker), _system(runs, "hybrid")
    return pa.concat_tables(
        [fusion.fuse(own, hybrid, weights, depth, name, tables) for name, weights in wanted.items()]
    )


def _sweep(
    reranker: str, runs: pa.Table, choice: _Choice, config: EvaluateConfig, depth: int, seed: int
) -> fusion.WeightSweep:
    """Try the weights of a reranker's fusion on dev."""
    tables = [_system(runs, name) for name in _partners(reranker, config)]
    own, hybrid, others = _system(runs, reranker), _system(runs, "hybrid"), len(tables) - len(config.first_stage)
    return fusion.choose_weights(own, hybrid, choice.qrels, _WEIGHT_STEPS, depth, choice.measure, tables, seed, others)


def _write_trec(
    artifact: Artifact, runs: pa.Table, queries: pa.Table, retrieve: Artifact, systems: list[str], buckets: int
) -> None:
    """Write a TREC run file per system, with the collection's own ids."""
    needed = pc.unique(runs["doc_id"])
    names = []
    for bucket in range(buckets):
        texts = retrieve.read_part("texts", bucket, TEXT_OF, columns=["doc_id", "external_id"])
        names.append(texts.filter(pc.is_in(texts["doc_id"], value_set=needed)))
    documents = pa.concat_tables(names).group_by("doc_id").aggregate([("external_id", "min")])
    documents = documents.rename_columns(["doc_id", "external_id"])
    for system in systems:
        text = trec.format_run(_system(runs, system), queries, documents)
        artifact.store.publish(f"{artifact.path}/trec/{system}.trec", text.encode())


def _of(stage: Stage, experiment: Experiment) -> Stage:
    """Read the judges' answers if they measure, and their ratings of dev queries."""
    measured = () if experiment.assessors is None else ("pool", "assess")
    return read_of_dev(replace(stage, inputs=(*stage.inputs, *measured)), experiment)


STAGE = Stage(
    name="evaluate",
    version=7,
    inputs=("rerank", "retrieve", "ingest"),
    does="measure every system on test, with intervals and tests",
    run=run,
    config=lambda experiment: experiment.evaluate.over(experiment.retrieve.retrievers),
    left_out=frozenset({"judged", "also"}),
    of=_of,
)
