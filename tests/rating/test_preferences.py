"""Tables of anybody's preferences: what is accepted and refused, invariances, and published fits digit by digit."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import DataError, FitError, NoMaximumError
from anmi_ray.core.identity import rng
from anmi_ray.core.records import REJECT
from anmi_ray.core.scale import to_elo, to_latent
from anmi_ray.rating import NamedRatings, rate_preferences, rate_table
from anmi_ray.rating.outcomes import Preferences, outcomes_of
from anmi_ray.tables import preferences
from anmi_ray.tables.formats import write_table
from anmi_ray.tables.preferences import GAMES
from tests.rating.published import (
    AWAY_WINS,
    BASEBALL_ABILITIES,
    BASEBALL_ERROR,
    CITATION_COVARIANCES,
    CITATION_RATINGS,
    CITATION_VARIANCES,
    CITATIONS,
    HOME_WINS,
    TEAMS,
    TOY,
    TOY_ERRORS,
    TOY_RATINGS,
)

PLAIN = RateConfig(model="bradley-terry", prior=None, dispersion=1.0)


def table(rows: list[tuple], query: str = "q") -> pa.Table:
    """Rows of (doc_a, doc_b, preference[, games]) as one query's table."""
    names = ("doc_a", "doc_b", "preference", "games")
    columns = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=False)}
    return pa.table({"query_id": [query] * len(rows), **columns})


def read_preferences(rows: pa.Table) -> Preferences:
    return outcomes_of(preferences.check_preferences(rows, GAMES))


CITED = table([(winner, loser, 1, count) for (winner, loser), count in CITATIONS.items()])


def random_table(seed: int, rows: int = 60, queries: int = 3, documents: int = 6) -> pa.Table:
    r = rng("preferences", seed)
    a = r.integers(0, documents, rows)
    return pa.table(
        {
            "query_id": [f"q{i}" for i in r.integers(0, queries, rows)],
            "doc_a": [f"d{i}" for i in a],
            "doc_b": [f"d{i}" for i in (a + r.integers(1, documents, rows)) % documents],
            "preference": r.integers(0, 5, rows) / 4,
            "games": r.integers(0, 4, rows) / 2,
        }
    )


def latent(result: NamedRatings) -> dict[str, float]:
    return dict(zip(result.ratings["doc_id"].to_pylist(), result.ratings["latent"].to_pylist(), strict=True))


def test_citations_as_published() -> None:
    result = rate_preferences(CITED, PLAIN)
    e = latent(result)
    assert {name: round(value, 2) for name, value in e.items()} == CITATION_RATINGS
    assert result.fits["converged"].to_pylist() == [True]
    won = {name: sum(count for (winner, _), count in CITATIONS.items() if winner == name) for name in e}
    for name in e:  # at the maximum every journal is expected to win what it won
        met = [
            (loser if winner == name else winner, count)
            for (winner, loser), count in CITATIONS.items()
            if name in (winner, loser)
        ]
        expected = sum(count / (1 + math.exp(e[other] - e[name])) for other, count in met)
        assert expected == pytest.approx(won[name], abs=1e-6)


def test_errors_of_the_citations_as_published() -> None:
    found = {}
    for anchor in ("JASA", "JRSS-B", "Biometrika"):
        known = pa.table({"query_id": ["q"], "doc_id": [anchor]})
        gaps = rate_preferences(CITED, PLAIN, anchors=known).gaps
        assert set(gaps["anchor_kind"].to_pylist()) == {"known"}
        errors = to_latent(gaps["gap_se_elo"].to_numpy(), "bradley-terry")
        found |= {(anchor, doc): float(se) for doc, se in zip(gaps["doc_id"].to_pylist(), errors, strict=True)}
    for doc, expected in CITATION_VARIANCES.items():
        assert found["JASA", doc] ** 2 == pytest.approx(expected, rel=1e-3)
    for (i, j), expected in CITATION_COVARIANCES.items():
        assert (found["JASA", i] ** 2 + found["JASA", j] ** 2 - found[i, j] ** 2) / 2 == pytest.approx(
            expected, rel=2e-3
        )


