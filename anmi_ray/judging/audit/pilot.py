"""Pilots: choose a sample of pairs, and turn their audit into a decision per judge before money is spent.

Every gate compares a metric's 95 % interval with a bound: pass, fail, or inconclusive if the interval contains it. Then
the number of additional pairs follows from the interval's width, which falls with the square root of their number.
Metrics that could not be measured (without known positives) do not affect the decision.
Letters: N questions, P comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.judge import PilotConfig
from anmi_ray.core.identity import id_matrix, id_order, uniforms
from anmi_ray.core.records import COMPARISON
from anmi_ray.core.scale import Z95, wilson
from anmi_ray.judging.audit.intervals import Reals
from anmi_ray.judging.protocol import candidate_rows

Outcome = Literal["pass", "fail", "cannot tell", "not measured"]
Decision = Literal["go", "no-go", "cannot tell"]
AGREEMENT = "agreement with known positives"
BIAS = "position bias"
INCONSISTENT = "orders differ"
FAILURES = "failures"
WHOLE = "dollars, the whole run"
_UNDECIDABLE = "all of the run's pairs would not decide: change the gates, or decide without them"
DOLLARS = (WHOLE,)  # the others are shares


@dataclass(frozen=True)
class QuestionCosts:
    """Costs of the pilot's questions to a judge.

    dollars: float64[N], None without prices.
    query: int64[N], query of each.
    most: float64[N], upper bounds, since servers may not report everything; None: equal to dollars.
    """

    dollars: Reals | None
    query: NDArray[np.int64]
    most: Reals | None = None


@dataclass(frozen=True)
class PilotGate:
    """A metric and its bound, a minimum (`least`) or a maximum.

    pairs: number of pairs it was measured on.
    more: additional pairs that would decide an inconclusive gate; None: more than the run has.
    """

    name: str
    least: bool
    bound: float
    value: float | None
    interval: list[float] | None
    pairs: int
    outcome: Outcome
    more: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The gates of a judge: go if it passes all, no-go if it fails one."""

    judge: str
    gates: tuple[PilotGate, ...]

    @property
    def decision(self) -> Decision:
        """go, no-go, or cannot tell."""
        return _decided({gate.outcome for gate in self.gates}, "fail")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"judge": self.judge, "decision": self.decision, "gates": [asdict(gate) for gate in self.gates]}


def verdicts(
    figures: Mapping[str, Any],
    bought: Mapping[str, QuestionCosts],
    config: PilotConfig,
    pairs: int,
    of: int,
    questions: int | None = None,
) -> list[Verdict]:
    """Return a verdict for every judge of an audit (`judging.audit`) of `pairs` of a run's `of` comparisons.

    bought: costs by judge; missing judges cost nothing. Agreement is the audit's accuracy with known positives as
    grades. questions: of the whole run; None: both orders of its comparisons.
    """
    questions = 2 * of if questions is None else questions
    found = []
    for judge, figure in figures["judges"].items():
        gates = [*_shares(figure, config), *_costs(bought.get(judge), config, pairs, questions)]
        found.append(Verdict(judge, tuple(_judged(gate, pairs, of) for gate in gates)))
    return found


def decision(found: Sequence[Verdict]) -> Decision:
    """Return the decision of a panel: go if all judges are go, no-go if one is."""
    return _decided({verdict.decision for verdict in found}, "no-go")


def _decided(outcomes: Collection[str], worst: str) -> Decision:
    return "no-go" if worst in outcomes else "cannot tell" if "cannot tell" in outcomes else "go"


def said(found: Sequence[Verdict]) -> Iterator[str]:
    """Yield a line per judge: its decision, the gates that caused it, and the pairs that would decide."""
    for verdict in found:
        of = {"no-go": "fail", "cannot tell": "cannot tell"}.get(verdict.decision)
        why = [gate for gate in verdict.gates if gate.outcome == of]
        reasons = f": {', '.join(gate.name for gate in why)}" if why else ""
        yield f"{verdict.decision:14} {verdict.judge or '(unnamed)'}{reasons}"
        if verdict.decision == "cannot tell":
            more = [gate.more for gate in why if gate.more is not None]
            text = f"about {max(more):,} more pairs would decide" if len(more) == len(why) else _UNDECIDABLE
            yield f"{'':14} {text}"


def _shares(figure: Mapping[str, Any], config: PilotConfig) -> Iterator[PilotGate]:
    """Yield the gates on the audit's metrics."""
    bias = figure["position_bias"]
    counts = figure["counts"]
    ends = figure["intervals"]

    def gate(name: str, least: bool, bound: float, key: str, outcome: Outcome = "cannot tell") -> PilotGate:
        return PilotGate(name, least, bound, figure.get(key), ends.get(key), counts.get(key, 0), outcome)

    if config.min_agreement is not None:
        yield gate(AGREEMENT, True, config.min_agreement, "accuracy_both_orders", "not measured")
    if (bound := config.max_position_bias) is not None:
        yield PilotGate(BIAS, False, bound, bias["probability"], bias["interval"], bias["pairs"], "cannot tell")
    if config.max_inconsistent is not None:
        yield gate(INCONSISTENT, False, config.max_inconsistent, "order_inconsistent_rate")
    if config.max_failures is not None:
        failures = gate(FAILURES, False, config.max_failures, "failure_rate")
        asked = math.ceil(failures.pairs / 2)
        # the audit's interval is over queries, of which a small run has few; questions fail independently
        interval = list(wilson(0.0, asked)) if failures.value == 0.0 else failures.interval
        yield replace(failures, interval=interval, pairs=asked)


