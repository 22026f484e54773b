"""The whole stage on tables: valid records, mean zero, recovery, determinism, broken input, the settings' bounds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from anmi_ray.config.rate import RateConfig
from anmi_ray.core import records
from anmi_ray.core.errors import FitError
from anmi_ray.core.scale import Model, to_elo
from anmi_ray.rating import TOP_RATED, RateResult, fit_globals, rate
from tests.rating.tournaments import Tournament, latent_of, tournament, truth_of


def run(t: Tournament, config: RateConfig | None = None) -> RateResult:
    config = config or RateConfig()
    return rate(*t.tables, fit_globals(*t.tables, config), config)


def checked(result: RateResult) -> RateResult:
    kinds = (records.RATING, records.FIT, records.GAP, records.REJECT)
    for kind, table in zip(kinds, result, strict=True):
        kind.check(table, "test")
    return result


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
def test_tables_are_valid_and_sorted(model: Model) -> None:
    t = tournament(8, 15, 6, model=model, seed=1)
    ratings, fits, gaps, rejects = checked(run(t, RateConfig(model=model)))
    assert (ratings.num_rows, fits.num_rows, gaps.num_rows, rejects.num_rows) == (120, 8, 8 * 14, 0)
    keys = list(zip(ratings["query_id"].to_pylist(), ratings["doc_id"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    keys = list(zip(*(gaps[name].to_pylist() for name in ("query_id", "anchor_id", "doc_id")), strict=True))
    assert keys == sorted(keys)
    np.testing.assert_allclose(ratings["rating_elo"], to_elo(ratings["latent"].to_numpy(), model))
    assert pc.all(fits["converged"]).as_py()
    assert pc.max(fits["gradient_norm"]).as_py() <= 1e-8
    assert set(fits["components"].to_pylist()) == {1}
    assert pc.min(fits["lambda2"]).as_py() > 0
    assert gaps["anchor_kind"].unique().to_pylist() == ["known"]


def test_mean_zero_per_component_and_gaps_are_differences() -> None:
    result = run(tournament(6, 15, 6, seed=2))
    means = result.ratings.group_by(["query_id", "component"]).aggregate([("latent", "mean")])
    assert pc.max(pc.abs(means["latent_mean"])).as_py() < 1e-12
    latent = latent_of(result.ratings)
    for row in result.gaps.to_pylist():
        difference = latent[row["query_id"], row["anchor_id"]] - latent[row["query_id"], row["doc_id"]]
        assert row["gap_elo"] == pytest.approx(float(to_elo(difference, "thurstone")), abs=1e-9)
        assert row["gap_se_elo"] > 0


@pytest.mark.parametrize("graded", [False, True])
def test_planted_ratings_are_recovered(graded: bool) -> None:
    t = tournament(20, 20, 10, judges=5, seed=3, graded=graded)
    result = run(t)
    truth, latent = truth_of(result.ratings, t.truth).reshape(20, 20), result.ratings["latent"].to_numpy()
    truth = (truth - truth.mean(axis=1, keepdims=True)).ravel()
    assert np.corrcoef(truth, latent)[0, 1] > (0.995 if graded else 0.95)
    assert np.polyfit(truth, latent, 1)[0] == pytest.approx(1.0, abs=0.12)


def test_same_bytes_whatever_the_row_order() -> None:
    t = tournament(6, 12, 6, seed=4)
    generator = np.random.default_rng(0)
    shuffled = t.each(lambda table: table.take(generator.permutation(table.num_rows)))
    for one, other in zip(run(t), run(shuffled), strict=True):
        assert one.equals(other)


def test_a_query_rates_alike_alone_and_among_others() -> None:
    t = tournament(5, 12, 6, seed=5)
    config = RateConfig()
    shared = fit_globals(*t.tables, config)
    whole = rate(*t.tables, shared, config)
    query = whole.fits["query_id"][2].as_py()
    alone = rate(*t.each(lambda table: _of(table, query)).tables, shared, config)
    assert alone.ratings.equals(_of(whole.ratings, query))
    assert alone.gaps.equals(_of(whole.gaps, query))


def _of(table: pa.Table, query: bytes) -> pa.Table:
    return table.filter(pc.equal(table["query_id"], pa.scalar(query, pa.binary(16)))).combine_chunks()


def test_without_positive_gaps_are_measured_to_the_top_rated() -> None:
    result = checked(run(tournament(4, 12, 6, positives=False, seed=6)))
    assert result.gaps["anchor_kind"].unique().to_pylist() == ["top-rated"]
    assert result.gaps.num_rows == 4 * TOP_RATED * 11
    for query in result.fits["query_id"].to_pylist():
        ratings, gaps = (_of(table, query).to_pylist() for table in (result.ratings, result.gaps))
        best = sorted(ratings, key=lambda row: (-row["rating_elo"], row["doc_id"]))[:TOP_RATED]
        assert {row["anchor_id"] for row in gaps} == {row["doc_id"] for row in best}


def test_two_positives_are_two_anchors() -> None:
    t = tournament(3, 10, 6, seed=7)
    flags = t.candidates["is_positive"].to_numpy(zero_copy_only=False).copy()
    flags[::10] = True
    two = t.candidates.set_column(3, t.candidates.schema.field("is_positive"), pa.array(flags))
    result = checked(run(Tournament(t.judgments, t.comparisons, two, t.truth)))
    assert result.gaps.num_rows == int(flags.sum()) * 9


def test_failed_and_missing_judgments() -> None:
    """A judge that fails for ever and an order that is missing cost strength, and nothing else."""
    t = tournament(6, 12, 6, judges=3, seed=8)
    dead = pc.equal(t.judgments["judge"], "judge0")
    missing = pc.and_(pc.equal(t.judgments["judge"], "judge1"), pc.equal(t.judgments["order"], "ba"))
    lost = pc.or_(dead, missing)
    p_a = pc.if_else(lost, None, t.judgments["p_a"])
    error = pc.if_else(lost, "timeout", None)
    columns = dict(zip(t.judgments.schema.names, t.judgments.columns, strict=True))
    judgments = records.JUDGMENT.check(
        records.JUDGMENT.table(columns | {"p_a": p_a, "error": error.cast(pa.string())}), "test"
    )
    config = RateConfig(dispersion=1.0)
    result = checked(run(Tournament(judgments, t.comparisons, t.candidates, t.truth), config))
    assert result.rejects.num_rows == 0
    full = run(t, config)
    np.testing.assert_allclose(pc.sum(result.ratings["games"]).as_py() / pc.sum(full.ratings["games"]).as_py(), 0.5)


def test_nothing_judged_is_all_rejects() -> None:
    t = tournament(3, 8, 4, seed=9)
    shared = fit_globals(*t.tables, RateConfig())
    result = checked(rate(t.judgments.slice(0, 0), t.comparisons, t.candidates, shared, RateConfig()))
    assert result.ratings.num_rows == result.fits.num_rows == result.gaps.num_rows == 0
    assert result.rejects.num_rows == t.comparisons.num_rows + t.candidates.num_rows
    empty = checked(rate(*t.each(lambda table: table.slice(0, 0)).tables, shared, RateConfig()))
    assert empty.rejects.num_rows == 0


def test_disconnected_query_with_and_without_prior() -> None:
    t = tournament(2, 8, 2, seed=10)
    drop = pc.is_in(t.comparisons["comparison_id"], value_set=t.comparisons["comparison_id"].take([0, 4]))
    broken = Tournament(t.judgments, t.comparisons.filter(pc.invert(drop)), t.candidates, t.truth)
    result = checked(run(broken))
    assert max(result.fits["components"].to_pylist()) > 1
    assert 0.0 in result.fits["lambda2"].to_pylist()
    with pytest.raises(FitError, match="without a prior"):
        run(broken, RateConfig(prior=None))


def test_maximum_likelihood_where_it_exists() -> None:
    t = tournament(3, 8, 6, judges=9, sd=0.2, seed=11)
    result = checked(run(t, RateConfig(prior=None, dispersion=1.0)))
    shrunk = run(t, RateConfig(prior=0.05, dispersion=1.0, positive_prior="same"))
    assert pc.stddev(result.ratings["latent"]).as_py() > 2 * pc.stddev(shrunk.ratings["latent"]).as_py()


@pytest.mark.parametrize(
    "bad",
    [{"prior": 0.0}, {"prior": "flat"}, {"dispersion": -1.0}, {"model": "elo"}, {"unknown": 1}],
)
def test_settings_out_of_range(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RateConfig(**bad)  # pyright: ignore[reportArgumentType]
