"""Where a judge's questions come from: comparisons, queries and texts, bucket by bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging.questions import TextQuestions, direct_questions, text_questions
from anmi_ray.store import Artifact
from anmi_ray.store.folders import local_folder


@dataclass(frozen=True)
class QuestionSources:
    """Where questions come from.

    first: the comparisons of the main questions, where these are later ones; begun: those of an adaptive design's first
    round, where this is a later one; distill: the model that a distilled judge of
    the panel is; direct: the panel of the first round, where this is about single documents; held_out: of queries that
    nothing trains on; orders: as the panel's.
    """

    compare: Artifact
    retrieve: Artifact
    ingest: Artifact
    first: Artifact | None = None
    begun: Artifact | None = None
    distill: Artifact | None = None
    direct: JudgeConfig | None = None
    held_out: bool = False
    orders: Literal["both", "one"] = "both"

    @property
    def candidates(self) -> Artifact:
        """What holds the documents that may be asked about: retrieve, or of held-out queries whoever pooled them."""
        return self.compare if self.held_out else self.retrieve

    def fetch(self) -> None:
        """See that a distilled judge's model lies on this machine's disk, where its settings say it does."""
        if self.distill is not None:
            local_folder(self.distill, "model")

    def questions(self, bucket: int) -> TextQuestions:
        """All questions of a bucket."""
        read = (
            self.compare.read_part("comparisons", bucket, COMPARISON),
            self.ingest.read_part("queries", bucket, QUERY),
            self.retrieve.read_part("texts", bucket, TEXT_OF),
        )
        return text_questions(*read, self.orders) if self.direct is None else direct_questions(*read)
