from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from sklearn import mixture as peer

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.core.arrays import Reals
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.mining import compose, em, mixture
from anmi_ray.mining.categories import CATEGORIES
from anmi_ray.mining.mixture import Component, Mixture, Tried, fit
from anmi_ray.mining.negatives import Common
from anmi_ray.mining.optimum import by_mixture, information
from tests.mining import world

GAUSSIAN, BETA = GaussianMixture(rule="gaussian-mixture"), BetaMixture(rule="beta-mixture")
CONFIG = MineConfig(allow=(), weigh=GAUSSIAN)
Settings = GaussianMixture | BetaMixture
pool = partial(world.pool, gap_se=50.0)


def of(*parts: tuple[float, float, float], thresholds: tuple[float | None, ...]) -> Mixture:
    """A mixture of Gaussians (share, mean, sd)."""
    tried = (Tried(len(parts), 0.0, 0.0, 0.0, True),)
    components = tuple(Component(*part) for part in parts)
    return Mixture("gaussian", 1000, 0.0, 1.0, components, tried, thresholds)


def planted(seed: int, size: int = 20_000) -> Reals:
    """A tenth N(0, 60²), the rest N(350, 110²)."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(size) < 0.1, rng.normal(0, 60, size), rng.normal(350, 110, size))


def planted_betas(seed: int, size: int = 20_000) -> Reals:
    """Gaps of 800 (1 − u), u a tenth Beta(14, 3) (mean gap 141), the rest Beta(2, 6) (mean gap 600)."""
    rng = np.random.default_rng(seed)
    return 800.0 * (1.0 - np.where(rng.random(size) < 0.1, rng.beta(14, 3, size), rng.beta(2, 6, size)))


@pytest.mark.parametrize("seed", range(3))
def test_planted_gaussians_are_recovered(seed: int) -> None:
    found = fit(planted(seed), GAUSSIAN)
    assert len(found.components) == 2
    for one, (weight, mean, sd) in zip(found.components, [(0.1, 0, 60), (0.9, 350, 110)], strict=True):
        assert one.weight == pytest.approx(weight, abs=0.01)
        assert one.mean == pytest.approx(mean, abs=12)
        assert one.sd == pytest.approx(sd, abs=8)
    # .1 φ(x/60)/60 = .9 φ((x − 350)/110)/110 at 99.6 points
    assert found.thresholds == (pytest.approx(99.6, abs=10),)
    truth = stats.norm.pdf([50, 100, 150], 0, 60) * 0.1
    truth = truth / (truth + 0.9 * stats.norm.pdf([50, 100, 150], 350, 110))
    np.testing.assert_allclose(found.false_negative(np.array([50.0, 100.0, 150.0])), truth, atol=0.08)


def test_three_planted_gaussians_give_two_thresholds() -> None:
    rng = np.random.default_rng(0)
    gaps = np.concatenate([rng.normal(0, 60, 2000), rng.normal(300, 80, 9000), rng.normal(650, 90, 9000)])
    found = fit(gaps, GAUSSIAN)
    assert [one.weight for one in found.components] == pytest.approx([0.1, 0.45, 0.45], abs=0.01)
    assert [one.mean for one in found.components] == pytest.approx([0, 300, 650], abs=6)
    assert found.thresholds == (pytest.approx(110, abs=6), pytest.approx(466, abs=6))
    names = [CATEGORIES[i] for i in found.categories(np.array([-5.0, 60.0, 300.0, 700.0, 5000.0]))]
    assert names == ["danger", "danger", "goldilocks", "easy", "easy"]


@pytest.mark.parametrize(("steps", "slack", "points"), [(10, 0.035, 45), (100, 0.02, 25)])
def test_planted_betas_are_recovered_in_points(
    steps: int, slack: float, points: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Beta on a wider scale is no exact Beta, and ten steps leave the small component too wide."""
    monkeypatch.setattr(mixture, "_BETA_STEPS", steps)
    found = fit(planted_betas(0), BETA)
    for one, (weight, mean, sd) in zip(found.components, [(0.1, 141, 72), (0.9, 600, 115)], strict=True):
        assert one.weight == pytest.approx(weight, abs=slack)
        assert one.mean == pytest.approx(mean, abs=points)
        assert one.sd == pytest.approx(sd, abs=points)
    p = found.false_negative(np.array([0.0, 141.0, 600.0, 800.0]))
    assert (p[:2] > 0.9).all()
    assert (p[2:] < 0.05).all()
    # .1 Beta(u; 14, 3) = .9 Beta(u; 2, 6) at u = .632: 294 points
    assert found.thresholds == (pytest.approx(294, abs=points),)


