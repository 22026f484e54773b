"""Judgments of all judges of a panel for one bucket, and the mean vote of its judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.records import TRUTH
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds import simulated
from anmi_ray.judging.protocol import Answers, AnswerSource, Order, Questions, answer, documents, questions


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


def scores(judgments: pa.Table, votes: Literal["graded", "three"] = "graded") -> pa.Table:
    """Return `score` and `judges` (number of answers) by comparison_id, for Judgments.

    score: float64, from 0 (all judges prefer doc_a) to 1 (all prefer doc_b).
    A judge's vote is the mean of its answers over orders; comparisons without an answer are left out.
    votes: graded uses answers as they are; three rounds them to 0, 1/2 or 1 (as the note on learning pairwise
    comparisons does, except that it counts failures as ties, while they are ignored here).
    """
    answered = judgments.filter(pc.is_valid(judgments["p_a"]))
    p_b = 1.0 - answered["p_a"].to_numpy()
    if votes == "three":
        p_b = 0.5 + 0.5 * np.sign(p_b - 0.5)
    table = pa.table({"comparison_id": answered["comparison_id"], "judge": answered["judge"], "vote": p_b})
    each = table.group_by(["comparison_id", "judge"], use_threads=False).aggregate([("vote", "mean")])
    both = each.group_by("comparison_id", use_threads=False).aggregate([("vote_mean", "mean"), ("judge", "count")])
    both = both.sort_by("comparison_id")
    return pa.table(
        {
            "comparison_id": both["comparison_id"],
            "score": np.clip(both["vote_mean_mean"].to_numpy(), 0.0, 1.0),
            "judges": both["judge_count"].cast(pa.int32()),
        }
    )
