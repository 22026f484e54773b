"""Judgments of all judges of a panel for one bucket."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.records import TRUTH
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds import simulated
from anmi_ray.judging.protocol import (
    Answers,
    AnswerSource,
    Order,
    Questions,
    answer,
    documents,
    questions,
)


def judge(
    comparisons: pa.Table,
    candidates: pa.Table,
    config: JudgeConfig,
    seed: int,
    given: Mapping[str, AnswerSource] | None = None,
    direct: bool = False,
) -> pa.Table:
    """Return the Judgments of one bucket, sorted by (query_id, comparison_id, judge, order).

    given: answers of judges that are not computed in process, by name.
    direct: comparisons are with nothing, and asked in one order.
    A failure is a row with an error and without p_a. Raises DataError if a compared document is not a candidate.
    """
    asked = questions(comparisons, candidates, direct, config.orders)
    difference = np.zeros(len(asked.ids))
    if config.simulated:
        difference = simulated.perceived(asked, config.truth, config.shared_noise, seed)

    def in_process(judge: kinds.Judge) -> AnswerSource:
        def ask(asked: Questions, order: Order) -> Answers:
            return judge.ask(asked, order, difference, seed)

        return ask

    judges = [kinds.of(settings) for settings in config.judges]
    sources = [(judge.name, (given or {}).get(judge.name) or in_process(judge)) for judge in judges]
    return answer(asked, sources)


def truth(candidates: pa.Table, config: JudgeConfig, seed: int) -> pa.Table:
    """Return Truth (latent relevance in probits) of the non-random candidates; empty without simulation."""
    if not config.simulated:
        return TRUTH.empty()
    known = documents(candidates)
    return TRUTH.table(
        {
            "query_id": known.table["query_id"],
            "doc_id": known.table["doc_id"],
            "latent": simulated.latent(known, config.truth, seed),
        }
    )
