"""A judge that answers by hash, to measure the cost of everything except judging."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anmi_ray.config.judge import NullJudgeConfig
from anmi_ray.core.identity import uniforms
from anmi_ray.judging.http.limits import Leases
from anmi_ray.judging.kinds.base import Publish, Slices, TextJudge, answer_rows
from anmi_ray.judging.questions import TextQuestions
from anmi_ray.store.spend_log import Spend


@dataclass(frozen=True)
class NullJudge(TextJudge):
    """Answers by a hash of the question's texts."""

    config: NullJudgeConfig

    def content(self) -> dict[str, object]:
        """Return nothing: its answers are fixed."""
        return {}

    def engine(self, lease: Leases | None = None, answered: bool = False) -> NullEngine:
        return NullEngine()


class NullEngine:
    """The engine of NullJudge."""

    at_once = 16_384

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}
        self.spend = Spend()

    def ask(self, questions: TextQuestions, slices: Slices, publish: Publish) -> None:
        for which in slices:
            p = uniforms(questions.ids[which], "null")
            self.spend += Spend(requests=len(which))
            publish(answer_rows(questions, which, log_first=np.log(p), log_second=np.log1p(-p)))


JUDGE = NullJudge
