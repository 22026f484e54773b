"""What a run's headline compares: the reranked system with the best of the systems that nothing was trained for.

Which of these is the best is chosen on dev queries alone; the model that training started from is one of them, alone
and fused. The control, the fusion without any reranker, says what of the gain is the reranker's own: the rest is the
fusion's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anmi_ray.evaluation.significance import SystemComparison

BY_DEV = "dev"
BY_SETTINGS = "settings"
BY_DEFAULT = "default"  # no dev query is judged


@dataclass(frozen=True)
class Headline:
    """The system that the headline is about, its baseline, and what dev queries say of both under `measure`.

    chosen: what the baseline was chosen by: BY_DEV, BY_SETTINGS or BY_DEFAULT. control: the fusion without any
    reranker, "" where nothing was fused. queries: judged dev queries, over which `dev` has the mean by system; that of
    a fusion is cross-validated, as its weights were chosen there too. weights: of the scores that `system` is made of.
    shares: the reranked systems compared with the control on test queries. by_judges: the measure that `dev` has where
    judges gave its gains, "" where labels did.
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
        """That the system is no better than its baseline on dev, with the figures; "" where it is, or nobody knows."""
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


def best(dev: Mapping[str, float], untrained: Sequence[str]) -> str:
    """The system of the largest mean on dev; of equal ones, and where nothing was measured, the first of `untrained`.

    >>> best({"hybrid": 0.5, "bm25": 0.6}, ["hybrid", "bm25", "dense"])
    'bm25'
    """
    return max(untrained, key=lambda name: round(dev.get(name, float("-inf")), 12))


def from_json(content: Mapping[str, Any]) -> Headline:
    """A headline that went through JSON."""
    return Headline(**{**content, "shares": tuple(SystemComparison(**row) for row in content["shares"])})
