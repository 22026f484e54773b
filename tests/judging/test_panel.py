from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy import stats

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import JUDGMENT, TRUTH, find_rows
from anmi_ray.judging import judge, truth

World = Callable[..., tuple[pa.Table, pa.Table]]
PRESETS = ["realistic", "thurstone", "correlated", "heavy-tailed", "misspecified", "similarity", "panel", "one-judge"]


def one(**settings: object) -> JudgeConfig:
    """A panel of one simulated judge whose perception is the truth but for `settings`."""
    plain = {"kind": "simulated", "name": "j", "noise_sd": 1.0}
    return JudgeConfig.model_validate({"preset": "thurstone", "judges": [plain | settings]})


def difference(candidates: pa.Table, comparisons: pa.Table, config: JudgeConfig) -> np.ndarray:
    table = truth(candidates, config, 0)
    latent = table["latent"].to_numpy()
    rows = [
        find_rows(table, {"query_id": comparisons["query_id"], "doc_id": comparisons[d]}) for d in ("doc_a", "doc_b")
    ]
    return latent[rows[0]] - latent[rows[1]]


def column(judgments: pa.Table, comparisons: pa.Table, name: str, order: str) -> np.ndarray:
    """p_a of one judge and order in the order of `comparisons`, NaN for failures."""
    mine = judgments.filter(pc.and_(pc.equal(judgments["judge"], name), pc.equal(judgments["order"], order)))
    rows = find_rows(mine, {"comparison_id": comparisons["comparison_id"]})
    return mine["p_a"].to_numpy(zero_copy_only=False)[rows]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_answers_every_comparison_in_both_orders(make_world: World, preset: str) -> None:
    candidates, comparisons = make_world(5, 8)
    config = JudgeConfig(preset=preset)  # type: ignore[arg-type]
    judgments = JUDGMENT.check(judge(comparisons, candidates, config, seed=0), "test")
    assert judgments.num_rows == comparisons.num_rows * len(config.judges) * 2
    keys = list(
        zip(*(judgments[name].to_pylist() for name in ("query_id", "comparison_id", "judge", "order")), strict=True)
    )
    assert keys == sorted(keys)


def test_one_order_asks_every_pair_once_in_an_order_by_hash_and_says_what_both_would(make_world: World) -> None:
    candidates, comparisons = make_world(6, 10)
    both = judge(comparisons, candidates, JudgeConfig(), seed=0)
    one = JUDGMENT.check(judge(comparisons, candidates, JudgeConfig(orders="one"), seed=0), "test")
    assert one.num_rows == comparisons.num_rows * len(JudgeConfig().judges) == both.num_rows // 2
    kept = set(zip(one["comparison_id"].to_pylist(), one["order"].to_pylist(), strict=True))
    asked = zip(both["comparison_id"].to_pylist(), both["order"].to_pylist(), strict=True)
    assert one.equals(both.filter(pa.array([pair in kept for pair in asked])))
    orders = one.group_by("comparison_id").aggregate([("order", "count_distinct")])
    assert set(orders["order_count_distinct"].to_pylist()) == {1}
    assert 0.3 < np.mean([order == "ab" for order in one["order"].to_pylist()]) < 0.7


@pytest.mark.parametrize("preset", PRESETS)
def test_rerun_order_and_bucket_change_nothing(make_world: World, preset: str) -> None:
    candidates, comparisons = make_world(4, 9)
    config = JudgeConfig(preset=preset)  # type: ignore[arg-type]
    whole = judge(comparisons, candidates, config, seed=7)
    rng = np.random.default_rng(0)
    shuffled = [table.take(pa.array(rng.permutation(table.num_rows))) for table in (comparisons, candidates)]
    assert judge(shuffled[0], shuffled[1], config, seed=7).equals(whole)
    query = comparisons["query_id"][0]
    part = judge(
        comparisons.filter(pc.equal(comparisons["query_id"], query)),
        candidates.filter(pc.equal(candidates["query_id"], query)),
        config,
        seed=7,
    )
    assert part.equals(whole.filter(pc.equal(whole["query_id"], query)))
    assert preset == "similarity" or not judge(comparisons, candidates, config, seed=8).equals(whole)


def test_a_judge_answers_the_same_whoever_else_is_in_the_panel(make_world: World) -> None:
    candidates, comparisons = make_world(3, 8)
    panel = JudgeConfig()
    alone = JudgeConfig.model_validate({"judges": [panel.judges[1].model_dump()]})
    name = panel.judges[1].name
    judgments = judge(comparisons, candidates, panel, seed=0)
    assert judge(comparisons, candidates, alone, seed=0).equals(judgments.filter(pc.equal(judgments["judge"], name)))


