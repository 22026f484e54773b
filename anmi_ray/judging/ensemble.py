"""An ensemble's score of a pair: the mean vote of its judges, 0 if all prefer doc_a and 1 if all prefer doc_b."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def scores(judgments: pa.Table, votes: Literal["graded", "three"] = "graded") -> pa.Table:
    """Return `score` (float64 in [0, 1]) and `judges` (number of answers) by comparison_id, for Judgments.

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
