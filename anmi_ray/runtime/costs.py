"""Cost of a stage: calls, tokens, dollars, GPU hours, and the comparisons that it passes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anmi_ray.config.experiment import Experiment

if TYPE_CHECKING:
    from anmi_ray.judging.spend import CallCost

COMPARED = "compare"  # the role whose comparisons judges are asked about
BEGUN = "begun"  # the role of an adaptive design's first comparisons where a later round's are asked about


@dataclass(frozen=True)
class StageCost:
    """Planned cost of one stage.

    work: in words; "" for a stage that costs neither calls nor GPU hours.
    pairs: comparisons that it passes on, each in one order.
    calls: to language models and servers.
    tokens: of prompts and answers of these calls.
    dollars: paid to servers, and for GPUs if their price is configured.
    gpu_hours: on the cluster's GPUs.
    """

    work: str = ""
    pairs: int = 0
    calls: int = 0
    tokens: float = 0.0
    dollars: float = 0.0
    gpu_hours: float = 0.0


@dataclass(frozen=True)
class Workload:
    """Inputs of the cost of a stage.

    experiment, config: all settings, and those of the stage.
    documents, train, dev, test: documents of the collection, and queries by split.
    dev_labelled: dev queries with a relevance grade, which judges do not rate.
    pairs: comparisons that the stage in each role passes on.
    calls: cost of the language models of its panel, if known.
    manifest: of its artifact, if complete.
    """

    experiment: Experiment
    config: Any
    documents: int
    train: int
    dev: int
    test: int
    dev_labelled: int = 0
    pairs: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: Sequence[CallCost] = ()
    manifest: Mapping[str, Any] | None = None

    def found(self, unit: str, about: int) -> int:
        """Rows of this unit that the stage has found, if it is complete, else the estimate."""
        if self.manifest is None:
            return about
        return next(flow["rows_out"] for flow in self.manifest["flows"] if flow["unit"] == unit)

    @property
    def held_out(self) -> int:
        """Number of dev and test queries."""
        return self.dev + self.test

    @property
    def compared(self) -> int:
        """Number of queries whose candidates are compared: train, and unlabelled dev queries if judges rate dev."""
        if not self.experiment.rates_dev:
            return self.train
        size = self.experiment.corpus.unlabelled_dev
        rated = self.dev - self.dev_labelled
        return self.train + (min(size, rated) if isinstance(size, int) else rated)

    @property
    def candidates(self) -> int:
        """Number of candidates of all queries whose candidates are compared."""
        return self.compared * min(self.experiment.retrieve.candidates, self.documents)
