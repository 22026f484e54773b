"""Questions to a judge: where they come from, and the one object that workers need to ask them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging.budget import Admission
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.questions import PATIENCE_S, Rows, TextQuestions, direct_questions, slices, text_questions
from anmi_ray.store import Artifact
from anmi_ray.store.answer_log import AnswerLog, Lacking
from anmi_ray.store.folders import local_folder

FIRST, VALIDATE, CONFIRM, ASSESS = range(4)  # rounds of the spend log


@dataclass(frozen=True)
class QuestionSources:
    """The artifacts that questions are built from, bucket by bucket.

    first: comparisons of the first round, if this is a later one.
    begun: comparisons of an adaptive design's first round, if this is a later one.
    distill: the model of the panel's distilled judge, if any.
    pairwise: the panel of the first round, if this one is about single documents.
    orders: presentation orders of the panel.
    round: round of the spend log.
    """

    compare: Artifact
    retrieve: Artifact
    ingest: Artifact
    first: Artifact | None = None
    begun: Artifact | None = None
    distill: Artifact | None = None
    pairwise: JudgeConfig | None = None
    orders: Literal["both", "one"] = "both"
    round: int = FIRST

    @property
    def candidates(self) -> Artifact:
        """The artifact with the candidates: retrieve, or the pool of held-out queries."""
        return self.compare if self.round == ASSESS else self.retrieve

    def fetch(self) -> None:
        """Copy a distilled judge's model to this machine, where its settings expect it."""
        if self.distill is not None:
            local_folder(self.distill, "model")

    def questions(self, bucket: int) -> TextQuestions:
        """Return all questions of a bucket."""
        tables = (
            self.compare.read_part("comparisons", bucket, COMPARISON),
            self.ingest.read_part("queries", bucket, QUERY),
            self.retrieve.read_part("texts", bucket, TEXT_OF),
        )
        return direct_questions(*tables) if self.pairwise else text_questions(*tables, self.orders)


class Chunk(NamedTuple):
    """The questions `start` to `stop` of a bucket, whole queries.

    begun: 1 if some have answers.
    """

    bucket: int
    start: int
    stop: int
    begun: int = 0

    @property
    def key(self) -> str:
        """Name of the chunk in the budget actor."""
        return f"{self.bucket}-{self.start}"

    @staticmethod
    def of(batch: dict[str, Any]) -> list[Chunk]:
        """Return the chunks of a batch of Ray Data (columns of arrays)."""
        return [Chunk(*row) for row in zip(*(batch[name].tolist() for name in Chunk._fields), strict=True)]


@dataclass(frozen=True)
class Asking:
    """Everything that a worker needs to ask a judge.

    budget: handle of the judge's BudgetActor.
    backwards: whether to ask the last queries first, since another run that started earlier asks the first ones.
    where: context of log lines.
    """

    judge: TextJudge
    log: AnswerLog
    sources: QuestionSources
    budget: Any
    backwards: bool
    where: Mapping[str, Any]

    def slices(
        self, chunk: Chunk, questions: TextQuestions, lacking: Lacking, size: int, patience_s: float = PATIENCE_S
    ) -> Iterator[Rows]:
        """Return the slices of a chunk's unanswered questions, as the budget admits them."""
        rows = np.arange(chunk.start, chunk.stop)
        dollars = self.judge.estimated_dollars(questions)

        def admit(group: list[Rows], patient: bool) -> Admission:
            costs = [(len(which), float(dollars[which].sum())) for which in group]
            return ray.get(self.budget.admit.remote(chunk.key, costs, patient))

        queries = in_order(questions, rows, lacking.among(rows), self.backwards)
        return slices(queries, size, admit, patience_s, lacking)


def in_order(questions: TextQuestions, chunk: Rows, missing: NDArray[np.bool_], backwards: bool = False) -> list[Rows]:
    """Return the missing questions of a chunk by query; partly answered queries come first, before a budget may end.

    backwards: reversed.
    """
    query = questions.query[chunk]
    bounds = [0, *(np.flatnonzero(np.diff(query)) + 1).tolist(), len(chunk)]
    ranges = [slice(*ends) for ends in itertools.pairwise(bounds)]
    ranges = sorted((rows for rows in ranges if missing[rows].any()), key=lambda rows: bool(missing[rows].all()))
    return [chunk[rows][missing[rows]] for rows in (reversed(ranges) if backwards else ranges)]