def test_planted_betas_are_recovered_on_their_own_scale() -> None:
    rng = np.random.default_rng(0)
    u = np.where(rng.random(50_000) < 0.1, rng.beta(14, 6, 50_000), rng.beta(2, 6, 50_000))
    parts = em.betas(em.points(u), 100)[1].parts
    assert isinstance(parts, em.Betas)
    np.testing.assert_allclose(parts.weight, [0.9, 0.1], atol=0.01)
    np.testing.assert_allclose(parts.alpha, [2.0, 14.0], rtol=0.05)
    np.testing.assert_allclose(parts.beta, [6.0, 6.0], rtol=0.05)


def test_betas_step_by_hand() -> None:
    """One step of moments from Beta(1, 2) .95 and Beta(2, 1) .05 on three values."""
    u = np.array([0.1, 0.2, 0.9])
    single, two = em.betas(em.points(u), 1)
    # densities 2(1 − u) and 2u: P(component 1) = .05 u/(.95 (1 − u) + .05 u)
    late = 0.05 * u / (0.95 * (1 - u) + 0.05 * u)
    for k, share in enumerate((1 - late, late)):
        mean = (share * u).sum() / share.sum()
        variance = (share * (u - mean) ** 2).sum() / share.sum()
        alpha = mean * (mean * (1 - mean) / variance - 1)
        assert isinstance(two.parts, em.Betas)
        assert two.parts.weight[k] == pytest.approx(share.mean(), rel=1e-12)
        assert two.parts.alpha[k] == pytest.approx(alpha, rel=1e-12)
        beta = alpha * (1 - mean) / mean
        assert two.parts.beta[k] == pytest.approx(max(beta, 1.01) if k else beta, rel=1e-12)
    assert isinstance(single.parts, em.Betas)
    made = stats.beta(single.parts.alpha[0], single.parts.beta[0])
    assert (made.mean(), made.var()) == pytest.approx((u.mean(), u.var()), rel=1e-12)


@pytest.mark.parametrize("size", [200, 2000, 30_000])
def test_one_gaussian_is_recognised(size: int) -> None:
    chosen = [fit(np.random.default_rng(seed).normal(400, 160, size), GAUSSIAN) for seed in range(4)]
    assert [one.one_suffices for one in chosen] == [True] * 4
    (one,) = chosen[0].components
    assert (one.weight, one.mean, one.sd) == (1.0, pytest.approx(400, abs=30), pytest.approx(160, abs=25))
    assert chosen[0].thresholds == ()
    assert "one Gaussian suffices" in chosen[0].summary()
    assert "no thresholds" in chosen[0].summary()
    assert np.isnan(chosen[0].false_negative(np.zeros(2))).all()


def test_icl_sees_one_where_bic_describes_a_shape() -> None:
    """Skewed gaps of one kind: BIC would take several Gaussians."""
    gaps = 200.0 * np.random.default_rng(0).gamma(4.0, 1.0, 20_000)
    found = fit(gaps, GAUSSIAN)
    assert found.one_suffices
    assert min(found.tried, key=lambda one: one.bic).components > 1


