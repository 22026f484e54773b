"""What a stage has to do, in numbers: rows, core-seconds, bytes and files, GPU hours, and what others are paid.

Seconds follow from costs a row that were measured by running the quickstart on two cores of an AMD EPYC with
avx512_bf16: they scale with cores, and tell minutes from days. Costs that one stage alone has stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anmi_ray.config.experiment import Experiment

if TYPE_CHECKING:
    from anmi_ray.judging.spend import CallCost

SCORE_TOKEN_S = 1.4e-4
TRAIN_TOKEN_S = 4e-4  # of pairs as long as max_tokens allows: most are shorter
COMPARISON_BYTES = 50
RUN_BYTES = 30
TEXT_BYTES = 700
MODEL_BYTES = 9e7
COMPARED = "compare"  # the role whose comparisons judges are asked about
BEGUN = "begun"  # the role of an adaptive design's first comparisons where a later round's are asked about


@dataclass(frozen=True)
class StageCost:
    """One stage's work: in words, core-seconds, bytes and files kept, GPU hours and what others are paid.

    `limited`: seconds that it takes at least however many cores there are: on GPUs, and by rate limits. `pairs`:
    comparisons that it hands on, in one order.
    """

    work: str
    seconds: float
    bytes: float
    dollars: float = 0.0
    limited: float = 0.0
    files: int = 0
    gpu_hours: float = 0.0
    pairs: int = 0


@dataclass(frozen=True)
class Workload:
    """What a stage works on: the settings of all and its own, the collection's counts, what earlier stages hand on.

    dev_labelled: dev queries with a relevance grade, which judges do not rate.
    pairs: by role, the comparisons that the stage in it hands on. calls: what is asked of its panel's language models,
    where that is known. manifest: its own, where its artifact is complete.
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

    @property
    def queries(self) -> int:
        """Queries of all splits."""
        return self.train + self.held_out

    @property
    def held_out(self) -> int:
        """Queries of dev and test."""
        return self.dev + self.test

    @property
    def compared(self) -> int:
        """Queries whose candidates are compared: of train, and of dev those without a label where judges rate these."""
        if not self.experiment.rates_dev:
            return self.train
        size = self.experiment.corpus.unlabelled_dev
        rated = self.dev - self.dev_labelled
        return self.train + (min(size, rated) if isinstance(size, int) else rated)

    @property
    def candidates(self) -> int:
        """Candidates of all queries whose candidates are compared."""
        return self.compared * min(self.experiment.retrieve.candidates, self.documents)

    @property
    def listed(self) -> int:
        """Documents of an example that training reads, at most."""
        mine = self.experiment.mine
        return 1 + mine.negatives + mine.random_negatives + mine.rated_extra

    @property
    def shards(self) -> int:
        """Shards of the documents."""
        return -(-self.documents // self.experiment.corpus.shard_documents)

    @property
    def buckets(self) -> int:
        """Buckets of queries."""
        return self.experiment.execution.buckets_on(self.experiment.execution.cpus)