def _costs(bought: QuestionCosts | None, config: PilotConfig, pairs: int, questions: int) -> Iterator[PilotGate]:
    """Yield the gate on the dollars of all the run's questions at the pilot's mean."""
    if config.max_dollars is None:
        return
    each = (0.0, [0.0, 0.0]) if bought is None else _mean(bought)
    value = None if each is None else each[0] * questions
    ends = None if each is None or each[1] is None else [end * questions for end in each[1]]
    yield PilotGate(WHOLE, False, config.max_dollars, value, ends, pairs, "cannot tell")


def _mean(bought: QuestionCosts) -> tuple[float, list[float] | None] | None:
    """Return the mean dollars per question and its interval; None without prices, questions, or any reported count."""
    least = bought.dollars
    if least is None or not len(least):
        return None
    most = least if bought.most is None else bought.most
    if most.any() and not least.any():
        return None
    value = float(most.mean())
    if len(np.unique(bought.query)) < 2:
        return value, None
    low = float(least.mean()) - _slack(least, bought.query)
    return value, [max(low, 0.0), value + _slack(most, bought.query)]


def _slack(dollars: Reals, query: NDArray[np.int64]) -> float:
    """Return half the width of a mean's interval, linearized over queries."""
    _, query = np.unique(query, return_inverse=True)
    total = np.bincount(query, dollars)
    count = np.bincount(query)
    squares = float(np.square(total - dollars.mean() * count).sum())
    return Z95 * math.sqrt(len(count) / (len(count) - 1) * squares) / len(dollars)


def _judged(gate: PilotGate, pairs: int, of: int) -> PilotGate:
    """Return the gate with its outcome; position bias counts by absolute value."""
    value = gate.value
    ends = gate.interval
    if value is None or ends is None:
        return gate if value is None else replace(gate, outcome="cannot tell")
    low, high = ends
    if gate.name == BIAS:
        low, high = (low, high) if value >= 0 else (-high, -low)
        value, low, high = abs(value), max(low, 0.0), max(high, -low)
    if gate.least:
        good = low >= gate.bound
        bad = high < gate.bound
        slack = value - low if value >= gate.bound else high - value
    else:
        good = high <= gate.bound
        bad = low > gate.bound
        slack = high - value if value <= gate.bound else value - low
    if good or bad:
        return replace(gate, outcome="pass" if good else "fail")
    margin = abs(value - gate.bound)
    more = math.ceil(pairs * ((slack / margin) ** 2 - 1)) if margin * 1e3 > slack else of
    return replace(gate, outcome="cannot tell", more=max(more, 1) if pairs + more <= of else None)


_KNOWN, _TURN, _CHANCE, _BUCKET = "one_positive", "turn", "chance", "bucket"  # added to a comparison's columns


def ranked(bucket: int, comparisons: pa.Table, candidates: pa.Table, pairs: int) -> pa.Table:
    """Return a bucket's Comparisons that may be among the run's `pairs`, for `merge` and `pick`.

    The sample is by hash. The first pair of every query precedes any second one, and half of the sample are pairs of a
    known positive and another document, if there are enough. Larger pilots contain smaller ones.

    Raises DataError if a compared document is not a candidate.
    """
    a, b = candidate_rows(comparisons, candidates)
    positive = candidates["is_positive"].to_numpy().astype(np.bool_)
    known = positive[a] != positive[b] if comparisons.num_rows else np.zeros(0, np.bool_)
    chance = uniforms(id_matrix(comparisons["comparison_id"]), "pilot")
    query = pc.dictionary_encode(comparisons["query_id"].combine_chunks()).indices.to_numpy().astype(np.int64)
    columns = {_KNOWN: known, _TURN: _turns(2 * query + known, chance), _CHANCE: chance}
    table = comparisons
    for name, values in {**columns, _BUCKET: np.full(len(query), bucket)}.items():
        table = table.append_column(name, pa.array(values))
    return _first(table, pairs)


def merge(tables: list[pa.Table], pairs: int) -> pa.Table:
    """Return the candidates of several buckets for the run's `pairs`, at most twice as many."""
    return _first(pa.concat_tables(tables), pairs)


def pick(table: pa.Table, pairs: int) -> dict[int, pa.Table]:
    """Return `pairs` of all buckets' ranked Comparisons (or all) by bucket, sorted by their ids."""
    known, others = (_first(table.filter(kind), pairs) for kind in (table[_KNOWN], pc.invert(table[_KNOWN])))
    first = min(known.num_rows, max((pairs + 1) // 2, pairs - others.num_rows))
    chosen = pa.concat_tables([known.slice(0, first), others.slice(0, pairs - first)])
    chosen = chosen.take(pa.array(id_order(id_matrix(chosen["query_id"]), id_matrix(chosen["comparison_id"]))))
    rows = chosen.select(COMPARISON.schema.names)
    buckets = sorted(pc.unique(chosen[_BUCKET]).to_pylist())
    return {bucket: rows.filter(pc.equal(chosen[_BUCKET], bucket)) for bucket in buckets}


def _turns(group: NDArray[np.int64], chance: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of the same group have a smaller chance, int64[P]."""
    order = np.lexsort((chance, group))
    starts = np.searchsorted(group[order], group[order])
    turn = np.empty(len(group), np.int64)
    turn[order] = np.arange(len(group)) - starts
    return turn


def _first(table: pa.Table, pairs: int) -> pa.Table:
    """Return the first `pairs` rows of either kind, by turn."""
    known = table[_KNOWN].to_numpy().astype(np.bool_)
    words = id_matrix(table["comparison_id"]).view(">u8").astype(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0], table[_CHANCE].to_numpy(), table[_TURN].to_numpy()))
    kept = np.concatenate([order[known[order]][:pairs], order[~known[order]][:pairs]])
    return table.take(pa.array(kept)).combine_chunks()
