"""compare-rules: every named composition of mining rules on the same ratings, and the page that holds them together.

Each rule's negatives are an ordinary artifact of mine, under a run `<name>-rules-<rule>`, so whatever is there already
is reused. The figures are of a hash sample of queries, computed in one task; page and rules.json stand under
`reports/<name>-rules/` and are made anew only when they would be made of other artifacts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import environment, mining, mining_runs
from anmi_ray import experiment as main
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import NAMED
from anmi_ray.errors import AnmiError, ConfigError, DataError, JudgeError
from anmi_ray.evaluation import rules_page, significance
from anmi_ray.evaluation.report import Band
from anmi_ray.evaluation.rules_report import Estimate, OptimalGap, Overlap, Rule, RulesData, to_json
from anmi_ray.mining import compared, optimum
from anmi_ray.records import CANDIDATE, EXAMPLE, FIT, GAP, QREL, RATING, TRUTH
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.runtime import Context, ray_session, run_task
from anmi_ray.store import Artifact, Store

VERSION = 1  # rises when the same artifacts would give other figures
DEFAULT = "posterior"  # what the others are held against
_QUERIES = 5_000
_POOL = 1_000  # queries of which whole pools are weighed again, for the weights by gap
_COSTS = tuple(np.geomspace(0.1, 30.0, 50).tolist())
_CANNOT = (ConfigError, DataError, JudgeError)  # what speaks against a rule; a full disk speaks against none

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """Where the page stands, and rules.json's content."""

    path: str
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class _Mined:
    """A rule's settings and its artifact of mine."""

    config: MineConfig
    artifact: Artifact


def run(experiment: Experiment, reporter: main.Reporter, rules: Sequence[str] | None = None) -> Compared:
    """Mine with each of `rules` (default: all that have a name) and write the page.

    Rules that cannot work with these settings are left out, and said to be. Raises AnmiError for whatever a user can
    mend; that of the first rule where none can work.
    """
    wanted = [mining_runs.rule_name(name) for name in dict.fromkeys(rules or NAMED)]
    store = Store(experiment.execution.root)
    settings, errors = _settings(experiment, wanted, named=rules is not None)
    _check(settings, errors)
    with ExitStack() as session:
        if any(not _complete(one) for one in settings.values()):
            session.enter_context(ray_session(experiment.execution))
        first = next(iter(settings.values()))
        if not _complete(first):
            main.run(first, reporter, last="rate")
        mined = _mine(settings, errors, _Quiet(reporter))
        _check(mined, errors)
        return _report(experiment, store, settings, mined, {k: e.message for k, e in errors.items()}, reporter, session)


def _settings(
    experiment: Experiment, wanted: Sequence[str], named: bool
) -> tuple[dict[str, Experiment], dict[str, AnmiError]]:
    """The experiment under every rule that it can work with, and what speaks against the others."""
    settings: dict[str, Experiment] = {}
    errors: dict[str, AnmiError] = {}
    for rule in wanted:
        try:
            one = mining_runs.run_under(experiment, rule, f"{experiment.name}-rules-{rule}")
        except ConfigError as error:
            errors[rule] = error
            continue
        if not named and one.mine.validation is not None and experiment.judge.reading:
            errors[rule] = ConfigError(
                "would ask the judges about further pairs", f"rule {rule}", "name it with --rules if they shall be asked"
            )
            continue
        settings[rule] = one
    return settings, errors


def _check(left: Mapping[str, object], errors: Mapping[str, AnmiError]) -> None:
    if not left:
        raise next(iter(errors.values()))


def _complete(experiment: Experiment) -> bool:
    item = main.resolve(experiment)["mine"]
    return Artifact(Store(experiment.execution.root), "mine", item.fingerprint).manifest() is not None