def test_baseball_as_published() -> None:
    rows = [
        (home, away, won, count[i][j])
        for i, home in enumerate(TEAMS)
        for j, away in enumerate(TEAMS)
        if i != j
        for won, count in ((1, HOME_WINS), (0, AWAY_WINS))
    ]
    result = rate_preferences(table(rows), PLAIN, anchors=pa.table({"query_id": ["q"], "doc_id": ["Baltimore"]}))
    gaps = to_latent(result.gaps["gap_elo"].to_numpy(), "bradley-terry")
    abilities = {doc: -round(gap, 2) for doc, gap in zip(result.gaps["doc_id"].to_pylist(), gaps, strict=True)}
    assert {"Baltimore": 0.0, **abilities} == BASEBALL_ABILITIES
    errors = to_latent(result.gaps["gap_se_elo"].to_numpy(), "bradley-terry")
    assert np.all(np.abs(errors - BASEBALL_ERROR) < 0.03)
    assert result.preferences.silent == 0  # rows of no wins carry nothing, but every team has others


def test_disconnected_players_as_published() -> None:
    """Each strongly connected part has a maximum of its own; all of them together have none, which is said."""
    rows = [tuple(game.split()) for game in TOY.split("|")]
    for published in TOY_RATINGS:
        inside = [row for row in rows if row[0] in published and row[1] in published]
        result = rate_preferences(table(inside), PLAIN)
        assert latent(result) == pytest.approx(published, abs=3e-3)  # that package stops early, see the citations
        said = dict(zip(result.ratings["doc_id"].to_pylist(), result.ratings["std_err_elo"].to_pylist(), strict=True))
        for name, se in said.items():
            tolerance = 2e-3 if TOY_ERRORS[name] < 1 else 6e-3
            assert to_latent(se, "bradley-terry") == pytest.approx(TOY_ERRORS[name], abs=tolerance)
    with pytest.raises(NoMaximumError, match="separation") as caught:
        rate_preferences(table(rows), PLAIN)
    assert caught.value.query == "q"
    assert caught.value.documents == ("Eve",)
    assert "see documents Eve" in str(caught.value)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000))
def test_row_order_does_not_matter(seed: int) -> None:
    rows = random_table(seed)
    shuffled = rows.take(pa.array(rng("shuffle", seed).permutation(rows.num_rows)))
    config = RateConfig(prior=1.0)
    one, other = rate_preferences(rows, config), rate_preferences(shuffled, config)
    assert one.ratings.equals(other.ratings)
    assert one.fits.equals(other.fits)
    assert one.gaps.equals(other.gaps)
    assert one.globals_ == other.globals_


@settings(max_examples=15)
@given(seed=st.integers(0, 1000))
def test_swapping_the_documents_changes_nothing(seed: int) -> None:
    rows = random_table(seed)  # preferences are quarters, so 1 - p is exact
    swapped = pa.table(
        {
            "query_id": rows["query_id"],
            "doc_a": rows["doc_b"],
            "doc_b": rows["doc_a"],
            "preference": 1.0 - rows["preference"].to_numpy(),
            "games": rows["games"],
        }
    )
    one, other = (rate_preferences(rows_, RateConfig(prior=1.0)) for rows_ in (rows, swapped))
    assert one.ratings.equals(other.ratings)
    assert one.gaps.equals(other.gaps)
    shown = read_preferences(rows).outcomes.shown
    assert np.sort(shown).tolist() == np.sort(-read_preferences(swapped).outcomes.shown).tolist()