def test_thurstone_wins_as_often_as_the_model_says(make_world: World) -> None:
    candidates, comparisons = make_world(60, 20)
    config = one()
    x = difference(candidates, comparisons, config)
    p_a = column(judge(comparisons, candidates, config, 0), comparisons, "j", "ab")
    for low, high in [(-3, -2), (-1, -0.5), (-0.1, 0.1), (0.5, 1), (1.5, 2.5)]:
        inside = (x > low) & (x < high)
        expected = stats.norm.cdf(x[inside])
        error = np.sqrt((expected * (1 - expected)).sum()) / inside.sum()
        assert abs(p_a[inside].mean() - expected.mean()) < 4 * error


def test_truth_is_bonus_slope_and_hidden_noise(make_world: World) -> None:
    candidates, _ = make_world(200, 20)
    config = JudgeConfig.model_validate({"truth": {"similarity_slope": 0.5, "relevance_sd": 0.25}})
    table = TRUTH.check(truth(candidates, config, 0), "test")
    assert table.num_rows == candidates.num_rows
    row = find_rows(table, {"query_id": candidates["query_id"], "doc_id": candidates["doc_id"]})
    latent = table["latent"].to_numpy()[row].reshape(200, 20)
    similarity = candidates["similarity"].to_numpy().reshape(200, 20)
    z = (similarity - similarity.mean(axis=1, keepdims=True)) / similarity.std(axis=1, keepdims=True)
    hidden = latent - 0.5 * z
    hidden[:, 0] -= 2.0
    assert abs(hidden.mean()) < 0.02
    assert hidden.std() == pytest.approx(0.25, rel=0.05)
    assert abs(np.corrcoef(hidden.ravel(), z.ravel())[0, 1]) < 0.06


@pytest.mark.parametrize("tail", ["normal", "student-t"])
def test_noise_has_the_configured_distribution(make_world: World, tail: str) -> None:
    """A soft readout shows the perceived difference itself: Φ⁻¹(p_a) − truth is the noise."""
    candidates, comparisons = make_world(30, 15)
    config = one(readout="soft", noise_sd=0.6, tail=tail, tail_df=6.0)
    p_a = column(judge(comparisons, candidates, config, 0), comparisons, "j", "ab")
    noise = stats.norm.ppf(p_a) - difference(candidates, comparisons, config)
    noise = noise[np.isfinite(noise)] / 0.6
    reference = stats.norm() if tail == "normal" else stats.t(6, scale=np.sqrt(4 / 6))
    assert stats.kstest(noise, reference.cdf).pvalue > 1e-3


def test_order_correlation_is_the_shared_part_of_the_noise(make_world: World) -> None:
    candidates, comparisons = make_world(30, 15)
    config = one(readout="soft", noise_sd=0.6, order_correlation=0.5)
    judgments = judge(comparisons, candidates, config, 0)
    x = difference(candidates, comparisons, config)
    noise = [stats.norm.ppf(column(judgments, comparisons, "j", order)) - x for order in ("ab", "ba")]
    usable = np.isfinite(noise[0]) & np.isfinite(noise[1])
    assert np.corrcoef(noise[0][usable], noise[1][usable])[0, 1] == pytest.approx(0.5, abs=0.05)


def test_position_bias_favours_the_first_shown_and_both_orders_cancel_its_sign(make_world: World) -> None:
    candidates, comparisons = make_world(40, 15)
    config = one(position_bias=0.8)
    judgments = judge(comparisons, candidates, config, 0)
    ab, ba = (column(judgments, comparisons, "j", order) for order in ("ab", "ba"))
    x = difference(candidates, comparisons, config)
    assert (ab - ba).mean() > 0.2  # doc_a gains where it is shown first
    near = np.abs(x) < 0.3
    single = ab[near] - stats.norm.cdf(x[near])
    both = (ab + ba)[near] / 2 - stats.norm.cdf(x[near])
    assert single.mean() > 0.2
    assert abs(both.mean()) < 4 * both.std() / np.sqrt(near.sum())


def test_ties_and_failures_come_as_configured(make_world: World) -> None:
    candidates, comparisons = make_world(40, 15)
    config = one(tie_width=0.5, failure_rate=0.1, noise_sd=0.5)
    judgments = judge(comparisons, candidates, config, 0)
    failed = judgments.filter(pc.is_valid(judgments["error"]))
    n = judgments.num_rows
    assert abs(failed.num_rows / n - 0.1) < 4 * np.sqrt(0.09 / n)
    assert failed["p_a"].null_count == failed.num_rows  # a failure is never a vote
    assert all(reason.startswith("simulated failure: ") for reason in failed["error"].to_pylist())
    x = np.repeat(difference(candidates, comparisons, config), 2)
    expected = stats.norm.cdf((0.5 - x) / 0.5) - stats.norm.cdf((-0.5 - x) / 0.5)
    tied = pc.sum(pc.equal(judgments["p_a"], 0.5)).as_py() / (n - failed.num_rows)
    assert abs(tied - expected.mean()) < 4 * np.sqrt(expected.mean() * (1 - expected.mean()) / n)