class _Quiet(main.Reporter):
    """Speaks of what is computed only: every rule passes by the same stages."""

    def __init__(self, reporter: main.Reporter) -> None:
        self.stage, self.progress, self._finished = reporter.stage, reporter.progress, reporter.finished

    def finished(self, name: str, seconds: float | None, flows: list[Any]) -> None:
        """A stage is complete; nothing is said of one that was."""
        if seconds is not None:
            self._finished(name, seconds, flows)


def _mine(
    settings: Mapping[str, Experiment], errors: dict[str, AnmiError], reporter: main.Reporter
) -> dict[str, _Mined]:
    """The artifact of every rule; one that cannot work goes to `errors`."""
    mined: dict[str, _Mined] = {}
    for rule, one in settings.items():
        try:
            mined[rule] = _Mined(one.mine, mining_runs.carry_out(one, reporter))
        except _CANNOT as error:
            errors[rule] = error
    return mined


def _report(
    experiment: Experiment,
    store: Store,
    settings: Mapping[str, Experiment],
    mined: Mapping[str, _Mined],
    left_out: Mapping[str, str],
    reporter: main.Reporter,
    session: ExitStack,
) -> Compared:
    """The page and rules.json, computed unless they are there already and made of these artifacts."""
    folder = f"reports/{experiment.name}-rules"
    made_of = {
        "version": VERSION,
        "left_out": dict(left_out),
        **{rule: one.artifact.fingerprint for rule, one in mined.items()},
    }
    if store.read_json(f"{folder}/made_of.json") != made_of:
        session.enter_context(ray_session(experiment.execution))
        reporter.stage("compare-rules", "hold the rules against each other")
        buckets = store.buckets(experiment.execution.buckets)
        context = Context(store, experiment.execution, buckets, experiment.seed, reporter.progress)
        resolved = main.resolve(settings[next(iter(mined))])
        made = {name: Artifact(store, name, item.fingerprint) for name, item in resolved.items()}
        data = run_task(context, gather, experiment, made, dict(mined), buckets)
        data = replace(data, left_out=left_out, environment=_environment())
        store.publish(f"{folder}/rules.json", to_json(data).encode())
        store.publish(f"{folder}/index.html", rules_page.render(data).encode())
        store.publish_json(f"{folder}/made_of.json", made_of)
    figures = json.loads(store.read(f"{folder}/rules.json"))
    return Compared(store.where(f"{folder}/index.html"), figures)


def _environment() -> dict[str, str]:
    found = environment.describe()
    return {name: str(found[name]) for name in ("git", "processor", "cores") if name in found}


@dataclass(frozen=True)
class _Sample:
    """What all rules are measured with, of the sampled queries."""

    queries: pa.Array  # in the order of their hash
    truth: pa.Table | None
    hidden: pa.Table | None  # query_id, doc_id
    pool: _Pool


@dataclass(frozen=True)
class _Pool:
    """The ratings of the first of the sampled queries, whole."""

    ratings: pa.Table
    gaps: pa.Table
    candidates: pa.Table
    fits: pa.Table
    edges: Floats


def gather(
    experiment: Experiment, made: Mapping[str, Artifact], mined: Mapping[str, _Mined], buckets: int
) -> RulesData:
    """Every figure, from complete artifacts: ingest, retrieve, judge and rate in `made`, mine by rule in `mined`."""
    rate = made["rate"]
    fits = [rate.store.read_table(rate.part_path("fits", b), columns=["query_id"]).num_rows for b in range(buckets)]
    sample = _sample(made, buckets)
    taken = {rule: _taken(one.artifact, buckets, sample.queries) for rule, one in mined.items()}
    baseline = DEFAULT if DEFAULT in mined else next(iter(mined))
    rules = [_rule(rule, mined[rule], taken[rule], sample, experiment.seed) for rule in mined]
    against = _against(taken, mined, sample, baseline, experiment.seed)
    members, query = compared.memberships(list(taken.values()), sample.queries)
    return RulesData(
        run=experiment.name,
        collection=experiment.corpus.path or experiment.corpus.reader,
        baseline=baseline,
        rules=tuple(replace(rule, against=against.get(rule.rule)) for rule in rules),
        left_out={},
        queries=sum(fits),
        sampled=len(sample.queries),
        pooled=min(len(sample.queries), _POOL),
        false_negative_gap=experiment.mine.false_negative_gap,
        bands=_bands(experiment.mine),
        edges=tuple(sample.pool.edges.tolist()),
        overlap=Overlap(*(tuple(map(tuple, part.tolist())) for part in compared.overlap(members, query))),
        optimum=_optimum(sample.pool),
        true_known=sample.truth is not None,
        hidden=None if sample.hidden is None else sample.hidden.num_rows,
    )


