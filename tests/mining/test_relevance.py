"""P(relevant) without labels: planted worlds are recovered, and evidence that says nothing gets no weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core.arrays import Flags
from anmi_ray.mining import relevance
from anmi_ray.mining.relevance import Evidence, RelevanceModel, by_answers, fit

DOCUMENTS = 40
GAIN = 550.0  # points


class World(NamedTuple):
    """Q queries of 40 documents: what is known of them, and which are relevant, bool[Q, 40]."""

    known: Evidence
    relevant: Flags


def planted(
    queries: int = 600,
    seed: int = 0,
    *,
    error: float = 250.0,
    lasting: float = 250.0,
    retrieval: float = 1.6,
    follows: float = 0.0,
    similarity: float | None = None,
    echo: float = 0.0,
    shares: tuple[float, ...] = (0.9, 0.2),
    answers: str = "none",
) -> World:
    """Queries of 40 documents, the first relevant with probabilities `shares`; errors of ratings leave out `lasting`.

    retrieval, similarity: sds by which relevant ones are higher. follows, echo: points by which ratings rise with both.
    answers: about the four best rated, of a judge who errs as the ratings do (alike) or of another (apart).
    """
    rng = np.random.default_rng(seed)
    relevant = np.zeros((queries, DOCUMENTS), np.bool_)
    relevant[:, : len(shares)] = rng.random((queries, len(shares))) < shares
    score = rng.normal(size=relevant.shape) + retrieval * relevant
    rank = np.argsort(np.argsort(-score, axis=1), axis=1).astype(np.float64) + 1.0
    like = np.full(relevant.shape, np.nan)
    if similarity is not None:
        like = rng.normal(size=relevant.shape) + similarity * relevant
    seen = GAIN * relevant + follows * score + echo * np.nan_to_num(like) + lasting * rng.normal(size=relevant.shape)
    rating = seen + error * rng.normal(size=relevant.shape)
    rating -= rating.mean(axis=1, keepdims=True)
    answer = np.full(relevant.shape, np.nan)
    if answers != "none":
        shown = seen if answers == "alike" else GAIN * relevant + lasting * rng.normal(size=relevant.shape)
        best = np.argsort(-rating, axis=1)[:, :4]
        yes = (shown - shown.mean(axis=1, keepdims=True) > GAIN / 2).astype(np.float64)
        np.put_along_axis(answer, best, np.take_along_axis(yes, best, axis=1), axis=1)
    query = np.repeat(np.arange(queries), DOCUMENTS)
    known = Evidence(query, rating.ravel(), np.full(rating.size, error), rank.ravel(), like.ravel(), answer.ravel())
    return World(known, relevant)


def best_of(world: World, score: np.ndarray) -> Flags:
    """Whether a query's document of largest score is relevant, bool[Q]."""
    best = score.reshape(world.relevant.shape).argmax(axis=1)
    return world.relevant[np.arange(len(best)), best]


def fitted(known: Evidence) -> RelevanceModel:
    found = fit(known)
    assert found is not None
    return found


@pytest.mark.parametrize("shares", [(0.9,), (0.9, 0.5, 0.5, 0.5, 0.3, 0.3)])
@pytest.mark.parametrize("more", [{}, {"follows": 150.0}, {"similarity": 1.6}, {"similarity": 1.6, "echo": 150.0}])
def test_planted_worlds_are_recovered_and_the_posterior_is_calibrated(
    shares: tuple[float, ...], more: dict[str, Any]
) -> None:
    world = planted(shares=shares, **more)
    model = fitted(world.known)
    assert model.exclusive == (len(shares) == 1)
    assert model.is_reliable
    assert (model.gain, model.sd) == pytest.approx((GAIN, 250.0), rel=0.15)
    p = model.posterior(world.known)
    for low, high in ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 1.0)):
        within = (p > low) & (p <= high)
        error = 0.04 + 1.5 / within.sum() ** 0.5  # of the model, and three standard errors of a share
        assert world.relevant.ravel()[within].mean() == pytest.approx(p[within].mean(), abs=error)


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_gradient_is_that_of_finite_differences(exclusive: bool) -> None:
    data = relevance._data(planted(30, similarity=1.0, answers="apart").known, 400.0, 1.0, exclusive)
    at = relevance._MEAN + 0.3 * np.random.default_rng(0).normal(size=len(relevance._MEAN))
    gradient = relevance._evaluate(at, data)[2]
    for index, step in enumerate(1e-6 * np.eye(len(at))):
        slope = (relevance._evaluate(at + step, data)[1] - relevance._evaluate(at - step, data)[1]) / 2e-6
        assert slope == pytest.approx(gradient[index], abs=1e-7)