@pytest.mark.parametrize("components", [1, 2, 3])
def test_bic_is_scikit_learn_s(components: int) -> None:
    """On every gap by itself and on bins; ours may be lower where scikit-learn's EM stops early or in a worse place."""
    for size in (1500, 20_000) if components < 3 else (1500,):
        gaps = planted(1, size)
        found = fit(gaps, GAUSSIAN).tried[components - 1]
        column = gaps[:, None]
        model = peer.GaussianMixture(components, tol=1e-7, max_iter=5000, n_init=3, random_state=0).fit(column)
        if components < 3:
            assert found.bic == pytest.approx(model.bic(column), abs=0.5)
            share = model.predict_proba(column)
            entropy = -(share * np.log(np.maximum(share, 1e-300))).sum()
            assert found.icl - found.bic == pytest.approx(2 * entropy, rel=0.02, abs=1e-6)
        else:
            assert found.bic < model.bic(column) + 0.5


def test_em_of_gaussians_never_loses_likelihood() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        values = np.concatenate([rng.standard_t(3, 300), np.repeat(rng.normal(size=4), 40)])  # heavy tails and ties
        at = em.points(values / values.std())
        for k in (2, 3, 4):
            means = rng.normal(size=k)
            start = em.Gaussians(np.full(k, 1 / k), means, np.full(k, 0.3))
            fitted = em.gaussian_em(at, start, floor=0.05**2, steps=300)
            assert len(fitted.trace) > 5
            assert np.diff(fitted.trace).min() > -1e-12
            assert isinstance(fitted.parts, em.Gaussians)
            assert fitted.parts.variance.min() >= 0.05**2
            assert fitted.parts.weight.sum() == pytest.approx(1.0)


def test_more_components_never_fit_worse() -> None:
    for gaps in (planted(3), 200.0 * np.random.default_rng(0).gamma(4.0, 1.0, 3000)):
        likelihood = [one.log_likelihood for one in fit(gaps, GAUSSIAN).tried]
        assert np.diff(likelihood).min() > -1.0  # binned gaps, and EM that stops: a nat of thousands


def test_bins_keep_mass_and_mean() -> None:
    values = np.random.default_rng(0).normal(size=50_000)
    at = em.points(values)
    assert len(at.value) < 2000
    assert at.mass.sum() == 50_000
    assert at.value @ at.mass / 50_000 == pytest.approx(values.mean(), abs=1e-12)
    assert (at.value - values.mean()) ** 2 @ at.mass / 50_000 == pytest.approx(values.var(), rel=1e-4)
    assert (np.diff(at.value) > 0).all()


@pytest.mark.parametrize("settings", [GAUSSIAN, BETA])
@pytest.mark.parametrize("size", [300, 5000])
def test_the_order_of_gaps_changes_nothing(settings: Settings, size: int) -> None:
    gaps = planted(5, size)
    assert fit(gaps, settings) == fit(np.random.default_rng(1).permutation(gaps), settings)


@pytest.mark.parametrize("settings", [GAUSSIAN, BETA])
@pytest.mark.parametrize("size", [0, 1, 10, 3000])
def test_json_round_trip(settings: Settings, size: int) -> None:
    found = fit(planted(0, size), settings)
    text = json.dumps(asdict(found), allow_nan=False)
    again = Mixture.from_dict(json.loads(text))
    assert again == found
    assert again.summary() == found.summary()
    gap = np.linspace(-500, 900, 57)
    np.testing.assert_array_equal(again.false_negative(gap), found.false_negative(gap))


def test_what_is_published_can_be_read_by_others() -> None:
    values = asdict(fit(planted(0, 3000), BETA))
    assert values["kind"] == "beta"
    assert values["gaps"] == 3000
    assert values["low"] < 0 < 350 < values["high"]
    assert sum(one["weight"] for one in values["components"]) == pytest.approx(1.0)
    assert [one["components"] for one in values["tried"]] == [1, 2]
    for one in values["components"]:  # α and β are those of u = 1 − (gap − low)/(high − low)
        mean = values["high"] - (values["high"] - values["low"]) * one["alpha"] / (one["alpha"] + one["beta"])
        assert one["mean"] == pytest.approx(mean)