def test_similarity_judge_uses_no_labels(make_world: World) -> None:
    candidates, comparisons = make_world(3, 8)
    config = JudgeConfig(preset="similarity")
    judgments = judge(comparisons, candidates, config, 0)
    unlabelled = candidates.set_column(
        candidates.schema.get_field_index("is_positive"),
        candidates.schema.field("is_positive"),
        pa.array(np.zeros(candidates.num_rows, dtype=bool)),
    )
    assert judge(comparisons, unlabelled, config, 0).equals(judgments)
    assert truth(candidates, config, 0).num_rows == 0
    similarity = candidates["similarity"].to_numpy()
    keys = [{"query_id": comparisons["query_id"], "doc_id": comparisons[d]} for d in ("doc_a", "doc_b")]
    a, b = (similarity[find_rows(candidates, key)] for key in keys)
    for order in ("ab", "ba"):
        np.testing.assert_allclose(
            column(judgments, comparisons, "similarity", order), stats.norm.cdf(10 * (a - b)), rtol=1e-12
        )


def test_constant_similarity_says_nothing(make_world: World) -> None:
    candidates, comparisons = make_world(2, 6, similarity=0.3)
    config = JudgeConfig.model_validate({"truth": {"relevance_sd": 0}})
    assert set(truth(candidates, config, 0)["latent"].to_pylist()) == {0.0, 2.0}
    p_a = judge(comparisons, candidates, JudgeConfig(preset="similarity"), 0)["p_a"].to_numpy()
    assert (p_a == 0.5).all()


def test_a_single_candidate_and_no_comparison(make_world: World) -> None:
    candidates, comparisons = make_world(1, 1)
    assert comparisons.num_rows == 0
    assert JUDGMENT.check(judge(comparisons, candidates, JudgeConfig(), 0), "test").num_rows == 0
    assert truth(candidates, JudgeConfig(), 0).num_rows == 1
    assert truth(candidates.slice(0, 0), JudgeConfig(), 0).num_rows == 0


def test_unknown_documents_and_bad_similarities_are_refused(make_world: World) -> None:
    candidates, comparisons = make_world(1, 4)
    with pytest.raises(DataError, match="not candidates"):
        judge(comparisons, candidates.slice(1), JudgeConfig(), 0)
    spoiled = candidates.set_column(
        candidates.schema.get_field_index("similarity"),
        candidates.schema.field("similarity"),
        pa.array([float("nan")] * 4),
    )
    with pytest.raises(DataError, match="not finite"):
        judge(comparisons, spoiled, JudgeConfig(), 0)


def test_golden_votes(make_world: World) -> None:
    """Changes when the same settings give other answers: then the judge stage needs a new version."""
    candidates, comparisons = make_world(3, 8, similarity=0.5)
    judgments = judge(comparisons, candidates, JudgeConfig(), seed=0)
    votes = [row["error"] or row["p_a"] for row in judgments.to_pylist()]
    assert identity.digest("golden", *map(str, votes)).hex() == "c47b1fe4b213f9c3865b641ee22bd9e1"


@pytest.mark.parametrize(("preset", "accuracy"), [("panel", 0.7), ("panel", None), ("one-judge", 0.9)])
def test_judges_are_as_good_as_their_preset_says(make_world: World, preset: str, accuracy: float | None) -> None:
    candidates, comparisons = make_world(1500, 6)
    config = JudgeConfig.model_validate({"preset": preset, "accuracy": accuracy})
    known = candidates.filter(candidates["is_positive"])
    first, second = (
        find_rows(known, {"query_id": comparisons["query_id"], "doc_id": comparisons[doc]}) >= 0
        for doc in ("doc_a", "doc_b")
    )
    judgments = judge(comparisons, candidates, config, seed=3)
    for one_of in config.judges:
        for order in ("ab", "ba"):
            p_a = column(judgments, comparisons, one_of.name, order)
            right = np.concatenate([p_a[first] == 1, p_a[second] == 0])
            # half of the errors' variance is lasting, so 1,500 positives are less than 7,500 independent pairs
            assert np.mean(right) == pytest.approx(accuracy or 0.8, abs=0.03)