@pytest.mark.parametrize(("similarity", "echo"), [(1.6, 0.0), (0.0, 300.0)])
def test_similarity_is_evidence_and_removes_what_judges_only_echo(similarity: float, echo: float) -> None:
    world = planted(similarity=similarity, echo=echo)
    without = world.known._replace(similarity=np.full(len(world.known.rank), np.nan))
    right, unknown = (best_of(world, fitted(known).posterior(known)).mean() for known in (world.known, without))
    assert right > unknown + 0.05


def test_ratings_that_are_the_similarity_itself_are_fitted_without_it() -> None:
    known = planted(60, similarity=1.6, error=0.0, answers="alike").known
    echo = fitted(known._replace(rating=200.0 * known.similarity, error=np.full(len(known.rank), 20.0)))
    assert echo.is_reliable
    assert echo.unit == 0.0


def test_a_similarity_that_does_not_vary_changes_nothing() -> None:
    constant = (known := planted(40).known)._replace(similarity=np.full(len(known.rank), 0.7))
    np.testing.assert_allclose(fitted(constant).posterior(known), fitted(known).posterior(known), atol=1e-9)


@pytest.mark.parametrize("follows", [-150.0, 0.0, 150.0])
def test_both_together_tell_more_than_either(follows: float) -> None:
    world = planted(follows=follows)
    p = fitted(world.known).posterior(world.known)
    alone = max(best_of(world, world.known.rating).mean(), best_of(world, -world.known.rank).mean())
    assert best_of(world, p).mean() > alone + 0.02


def test_a_first_stage_that_tells_nothing_is_ignored() -> None:
    world = planted(retrieval=0.0)
    model = fitted(world.known)
    assert best_of(world, model.posterior(world.known)).mean() >= best_of(world, world.known.rating).mean() - 0.02


def test_who_copies_the_first_stage_is_not_praised_for_it() -> None:
    """Another system, which is better, is measured as better; by what the rank says too it would be the worse."""
    world = planted()
    model = fitted(world.known)
    rng = np.random.default_rng(1)
    another = rng.normal(size=world.relevant.shape) + 2.5 * world.relevant
    copy = -world.known.rank.reshape(another.shape)

    def gain(p: np.ndarray, score: np.ndarray) -> float:
        return float(np.take_along_axis(p.reshape(score.shape), score.argmax(axis=1)[:, None], axis=1).mean())

    assert best_of(world, another).mean() > best_of(world, copy).mean() + 0.1
    alone, both = model.by_judges(world.known), model.posterior(world.known)
    assert gain(alone, another) > 1.3 * gain(alone, copy)
    assert gain(both, another) < gain(both, copy)


@pytest.mark.slow
def test_direct_answers_tell_more_where_they_err_otherwise_than_the_ratings() -> None:
    right: dict[str, float] = {}
    for kind in ("none", "alike", "apart"):
        world = planted(answers=kind)
        model = fitted(world.known)
        p = model.posterior(world.known)
        right[kind] = best_of(world, p).mean()
        assert world.relevant.ravel()[p > 0.5].mean() == pytest.approx(p[p > 0.5].mean(), abs=0.08)
        assert any(model.parameters[-3:]) == (kind != "none")
    assert right["none"] - 0.01 < right["alike"] < right["apart"] - 0.03


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_order_and_the_numbers_of_queries_do_not_matter(seed: int) -> None:
    known = planted(60, answers="alike").known
    order = np.random.default_rng(seed).permutation(len(known.rating))
    shuffled = Evidence._make(column[order] for column in known)._replace(query=7 - 3 * known.query[order])
    np.testing.assert_allclose(fitted(shuffled).posterior(known), fitted(known).posterior(known), atol=1e-4)


