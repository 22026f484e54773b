"""The figures of compare-rules, from complete artifacts: what every rule chose of the same queries, and its mistakes.

All are of a hash sample of queries, read bucket by bucket, so that they take no more memory for a larger run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import mining
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.mine import MineConfig
from anmi_ray.core.records import EXAMPLE, GAP, QREL, RUN, TRUTH
from anmi_ray.evaluation import significance
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.mining import anchors, compared, optimum
from anmi_ray.mining.mixture import Mixture
from anmi_ray.pipeline.stages import INGEST, JUDGE, MINE, RATE
from anmi_ray.reports.rules import ComparedRule, OptimalGap, Overlap, RulesData
from anmi_ray.stages import judge
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.mine import examples as mine
from anmi_ray.stages.report.gather import bands_of
from anmi_ray.store import Artifact

DEFAULT = "posterior"  # what the others are held against
_UNIT = "train queries"  # of the flow through mine
_QUERIES = 5_000
_POOL = 1_000  # queries of which whole pools are weighed again, for the weights by gap
_COSTS = tuple(np.geomspace(0.1, 30.0, 50).tolist())

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MinedRule:
    """A rule's settings, its artifact of mine, and what that was made of, by the role that it plays there."""

    config: MineConfig
    artifact: Artifact
    inputs: dict[str, Artifact]


@dataclass(frozen=True)
class _Sample:
    """What all rules are measured with, of the sampled queries."""

    queries: pa.Array  # in the order of their hash
    truth: pa.Table | None
    hidden: pa.Table | None  # query_id, doc_id


@dataclass(frozen=True)
class _Curves:
    """What weights by gap are computed with."""

    buckets: int
    seed: int
    edges: Floats


def gather(
    experiment: Experiment, made: Mapping[str, Artifact], mined: Mapping[str, MinedRule], buckets: int
) -> RulesData:
    """Every figure, from complete artifacts: ingest, retrieve, judge and rate in `made`, mine by rule in `mined`."""
    rate = made[RATE]
    fits = [rate.store.read_table(rate.part_path("fits", b), columns=["query_id"]).num_rows for b in range(buckets)]
    sample = _sample(made, buckets, experiment.simulated)
    taken = {rule: _taken(one.artifact, buckets, sample.queries) for rule, one in mined.items()}
    baseline = DEFAULT if DEFAULT in mined else next(iter(mined))
    gaps = _gaps(mined[baseline], buckets, sample.queries[:_POOL])
    curves = _Curves(buckets, experiment.seed, compared.gap_edges(gaps["gap_elo"].to_numpy()))
    rules = [_rule(rule, one, taken[rule], sample, curves) for rule, one in mined.items()]
    against = _against(taken, mined, sample, baseline, experiment.seed)
    members, query = compared.memberships(list(taken.values()), sample.queries)
    return RulesData(
        run=experiment.name,
        collection=experiment.corpus.name,
        baseline=baseline,
        rules=tuple(replace(rule, against=against.get(rule.rule)) for rule in rules),
        left_out={},
        queries=sum(fits),
        sampled=len(sample.queries),
        pooled=min(len(sample.queries), _POOL),
        false_negative_gap=experiment.mine.false_negative_gap,
        bands=bands_of(experiment.mine),
        edges=tuple(curves.edges.tolist()),
        overlap=Overlap(*(tuple(map(tuple, part.tolist())) for part in compared.overlap(members, query))),
        optimum=_optimum(gaps["gap_se_elo"].to_numpy()),
        true_known=sample.truth is not None,
        hidden=None if sample.hidden is None else sample.hidden.num_rows,
        notes=_notes(experiment, mined, sample),
    )


def _sample(made: Mapping[str, Artifact], buckets: int, simulated: tuple[str, JudgeConfig] | None) -> _Sample:
    rate = made[RATE]
    sampled = sample_queries(rate, "fits", buckets, _QUERIES, MINE)
    truth, hidden = [], []
    for bucket in range(buckets):
        gaps, qrels = rate.read_part("gaps", bucket, GAP), made[INGEST].read_part("qrels", bucket, QREL)
        hidden.append(of_queries(compared.hidden_positives(qrels, gaps), sampled))
        if simulated is not None:
            truth.append(of_queries(made[simulated[0]].read_part("truth", bucket, TRUTH), sampled))
    found = (pa.concat_tables([TRUTH.empty(), *truth]), pa.concat_tables(hidden))
    return _Sample(sampled["query_id"].combine_chunks(), *(table if table.num_rows else None for table in found))