def _sample(made: Mapping[str, Artifact], buckets: int) -> _Sample:
    """Read bucket by bucket; of each only rows of the sample are kept."""
    rate, retrieve = made["rate"], made["retrieve"]
    sampled = sample_queries(rate, "fits", buckets, _QUERIES, "mine")
    first = sampled.slice(0, _POOL)
    kept: dict[str, list[pa.Table]] = {}

    def keep(name: str, table: pa.Table, queries: pa.Table) -> None:
        kept.setdefault(name, []).append(of_queries(table, queries))

    for bucket in range(buckets):
        candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
        qrels = made["ingest"].read_part("qrels", bucket, QREL)
        keep("relevant", qrels.filter(pc.greater(qrels["grade"], 0)), sampled)
        keep("positives", candidates.filter(candidates["is_positive"]).select(["query_id", "doc_id"]), sampled)
        keep("truth", made["judge"].read_part("truth", bucket, TRUTH), sampled)
        keep("candidates", candidates, first)
        for name, record in (("ratings", RATING), ("gaps", GAP), ("fits", FIT)):
            keep(name, rate.read_part(name, bucket, record), first)
    tables = {name: pa.concat_tables(parts) for name, parts in kept.items()}
    known = compared.pairs_in(tables["relevant"], tables["positives"])
    hidden = tables["relevant"].filter(pa.array(~known)).select(["query_id", "doc_id"])
    pool = _Pool(
        tables["ratings"],
        tables["gaps"],
        tables["candidates"],
        tables["fits"],
        compared.gap_edges(tables["gaps"]["gap_elo"].to_numpy()),
    )
    return _Sample(
        sampled["query_id"].combine_chunks(),
        tables["truth"] if tables["truth"].num_rows else None,
        hidden if hidden.num_rows else None,
        pool,
    )


def _taken(mine: Artifact, buckets: int, queries: pa.Array) -> pa.Table:
    """A rule's rated negatives of the sampled queries."""
    wanted = pa.table({"query_id": queries})
    parts = (of_queries(mine.read_part("examples", bucket, EXAMPLE), wanted) for bucket in range(buckets))
    return pa.concat_tables([compared.chosen(part) for part in parts])


def _rule(rule: str, mined: _Mined, taken: pa.Table, sample: _Sample, seed: int) -> Rule:
    summary = mined.artifact.read_json("summary.json")
    flows = (mined.artifact.manifest() or {"flows": []})["flows"]
    query = compared.query_codes(taken, sample.queries)
    weight, gap = taken["weight"].to_numpy(), taken["gap_elo"].to_numpy()
    queries = max(1, len(np.unique(query)))
    counts = pc.value_counts(taken["category"]).to_pylist()
    true = _true(mined.config, taken, query, sample)
    weights, chosen = _by_gap(mined.config, taken, sample, seed)
    rho, rho_all = (summary[f"false_negative_rate{end}"] for end in ("", "_unweighted"))
    return Rule(
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
        estimated=_rho(rho),
        estimated_all=_rho(rho_all),
        weights=weights,
        taken=chosen,
        hidden=_hidden(taken, query, sample),
        thresholds=tuple(summary.get("thresholds") or ()),
        **true,
    )


