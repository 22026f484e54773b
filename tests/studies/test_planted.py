"""The study of planted false negatives: planting, gradients, and figures with known answers, on a tiny model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import Gate
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.identity import ID
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.records import EXAMPLE
from anmi_ray.training.batching import TrainingSet, documents_of_list, lists_of_step, prepare
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import train
from anmi_ray.training.module import Trainable
from jobs.studies.planted_figures import verdict
from jobs.studies.planted_gradients import cosine, cosines, damages, follow, lists_before, see, slope, weight_groups
from jobs.studies.planted_lists import FalseNegative, pick, plant, rule_weights, siblings, unweighted
from tests.models.tiny import write_tiny_bert
from tests.training.lists import planted

CONFIG = TrainConfig.model_validate(
    {
        "engine": "ddp",
        "lists_per_step": 8,
        "max_tokens": 32,
        "max_steps": 5,
        "learning_rate": 3e-3,
        "precision": "float32",
        "freeze_embeddings": False,
        "dev_points": [],
    }
)
PROBLEM = planted()


def false_negatives(count: int) -> dict[bytes, FalseNegative]:
    """For the first examples a document of the next example: any one that the list does not hold."""
    rows = PROBLEM.examples.to_pylist()
    return {
        row["example_id"]: FalseNegative(after["doc_ids"][0], 50.0, 20.0, 40.0)
        for row, after in pairwise(rows[: count + 1])
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def start(base: Path, table: pa.Table) -> tuple[CrossEncoder, TrainingSet]:
    model = CrossEncoder.load(str(base), max_tokens=CONFIG.max_tokens, seed=CONFIG.seed)
    return model, prepare([table], [PROBLEM.texts], [PROBLEM.queries], model.pairs)


def marked(data: TrainingSet, chosen: dict[bytes, FalseNegative]) -> np.ndarray:
    found = np.zeros(len(data.doc_id_P), dtype=bool)
    for e, row in enumerate(data.example_E):
        found[data.start_E[e + 1] - 1] = bytes(row) in chosen
    return found


def test_planting_adds_one_document_and_changes_nothing_else() -> None:
    chosen = false_negatives(4)
    before, after = PROBLEM.examples.to_pylist(), plant(PROBLEM.examples, chosen).to_pylist()
    assert [row["example_id"] for row in after] == [row["example_id"] for row in before]
    for old, new in zip(before, after, strict=True):
        one = chosen.get(old["example_id"])
        if one is None:
            assert new == old
            continue
        assert new["doc_ids"] == [*old["doc_ids"], one.doc_id]
        assert (new["weights"][-1], new["ratings"][-1], new["gaps"][-1]) == (1.0, one.rating, one.gap)
        for name, value in old.items():
            assert (new[name][: len(value)] if isinstance(value, list) else new[name]) == value
    EXAMPLE.check(plant(PROBLEM.examples, chosen), "planted")
    weights = dict.fromkeys(chosen, 0.25)
    assert [row["weights"][-1] for row in plant(PROBLEM.examples, chosen, weights).to_pylist()[:4]] == [0.25] * 4


def test_nothing_planted_is_the_table_itself_and_unweighted_changes_weights_alone() -> None:
    assert plant(PROBLEM.examples, {}).equals(PROBLEM.examples)
    plain = unweighted(PROBLEM.examples)
    assert set(np.concatenate(plain["weights"].to_pylist())) == {1.0}
    assert plain.drop_columns("weights").equals(PROBLEM.examples.drop_columns("weights"))


def test_siblings_are_other_known_positives_one_list_a_query() -> None:
    def at(number: int) -> bytes:
        return bytes([number]) * 16

    def example(number: int, query: int, anchor: int) -> dict[str, object]:
        lists = {"doc_ids": [at(anchor), at(90)], "ratings": [300.0, 0.0], "weights": [1.0, 1.0], "tiers": [0, 1]}
        more = {"categories": ["anchor", "easy"], "gaps": [0.0, 300.0], "gap_errors": [0.0, 9.0]}
        ids = {"query_id": at(query), "example_id": at(number), "rating_mean": 0.0, "rating_sd": 100.0}
        return {**ids, **lists, **more}

    rows = [example(1, 1, 11), example(2, 1, 12), example(3, 2, 21)]  # query 1 has two positives, query 2 one
    examples = EXAMPLE.table({name: [row[name] for row in rows] for name in EXAMPLE.schema.names})

    def table(*rows: tuple[object, ...], names: tuple[str, ...]) -> pa.Table:
        columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
        ids = {n: pa.array(v, type=ID) if n.endswith("_id") else pa.array(v) for n, v in columns.items()}
        return pa.table(ids)

    names = ("query_id", "doc_id", "grade")
    qrels = table((at(1), at(11), 1), (at(1), at(12), 1), (at(2), at(21), 1), (at(2), at(22), 0), names=names)
    pairs = ((at(1), at(11), at(12), 40.0, 5.0), (at(1), at(12), at(11), -40.0, 5.0))
    gaps = table(*pairs, names=("query_id", "anchor_id", "doc_id", "gap_elo", "gap_se_elo"))
    ratings = table((at(1), at(11), 300.0), (at(1), at(12), 260.0), names=("query_id", "doc_id", "rating_elo"))
    assert siblings(examples, qrels, gaps, ratings) == {at(1): FalseNegative(at(12), 260.0, 40.0, 5.0)}


def test_pick_holds_the_share_and_is_a_function_of_the_seed() -> None:
    table, order = pick(PROBLEM.examples, false_negatives(6), 0.5, 0)
    assert set(order) == set(false_negatives(6))
    assert table.num_rows == 12
    assert set(order) <= set(table["example_id"].to_pylist())
    again, other = (
        pick(PROBLEM.examples, false_negatives(6), 0.5, 0),
        pick(PROBLEM.examples, false_negatives(6), 0.5, 1),
    )
    assert again[0].equals(table)
    assert other[1] != order


def test_the_rule_reads_the_gap_alone() -> None:
    config = MineConfig(allow=(Gate(rule="gate", largest=0.05),))
    sure, near = FalseNegative(b"", 0.0, 2000.0, 1.0), FalseNegative(b"", 0.0, 0.0, 200.0)
    weights = rule_weights([sure, near], config)
    assert weights[1] == 0.0
    assert weights[0] == pytest.approx(config.bands[-1].weight)


def test_cosines_of_parallel_opposed_and_orthogonal_vectors() -> None:
    a = torch.tensor([3.0, 4.0])
    assert cosine(a, 2 * a) == pytest.approx(1.0)
    assert cosine(a, -a) == pytest.approx(-1.0)
    assert cosine(a, torch.tensor([-4.0, 3.0])) == 0.0
    assert np.isnan(cosine(a, 0 * a))


def test_slope_recovers_an_exponent_through_noise() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-5, 0, 2000)
    assert slope(x, 0.7 * x + 3 + random.normal(0, 0.3, 2000)) == pytest.approx(0.7, abs=0.02)


def test_gradients_are_the_report_s_and_one_document_s_are_parallel(base: Path) -> None:
    chosen = false_negatives(6)
    model, data = start(base, unweighted(plant(PROBLEM.examples, chosen)))
    module, planted_P = Trainable(model, CONFIG).train(), marked(data, chosen)
    lists = [
        np.arange(data.start_E[e], data.start_E[e + 1]) for e in range(len(data)) if planted_P[data.start_E[e + 1] - 1]
    ]
    seen = see(module, data, CONFIG, lists, planted_P)
    assert seen.planted_N.sum() == 6
    negatives = np.diff(seen.list_N, prepend=-1) == 0
    np.testing.assert_allclose(seen.ranking_N[negatives], seen.probability_N[negatives], atol=1e-6)  # (39), w = τ = 1
    sums = np.bincount(seen.list_N, seen.probability_N.numpy())
    np.testing.assert_allclose(sums, np.ones(6), atol=1e-6)
    groups = weight_groups(module)
    only = {n: np.arange(len(negatives)) == n for n in np.flatnonzero(seen.planted_N)[:3]}
    found = cosines(seen, groups, {str(n): one for n, one in only.items()})
    for n in only:
        wanted = float(torch.sign(seen.ranking_N[n] * seen.regression_N[n]))
        assert list(found[str(n)].values()) == pytest.approx([wanted] * len(groups), abs=1e-4)
    one = see(module, data, CONFIG, lists[:1], planted_P)
    (norm,) = damages(one, groups["all that is trained"])
    n = int(np.flatnonzero(one.planted_N)[0])
    of_score = torch.autograd.grad(one.score_N[n], groups["all that is trained"])
    assert norm == pytest.approx(
        float(one.ranking_N[n]) * float(sum(g.square().sum() for g in of_score)) ** 0.5, rel=1e-4
    )


@pytest.mark.parametrize("loss", [{}, {"bound": 3.0}, {"bound": 3.0, "ranking": "debiased", "positive_share": 0.1}])
def test_gradients_are_those_of_the_training_log(base: Path, loss: dict[str, object]) -> None:
    """The cosine that training logs of its first step, of the same lists, on the last layer."""
    loss = {**loss, "temperature": 1.0}
    config = TrainConfig.model_validate({**CONFIG.model_dump(), "loss": loss, "max_steps": 1})
    chosen = false_negatives(4)
    model, data = start(base, plant(PROBLEM.examples, chosen))
    module = Trainable(model, config).train()
    phase = Phase(config.balance.alpha)
    lists = [documents_of_list(data, config, e, epoch, phase) for e, epoch in lists_of_step(data, config, 0)]
    seen = see(module, data, config, lists, marked(data, chosen), 0.1)
    every = {"all": np.ones(len(seen.list_N), dtype=bool)}
    ours = cosines(seen, weight_groups(module), every)["all"]["last layer"]
    (row,) = train(*start(base, plant(PROBLEM.examples, chosen)), None, config, TrainExecution()).rows
    assert ours == pytest.approx(row["gradient_cosine"], abs=1e-4)


def test_the_study_s_loop_is_the_product_s(base: Path) -> None:
    chosen = false_negatives(5)
    table = plant(PROBLEM.examples, chosen)
    model, data = start(base, table)
    watched, planted_P = [], marked(data, chosen)
    follow(
        Trainable(model, CONFIG).train(),
        data,
        CONFIG,
        None,
        lambda step, _: watched.append(len(lists_before(data, CONFIG, step, planted_P))),
    )
    other, again = start(base, table)
    trained = train(other, again, None, CONFIG, TrainExecution()).model.network.state_dict()
    for name, value in model.network.state_dict().items():
        torch.testing.assert_close(value, trained[name], rtol=0, atol=1e-6)
    assert len(watched) == CONFIG.max_steps
    assert sum(watched) > 0


def test_verdicts_on_cosines() -> None:
    assert verdict(np.array([0.9, 0.8]), 0.7, 0.95) == "alike"
    assert verdict(np.array([0.9, -0.9]), -0.5, 0.5) == "neither: now alike, now opposed"