@pytest.mark.parametrize("follows", [-150.0, 0.0, 150.0])
def test_twenty_queries_tell_more_than_the_share_of_relevant_documents(follows: float) -> None:
    """In so few the likeliest two classes of ratings may be others than relevant and not: so was one world in two."""
    losses: list[float] = []
    entropies: list[float] = []
    for seed in range(12):
        world = planted(20, seed, follows=follows)
        relevant = world.relevant.ravel()
        p = np.clip(fitted(world.known).posterior(world.known), 1e-4, 1.0 - 1e-4)
        losses.append(-float(np.where(relevant, np.log(p), np.log(1.0 - p)).mean()))
        share = relevant.mean()
        entropies.append(-float(share * np.log(share) + (1.0 - share) * np.log(1.0 - share)))
    assert np.mean(losses) < np.mean(entropies)


@pytest.mark.parametrize("lasting", [1e3, 1e4])
@pytest.mark.parametrize("similarity", [None, 1.6])
def test_ratings_that_are_noise_are_refused_whatever_their_tails(lasting: float, similarity: float | None) -> None:
    known = planted(lasting=lasting, similarity=similarity).known
    assert not fitted(known).is_reliable
    for tails in (3.0, 1e6):
        rating = 300.0 * np.random.default_rng(0).standard_t(tails, size=len(known.rank))
        assert not fitted(known._replace(rating=rating, error=np.full(len(rating), 10.0))).is_reliable


def test_two_kinds_of_document_of_which_the_better_rated_ranks_low_are_not_relevant_and_other() -> None:
    """As where a judge is one of two retrievers, and prefers what the other one did not find."""
    known = planted(100, error=50.0, lasting=100.0, retrieval=0.0).known
    rng = np.random.default_rng(0)
    kind = (known.rank >= 4) & (rng.random(len(known.rank)) < 0.2)
    rating = GAIN * (kind - 0.2) + 100.0 * rng.normal(size=len(kind))
    model = fitted(known._replace(rating=rating))
    assert model.apart > relevance.WEAKEST
    assert not model.is_reliable


@pytest.mark.parametrize(
    ("first", "tenth", "is_reliable"),
    [(0.4, 0.01, True), (0.025, 0.03, True), (0.3, 0.45, False), (0.0006, 0.004, False)],
)
def test_relevance_does_not_rise_with_rank(first: float, tenth: float, is_reliable: bool) -> None:
    """The last: judges that follow similarity, fitted without it. What they call relevant ranked at 20 and below."""
    assert replace(fitted(planted(100).known), first=first, tenth=tenth).is_reliable == is_reliable


def test_too_little_gives_no_model() -> None:
    assert fit(planted(4).known) is None
    assert fit(planted(10).known._replace(rating=np.zeros(10 * DOCUMENTS))) is None


def test_documents_that_few_questions_were_about_do_not_make_the_others_relevant() -> None:
    """The first ten of a query err by 100 points, the others by 600; ratings are drawn to 0 by a prior of 350."""
    prior = 350.0
    world = planted(error=0.0)
    rng = np.random.default_rng(1)
    error = np.where(world.known.rank <= 10, 100.0, 600.0)
    said = world.known.rating + error * rng.normal(size=len(error))
    kept = prior**2 / (prior**2 + error**2)
    drawn = world.known._replace(rating=kept * said, error=error * np.sqrt(kept))
    rating, back = by_answers(drawn.rating, drawn.error, prior)
    np.testing.assert_allclose(rating, said)
    np.testing.assert_allclose(back, error)
    told = fitted(drawn._replace(rating=rating, error=back))
    assert told.gain == pytest.approx(GAIN, rel=0.1)
    share = told.posterior(drawn._replace(rating=rating, error=back))
    taken_as_they_are = fitted(drawn).posterior(drawn)
    assert share.sum() == pytest.approx(world.relevant.sum(), rel=0.3)
    assert taken_as_they_are.sum() > 2.0 * world.relevant.sum()