def _rho(found: Mapping[str, Any]) -> Estimate:
    return Estimate(found["mean"], found["low"], found["high"], found["n"])


def _estimate(found: compared.Interval) -> Estimate:
    return Estimate(*found)


def _false(config: MineConfig, taken: pa.Table, truth: pa.Table) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """True gaps of the chosen, where they are known, and where they are below false_negative_gap."""
    gap = compared.true_gaps(taken, truth)
    known = ~np.isnan(gap)
    return gap, known, known & (gap < config.false_negative_gap)


def _true(
    config: MineConfig, taken: pa.Table, query: NDArray[np.int64], sample: _Sample
) -> dict[str, Estimate]:
    """By the truth, where there is one: share of false negatives of the weight and of the documents, information."""
    if sample.truth is None:
        return {}
    gap, known, false = _false(config, taken, sample.truth)
    gap, false, query, weight = gap[known], false[known], query[known], taken["weight"].to_numpy()[known]
    return {
        "true": _estimate(compared.clustered_share(false, query, weight)),
        "true_all": _estimate(compared.clustered_share(false, query)),
        "information": _estimate(compared.clustered_mean(optimum.information(gap), query, weight)),
    }


def _hidden(taken: pa.Table, query: NDArray[np.int64], sample: _Sample) -> Estimate | None:
    """Share of the chosen that are relevant by the collection's qrels, and that nobody after retrieve knew to be."""
    if sample.hidden is None:
        return None
    return _estimate(compared.clustered_share(compared.pairs_in(taken, sample.hidden), query))


def _by_gap(
    config: MineConfig, taken: pa.Table, sample: _Sample, seed: int
) -> tuple[tuple[Estimate, ...], tuple[Estimate, ...]]:
    """By gap bin: mean weight, and share taken, of all documents beside an anchor."""
    pool = sample.pool
    found = mining.weights(pool.ratings, pool.gaps, pool.candidates, config, seed, pool.fits)
    query = compared.query_codes(found, sample.queries)
    chosen = compared.pairs_in(found, taken, ("query_id", "anchor_id", "doc_id"))
    at = found["gap_elo"].to_numpy()
    weights, shares = (
        tuple(_estimate(one) for one in compared.binned(at, value, query, pool.edges))
        for value in (found["weight"].to_numpy(), chosen.astype(np.float64))
    )
    return weights, shares


def _against(
    taken: Mapping[str, pa.Table], mined: Mapping[str, _Mined], sample: _Sample, baseline: str, seed: int
) -> dict[str, significance.SystemComparison]:
    """Every rule's true share of false negatives per query (of the weight) against the baseline's, paired.

    Over queries of which both have negatives; the p-values are corrected for the number of rules (Holm).
    """
    if sample.truth is None:
        return {}
    shares: dict[str, Floats] = {}
    for rule, table in taken.items():
        _, known, false = _false(mined[rule].config, table, sample.truth)
        query = compared.query_codes(table, sample.queries)[known]
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
    return {row.system: row for row in significance.holm(rows)}


def _bands(config: MineConfig) -> tuple[Band, ...]:
    lows: list[float | None] = [None, *config.edges]
    highs: list[float | None] = [*config.edges, None]
    return tuple(
        Band(band.category, low, high, band.weight) for band, low, high in zip(config.bands, lows, highs, strict=True)
    )


def _optimum(pool: _Pool) -> OptimalGap | None:
    """Theorem 12's optimum at the quartiles of the gap errors; None without a gap."""
    errors = pool.gaps["gap_se_elo"].to_numpy()
    if not len(errors):
        return None
    low, middle, high = (float(value) for value in np.quantile(errors, [0.25, 0.5, 0.75]))
    at = {error: tuple(float(optimum.best_gap(cost, error)) for cost in _COSTS) for error in (low, middle, high)}
    return OptimalGap(_COSTS, (low, middle, high), (at[low], at[middle], at[high]))
