"""The comparison of a run's headline: the reranked system with the best untrained system.

The best is chosen on dev queries; the model that training started from is a candidate, alone and fused. The control,
the fusion without any reranker, separates the reranker's gain from the fusion's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anmi_ray.evaluation.replicates import queries_needed
from anmi_ray.evaluation.significance import LEVEL, SystemComparison

BY_DEV = "dev"
BY_SETTINGS = "settings"
BY_DEFAULT = "default"  # no dev query is judged


@dataclass(frozen=True)
class Headline:
    """System and baseline of the headline, and their means on dev queries under `measure`.

    chosen: BY_DEV, BY_SETTINGS or BY_DEFAULT.
    control: the fusion without any reranker, "" if nothing was fused.
    queries: number of judged dev queries.
    dev: their mean by system; cross-validated for a fusion, whose weights were chosen there too.
    weights: of the scores that `system` is made of.
    shares: the reranked systems compared with the control on test queries.
    by_judges: the measure of `dev` if judges gave its gains, "" if labels did.
    """

    system: str
    baseline: str
    chosen: str
    control: str
    measure: str
    queries: int
    dev: Mapping[str, float]
    weights: Mapping[str, float]
    shares: tuple[SystemComparison, ...] = ()
    by_judges: str = ""

    def how(self) -> str:
        """Description of the baseline."""
        if self.chosen == BY_SETTINGS:
            return "named by evaluate.baseline"
        if self.chosen == BY_DEV:
            return f"the best untrained system on {self._dev_queries()}"
        return "taken without a choice: no dev query is judged"

    def no_better(self) -> str:
        """Statement that the system is no better than its baseline on dev; "" if better or unknown."""
        if self.system not in self.dev or self.baseline not in self.dev:
            return ""
        system, baseline = self.dev[self.system], self.dev[self.baseline]
        if system > baseline:
            return ""
        means = f"{self.by_judges or self.measure} {system:.3f} against {baseline:.3f}"
        return f"{self.system} is no better than {self.baseline} on {self._dev_queries()} ({means})"

    def _dev_queries(self) -> str:
        judged = " that judges judged" if self.by_judges else ""
        return f"{self.queries:,} dev {'query' if self.queries == 1 else 'queries'}{judged}"


def sentence(found: Headline, row: Mapping[str, Any] | None, by_judges: bool = False) -> str:
    """Return Deploy, Do not deploy or Undecided, with the system's difference from the baseline on test queries.

    row: the system's SystemComparison under the first measure. "" if neither test nor dev queries say anything.
    """
    doubt = found.no_better()
    if row is None or row["p"] is None:
        return f"Do not deploy: {doubt}" if doubt else ""
    difference, low, high = (row[name] for name in ("difference", "difference_low", "difference_high"))
    word = "Deploy" if row["p"] < 1 - LEVEL else "Undecided"
    word = "Do not deploy" if doubt or difference <= 0 else word
    said = (
        f"{word}: {found.system} is {difference:+.3f} {row['measure']} [{low:+.3f}, {high:+.3f}] over {found.baseline}"
    )
    said += ", by judges, not labels" if by_judges else ""
    if word == "Undecided":
        sd = (high - low) / 3.92 * row["queries"] ** 0.5  # a 95 % interval is 2 * 1.96 standard errors wide
        if (more := queries_needed(sd, difference) - row["queries"]) > 0:
            said += f"; about {more:,} more test queries would decide"
    return f"{said}; {doubt}" if doubt else said


def best(dev: Mapping[str, float], untrained: Sequence[str]) -> str:
    """The system with the largest mean on dev; ties, and systems without a mean, go by the order of `untrained`.

    >>> best({"hybrid": 0.5, "bm25": 0.6}, ["hybrid", "bm25", "dense"])
    'bm25'
    """
    return max(untrained, key=lambda name: round(dev.get(name, float("-inf")), 12))


def from_json(content: Mapping[str, Any]) -> Headline:
    """Read a headline from JSON."""
    return Headline(**{**content, "shares": tuple(SystemComparison(**row) for row in content["shares"])})
