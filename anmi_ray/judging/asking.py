"""Ask a judge in this process, without Ray, with the same answer log and spend log as runs.

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
from anmi_ray.judging.budget import Admission, BudgetReport, BudgetSession
from anmi_ray.judging.kinds.base import JudgeEngine, TextJudge, by_frequency, failures_of
from anmi_ray.judging.questions import Rows, TextQuestions, slices
from anmi_ray.store.answer_log import AnswerLog, Held, hold

_CHUNK = "questions"


@dataclass(frozen=True)
class LocalAsker:
    """Asks a judge the questions that its log does not answer yet.

    judge: the judge to ask.
    log: its answers.
    session: its budget.
    buckets: number of buckets of queries, as in runs under the same root.
    passes: number of retries of temporary failures.
    max_failures: largest share of questions that may end with a temporary failure.
    say: receives progress messages.
    """

    judge: TextJudge
    log: AnswerLog
    session: BudgetSession
    buckets: int
    passes: int
    max_failures: float
    say: Callable[[str], None]

    def ask(self, questions: TextQuestions) -> Held:
        """Ask until all questions are answered or the budget is spent, and return the answers.

        Raises ConfigError or JudgeError for problems that the user can fix; earlier answers are in the log.
        """
        if self.judge.asked_by != "actors":
            what = f"judge {self.judge.name} can only be asked by runs (kind {self.judge.config.kind})"
            raise ConfigError(what, "queries.check", "serve its model, as with vllm serve, and name it by kind: api")
        held = known(self.log, questions, self.buckets)
        report = self.session.report()
        for _ in range(1 + self.passes):
            missing = np.flatnonzero(~held.final(questions.ids))
            if not len(missing):
                return held
            failed = report.spent.failed
            self.say(
                f"asking {self.judge.name} {len(missing):,} of {len(questions.ids):,} questions; the rest are answered"
            )
            report = self._pass(questions, missing, held.answered)
            held = known(self.log, questions, self.buckets)
            if report.problem:
                raise rebuild(report.problem)
            if report.spent_out or report.spent.failed == failed:
                return held
        # excludes questions that were not asked
        left = int(np.sum((held.rows(questions.ids) >= 0) & ~held.final(questions.ids)))
        if left > self.max_failures * len(questions.ids):
            why = by_frequency(report.failures)
            what = f"{left:,} of {len(questions.ids):,} questions have no answer because of temporary failures ({why})"
            remedy = "run the same command again to retry them, or raise `judge.max_failures`"
            raise JudgeError(what, f"judge {self.judge.name}", remedy)
        return held

    def _pass(self, questions: TextQuestions, missing: Rows, answered: bool) -> BudgetReport:
        answered = self.session.begin(_CHUNK) or answered
        engine: JudgeEngine = self.judge.engine(answered=answered)
        dollars = self.judge.estimated_dollars(questions)
        bucket = np.array(_buckets(questions, self.buckets))[questions.query]
        spent = engine.spend
        lock = threading.Lock()  # answers arrive in one thread, questions are admitted in another

        def settle(count: int, failures: dict[str, int]) -> None:
            nonlocal spent
            with lock:
                now = engine.spend
                self.session.settle(_CHUNK, count, failures, now - spent)
                spent = now

        def publish(answers: pa.Table) -> None:
            of_row = np.array([bucket_of(key, self.buckets) for key in answers["query_hash"].to_pylist()])
            for number in np.unique(of_row).tolist():
                self.log.publish(number, answers.filter(pa.array(of_row == number)))
            settle(answers.num_rows, failures_of(answers, self.judge, engine.messages))

        def admit(group: list[Rows], patient: bool) -> Admission:
            costs = [(len(which), float(dollars[which].sum())) for which in group]
            with lock:
                return self.session.admit(_CHUNK, costs, patient)

        order = missing[np.argsort(bucket[missing], kind="stable")]  # so that a segment of the log covers few buckets
        try:
            engine.ask(questions, slices([np.array([q]) for q in order], engine.at_once, admit), publish)
        finally:
            settle(0, {})  # spend of requests without an answer
            self.session.close(_CHUNK)
            report = self.session.report(final=True)
        return report


def known(log: AnswerLog, questions: TextQuestions, buckets: int) -> Held:
    """Return a log's answers in the buckets of the questions' queries."""
    return hold(log.read(bucket).table for bucket in sorted(set(_buckets(questions, buckets))))


def _buckets(questions: TextQuestions, buckets: int) -> list[int]:
    """Return the bucket of each query."""
    return [bucket_of(key, buckets) for key in questions.queries["text_hash"].to_pylist()]