def _gaps(mined: MinedRule, buckets: int, queries: pa.Array) -> pa.Table:
    """The gaps to what anchors."""
    wanted = pa.table({"query_id": queries})
    tables = (mine.read(mined.inputs, bucket, mined.config).of(wanted) for bucket in range(buckets))
    return pa.concat_tables([mining.measured(one.gaps, mined.config, one.confirmed) for one in tables])


def _taken(artifact: Artifact, buckets: int, queries: pa.Array) -> pa.Table:
    """A rule's rated negatives of the sampled queries."""
    wanted = pa.table({"query_id": queries})
    parts = (of_queries(artifact.read_part("examples", bucket, EXAMPLE), wanted) for bucket in range(buckets))
    return pa.concat_tables([compared.chosen(part) for part in parts])


def _rule(rule: str, mined: MinedRule, taken: pa.Table, sample: _Sample, curves: _Curves) -> ComparedRule:
    summary = mined.artifact.read_json("summary.json")
    flows = [flow for flow in (mined.artifact.manifest() or {"flows": []})["flows"] if flow["unit"] == _UNIT]
    query = anchors.codes(taken["query_id"], sample.queries)
    weight, gap = taken["weight"].to_numpy(), taken["gap_elo"].to_numpy()
    queries = max(1, len(np.unique(query)))
    counts = pc.value_counts(taken["category"]).to_pylist()
    true, true_all, information = _true(mined.config, taken, query, sample)
    mixture = _mixture(mined.artifact)
    weights, chosen = _by_gap(mined, mixture, taken, sample.queries, curves)
    rho, rho_all = (summary[f"false_negative_rate{end}"] for end in ("", "_unweighted"))
    return ComparedRule(
        rule=rule,
        composition=mined.config.composition,
        artifact=mined.artifact.fingerprint,
        examples=summary["examples"],
        queries=sum(flow["rows_out"] for flow in flows),
        rejected=sum(flow["rejected"] for flow in flows),
        negatives_per_example=summary["negatives_per_example"],
        categories={row["values"]: row["counts"] / queries for row in counts},
        weight=_estimate(compared.clustered_mean(weight, query)),
        gap=_estimate(compared.clustered_mean(gap, query)),
        gap_se=summary["mean_gap_se_elo"],
        estimated=Estimate(**rho),
        estimated_all=Estimate(**rho_all),
        weights=weights,
        taken=chosen,
        hidden=_hidden(taken, query, sample),
        thresholds=tuple(at for at in mixture.thresholds if at is not None) if mixture else (),
        true=true,
        true_all=true_all,
        information=information,
    )


def _estimate(found: compared.Interval) -> Estimate:
    return Estimate(*found)


def _false(config: MineConfig, taken: pa.Table, truth: pa.Table) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """True gaps of the chosen, where they are known, and where they are below false_negative_gap."""
    gap = compared.true_gaps(taken, truth)
    known = ~np.isnan(gap)
    return gap, known, known & (gap < config.false_negative_gap)


def _true(
    config: MineConfig, taken: pa.Table, query: NDArray[np.int64], sample: _Sample
) -> tuple[Estimate, Estimate, Estimate] | tuple[None, None, None]:
    """By the truth, where there is one: share of false negatives of the weight and of the documents, information."""
    if sample.truth is None:
        return None, None, None
    gap, known, false = _false(config, taken, sample.truth)
    gap, false, query, weight = gap[known], false[known], query[known], taken["weight"].to_numpy()[known]
    return (
        _estimate(compared.clustered_share(false, query, weight)),
        _estimate(compared.clustered_share(false, query)),
        _estimate(compared.clustered_mean(optimum.information(gap), query, weight)),
    )


def _hidden(taken: pa.Table, query: NDArray[np.int64], sample: _Sample) -> Estimate | None:
    """Share of the chosen that are relevant by the collection's qrels, and that nobody after retrieve knew to be."""
    if sample.hidden is None:
        return None
    return _estimate(compared.clustered_share(compared.pairs_in(taken, sample.hidden), query))


def _weights(mined: MinedRule, mixture: Mixture | None, bucket: int, queries: pa.Table, seed: int) -> pa.Table:
    """What a rule said of all documents beside the anchors of `queries` in a bucket, with what it was mined with."""
    tables, config = mine.read(mined.inputs, bucket, mined.config).of(queries), mined.config
    relevance = None
    if config.pointwise:
        relevance = mine.relevance_of(mined.artifact.read_part("relevance", bucket, RUN))
    beside = mining.RuleInputs(tables.direct, relevance, mixture, tables.confirmed)
    return mining.weights(tables.ratings, tables.gaps, tables.candidates, config, seed, beside)


