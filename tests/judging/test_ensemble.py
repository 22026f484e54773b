"""An ensemble's score: the mean of its judges' votes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core.identity import digest, id_array
from anmi_ray.core.records import JUDGMENT
from anmi_ray.judging.panel import scores

ONE, TWO, NONE = (digest("comparison", name) for name in ("one", "two", "none"))
QUERY = digest("query", "q")


def judgments(rows: list[tuple[bytes, str, str, float | None]]) -> pa.Table:
    return JUDGMENT.table(
        {
            "comparison_id": id_array([row[0] for row in rows]),
            "query_id": id_array([QUERY] * len(rows)),
            "judge": [row[1] for row in rows],
            "order": [row[2] for row in rows],
            "p_a": [row[3] for row in rows],
            "error": [None if row[3] is not None else "timeout" for row in rows],
        }
    )


def test_a_judge_votes_once_however_many_orders_it_answered() -> None:
    table = scores(
        judgments(
            [
                (ONE, "x", "ab", 1.0),
                (ONE, "x", "ba", 1.0),
                (ONE, "y", "ab", 0.0),
                (ONE, "y", "ba", None),
                (TWO, "x", "ab", 0.2),
                (TWO, "x", "ba", 0.6),
                (NONE, "x", "ab", None),
            ]
        )
    )
    found = {row["comparison_id"]: (row["score"], row["judges"]) for row in table.to_pylist()}
    assert found == {ONE: (0.5, 2), TWO: (pytest.approx(0.6), 1)}
    assert table["comparison_id"].to_pylist() == sorted(found)


def test_three_kinds_of_vote_have_seven_means() -> None:
    votes = [[a, b, c] for a in (0.3, 0.5, 0.9) for b in (0.3, 0.5, 0.9) for c in (0.3, 0.5, 0.9)]
    ids = [digest("comparison", i) for i in range(len(votes))]
    table = judgments(
        [(one, f"judge-{j}", "ab", p) for one, of in zip(ids, votes, strict=True) for j, p in enumerate(of)]
    )
    found = scores(table, "three")["score"].to_numpy()
    assert np.unique(found.round(9)) == pytest.approx(np.arange(7) / 6)
