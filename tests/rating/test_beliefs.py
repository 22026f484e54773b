"""What an adaptive design knows of ratings is what the stage says of them: means, errors, errors of gaps, strengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray import comparisons
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.scale import normal_quantile, to_elo
from anmi_ray.rating import Globals, QueryBeliefs, beliefs, fit_globals, rate, worth
from jobs.studies.both_orders import Judged, World, judged, world


def parted(data: Judged) -> Judged:
    """The same without some pairs, so that of some queries documents are not rated, or in two parts."""
    kept = data.comparisons.take(pa.array(np.flatnonzero(np.arange(data.comparisons.num_rows) % 5 < 2)))
    return replace(data, comparisons=kept)


@pytest.mark.parametrize(
    ("orders", "config"),
    [
        ("one", RateConfig(prior=1.0, judge_offsets=True)),
        ("both", RateConfig(prior=1.0, model="bradley-terry", estimate="mode")),
        ("both", RateConfig(prior=1.0, judge_offsets=False, judge_weights={"judge1": 3.0})),
    ],
)
def test_beliefs_are_the_ratings_with_all_their_covariances(orders: Literal["one", "both"], config: RateConfig) -> None:
    data = parted(judged((0.6, -0.3, 0.1), 6, 14, degree=3, orders=orders))
    tables = data.judgments, data.comparisons, data.candidates
    shared = fit_globals(*tables, config)
    rated = rate(*tables, shared, config)
    found = list(beliefs(*tables, shared, config))
    assert [one.query_id for one in found] == rated.fits["query_id"].to_pylist()
    assert max(rated.fits["components"].to_pylist()) > 1
    assert min(len(one.doc_ids) for one in found) < 14
    positives = set(data.candidates.filter(data.candidates["is_positive"])["doc_id"].to_pylist())
    for one in found:
        ratings, gaps = (
            table.filter(pc.equal(table["query_id"], pa.scalar(one.query_id, pa.binary(16)))) for table in rated[::2]
        )
        ids = [row.tobytes() for row in one.doc_ids]
        assert ids == ratings["doc_id"].to_pylist()
        assert [doc in positives for doc in ids] == one.positive.tolist()
        component = ratings["component"].to_numpy()
        same = component[:, None] == component
        centring = np.eye(len(ids)) - same / same.sum(axis=1)
        np.testing.assert_allclose(centring @ one.mean, ratings["latent"].to_numpy(), atol=1e-9)
        std_err = to_elo(np.sqrt(np.diag(centring @ one.covariance @ centring)), config.model)
        np.testing.assert_allclose(std_err, ratings["std_err_elo"].to_numpy(), rtol=1e-6)
        a, i = ([ids.index(doc) for doc in gaps[name].to_pylist()] for name in ("anchor_id", "doc_id"))
        variance = one.covariance[a, a] + one.covariance[i, i] - 2.0 * one.covariance[a, i]
        np.testing.assert_allclose(to_elo(np.sqrt(variance), config.model), gaps["gap_se_elo"].to_numpy(), rtol=1e-6)
        # every game counts at both its documents
        comparisons = data.comparisons.filter(pc.equal(data.comparisons["query_id"], ratings["query_id"][0]))
        assert one.strength == pytest.approx(pc.sum(ratings["games"]).as_py() / 2 / comparisons.num_rows)


def test_of_no_answer_nothing_is_believed() -> None:
    data = judged((0.0,), 2, 6, degree=2)
    shared = fit_globals(data.judgments, data.comparisons, data.candidates, RateConfig())
    assert not list(beliefs(data.judgments.slice(0, 0), data.comparisons, data.candidates, shared, RateConfig()))


ONE = RateConfig(judge_offsets=True)


def one_is_relevant() -> tuple[pa.Table, pa.Table, pa.Table, Globals]:
    """Of queries of which one document, retrieved first, is better than the others, which are alike."""
    of = world(12, 30)
    candidates = without_labels(of.candidates)
    of = World(candidates, 2.0 * (candidates["rank"].to_numpy() == 1), 0)
    return said(of)


def retrieved(first_stage: float, documents: int = 30) -> tuple[pa.Table, pa.Table, pa.Table, Globals]:
    """Judgments, comparisons and candidates of queries whose first stage is so good, none known to be relevant."""
    of = world(12, documents, first_stage=abs(first_stage))
    candidates = without_labels(of.candidates)
    if first_stage < 0:
        at = candidates.schema.get_field_index("rank")
        backwards = pc.subtract(pa.scalar(documents + 1, pa.int32()), candidates["rank"]).cast(pa.int32())
        candidates = candidates.set_column(at, candidates.schema.field(at), backwards)
    return said(replace(of, candidates=candidates))


def without_labels(candidates: pa.Table) -> pa.Table:
    at = candidates.schema.get_field_index("is_positive")
    return candidates.set_column(at, candidates.schema.field(at), pa.array([False] * candidates.num_rows))


def said(of: World) -> tuple[pa.Table, pa.Table, pa.Table, Globals]:
    pairs, _ = comparisons.compare(of.candidates, CompareConfig(degree=4), 0)
    judgments = of.judgments(pairs, (0.1, 0.3, -0.2), "one")
    return judgments, pairs, of.candidates, fit_globals(judgments, pairs, of.candidates, ONE)


def answers_of(one: QueryBeliefs, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """What answers alone say of a query: their precision, and it times their mean; the prior is N(0, variance)."""
    precision = np.linalg.inv(one.covariance)
    return precision - np.eye(len(one.mean)) / variance, precision @ one.mean


def scores_of(one: QueryBeliefs, candidates: pa.Table) -> np.ndarray:
    """Normal scores and reciprocals of ranks, float64[n, 2], mean 0 and variance 1."""
    rank = dict(zip(candidates["doc_id"].to_pylist(), candidates["rank"].to_pylist(), strict=True))
    ranks = np.array([rank[row.tobytes()] for row in one.doc_ids])
    place = np.array([(ranks < r).sum() for r in ranks])
    raw = np.stack([-normal_quantile((place + 0.5) / len(ranks)), 1.0 / (place + 1.0)], axis=1)
    return (raw - raw.mean(axis=0)) / raw.std(axis=0)


@pytest.mark.parametrize("slopes", [(0.4, 0.0), (0.0, 0.4), (0.3, 0.2)])
def test_slopes_move_the_prior_by_ranks(slopes: tuple[float, float]) -> None:
    judgments, pairs, candidates, shared = retrieved(0.7)
    assert shared.sigma0 is not None
    variance = shared.sigma0**2
    tables = judgments, pairs, candidates, shared, ONE
    for before, found in zip(beliefs(*tables), beliefs(*tables, slopes), strict=True):
        precision, pull = answers_of(before, variance)
        moved = scores_of(before, candidates) @ slopes
        prior = 1.0 / (variance - np.mean(moved**2))
        covariance = np.linalg.inv(precision + prior * np.eye(len(pull)))
        np.testing.assert_allclose(found.covariance, covariance, rtol=1e-8)
        np.testing.assert_allclose(found.mean, covariance @ (pull + prior * moved), atol=1e-9)


@pytest.mark.parametrize("shape", ["normal", "few"])
def test_the_slopes_are_those_of_most_evidence(shape: str) -> None:
    judgments, pairs, candidates, shared = retrieved(0.7) if shape == "normal" else one_is_relevant()
    assert shared.sigma0 is not None
    variance = shared.sigma0**2
    tables = judgments, pairs, candidates, shared, ONE
    found = worth(*tables)

    def evidence(slopes: np.ndarray) -> float:
        """Of all answers, up to a constant."""
        total = 0.0
        for one in beliefs(*tables):
            _, pull = answers_of(one, variance)
            x = scores_of(one, candidates) @ slopes
            total += 0.5 * (pull + x / variance) @ one.covariance @ (pull + x / variance) - 0.5 * x @ x / variance
        return float(total)

    best, step = found.slopes(), 0.01
    assert best[0] > 0.3 if shape == "normal" else best[1] > 0.3 * np.sqrt(variance)
    for at, unit in enumerate(np.eye(2) * step):
        rise = (evidence(best + unit) - evidence(best - unit)) / (2 * step)
        none = 1e-6 * found.precision[at, at]
        assert rise == pytest.approx(0.0, abs=none) if best[at] else rise < none
        curvature = (evidence(best + unit) - 2 * evidence(best) + evidence(best - unit)) / step**2
        assert curvature == pytest.approx(-found.precision[at, at], rel=1e-4)


@pytest.mark.parametrize(("first_stage", "most"), [(0.0, 0.2), (-0.7, 0.0)])
def test_an_order_that_tells_nothing_is_left_alone(first_stage: float, most: float) -> None:
    judgments, pairs, candidates, shared = retrieved(first_stage)
    slopes = worth(judgments, pairs, candidates, shared, ONE).slopes()
    assert (slopes >= 0.0).all()
    assert (slopes <= most).all()