def _mixture(artifact: Artifact) -> Mixture | None:
    fitted = artifact.read_json("mixture.json")
    return None if fitted is None else Mixture.from_dict(fitted)


def _by_gap(
    mined: MinedRule, mixture: Mixture | None, taken: pa.Table, queries: pa.Array, curves: _Curves
) -> tuple[tuple[Estimate, ...], tuple[Estimate, ...]]:
    """By gap bin: mean weight, and share taken, of all documents beside an anchor."""
    first = pa.table({"query_id": queries[:_POOL]})
    found = pa.concat_tables([_weights(mined, mixture, bucket, first, curves.seed) for bucket in range(curves.buckets)])
    query = anchors.codes(found["query_id"], queries)
    chosen = compared.pairs_in(found, taken, ("query_id", "anchor_id", "doc_id"))
    at = found["gap_elo"].to_numpy()
    weights, shares = (
        tuple(_estimate(one) for one in compared.binned(at, value, query, curves.edges))
        for value in (found["weight"].to_numpy(), chosen.astype(np.float64))
    )
    return weights, shares


def _against(
    taken: Mapping[str, pa.Table], mined: Mapping[str, MinedRule], sample: _Sample, baseline: str, seed: int
) -> dict[str, significance.SystemComparison]:
    """Every rule's true share of false negatives per query (of the weight) against the baseline's, paired.

    Over queries of which both have negatives; the p-values are corrected for the number of rules (Holm).
    """
    if sample.truth is None:
        return {}
    shares: dict[str, Floats] = {}
    for rule, table in taken.items():
        _, known, false = _false(mined[rule].config, table, sample.truth)
        query = anchors.codes(table["query_id"], sample.queries)[known]
        weight = table["weight"].to_numpy()[known]
        shares[rule] = compared.per_query(false[known].astype(np.float64), weight, query, len(sample.queries))
    rows: list[significance.SystemComparison] = []
    for rule in taken:
        both = np.flatnonzero(~np.isnan(shares[rule]) & ~np.isnan(shares[baseline]))
        if rule == baseline or len(both) < 2:
            continue
        names = (baseline, rule)
        metrics = pa.table(
            {
                "query_id": pa.concat_arrays([sample.queries.take(pa.array(both))] * 2),
                "system": np.repeat(names, len(both)),
                "measure": ["share"] * (2 * len(both)),
                "value": np.concatenate([shares[name][both] for name in names]),
            }
        )
        rows.append(significance.compare(metrics, baseline, [rule], "share", seed=seed)[1])
    return {row.system: row for row in significance.corrected(rows)}


def _optimum(errors: Floats) -> OptimalGap | None:
    """Theorem 12's optimum at the quartiles of the gap errors; None without a gap."""
    if not len(errors):
        return None
    low, middle, high = (float(value) for value in np.quantile(errors, [0.25, 0.5, 0.75]))
    gaps = optimum.best_gap(np.array(_COSTS), np.array([[low], [middle], [high]]))
    first, second, third = (tuple(gap if np.isfinite(gap) else None for gap in row) for row in gaps.tolist())
    ends = optimum.zone_costs(middle)
    zone = None if np.isnan(ends).any() else (float(ends[0]), float(ends[1]))
    return OptimalGap(_COSTS, (low, middle, high), (first, second, third), zone)


def _notes(experiment: Experiment, mined: Mapping[str, MinedRule], sample: _Sample) -> tuple[str, ...]:
    """What makes a comparison unfair."""
    notes: list[str] = []
    stage, panel = experiment.simulated or (JUDGE, experiment.judge)
    slope = panel.truth.similarity_slope
    group = judge.STAGE.group if stage == JUDGE else judge.LABEL.group
    readers = [rule for rule, one in mined.items() if _reads_retriever(one.config)]
    if sample.truth is not None and slope and readers:
        notes.append(
            f"The simulated truth was made to follow the retriever's similarity ({group}.truth.similarity_slope = "
            f"{slope:g}), which flatters rules that read the retriever's scores or ranks: {', '.join(readers)}."
        )
    if own := [rule for rule, one in mined.items() if one.inputs[RATE].stage != RATE]:
        notes.append(f"{', '.join(own)}: with ratings of its own, fitted again with further judgments.")
    return tuple(notes)


def _reads_retriever(config: MineConfig) -> bool:
    return config.sample.rule == "ranked" or any(rule.rule in ("score-margin", "rank-window") for rule in config.allow)
