"""Pilots: choose a sample of pairs, and turn their audit into a decision per judge before money is spent.

Every gate compares a metric's 95 % interval with a bound: pass, fail, or inconclusive if the interval contains it.
Agreement that could not be measured (no known positives) does not affect the decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.judge import PilotConfig
from anmi_ray.core.identity import id_matrix, id_order, uniforms
from anmi_ray.core.records import COMPARISON
from anmi_ray.core.scale import wilson
from anmi_ray.judging.audit.intervals import linearised
from anmi_ray.judging.protocol import candidate_rows

Outcome = Literal["pass", "fail", "inconclusive", "not measured"]
Decision = Literal["go", "no-go", "inconclusive"]
AGREEMENT = "agreement with known positives"
BIAS = "position bias"
INCONSISTENT = "orders differ"
FAILURES = "failures"
WHOLE = "dollars, the whole run"
# of questions that were asked: the least and most dollars that each may have cost, NaN without prices
COSTS = pa.schema({"judge": pa.string(), "query": pa.int64(), "least": pa.float64(), "most": pa.float64()})
_KNOWN, _CHANCE, _BUCKET = "one_positive", "chance", "bucket"  # added to a comparison's columns


@dataclass(frozen=True)
class PilotGate:
    """A metric with its 95 % interval, measured on `pairs` pairs, and its bound: a minimum (`least`) or a maximum."""

    name: str
    least: bool
    bound: float
    value: float | None
    interval: list[float] | None
    pairs: int
    outcome: Outcome


@dataclass(frozen=True)
class Verdict:
    """The gates of a judge: go if it passes all, no-go if it fails one."""

    judge: str
    gates: tuple[PilotGate, ...]

    @property
    def decision(self) -> Decision:
        """go, no-go, or inconclusive."""
        return _decided({gate.outcome for gate in self.gates}, "fail")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"judge": self.judge, "decision": self.decision, "gates": [asdict(gate) for gate in self.gates]}

    def __str__(self) -> str:
        worst = {"no-go": "fail", "inconclusive": "inconclusive"}.get(self.decision)
        reasons = ", ".join(gate.name for gate in self.gates if gate.outcome == worst)
        return f"{self.decision:14} {self.judge or '(unnamed)'}{': ' if reasons else ''}{reasons}"


def verdicts(figures: Mapping[str, Any], costs: pa.Table, config: PilotConfig, questions: int) -> list[Verdict]:
    """Return a verdict for every judge of an audit (`judging.audit`), whose grades are the known positives.

    costs: COSTS; judges without a row cost nothing.
    questions: of the whole run.
    """
    found: list[Verdict] = []
    for name, figure in figures["judges"].items():
        gates = list(_shares(figure, config))
        if config.max_dollars is not None:
            own = costs.filter(pc.equal(costs["judge"], name))
            gates.append(_gate(WHOLE, config.max_dollars, *_dollars(own, questions), math.ceil(figure["n"] / 2)))
        found.append(Verdict(name, tuple(gates)))
    return found


def decision(found: Sequence[Verdict]) -> Decision:
    """Return the decision of a panel: go if all judges are go, no-go if one is."""
    return _decided({verdict.decision for verdict in found}, "no-go")


def _decided(outcomes: Collection[str], worst: str) -> Decision:
    return "no-go" if worst in outcomes else "inconclusive" if "inconclusive" in outcomes else "go"


def _shares(figure: Mapping[str, Any], config: PilotConfig) -> Iterator[PilotGate]:
    """Yield the gates on the audit's metrics."""

    def measured(key: str) -> tuple[float | None, list[float] | None, int]:
        return figure.get(key), figure["intervals"].get(key), figure["counts"].get(key, 0)

    if config.min_agreement is not None:
        value, interval, pairs = measured("accuracy_both_orders")
        unknown: Outcome = "not measured" if value is None else "inconclusive"
        yield _gate(AGREEMENT, config.min_agreement, value, interval, pairs, least=True, unknown=unknown)
    if config.max_position_bias is not None:
        bias = figure["position_bias"]
        yield _gate(BIAS, config.max_position_bias, bias["probability"], bias["interval"], bias["pairs"])
    if config.max_inconsistent is not None:
        yield _gate(INCONSISTENT, config.max_inconsistent, *measured("order_inconsistent_rate"))
    if config.max_failures is not None:
        value, interval, asked = measured("failure_rate")
        pairs = math.ceil(asked / 2)
        # the audit's interval is over queries, of which a small run has few; questions fail independently
        yield _gate(FAILURES, config.max_failures, value, list(wilson(0.0, pairs)) if value == 0.0 else interval, pairs)


