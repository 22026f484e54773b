"""The judge stage for judges that answer in process: every judge of the panel, both orders, one bucket."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from anmi_ray.config.judge import JudgeConfig, JudgeSettings, SimilarityJudgeConfig, SimulatedJudgeConfig
from anmi_ray.judging import similarity, simulated
from anmi_ray.judging.protocol import Answers, Judge, Order, Questions, answer, documents, questions
from anmi_ray.records import TRUTH


def judge(
    comparisons: pa.Table,
    candidates: pa.Table,
    config: JudgeConfig,
    seed: int,
    reading: Mapping[str, Judge] | None = None,
) -> pa.Table:
    """Judgment table of one bucket, sorted by (query_id, comparison_id, judge, order); every judge, both orders.

    `reading`: by name, the judges that read texts, as what was bought from them, and those whose answers stand in
    files. A failure is a row with an error and no p_a. Raises DataError if a compared document is not a candidate.
    """
    asked = questions(comparisons, candidates)
    difference = (
        simulated.perceived(asked, config.truth, config.shared_noise, seed)
        if config.simulated
        else np.zeros(len(asked.ids))
    )
    given = reading or {}
    return answer(asked, [(one.name, given.get(one.name) or _bind(one, difference, seed)) for one in config.judges])


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


def _bind(config: JudgeSettings, difference: simulated.Reals, seed: int) -> Judge:
    def ask(asked: Questions, order: Order) -> Answers:
        if isinstance(config, SimulatedJudgeConfig):
            return simulated.ask(asked, order, config, difference, seed)
        if isinstance(config, SimilarityJudgeConfig):
            return similarity.ask(asked, order, config)
        raise AssertionError(f"nothing was bought from judge {config.name}")

    return ask
