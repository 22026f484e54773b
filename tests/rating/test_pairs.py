"""Both orders and all judges into one preference and strength; what cannot be used is a reject, never a vote."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.core import records
from anmi_ray.core.identity import comparison_id, doc_id, query_id
from anmi_ray.rating.games import Games
from anmi_ray.rating.pairs import combine_orders, positions, preferences, read_games
from tests.rating.tournaments import candidates, tournament

NAN = float("nan")
QUERY = query_id("q")
DOCS = sorted(doc_id(name) for name in "abcd")


def tables(answers: dict[tuple[int, int], dict[str, tuple[float, float]]]) -> tuple[pa.Table, pa.Table, pa.Table]:
    """(judgments, comparisons, candidates) of {(i, j): {judge: (p_ab, p_ba)}}, NaN for a failed call."""
    judged, compared = [], []
    for (i, j), by_judge in answers.items():
        cid = comparison_id(QUERY, DOCS[i], DOCS[j])
        compared.append((cid, QUERY, DOCS[i], DOCS[j], 0, "test"))
        for judge, both in by_judge.items():
            for order, p in zip(("ab", "ba"), both, strict=True):
                failed = np.isnan(p)
                judged.append((cid, QUERY, judge, order, None if failed else p, "refused" if failed else None))
    return (
        records.JUDGMENT.table(dict(zip(records.JUDGMENT.schema.names, zip(*judged, strict=True), strict=True))),
        records.COMPARISON.table(dict(zip(records.COMPARISON.schema.names, zip(*compared, strict=True), strict=True))),
        candidates([(QUERY, doc, False) for doc in DOCS]),
    )


def read(answers: dict[tuple[int, int], dict[str, tuple[float, float]]]) -> tuple[Games, pa.Table]:
    return read_games(*tables(answers))


@pytest.mark.parametrize(
    ("p", "w", "answers"),
    [
        ([[0.8, 0.6]], 0.7, 1.0),
        ([[1.0, 0.0]], 0.5, 1.0),
        ([[NAN, 0.3]], 0.3, 0.5),  # one order failed: the other, at half the strength
        ([[1.0, NAN], [1.0, 1.0]], 1.0, 1.5),
        ([[1.0, 1.0], [0.0, NAN]], 1.0 / 1.5, 1.5),
        ([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], 2.0 / 3.0, 3.0),
        ([[NAN, NAN], [0.0, 0.0]], 0.0, 1.0),  # a judge without an answer is no vote
    ],
)
def test_combine_orders(p: list[list[float]], w: float, answers: float) -> None:
    found = combine_orders(np.array([p]))
    assert found[0][0] == pytest.approx(w)
    assert found[1][0] == pytest.approx(answers)


def test_a_judge_counts_as_much_as_its_weight() -> None:
    p = np.array([[[1.0, 1.0], [0.0, 0.0], [NAN, 0.25]]])
    w, answers = combine_orders(p, np.array([2.0, 1.0, 4.0]))
    assert answers[0] == 2.0 + 1.0 + 2.0
    assert w[0] == pytest.approx((2.0 * 1.0 + 2.0 * 0.25) / 5.0)
    t = tournament(2, 6, 4, judges=3, seed=4)
    whole, _ = read_games(*t.tables, weights={"judge0": 0.0, "judge1": 3.0})
    for single in (False, True):
        named, _ = read_games(*t.tables, single_answers=single, weights={"judge1": 3.0, "judge0": 0.0})
        left_out = t.judgments.filter(pc.not_equal(t.judgments["judge"], "judge0"))
        without, _ = read_games(left_out, *t.tables[1:], single_answers=single, weights={"judge1": 3.0})
        np.testing.assert_array_equal(named.w, without.w)
        np.testing.assert_array_equal(named.answers, without.answers)
    assert set(whole.answers.tolist()) == {4.0}


def test_swapping_documents_flips_the_preference() -> None:
    p = np.random.default_rng(0).random((50, 3, 2))
    w, answers = combine_orders(p)
    back, answers_back = combine_orders(1.0 - p[:, :, ::-1])
    np.testing.assert_allclose(back, 1.0 - w)
    np.testing.assert_allclose(answers_back, answers)


def test_failed_pair_and_lonely_document_are_rejects() -> None:
    games, rejects = read({(0, 1): {"x": (1.0, 1.0)}, (1, 2): {"x": (NAN, NAN), "y": (NAN, NAN)}})
    assert games.documents.tolist() == [2]
    assert games.w.tolist() == [1.0]
    rows = {(row["reason"], row["key"]): row["detail"] for row in rejects.to_pylist()}
    pair = comparison_id(QUERY, DOCS[1], DOCS[2]).hex()
    assert rows["no answer", pair] == "4 judgments, none with an answer"
    assert {key for reason, key in rows if reason == "no games"} == {DOCS[2].hex(), DOCS[3].hex()}
    assert len(rows) == 3
    assert set(rejects["place"].to_pylist()) == {f"rate query {QUERY.hex()}"}


def test_unasked_pair_is_a_reject() -> None:
    judgments, comparisons, docs = tables({(0, 1): {"x": (1.0, 1.0)}, (1, 2): {"x": (1.0, 1.0)}})
    keep = pc.equal(judgments["comparison_id"], pa.scalar(comparisons["comparison_id"][0].as_py(), pa.binary(16)))
    _, rejects = read_games(judgments.filter(keep), comparisons, docs)
    row = next(row for row in rejects.to_pylist() if row["reason"] == "no answer")
    assert row["detail"] == "not judged"


def test_judgment_of_unknown_pair_and_pair_of_unknown_document() -> None:
    judgments, comparisons, docs = tables({(0, 1): {"x": (1.0, 1.0)}, (2, 3): {"x": (1.0, 1.0)}})
    games, rejects = read_games(judgments, comparisons.slice(0, 1), docs)
    assert games.games.tolist() == [1]
    assert rejects["reason"].to_pylist().count("unknown comparison") == 2
    others = docs.filter(pc.not_equal(docs["doc_id"], pa.scalar(DOCS[3], pa.binary(16))))
    _, rejects = read_games(judgments, comparisons, others)
    assert rejects["reason"].to_pylist().count("not candidates") == 1


def test_rows_in_are_rows_out_and_rejects() -> None:
    t = tournament(queries=6, documents=12, k=4, judges=2, seed=7)
    broken = t.judgments.slice(0, t.judgments.num_rows // 2)
    games, rejects = read_games(broken, t.comparisons, t.candidates)
    reasons = rejects["reason"].to_pylist()
    assert len(games.w) + reasons.count("no answer") == t.comparisons.num_rows
    assert len(games.doc_ids) + reasons.count("no games") == t.candidates.num_rows


def test_random_candidates_are_not_rated() -> None:
    judgments, comparisons, docs = tables({(0, 1): {"x": (1.0, 1.0)}})
    random = docs.slice(3, 1)
    random = random.set_column(2, docs.schema.field("source"), pa.array(["random"]))
    random = random.set_column(4, docs.schema.field("rank"), pa.array([None], pa.int32()))
    _, rejects = read_games(judgments, comparisons, pa.concat_tables([docs.slice(0, 3), random]))
    assert rejects["key"].to_pylist() == [DOCS[2].hex()]


def test_id_helpers() -> None:
    ids = np.random.default_rng(1).integers(0, 256, (200, 32), dtype=np.uint8)
    ids[:, :24] = 0  # ties in the leading words
    np.testing.assert_array_equal(positions(ids[50:60], ids), np.arange(50, 60))
    assert positions(255 - ids[:1], ids[1:]).tolist() == [-1]


def test_preferences_are_what_the_fit_reads() -> None:
    answers = {
        (0, 1): {"x": (0.8, 0.6), "y": (1.0, 0.0)},
        (2, 3): {"x": (NAN, 0.3)},
        (0, 3): {"x": (NAN, NAN), "y": (NAN, NAN)},
        (1, 2): {"x": (1.0, 1.0), "z": (0.0, 0.0)},
    }
    judgments, comparisons, known = tables(answers)
    weights = {"y": 2.0, "z": 0.0}
    found = preferences(judgments, comparisons, weights)
    games, _ = read_games(judgments, comparisons, known, weights=weights)
    order = [
        (games.doc_ids[i].tobytes(), games.doc_ids[j].tobytes()) for i, j in zip(*games.global_ends(), strict=True)
    ]
    assert list(zip(found["doc_a"].to_pylist(), found["doc_b"].to_pylist(), strict=True)) == order
    np.testing.assert_allclose(found["preference"].to_numpy(), games.w)
    np.testing.assert_allclose(found["preference"].to_numpy(), [(0.7 + 0.5 * 2) / 3.0, 1.0, 0.3])
    assert set(found["query_id"].to_pylist()) == {QUERY}
    mixed = np.random.default_rng(0).permutation(judgments.num_rows)
    assert preferences(judgments.take(pa.array(mixed)), comparisons, weights).equals(found)
    assert preferences(judgments.slice(0, 0), comparisons).num_rows == 0


def test_a_pair_of_two_rounds_has_one_preference_by_strength() -> None:
    """One judge in both orders says .9 and one order alone .3: (.9 + .3/2)/1.5."""
    first, second = (tables({(0, 1): {"x": both}}) for both in ((0.9, 0.9), (0.3, NAN)))
    again = pa.array([comparison_id(QUERY, DOCS[0], DOCS[1], 1)] * 2, type=first[1].schema.field("comparison_id").type)
    judged, compared = (table.set_column(0, "comparison_id", again[: len(table)]) for table in second[:2])
    both = [
        pa.concat_tables([one, other.cast(one.schema)]) for one, other in ((first[0], judged), (first[1], compared))
    ]
    found = preferences(both[0], both[1])
    assert found.num_rows == 1
    assert found["preference"][0].as_py() == pytest.approx((0.9 + 0.5 * 0.3) / 1.5)
