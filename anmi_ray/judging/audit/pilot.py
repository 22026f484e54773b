"""A pilot's verdict: from the audit of a few hundred pairs to go or no-go, judge by judge, before money is spent.

Every gate is a figure with its 95 % interval and a bound. On one side of it the interval passes or fails; across it
nothing can be told yet, and how many more pairs would tell follows from an interval's width, which falls with the root
of their number. What was not measured because there is nothing to measure it by (no pair has a known positive) stands
in nobody's way.
Letters: N questions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.judge import PilotConfig
from anmi_ray.core.scale import Z95, wilson
from anmi_ray.judging.audit.agreement import Reals

Outcome = Literal["pass", "fail", "cannot tell", "not measured"]
Decision = Literal["go", "no-go", "cannot tell"]
AGREEMENT = "agreement with known positives"
BIAS = "position bias"
INCONSISTENT = "orders differ"
FAILURES = "failures"
WHOLE = "dollars, the whole run"
_NOTHING_TELLS = "not even all of the run's pairs would tell: move the gates, or decide without them"
DOLLARS = (WHOLE,)  # the others are shares


@dataclass(frozen=True)
class QuestionCosts:
    """What the pilot's questions to a judge cost: dollars float64[N] (None: no prices), query int64[N] of each.

    most float64[N]: what each may have cost, where its server did not count all; None: as much.
    """

    dollars: Reals | None
    query: NDArray[np.int64]
    most: Reals | None = None


@dataclass(frozen=True)
class PilotGate:
    """A figure against its bound, which it must reach (`least`) or not exceed.

    `pairs` it was measured on, of which `more` would tell where it cannot be told; None: no number that the run has.
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
    """What became of a judge: go where it passes every gate, no-go where it fails one."""

    judge: str
    gates: tuple[PilotGate, ...]

    @property
    def decision(self) -> Decision:
        """go, no-go, or cannot tell."""
        return _decided({gate.outcome for gate in self.gates}, "fail")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"judge": self.judge, "decision": self.decision, "gates": [asdict(gate) for gate in self.gates]}


def verdicts(
    figures: Mapping[str, Any],
    bought: Mapping[str, QuestionCosts],
    config: PilotConfig,
    pairs: int,
    of: int,
    questions: int | None = None,
) -> list[Verdict]:
    """A verdict for every judge of an audit (`judging.audit`'s dict) of `pairs` of a run's `of` comparisons.

    `bought` by judge; one that is not named costs nothing. Agreement is read from the audit's accuracy, so its grades
    are the known positives. questions: of the whole run; None: both orders of its comparisons.
    """
    questions = 2 * of if questions is None else questions
    found = []
    for judge, figure in figures["judges"].items():
        gates = [*_shares(figure, config), *_costs(bought.get(judge), config, pairs, questions)]
        found.append(Verdict(judge, tuple(_judged(gate, pairs, of) for gate in gates)))
    return found


def decision(found: Sequence[Verdict]) -> Decision:
    """Of a panel: go where every judge may, no-go where one may not."""
    return _decided({verdict.decision for verdict in found}, "no-go")


def _decided(outcomes: Collection[str], worst: str) -> Decision:
    return "no-go" if worst in outcomes else "cannot tell" if "cannot tell" in outcomes else "go"


def said(found: Sequence[Verdict]) -> Iterator[str]:
    """A line a judge: its decision and the gates that made it, and what would decide where nothing did."""
    for verdict in found:
        of = {"no-go": "fail", "cannot tell": "cannot tell"}.get(verdict.decision)
        why = [gate for gate in verdict.gates if gate.outcome == of]
        reasons = f": {', '.join(gate.name for gate in why)}" if why else ""
        yield f"{verdict.decision:14} {verdict.judge or '(unnamed)'}{reasons}"
        if verdict.decision == "cannot tell":
            more = [gate.more for gate in why if gate.more is not None]
            told = f"about {max(more):,} more pairs would tell" if len(more) == len(why) else _NOTHING_TELLS
            yield f"{'':14} {told}"


def _shares(figure: Mapping[str, Any], config: PilotConfig) -> Iterator[PilotGate]:
    """Gates on what the audit counts."""
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
        # the audit counts queries, of which a small run has few; questions fail one by one
        interval = list(wilson(0.0, asked)) if failures.value == 0.0 else failures.interval
        yield replace(failures, interval=interval, pairs=asked)


def _costs(bought: QuestionCosts | None, config: PilotConfig, pairs: int, questions: int) -> Iterator[PilotGate]:
    """The gate on dollars: those of all the run's questions at the pilot's mean."""
    if config.max_dollars is None:
        return
    each = (0.0, [0.0, 0.0]) if bought is None else _mean(bought)
    value = None if each is None else each[0] * questions
    ends = None if each is None or each[1] is None else [end * questions for end in each[1]]
    yield PilotGate(WHOLE, False, config.max_dollars, value, ends, pairs, "cannot tell")


def _mean(bought: QuestionCosts) -> tuple[float, list[float] | None] | None:
    """Dollars a question may cost, with the interval of what they do; None without prices, questions, or any count."""
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
    """Half the width of a mean's interval, linearised over queries."""
    _, query = np.unique(query, return_inverse=True)
    total = np.bincount(query, dollars)
    count = np.bincount(query)
    squares = float(np.square(total - dollars.mean() * count).sum())
    return Z95 * math.sqrt(len(count) / (len(count) - 1) * squares) / len(dollars)


def _judged(gate: PilotGate, pairs: int, of: int) -> PilotGate:
    """The gate with its outcome. A position bias counts on either side of zero."""
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
