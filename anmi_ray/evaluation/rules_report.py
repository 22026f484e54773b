"""What `anmi compare-rules` found: mining rules on the same ratings, as plain numbers, and the same as JSON.

`rules_page` makes the page of it. Gaps are in Elo points, shares and weights between 0 and 1, all intervals 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anmi_ray.evaluation.report import Band, a_key_a_line, plain
from anmi_ray.evaluation.significance import SystemComparison

FORMAT = 1  # version of rules.json


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval over queries, from n documents; None where it cannot be known."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Rule:
    """One composition of rules and what it chose.

    `queries` (with examples) and `rejected` count all of the run; the rest is of the sampled queries. `categories` are
    rated negatives per query. `estimated` is ρ̂, the share of the weight that lies on false negatives, by the ratings
    and their errors, `true` the same by the truth; `_all` counts every chosen negative once. `against` compares the
    true share per query with the baseline's. `hidden` is the share of the chosen that are hidden known positives.
    `weights` and `taken` are, by gap bin, the mean weight and the share that was taken of all documents.
    """

    rule: str
    composition: str
    artifact: str
    examples: int
    queries: int
    rejected: int
    negatives_per_example: float | None
    categories: Mapping[str, float]
    weight: Estimate
    gap: Estimate
    gap_se: float | None
    estimated: Estimate
    estimated_all: Estimate
    weights: tuple[Estimate, ...]
    taken: tuple[Estimate, ...]
    true: Estimate | None = None
    true_all: Estimate | None = None
    information: Estimate | None = None
    against: SystemComparison | None = None
    hidden: Estimate | None = None
    thresholds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Overlap:
    """Mean Jaccard index of every two rules' negatives of a query, rows and columns in the order of the rules."""

    mean: tuple[tuple[float | None, ...], ...]
    low: tuple[tuple[float | None, ...], ...]
    high: tuple[tuple[float | None, ...], ...]
    queries: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class OptimalGap:
    """Theorem 12: the gap with the most information less `cost` (bits) times P(false negative), per gap error.

    `errors` are the first quartile, the median and the third quartile of the run's gap errors; `gaps` has for each of
    them the optimum at every cost, None where no gap is worth its danger. `zone` are the costs between which the
    optimum at the median error lies between 150 and 300 points, None if there are none.
    """

    costs: tuple[float, ...]
    errors: tuple[float, float, float]
    gaps: tuple[tuple[float | None, ...], tuple[float | None, ...], tuple[float | None, ...]]
    zone: tuple[float, float] | None


@dataclass(frozen=True)
class RulesData:
    """Everything that the page says. What is None was not known: no simulated judges, or no positive was hidden."""

    run: str
    collection: str
    baseline: str
    rules: tuple[Rule, ...]
    left_out: Mapping[str, str]
    queries: int  # rated train queries
    sampled: int
    pooled: int  # queries behind the weights by gap
    false_negative_gap: float
    bands: tuple[Band, ...]
    edges: tuple[float, ...]
    overlap: Overlap
    optimum: OptimalGap | None = None
    true_known: bool = False
    hidden: int | None = None  # hidden positives of the sampled queries
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def to_json(data: RulesData) -> str:
    """rules.json: every number of the page, one key of the top a line."""
    return a_key_a_line({"format": FORMAT, **plain(data)})
