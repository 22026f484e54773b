"""Lists and micro-batches: every list once an epoch, the same for any files, workers and micro-batches; made ahead."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.models.pairs import PairTokenizer
from anmi_ray.training.batching import (
    Ahead,
    effective_weights,
    listed,
    lists_of_step,
    step_batches,
    total_steps,
    weighed_gaps,
)
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.training_set import TrainingSet, prepare
from tests.models.tiny import write_tiny_bert
from tests.training.lists import Planted, planted

ALL = Phase(0.7, 0.0)


def tokens(budget: int) -> TrainExecution:
    return TrainExecution(micro_batch_tokens=budget, forward_tokens=max(budget // 2, 128))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> PairTokenizer:
    return PairTokenizer(AutoTokenizer.from_pretrained(write_tiny_bert(tmp_path_factory.mktemp("bert"))), 32)


@pytest.fixture(scope="module")
def problem() -> Planted:
    return planted(lists=11)


@pytest.fixture(scope="module")
def data(problem: Planted, pairs: PairTokenizer) -> TrainingSet:
    return problem.lists(pairs)


@pytest.mark.parametrize("regression", ["ratings", "margins"])
@pytest.mark.parametrize("unit", [1.0, 1 / 173.718])
def test_regression_weighs_documents_by_the_errors_of_its_targets(
    problem: Planted, pairs: PairTokenizer, regression: str, unit: float
) -> None:
    """1/(se² + s²), whatever the unit, and of mean 1, so that the term is as large as without errors."""
    table = problem.examples
    sizes = [1 + i for i in range(table.num_rows)]  # every list has errors of its own
    name = "rating_errors" if regression == "ratings" else "gap_errors"
    errors = [
        [None if e is None else 9.0 * size * (j + 1) for j, e in enumerate(row)]
        for size, row in zip(sizes, table[name].to_pylist(), strict=True)
    ]
    table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(errors))
    for column in ("rating_mean", "rating_sd"):
        table = table.set_column(
            table.schema.get_field_index(column), column, pa.array(table[column].to_numpy() * unit)
        )
    for column in ("ratings", "rating_errors", "gap_errors"):
        scaled = [[None if v is None else v * unit for v in row] for row in table[column].to_pylist()]
        table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), pa.array(scaled))
    data = prepare([table], [problem.texts], [problem.queries], pairs)
    config = TrainConfig.model_validate({"lists_per_step": 11, "max_steps": 1, "loss": {"regression": regression}})
    (batch,) = step_batches(data, config, 0, ALL, tokens(10**6))
    told = dict(
        zip(table["example_id"].to_pylist(), zip(errors, table["rating_sd"].to_pylist(), strict=True), strict=True)
    )
    raw, found = [], []
    for example, start, stop in zip(data.example_E, data.start_E, data.start_E[1:], strict=False):
        own, sd = told[example.tobytes()]
        raw += [0.0 if e is None else 1 / ((e * unit) ** 2 + (sd / 2) ** 2) * sd**2 for e in own]
        found += (data.rating_precision_P if regression == "ratings" else data.gap_precision_P)[start:stop].tolist()
    first = np.isin(np.arange(len(raw)), data.start_E) & (regression == "margins")
    expected = np.where(first, 0.0, raw)
    assert found == pytest.approx((expected / expected[expected > 0].mean()).tolist())
    rated = np.isfinite(batch.rating_BK)
    assert sorted(batch.precision_BK[rated]) == pytest.approx(
        sorted(np.array(found)[np.isfinite(data.rating_P)]), rel=1e-5
    )
    assert (batch.precision_BK[~rated] == 0.0).all()


def test_every_list_once_an_epoch_in_a_new_order(data: TrainingSet) -> None:
    config = TrainConfig(lists_per_step=4, epochs=3)
    assert total_steps(config, len(data)) == 8
    stream = [item for step in range(9) for item in lists_of_step(data.order, config, step)]
    epochs = [[e for e, epoch in stream if epoch == wanted] for wanted in range(3)]
    assert [sorted(order) for order in epochs] == [list(range(11))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    other = TrainConfig(lists_per_step=4, seed=1)
    assert lists_of_step(data.order, other, 0) != lists_of_step(data.order, config, 0)


def test_a_step_larger_than_the_set_takes_several_epochs(data: TrainingSet) -> None:
    chosen = lists_of_step(data.order, TrainConfig(lists_per_step=30), 1)
    assert len(chosen) == 30
    assert {epoch for _, epoch in chosen} == {2, 3, 4, 5}


def test_order_does_not_depend_on_files(problem: Planted, pairs: PairTokenizer, data: TrainingSet) -> None:
    backwards = problem.examples.take(pa.array(range(10, -1, -1)))
    again = prepare(
        [backwards.slice(0, 3), backwards.slice(3)],
        [problem.texts.slice(20), problem.texts.slice(0, 30)],
        [problem.queries],
        pairs,
    )
    config = TrainConfig(lists_per_step=4)
    for ours, theirs in zip(
        step_batches(data, config, 1, ALL, tokens(200)), step_batches(again, config, 1, ALL, tokens(200)), strict=True
    ):
        np.testing.assert_array_equal(ours.rating_BK, theirs.rating_BK)
        for a, b in zip(ours.batches, theirs.batches, strict=True):
            np.testing.assert_array_equal(a.ids, b.ids)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("budget", [150, 400, 10_000])
def test_workers_and_micro_batches_share_the_steps_lists(data: TrainingSet, world: int, budget: int) -> None:
    config = TrainConfig(lists_per_step=8)
    shares = [step_batches(data, config, 0, ALL, tokens(budget), rank, world) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    means = sorted(float(mean) for share in shares for batch in share for mean in batch.mean_B)
    whole = step_batches(data, config, 0, ALL, tokens(10**9))
    assert len(whole) == 1
    assert means == sorted(float(mean) for mean in whole[0].mean_B)
    assert sum(len(b.slot_N) for share in shares for b in share) == int(whole[0].mask_BK.sum())


def test_slots_put_every_pair_where_its_rating_stands(data: TrainingSet, problem: Planted) -> None:
    worth = {}
    for batch in step_batches(data, TrainConfig(lists_per_step=6), 0, ALL, tokens(300)):
        ids = [row[row_mask == 1] for b in batch.batches for row, row_mask in zip(b.ids, b.mask, strict=True)]
        grid = batch.rating_BK.ravel()[batch.slot_N]
        worth.update(
            {tuple(row[row.tolist().index(3) + 1 : -1]): rating for row, rating in zip(ids, grid, strict=True)}
        )
    special = 5  # the vocabulary's first words
    ratings = np.array(
        [[np.mean(np.array(key) - special), rating] for key, rating in worth.items() if rating == rating]
    )
    assert len(ratings) > 20
    assert np.corrcoef(ratings.T)[0, 1] > 0.8


def test_the_minimum_gap_drops_rated_negatives_and_spares_random_ones(data: TrainingSet) -> None:
    positions = np.arange(data.start_E[0], data.start_E[1])
    weights = effective_weights(data, positions, Phase(1.0, 300.0))
    rated = np.isfinite(data.rating_P[positions]) & data.is_negative_P[positions]
    assert weights[~rated].tolist() == [1.0] + [0.7] * (int((~rated).sum()) - 1)
    assert (weights[rated] == np.where(data.gap_P[positions][rated] < 300, 0, data.weight_P[positions][rated])).all()
    contrastive = listed(data, TrainConfig(), 0, Phase(1.0, 300.0), 0).documents
    hybrid = listed(data, TrainConfig(), 0, Phase(0.5, 300.0), 0).documents
    assert len(contrastive) < len(hybrid) == len(positions)
    assert contrastive[0] == hybrid[0] == positions[0]


def test_possible_positives_are_in_every_step_and_are_not_drawn(data: TrainingSet) -> None:
    start, tier = int(data.start_E[0]), data.tier_P.copy()
    tier[start + 1] = 0
    few = dataclasses.replace(data, tier_P=tier)
    config = TrainConfig(negatives=1, lists_per_step=len(data))
    one = listed(few, config, 0, Phase(1.0, 5000.0), 0)
    assert one.documents[:2].tolist() == [start, start + 1]
    assert one.weights.tolist() == [1.0, data.weight_P[start + 1], 1.0]
    (batch,) = step_batches(few, config, 0, Phase(1.0), TrainExecution(micro_batch_tokens=1 << 20))
    assert [batch.positive_BK.sum(), batch.positive_BK[:, 0].sum()] == [1, 0]


def test_windows_tiers_and_the_nearest(data: TrainingSet) -> None:
    positions = np.arange(data.start_E[1], data.start_E[2])
    gap, weight, tier = data.gap_P[positions], data.weight_P[positions], data.tier_P[positions]
    rated = np.isfinite(gap) & (np.arange(len(gap)) > 0)
    edge = float(np.sort(gap[rated & (weight > 0)])[1])
    above = effective_weights(data, positions, Phase(0.7, edge))
    below = effective_weights(data, positions, Phase(0.7, maximum_gap_elo=edge))
    assert (above[rated] + below[rated] == weight[rated]).all()
    assert (above[rated & (gap == edge)] > 0).all()
    easy = effective_weights(data, positions, Phase(0.7, highest_tier=1))
    assert (easy == np.where(tier > 1, 0, weight)).all()
    assert (tier[rated] == 2).all()
    assert not easy[rated].any()
    far = Phase(0.7, 5000.0, 6000.0)
    assert not effective_weights(data, positions, far)[rated].any()
    nearest = effective_weights(data, positions, dataclasses.replace(far, nearest=True))
    assert np.flatnonzero(nearest[rated]).tolist() == [int(np.argmax(gap[rated]))]


def test_losses_of_ratings_read_rated_documents_alone(data: TrainingSet) -> None:
    for loss, phase in (({"ranking": "ranknet"}, Phase(1.0)), ({}, Phase(0.0))):
        config = TrainConfig.model_validate({"loss": loss})
        positions = listed(data, config, 0, phase, 0).documents
        assert np.isfinite(data.rating_P[positions]).all()
        assert len(positions) == np.isfinite(data.rating_P[data.start_E[0] : data.start_E[1]]).sum()


def test_negatives_are_drawn_anew_in_every_epoch_by_weight_and_rated_ones_first(data: TrainingSet) -> None:
    """List 0 has rated negatives of weight 1, 2 and 0 and a random one, which is read where these do not suffice."""
    positions = np.arange(data.start_E[0], data.start_E[1])
    rated = np.flatnonzero(np.isfinite(data.rating_P[positions]))[1:]
    weight = data.weight_P.copy()
    weight[positions[rated]] = [0.1, 0.2, *[0.0] * (len(rated) - 2)]
    few = dataclasses.replace(data, weight_P=weight)
    phase = Phase(1.0)

    def read(count: int, epoch: int) -> list[int]:
        found = listed(few, TrainConfig(negatives=count), 0, phase, epoch)
        assert found.documents[0] == positions[0]
        assert (found.weights[1:] == 1.0).all()
        return found.documents[1:].tolist()

    one = [read(1, epoch) for epoch in range(3000)]
    assert one == [read(1, epoch) for epoch in range(3000)]
    assert {document for (document,) in one} == set(positions[rated[:2]].tolist())
    assert np.mean([document == positions[rated[1]] for (document,) in one]) == pytest.approx(2 / 3, abs=0.03)
    many = dataclasses.replace(data, weight_P=np.where(np.isfinite(data.rating_P), 7.0 * weight, weight))
    scaled = [listed(many, TrainConfig(negatives=1), 0, phase, epoch).documents[1] for epoch in range(300)]
    assert scaled == [document for (document,) in one[:300]]  # the scale of a rule's weights does not matter
    random = positions[~np.isfinite(few.rating_P[positions])].tolist()
    assert read(3, 0) == sorted([*positions[rated[:2]].tolist(), *random]) == read(99, 0)
    hybrid = listed(few, TrainConfig(negatives=1), 0, Phase(0.5), 0)  # regression reads every rating, as always
    assert hybrid.documents.tolist() == positions[np.isfinite(few.rating_P[positions])].tolist()
    assert (hybrid.weights[1:] > 0).sum() == 1


def test_gaps_for_a_curriculum_are_of_weighed_rated_negatives(data: TrainingSet, problem: Planted) -> None:
    wanted = []
    for row in problem.examples.to_pylist():
        pairs = zip(row["gaps"][1:], row["weights"][1:], strict=True)
        wanted += [gap for gap, weight in pairs if gap is not None and weight > 0]
    assert sorted(weighed_gaps(data)) == pytest.approx(sorted(wanted))


def test_what_cannot_be_divided_or_is_missing_is_said(
    problem: Planted, pairs: PairTokenizer, data: TrainingSet
) -> None:
    with pytest.raises(ConfigError, match="not a multiple of 3 workers"):
        step_batches(data, TrainConfig(lists_per_step=8), 0, ALL, tokens(200), 0, 3)
    with pytest.raises(DataError, match="missing"):
        prepare([problem.examples], [problem.texts.slice(1)], [problem.queries], pairs)
    with pytest.raises(DataError, match="no example"):
        prepare([problem.examples.slice(0, 0)], [problem.texts], [problem.queries], pairs)


def test_examples_of_an_anchor_alone_are_counted_and_refused(problem: Planted, pairs: PairTokenizer) -> None:
    lists = [
        name for name in problem.examples.schema.names if pa.types.is_list(problem.examples.schema.field(name).type)
    ]
    cut = problem.examples.slice(0, 2)
    for name in lists:
        short = pa.array([row[:1] for row in cut[name].to_pylist()], cut.schema.field(name).type)
        cut = cut.set_column(cut.schema.get_field_index(name), cut.schema.field(name), short)
    with pytest.raises(DataError, match="2 of 11 are an anchor without another document") as caught:
        prepare([cut, problem.examples.slice(2)], [problem.texts], [problem.queries], pairs)
    refused = {row.hex() for row in cut["example_id"].to_pylist()}
    assert any(row in str(caught.value) for row in refused)


PHASES = [Phase(0.7), Phase(0.7, 100.0), Phase(0.5)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, *PHASES]), st.sampled_from(PHASES)), max_size=12))
def test_what_is_given_depends_on_step_and_phase_alone(steps: list[tuple[int, Phase | None, Phase]]) -> None:
    """Whatever is foreseen: the right phase, another one, another step, nothing."""
    made: list[tuple[int, Phase]] = []

    def make(step: int, phase: Phase) -> list[object]:
        made.append((step, phase))
        return [(step, phase)]

    with Ahead(make) as ahead:
        for step, (skipped, foreseen, phase) in enumerate(steps):
            ahead.prepare(step + skipped, foreseen)
            assert ahead.batches(step, phase) == [(step, phase)]
    wanted = [(step, phase) for step, (_, _, phase) in enumerate(steps)]
    wrong = [one for one in made if one not in wanted]
    missed = sum(1 for skipped, foreseen, phase in steps if foreseen and (skipped, foreseen) != (0, phase))
    assert len(made) == len(steps) + missed, "what was foreseen is not made twice"
    assert len(wrong) <= missed
    assert threads() == []


def test_what_was_foreseen_is_made_by_the_thread_before_it_is_asked_for() -> None:
    by: list[str] = []
    ready = threading.Event()

    def make(step: int, phase: Phase) -> list[object]:
        by.append(threading.current_thread().name)
        ready.set()
        return [step]

    with Ahead(make) as ahead:
        ahead.prepare(1, PHASES[0])
        assert ready.wait(60)
        assert ahead.batches(1, PHASES[0]) == [1]
    assert [name.startswith("batches") for name in by] == [True]


def test_an_error_is_raised_where_its_batches_are_asked_for_and_not_elsewhere() -> None:
    def make(step: int, phase: Phase) -> list[object]:
        if phase == PHASES[1]:
            raise ConfigError("cannot be divided", "train.lists_per_step", "choose another")
        return [step]

    with Ahead(make) as ahead:
        ahead.prepare(1, PHASES[1])
        assert ahead.batches(1, PHASES[0]) == [1]
        ahead.prepare(2, PHASES[1])
        with pytest.raises(ConfigError, match="cannot be divided"):
            ahead.batches(2, PHASES[1])
    assert threads() == []


def test_the_thread_ends_when_the_run_is_interrupted() -> None:
    def interrupted() -> None:
        with Ahead(lambda step, phase: []) as ahead:
            ahead.prepare(1, PHASES[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threads() == []