def _gate(
    name: str,
    bound: float,
    value: float | None,
    interval: list[float] | None,
    pairs: int,
    least: bool = False,
    unknown: Outcome = "inconclusive",
) -> PilotGate:
    """Return a gate with its outcome, `unknown` without an interval; position bias counts by absolute value."""
    outcome = unknown
    if value is not None and interval is not None:
        low, high = interval
        if name == BIAS:
            low, high = max(low, -high, 0.0), max(high, -low)
        if low >= bound if least else high <= bound:
            outcome = "pass"
        elif high < bound if least else low > bound:
            outcome = "fail"
    return PilotGate(name, least, bound, value, interval, pairs, outcome)


def _dollars(costs: pa.Table, questions: int) -> tuple[float | None, list[float] | None]:
    """Return the dollars of `questions` questions and their interval; None without prices or any reported count."""
    if not costs.num_rows:
        return 0.0, [0.0, 0.0]
    least, most = (costs[name].to_numpy() for name in ("least", "most"))
    if np.isnan(least).any() or (most.any() and not least.any()):
        return None, None
    _, query = np.unique(costs["query"].to_numpy(), return_inverse=True)
    count = np.bincount(query).astype(np.float64)
    low, high = (linearised(np.bincount(query, dollars).astype(np.float64), count) for dollars in (least, most))
    interval = None if low is None or high is None else [max(low[0], 0.0) * questions, high[1] * questions]
    return float(most.mean()) * questions, interval


def numbered(bucket: int, comparisons: pa.Table, candidates: pa.Table) -> pa.Table:
    """Return a bucket's Comparisons with the columns that a sample is chosen by.

    Raises DataError if a compared document is not a candidate.
    """
    positive = candidates["is_positive"].to_numpy().astype(np.bool_)
    a, b = (positive[rows] for rows in candidate_rows(comparisons, candidates))
    chance = uniforms(id_matrix(comparisons["comparison_id"]), "pilot")
    for name, values in {_KNOWN: a != b, _CHANCE: chance, _BUCKET: np.full(len(a), bucket)}.items():
        comparisons = comparisons.append_column(name, pa.array(values))
    return comparisons


def first(tables: Sequence[pa.Table], pairs: int) -> pa.Table:
    """Return the first `pairs` by hash of pairs of a known positive and another document, then as many others."""
    table = pa.concat_tables(tables).combine_chunks()
    order = np.argsort(table[_CHANCE].to_numpy(), kind="stable")
    known = table[_KNOWN].to_numpy().astype(np.bool_)[order]
    return table.take(pa.array(np.concatenate([order[known][:pairs], order[~known][:pairs]])))


def pick(table: pa.Table, pairs: int) -> dict[int, pa.Table]:
    """Return a sample of `pairs` Comparisons (or all) by bucket, sorted by their ids, of what `first` kept.

    Half of it are pairs with one known positive, if there are enough. Larger samples contain smaller ones.
    """
    known = pc.sum(table[_KNOWN]).as_py() or 0
    some = min(known, max((pairs + 1) // 2, pairs - (table.num_rows - known)))
    chosen = pa.concat_tables([table.slice(0, some), table.slice(known, pairs - some)])
    chosen = chosen.take(pa.array(id_order(id_matrix(chosen["query_id"]), id_matrix(chosen["comparison_id"]))))
    rows = chosen.select(COMPARISON.schema.names)
    buckets = sorted(pc.unique(chosen[_BUCKET]).to_pylist())
    return {bucket: rows.filter(pc.equal(chosen[_BUCKET], bucket)) for bucket in buckets}
