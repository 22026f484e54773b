"""An ensemble's score of a pair: the mean vote of its judges, 0 where all prefer doc_a and 1 where all prefer doc_b."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def scores(judgments: pa.Table, votes: Literal["graded", "three"] = "graded") -> pa.Table:
    """By comparison_id, `score` float64 in [0, 1] and `judges`, how many answered; of a Judgment table.

    A judge's vote is the mean of its answers in both orders, or the one that it gave; a comparison that no judge
    answered is left out. votes: an answer as it is, or as 0, 1/2 or 1 (three, as in the note on learning pairwise
    comparisons, which takes a failure for a tie: here it is no vote).
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
