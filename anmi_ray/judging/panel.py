"""The judge stage for judges that answer in process: every judge of the panel, one bucket."""

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
    """Judgment table of one bucket, sorted by (query_id, comparison_id, judge, order); every judge, `config.orders`.

    `given`: by name, the judges whose answers were bought or stand in files. `direct`: comparisons are with nothing,
    and asked in one order. A failure is a row with an error and no p_a. Raises DataError if a compared document is not
    a candidate.
    """
    asked = questions(comparisons, candidates, direct, config.orders)
    difference = np.zeros(len(asked.ids))
    if config.simulated:
        difference = simulated.perceived(asked, config.truth, config.shared_noise, seed)

    def in_process(one: kinds.Judge) -> AnswerSource:
        def ask(asked: Questions, order: Order) -> Answers:
            return one.ask(asked, order, difference, seed)

        return ask

    judges = [kinds.of(one) for one in config.judges]
    return answer(asked, [(one.name, (given or {}).get(one.name) or in_process(one)) for one in judges])


def truth(candidates: pa.Table, config: JudgeConfig, seed: int) -> pa.Table:
    """Truth table (latent relevance in probits) of the candidates that may be compared; empty without simulation."""
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
