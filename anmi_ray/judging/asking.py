"""A judge asked in this process, without Ray: what a command asks by itself. The same answer log and spend log as runs.

Letters: N questions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anmi_ray.core.errors import ConfigError, JudgeError, rebuild
from anmi_ray.core.identity import bucket_of
from anmi_ray.judging.budget import Admission
from anmi_ray.judging.budget_session import BudgetReport, BudgetSession
from anmi_ray.judging.kinds.base import JudgeEngine, TextJudge, by_frequency, failures_of
from anmi_ray.judging.questions import Rows, TextQuestions, slices
from anmi_ray.store.answer_log import AnswerLog, Held, hold

_CHUNK = "questions"


@dataclass(frozen=True)
class LocalAsker:
    """Asks `judge` what its log does not hold. buckets: of queries, as a run under the same root has them.

    passes: times that failures which may go away are asked again; max_failures: share of them that may be left.
    """

    judge: TextJudge
    log: AnswerLog
    session: BudgetSession
    buckets: int
    passes: int
    max_failures: float
    say: Callable[[str], None]

    def ask(self, questions: TextQuestions) -> Held:
        """What is known of the questions when all are asked, or the budget is spent.

        Raises ConfigError or JudgeError for what the user has to mend; what arrived before is in the log.
        """
        if self.judge.asked_through != "actors":
            what = f"judge {self.judge.name} is asked by runs alone (kind {self.judge.config.kind})"
            raise ConfigError(what, "queries.check", "serve its model, as with vllm serve, and name it by kind: api")
        held = self.known(questions)
        missing = self._missing(held, questions)
        report = self.session.report()
        for _ in range(1 + self.passes):
            if not len(missing):
                return held
            failed = report.spent.failed
            self.say(f"asking {self.judge.name} {len(missing):,} of {len(questions.ids):,} questions; others are known")
            report = self._pass(questions, missing, held.answered)
            held = self.known(questions)
            missing = self._missing(held, questions)
            if report.problem:
                raise rebuild(report.problem)
            if report.spent_out or report.spent.failed == failed:
                return held
        left = int(np.sum(held.rows(questions.ids[missing]) >= 0))  # the others were not asked
        if left > self.max_failures * len(questions.ids):
            why = by_frequency(report.failures)
            what = f"{left:,} of {len(questions.ids):,} questions have no answer, for reasons that may go away ({why})"
            remedy = "run the same command again to ask them once more; `judge.max_failures` says how many may be left"
            raise JudgeError(what, f"judge {self.judge.name}", remedy)
        return held

    def known(self, questions: TextQuestions) -> Held:
        """What the log holds of their queries' buckets."""
        return known(self.log, questions, self.buckets)

    def _missing(self, held: Held, questions: TextQuestions) -> Rows:
        return np.flatnonzero(~held.final(questions.ids))

    def _pass(self, questions: TextQuestions, missing: Rows, answered: bool) -> BudgetReport:
        answered = self.session.begin(_CHUNK) or answered
        engine: JudgeEngine = self.judge.engine(answered=answered)
        dollars = self.judge.likely_dollars(questions)
        bucket = np.array(_buckets(questions, self.buckets))[questions.query]
        spent = engine.spend
        turn = threading.Lock()  # answers are handed over in one thread, questions are let through in another

        def settle(count: int, failures: dict[str, int]) -> None:
            nonlocal spent
            with turn:
                now = engine.spend
                self.session.settle(_CHUNK, count, failures, now - spent)
                spent = now

        def hand_over(answers: pa.Table) -> None:
            of_row = np.array([bucket_of(key, self.buckets) for key in answers["query_hash"].to_pylist()])
            for number in np.unique(of_row).tolist():
                self.log.publish(number, answers.filter(pa.array(of_row == number)))
            settle(answers.num_rows, failures_of(answers, self.judge, engine.messages))

        def admit(group: list[Rows], patient: bool) -> Admission:
            costs = [(len(which), float(dollars[which].sum())) for which in group]
            with turn:
                return self.session.admit(_CHUNK, costs, patient)

        order = missing[np.argsort(bucket[missing], kind="stable")]  # segments of few buckets each
        try:
            engine.ask(questions, slices([np.array([q]) for q in order], engine.at_once, admit), hand_over)
        finally:
            settle(0, {})  # what was sent for nothing
            self.session.close(_CHUNK)
            report = self.session.finish()
        return report


def known(log: AnswerLog, questions: TextQuestions, buckets: int) -> Held:
    """What a log holds of the buckets of the questions' queries."""
    return hold(log.read(bucket).table for bucket in sorted(set(_buckets(questions, buckets))))


def _buckets(questions: TextQuestions, buckets: int) -> list[int]:
    """The bucket of each query."""
    return [bucket_of(key, buckets) for key in questions.queries["text_hash"].to_pylist()]