@pytest.mark.parametrize("settings", [GAUSSIAN, BETA])
def test_gaps_that_say_nothing(settings: Settings) -> None:
    for gaps, why in (
        (np.zeros(0), "fewer than 50 gaps"),
        (planted(0, 49), "fewer than 50 gaps"),
        (np.full(500, 123.0), "the gaps are constant"),
        (np.full(500, 1e-9), "the gaps are constant"),
    ):
        found = fit(gaps, settings)
        assert found.one_suffices
        assert found.why == why
        assert why in found.summary()
        weight = by_mixture(pool([300.0]), settings, Common(CONFIG, 0, found)).weight
        assert np.isfinite(weight).all()
    assert fit(np.append(np.full(500, 10.0), 700.0), BETA).why == "the gaps are constant"  # all but one
    assert not fit(np.repeat([0.0, 400.0], 200), GAUSSIAN).one_suffices  # ties, but two of them
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(DataError, match="not finite") as caught:
            fit(np.append(planted(0, 100), bad), settings)
        assert caught.value.place == "mine"


def test_weights_by_hand() -> None:
    """Equal shares and sds of 100 about 0 and 400: log odds of a false negative are 8 − .04 Δ."""
    mixture = of((0.5, 0.0, 100.0), (0.5, 400.0, 100.0), thresholds=(200.0,))
    gap = [-400.0, 0.0, 100.0, 200.0, 250.0, 400.0]
    ruled = by_mixture(pool(gap, gap_se=1e-12), GAUSSIAN, Common(CONFIG, 0, mixture))
    p_true = 1 / (1 + np.exp(8 - 0.04 * np.array(gap)))
    np.testing.assert_allclose(p_true[3:5], [0.5, 0.880797], atol=1e-6)
    p_true[0] = 0.0  # the anchor loses surely
    np.testing.assert_allclose(ruled.weight, p_true * information(np.array(gap)), atol=1e-6)
    assert ruled.category is not None
    names = [CATEGORIES[i] for i in ruled.category]
    assert names == ["danger"] * 3 + ["goldilocks"] * 3


def test_documents_that_beat_the_anchor_weigh_nothing() -> None:
    """Even where the mixture gives false negatives a small chance everywhere: I(Δ) is symmetric, P is not."""
    mixture = of((0.02, 50.0, 100.0), (0.98, 400.0, 250.0), thresholds=(None,))
    assert mixture.false_negative(np.array([-1000.0]))[0] < 0.3
    weight = by_mixture(pool([-1000.0, -400.0, -300.0, 300.0]), GAUSSIAN, Common(CONFIG, 0, mixture)).weight
    assert (weight[:3] < 1e-6).all()
    assert weight[3] > 0.4


def test_one_component_leaves_the_gap_s_own_probability() -> None:
    mixture = of((1.0, 400.0, 100.0), thresholds=())
    ruled = by_mixture(pool([100.0, 300.0], gap_se=100.0), GAUSSIAN, Common(CONFIG, 0, mixture))
    expected = np.array([0.5, stats.norm.cdf(2.0)]) * information(np.array([100.0, 300.0]))
    np.testing.assert_allclose(ruled.weight, expected, rtol=1e-12)
    assert ruled.category is None
    composed = compose.weights_of(pool([100.0, 300.0]), Common(CONFIG, 0, mixture))
    assert composed.category is not None
    assert [CATEGORIES[i] for i in composed.category] == ["soft", "goldilocks"]  # Table 2's


def test_a_mixture_must_be_given_and_fit_the_rule() -> None:
    with pytest.raises(ConfigError, match="none is given") as caught:
        by_mixture(pool([100.0]), BETA, Common(CONFIG, 0))
    assert caught.value.place == "mine.weigh"
    assert "fit one" in str(caught.value.remedy)
    with pytest.raises(ConfigError, match="a gaussian mixture is given"):
        by_mixture(pool([100.0]), BETA, Common(CONFIG, 0, of((1.0, 0.0, 1.0), thresholds=())))


parts = st.lists(st.tuples(st.floats(0.01, 1.0), st.floats(-300, 900), st.floats(15, 500)), min_size=2, max_size=5)