@settings(max_examples=15)
@given(seed=st.integers(0, 1000))
def test_rows_that_repeat_are_games(seed: int) -> None:
    rows = random_table(seed)
    doubled = rows.set_column(4, "games", pa.array(rows["games"].to_numpy() * 2))
    config = RateConfig(prior=1.0, dispersion=1.0)
    one, other = rate_preferences(pa.concat_tables([rows, rows]), config), rate_preferences(doubled, config)
    assert one.ratings["doc_id"].equals(other.ratings["doc_id"])
    assert np.allclose(one.ratings["latent"], other.ratings["latent"], atol=1e-6)
    assert np.allclose(one.ratings["games"], other.ratings["games"])
    assert one.fits["comparisons"].to_pylist() == [2 * n for n in other.fits["comparisons"].to_pylist()]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000), suffix=st.sampled_from([".csv", ".csv.gz", ".tsv.zst", ".tsv", ".jsonl", ".jsonl.gz"])
)
def test_formats_agree(seed: int, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("formats")
    rows = random_table(seed)
    rows = rows.set_column(1, "doc_a", pa.array([name.replace("d", 'd "é", ') for name in rows["doc_a"].to_pylist()]))
    rows = rows.append_column("judge", pa.array(["a", "", "b"] * (rows.num_rows // 3)))
    read = []
    for path in (folder / "p.parquet", folder / f"p{suffix}"):
        write_table(rows, path)
        read.append(outcomes_of(preferences.read_preferences(path, GAMES)))
    one, other = read
    assert one.rows == other.rows == rows.num_rows
    assert one.documents.equals(other.documents)
    assert one.judges == other.judges == ("", "a", "b")
    for name in ("query", "first", "second", "w", "strength", "judge", "shown"):
        assert getattr(one.outcomes, name).tolist() == getattr(other.outcomes, name).tolist()


def test_integer_ids_are_text() -> None:
    rows = pa.table({"query_id": [1, 1], "doc_a": [10, 9], "doc_b": [9, 10], "preference": [1, 0]})
    result = rate_preferences(rows, RateConfig(prior=1.0))
    assert result.ratings["query_id"].to_pylist() == ["1", "1"]
    assert result.ratings["doc_id"].to_pylist() == ["10", "9"]


def test_every_bad_value_has_its_reason() -> None:
    nan, inf = float("nan"), float("inf")
    rows = pa.table(
        {
            "query_id": ["q", "", None, "q", "q", "q", "q", "q", "q", "q", "q", "q", "q"],
            "doc_a": ["a", "a", "a", None, "b", "a", "a", "a", "a", "a", "a", "a", "a"],
            "doc_b": ["b", "b", "b", "b", "b", "b", "b", "b", "b", "b", "b", "b", "b"],
            "preference": [1.0, 1.0, 1.0, 1.0, 1.0, None, nan, 1.01, -1.0, 1.0, 1.0, 1.0, 1.0],
            "games": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, nan, inf, -1.0, None],
        }
    )
    read = read_preferences(rows)
    assert {reason: count for reason, (count, _) in read.reasons().items()} == {
        "preference outside [0, 1]": 2,
        "query_id missing": 2,
        "document compared with itself": 1,
        "document missing": 1,
        "games NaN": 1,
        "games infinite": 1,
        "games missing": 1,
        "games negative": 1,
        "preference NaN": 1,
        "preference missing": 1,
    }
    assert read.rows == 13 == len(read.outcomes.w) + read.rejects.num_rows
    REJECT.check(read.rejects, "test")
    assert {"place": "table row 8", "key": "q: a, b", "reason": "preference outside [0, 1]", "detail": "1.01"} in (
        read.rejects.to_pylist()
    )
    with pytest.raises(DataError, match=r"12 of 13 rows cannot be used \(92.3%, allowed 10.0%\)"):
        rate_preferences(rows)


@pytest.mark.parametrize("text", ["high", "0,5,", "1_0", "1e", "0x1", "--1", "yes"])
def test_text_that_is_no_number(text: str) -> None:
    rows = table([("a", "b", text, "1"), ("a", "c", " +.5 ", text)])
    reasons = {reason: count for reason, (count, _) in read_preferences(rows).reasons().items()}
    assert reasons == {"preference not a number": 1, "games not a number": 1}


def test_failures_and_orders_are_read_as_an_audit_reads_them() -> None:
    """One file serves both: a failure is no game, `order` says what was shown first, and the unknown is left open."""
    rows = pa.table(
        {
            "query_id": ["q"] * 5,
            "doc_a": ["a", "a", "b", "a", "c"],
            "doc_b": ["b", "b", "a", "b", "d"],
            "preference": [1.0, 1.0, 1.0, 1.0, None],
            "order": ["ab", "ba", "ab", None, "ab"],
            "error": [None, "", None, None, "timeout"],
        }
    )
    read = read_preferences(rows)
    assert (read.rows, read.rejects.num_rows, read.failures, read.silent) == (5, 0, 1, 2)
    shown = zip(read.outcomes.w.tolist(), read.outcomes.shown.tolist(), strict=True)
    assert list(shown) == [(0.0, -1), (1.0, -1), (1.0, 0), (1.0, 1)]
    without = read_preferences(rows.drop_columns(["order"]))
    assert without.outcomes.shown.tolist() == [-1, 1, 1, 1]


def test_games_of_zero_carry_nothing() -> None:
    rows = [("a", "b", 1, 1), ("b", "a", 1, 1), ("a", "b", 1, 0), ("a", "c", 1, 0)]
    result = rate_preferences(table(rows), RateConfig(prior=1.0))
    assert sorted(result.ratings["doc_id"].to_pylist()) == ["a", "b"]
    assert result.preferences.silent == 1
    assert result.ratings["rating_elo"].to_pylist() == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("rows", [[("a", "b", 1, 0)], [("a", "a", 1, 1)]])
def test_nothing_to_rate(rows: list[tuple]) -> None:
    with pytest.raises(FitError, match="nothing to rate"):
        rate_preferences(table(rows), max_reject_fraction=1.0)


def test_an_empty_table() -> None:
    rows = table([("a", "b", 1, 1)]).slice(0, 0)
    with pytest.raises(FitError, match="nothing to rate: 0 rows"):
        rate_preferences(rows)


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
@pytest.mark.parametrize("prior", ["empirical-bayes", 1.0])
@pytest.mark.parametrize("games", [1e12, 1e-12])
def test_extreme_strengths_are_flagged_or_fitted(model: str, prior: str | float, games: float) -> None:
    rows = [("a", "b", 1, games), ("b", "c", 0.4, 1), ("c", "a", 0.3, 1), ("c", "d", 1, games)]
    result = rate_preferences(table(rows), RateConfig.model_validate({"model": model, "prior": prior}))
    if result.fits["converged"][0].as_py():
        assert np.isfinite(result.ratings["rating_elo"].to_numpy()).all()
        assert np.isfinite(result.ratings["std_err_elo"].to_numpy()).all()


def test_disconnected_graphs_are_rated_through_the_prior() -> None:
    rows = [("a", "b", 1), ("c", "d", 0.9), ("d", "e", 0.2)]
    result = rate_preferences(table(rows), RateConfig(prior=1.0))
    found = dict(zip(result.ratings["doc_id"].to_pylist(), result.ratings["component"].to_pylist(), strict=True))
    assert found == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}
    assert result.fits["components"].to_pylist() == [2]
    with pytest.raises(NoMaximumError, match="do not connect the documents") as caught:
        rate_preferences(table(rows), PLAIN)
    assert set(caught.value.documents) == {"a", "b"}


def test_separation_names_the_users_ids() -> None:
    fine = table([("u", "v", 1.0), ("v", "u", 1.0)], query="fine")
    rows = pa.concat_tables([fine, table([("best", "x", 1), ("best", "y", 1), ("x", "y", 0.5)], query="my query")])
    with pytest.raises(NoMaximumError) as caught:
        rate_preferences(rows, PLAIN)
    said = str(caught.value)
    assert "table, query my query: " in said
    assert "see documents best" in said
    assert "1 of 2 queries" in said


def test_a_large_query_whose_pieces_have_no_maximum() -> None:
    """A wide circle of wins has a maximum, a piece of it has none: the dispersion must be given."""
    circle = table([(f"d{i:04}", f"d{(i + step) % 2100:04}", 1.0) for i in range(2100) for step in (1, 2)])
    with pytest.raises(FitError, match="dispersion is estimated on at most 2,000") as caught:
        rate_preferences(circle, PLAIN.model_copy(update={"dispersion": "pooled"}))
    assert "--dispersion" in str(caught.value)
    found = rate_preferences(circle, PLAIN.model_copy(update={"dispersion": 1.0}))
    assert np.allclose(found.ratings["latent"], 0.0, atol=1e-6)


def test_many_documents_are_named_in_part() -> None:
    lost = [("champion", f"d{i}", 1) for i in range(9)]
    with pytest.raises(NoMaximumError, match="separation") as caught:
        rate_preferences(table([*lost, ("other", "champion", 0.5), ("champion", "other", 0.5)]), PLAIN)
    assert len(caught.value.documents) >= 1
    error = NoMaximumError("why", "here", "do", "q", tuple("abcdefg"))
    assert str(error) == "here, query q: why; see documents a, b, c, d, e and 2 more\n  remedy: do"


def test_missing_columns_are_named() -> None:
    with pytest.raises(DataError, match="'query', 'doc_a', 'doc_b', 'preference', needed are query_id") as caught:
        rate_preferences(table([("a", "b", 1)]).rename_columns(["query", "doc_a", "doc_b", "preference"]))
    assert "--all-one-query" in str(caught.value)
    with pytest.raises(DataError, match="has no column doc_b, preference"):
        rate_preferences(pa.table({"query_id": ["q"], "doc_a": ["a"]}))


def test_one_query() -> None:
    rows = table([("a", "b", 1), ("c", "b", 0.5)]).set_column(0, "query_id", pa.array(["p", "q"]))
    result = rate_preferences(rows, RateConfig(prior=1.0), one_query=True)
    assert result.fits["query_id"].to_pylist() == ["all"]
    assert rate_preferences(rows.drop_columns("query_id"), RateConfig(prior=1.0), one_query=True).fits.equals(
        result.fits
    )


@pytest.mark.parametrize(
    ("column", "values"),
    [("doc_a", [1.5]), ("doc_b", [["b"]]), ("preference", [True]), ("games", [b"1"])],
)
def test_types_that_cannot_be(column: str, values: list) -> None:
    rows = {"query_id": ["q"], "doc_a": ["a"], "doc_b": ["b"], "preference": [1.0], "games": [1.0], column: values}
    with pytest.raises(DataError, match=f"{column} holds"):
        read_preferences(pa.table(rows))


def test_anchors() -> None:
    rows = table([("a", "b", 0.4), ("b", "c", 0.7), ("c", "a", 0.2)])
    anchors = pa.table({"query_id": ["q", "q", "other"], "doc_id": ["a", "unknown", "a"]})
    gaps = rate_preferences(rows, RateConfig(prior=1.0), anchors=anchors).gaps
    assert gaps["anchor_id"].to_pylist() == ["a", "a"]
    assert gaps["anchor_kind"].to_pylist() == ["known", "known"]
    with pytest.raises(DataError, match="none of its 2 rows names a rated document"):
        rate_preferences(rows, anchors=anchors.slice(1))


def test_threads_and_samples_of_queries_change_no_rating(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_table(1, rows=200, queries=9)
    config = RateConfig(prior=1.0, dispersion=1.0)
    one = rate_preferences(rows, config)
    threaded = rate_preferences(rows, config, threads=4)
    monkeypatch.setattr(rate_table, "SAMPLE_QUERIES", 3)
    for other in (threaded, rate_preferences(rows, config)):
        assert one.ratings.equals(other.ratings)
        assert one.gaps.equals(other.gaps)
    sampled = rate_preferences(rows, RateConfig())
    assert sampled.globals_.queries == 3
    assert sampled.fits.num_rows == 9


def test_output_order() -> None:
    ratings = rate_preferences(random_table(2), RateConfig(prior=1.0)).ratings.to_pylist()
    assert ratings == sorted(ratings, key=lambda row: (row["query_id"], -row["rating_elo"], row["doc_id"]))
    assert all(row["rating_elo"] == pytest.approx(float(to_elo(row["latent"], "thurstone"))) for row in ratings)