@example([(1.0, 0.0, 50.0), (1.0, 1.0, 52.0)], [400.0, 444.0])  # farther than eight standard deviations
@given(parts, st.lists(st.floats(-3000, 4000), min_size=2, max_size=30))
def test_false_negatives_never_get_likelier_as_gaps_widen(
    drawn: list[tuple[float, float, float]], gaps: list[float]
) -> None:
    drawn = sorted(drawn, key=lambda part: part[1])
    total = sum(part[0] for part in drawn)
    mixture = of(*((w / total, m, s) for w, m, s in drawn), thresholds=(None,) * (len(drawn) - 1))
    gap = np.sort(np.array(gaps))
    p = mixture.false_negative(gap)
    assert ((p >= 0) & (p <= 1)).all()
    assert (np.diff(p) <= 1e-15).all()
    ends = [(m - 8 * s, m + 8 * s) for _, m, s in drawn]  # it stays what it is there
    joint = mixture.log_joint(np.clip(gap, min(low for low, _ in ends), max(high for _, high in ends)))
    raw = np.exp(joint[0] - np.logaddexp.reduce(joint, axis=0))
    left = gap <= drawn[0][1]
    assert (p[left] >= raw[left] - 1e-3).all()  # on the left the posterior is only raised, on the right only lowered
    assert (p[~left] <= raw[~left] + 1e-3).all()
    for se in (1.0, 130.0):
        ruled = by_mixture(pool(gap, gap_se=se), GAUSSIAN, Common(CONFIG, 0, mixture))
        assert ((ruled.weight >= 0) & (ruled.weight <= 1)).all()
        bits = information(gap)
        told = ruled.weight[bits > 1e-6] / bits[bits > 1e-6]
        assert (np.diff(told) >= -1e-9).all()  # P(true negative) never falls


def test_a_wide_component_does_not_take_back_the_left() -> None:
    mixture = of((0.1, 0.0, 60.0), (0.9, 400.0, 200.0), thresholds=(None,))
    joint = mixture.log_joint(np.array([-800.0, -50.0]))
    raw = np.exp(joint[0] - np.logaddexp.reduce(joint, axis=0))
    assert raw[0] < 0.01 < 0.5 < raw[1]  # what the posterior itself says of documents far above the anchor
    p = mixture.false_negative(np.array([-800.0, -50.0]))
    assert p[0] >= p[1] > 0.5


def test_a_wide_first_component_does_not_take_the_right() -> None:
    mixture = of((0.5, 0.0, 300.0), (0.5, 300.0, 60.0), thresholds=(None,))
    joint = mixture.log_joint(np.array([900.0]))
    assert joint[0, 0] > joint[1, 0]
    assert mixture.false_negative(np.array([900.0]))[0] < 0.3


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (2, ["danger", "goldilocks"]),
        (3, ["danger", "goldilocks", "easy"]),
        (4, ["danger", "soft", "goldilocks", "easy"]),
        (5, ["danger", "soft", "goldilocks", "medium", "easy"]),
        (6, ["danger", "soft", "goldilocks", "goldilocks", "medium", "easy"]),
    ],
)
def test_names_of_bands(count: int, names: list[str]) -> None:
    parts = [(1 / count, 100.0 + 200.0 * i, 50.0) for i in range(count)]
    edges = tuple(200.0 * i for i in range(1, count))
    mixture = of(*parts, thresholds=edges)
    at = np.array([100.0 + 200.0 * i for i in range(count)])
    assert [CATEGORIES[i] for i in mixture.categories(at)] == names
    assert [CATEGORIES[i] for i in mixture.categories(np.array([edges[0], -1.0]))] == [names[1], "danger"]


def test_neighbours_that_never_cross_are_one_band() -> None:
    """A component below another all along gives no threshold, and the band bears the other's name."""
    under = of((0.01, 300.0, 150.0), (0.99, 400.0, 100.0), thresholds=(None,))
    assert [CATEGORIES[i] for i in under.categories(np.array([50.0, 500.0, -10.0]))] == [
        "goldilocks",
        "goldilocks",
        "danger",
    ]
    over = replace(under, components=(Component(0.99, 300.0, 150.0), Component(0.01, 400.0, 100.0)))
    assert [CATEGORIES[i] for i in over.categories(np.array([50.0, 500.0]))] == ["danger", "danger"]
    assert "none: the two never cross" in under.summary()
