"""Training a bi-encoder: against encoding every pair by itself, sentence-transformers' loss, and execution settings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor

from anmi_ray.config.base import result_settings
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.cross_encoder import tensors
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.training.batching import (
    Listed,
    effective_weights,
    in_batch_negatives,
    lists_of_step,
    step_batches,
)
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Row, Trained, train
from anmi_ray.training.module import Trainable
from anmi_ray.training.objective import Objective
from anmi_ray.training.training_set import TrainingSet, prepare
from anmi_ray.training.vectors import VectorTrainable, trainable
from tests.training.folder import FolderCheckpoints
from tests.training.lists import planted
from tests.training.test_loop import InterruptedTrainingError, curve, dev_set, die_after
from tests.training.two import two_workers

# DeepSpeed calls collectives that torch has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

ALL = Phase(0.7)
PLAIN: dict[str, Any] = {
    "student": "bi-encoder",
    "engine": "ddp",
    "lists_per_step": 8,
    "max_tokens": 32,
    "max_steps": 6,
    "learning_rate": 3e-3,
    "precision": "float32",
    "freeze_embeddings": False,
    "dev_points": (0.5, 1.0),
}
SMALL, LARGE = TrainExecution(micro_batch_tokens=128), TrainExecution(micro_batch_tokens=100_000)
LENT = {"in_batch": True, "in_batch_lists": 4}


@pytest.fixture(scope="module")
def data(base: Path) -> TrainingSet:
    return start(base)[1]


def start(base: Path) -> tuple[BiEncoder, TrainingSet]:
    """The planted lists, but of twelve queries in place of 24 and with documents that stand in several lists."""
    problem, model = planted(), BiEncoder.load(str(base), max_tokens=32)
    found = problem.lists(model.pairs)
    return model, replace(found, query_E=found.query_E % 12, document_P=found.document_P * 7 % 90)


def settings(**more: Any) -> TrainConfig:
    return TrainConfig.model_validate(PLAIN | more)


# as the student's usual settings: no regression
LATE = settings(student="late-interaction", loss=LENT, balance={"alpha": 1.0})


def loaded(base: Path) -> LateInteraction:
    return LateInteraction.load(str(base), max_tokens=32)


def run(base: Path, data: TrainingSet, config: TrainConfig, execution: TrainExecution = LARGE, **more: Any) -> Trained:
    model = BiEncoder.load(str(base), max_tokens=32)
    return train(model, data, dev_set(model)[0], config, execution, **more)


def losses(trained: Trained) -> list[float]:
    return [float(row["loss"] or 0.0) for row in trained.rows]


def gradients(module: Trainable) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def step_gradients(
    module: Trainable, data: TrainingSet, config: TrainConfig, execution: TrainExecution, world: int = 1
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Gradients and figures of step 0, its micro-batches of all workers one after the other."""
    module.zero_grad()
    objective = Objective(module, config, 1, None)
    for rank in range(world):
        for batch in step_batches(data, config, 0, ALL, execution, rank, world):
            objective.loss(batch, ALL, *module(batch.batches)).backward()
    return gradients(module), objective.finish(objective.sums(), ALL, 0)


def check_step(
    module: Trainable,
    data: TrainingSet,
    config: TrainConfig,
    naive: Tensor,
    ways: Sequence[tuple[TrainExecution, int]] = ((LARGE, 1), (SMALL, 1), (SMALL, 2)),
) -> None:
    """Loss and gradients of step 0, however it is executed by so many workers, are those of a naive loss."""
    naive.backward()
    wanted = gradients(module)
    for execution, world in ways:
        found, figures = step_gradients(module, data, config, execution, world)
        assert figures["loss"] == pytest.approx(float(naive.detach()), rel=1e-5)
        assert found.keys() == wanted.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=2e-5, msg=name)


def of_one(module: Trainable, data: TrainingSet, texts: Any, i: int) -> Any:
    """What the network gives of a text encoded by itself."""
    return module.network(**tensors(data.pairs.batch([texts[i]]), torch.device("cpu")))  # type: ignore[union-attr, call-arg, arg-type]


def cosine_alone(module: Trainable, data: TrainingSet, query: int, document: int) -> list[Tensor]:
    """The scores that a bi-encoder's loss reads of a pair: the cosine."""
    return [of_one(module, data, data.queries, query)[0] @ of_one(module, data, data.documents, document)[0]]


def naive_loss(
    module: Trainable,
    data: TrainingSet,
    config: TrainConfig,
    scored: Callable[[Trainable, TrainingSet, int, int], list[Tensor]] = cosine_alone,
) -> Tensor:
    """α·(38) + (1 − α)·(40), both texts of every pair encoded anew, the groups' documents compared as sets.

    Of several scores of a pair each has a ranking term, of which the mean counts, and the first one is regressed.
    """
    temperature = config.start_temperature
    step = [e for e, _ in lists_of_step(data.order, config, 0)]
    of_query: dict[int, set[int]] = {}
    for e, query in enumerate(data.query_E.tolist()):
        of_query.setdefault(query, set()).update(data.document_P[data.start_E[e] : data.start_E[e + 1]].tolist())
    total, size = torch.zeros(()), config.loss.in_batch_lists or config.lists_per_step
    for i, e in enumerate(step):
        positions = np.arange(data.start_E[e], data.start_E[e + 1])
        query, weight = int(data.query_E[e]), effective_weights(data, positions, ALL)
        lent = set[int]()
        if config.loss.in_batch:
            group = step[i // size * size : i // size * size + size]
            lent = {int(d) for f in group for d in data.document_P[data.start_E[f] : data.start_E[f + 1]]}
        own = [scored(module, data, query, int(document)) for document in data.document_P[positions]]
        others = [scored(module, data, query, document) for document in lent - of_query[query]]
        ranking = []
        for view in range(len(own[0])):
            terms = [own[0][view] / temperature]
            read = zip(own[1:], weight[1:], strict=True)
            terms += [s[view] / temperature + math.log(w) for s, w in read if w > 0]
            terms += [s[view] / temperature for s in others]
            ranking.append(torch.logsumexp(torch.stack(terms), 0) - terms[0])
        wanted = torch.tensor((data.rating_P[positions] - data.mean_E[e]) / data.spread_E[e]).float()
        rated = wanted.isfinite()
        first = torch.stack([s[0] for s in own])
        precision = torch.from_numpy(data.rating_precision_P[positions]).float()
        missed = (module.log_scale.exp() * first + module.shift - wanted)[rated]
        error = (precision[rated] * missed.square()).mean()
        total = total + (0.7 * torch.stack(ranking).mean() + 0.3 * error) / len(step)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("loss", [{}, LENT, {"in_batch": True, "temperature": 0.5}])
def test_a_step_is_that_of_encoding_every_pair_by_itself(base: Path, data: TrainingSet, loss: dict[str, Any]) -> None:
    config = settings(loss=loss)
    module = trainable(BiEncoder.load(str(base), max_tokens=32), config)
    assert isinstance(module, VectorTrainable)
    one_group = loss.get("in_batch") and "in_batch_lists" not in loss
    ways = (LARGE, 1), (SMALL, 1), (SMALL, 1 if one_group else 2)
    check_step(module, data, config, naive_loss(module, data, config), ways)


def test_distinct_texts_are_encoded_once_and_a_whole_group_in_parts(base: Path, data: TrainingSet) -> None:
    for loss in ({}, LENT):
        config = settings(loss=loss)
        (whole,) = step_batches(data, config, 0, ALL, LARGE)
        lists = [e for e, _ in lists_of_step(data.order, config, 0)]
        documents = {int(d) for e in lists for d in data.document_P[data.start_E[e] : data.start_E[e + 1]]}
        rows = sum(len(batch.ids) for batch in whole.batches)
        assert rows == len(documents) + len({int(data.query_E[e]) for e in lists})
        parts = step_batches(data, config, 0, ALL, SMALL)
        assert len(parts) == 2 if loss else len(parts) > 2  # groups of four lists, or lists
        assert not whole.batches.recompute  # type: ignore[union-attr]
        recomputed = [part.batches.recompute for part in parts]  # type: ignore[union-attr]
        assert all(recomputed) if loss else not any(recomputed)


@given(st.data())
def test_lent_documents_are_those_of_the_group_that_no_list_of_the_query_has(draw: st.DataObject) -> None:
    sizes = draw.draw(st.lists(st.integers(2, 4), min_size=2, max_size=8))
    lists, total = len(sizes), sum(sizes)
    start = np.concatenate([[0], np.cumsum(sizes)])
    document = np.array(draw.draw(st.lists(st.integers(0, 12), min_size=total, max_size=total)))
    query = np.array(draw.draw(st.lists(st.integers(0, 3), min_size=lists, max_size=lists)))
    columns: dict[str, Any] = {field.name: None for field in fields(TrainingSet) if field.init}
    columns |= {"query_E": query, "start_E": start, "document_P": document, "queries": range(4)}
    copy = np.array(draw.draw(st.lists(st.integers(0, 12), min_size=13, max_size=13)))
    own = np.array(draw.draw(st.lists(st.integers(-1, 12), min_size=4, max_size=4)))
    columns |= {"copy_D": copy, "own_Q": own}
    few = TrainingSet(**columns)
    chosen = draw.draw(st.lists(st.integers(0, lists - 1), min_size=1, max_size=6))
    group = [Listed(e, np.arange(start[e], start[e + 1]), np.ones(sizes[e])) for e in chosen]
    in_group = {int(d) for e in chosen for d in document[start[e] : start[e + 1]]}
    for one, found in zip(group, in_batch_negatives(few, group), strict=True):
        e = one.e
        mine = {int(d) for f in range(lists) if query[f] == query[e] for d in document[start[f] : start[f + 1]]}
        excluded = {int(copy[d]) for d in (mine | {int(own[query[e]])}) - {-1}}
        first = {int(copy[d]): d for d in sorted(in_group, reverse=True)}
        assert found.tolist() == sorted(d for text, d in first.items() if text not in excluded)


def test_copies_and_own_documents_are_found_by_token_list(base: Path) -> None:
    problem = planted(lists=4, negatives=2, randoms=0)
    ids, texts = (problem.texts[name].to_pylist() for name in ("doc_id", "text"))
    texts[5] = f" {texts[2].upper()}"
    table = problem.texts.set_column(problem.texts.schema.get_field_index("text"), "text", [texts])
    own = pa.table({"query_id": problem.queries["query_id"].slice(1, 1), "doc_id": problem.texts["doc_id"].slice(7, 1)})
    model = BiEncoder.load(str(base), max_tokens=32)
    data = prepare([problem.examples], [table], [problem.queries], model.pairs, own=[own])
    at = {ids[i]: data.document_P[[doc.tobytes() for doc in data.doc_id_P].index(ids[i])] for i in (2, 5, 7)}
    assert data.copy_D[at[ids[2]]] == data.copy_D[at[ids[5]]]
    assert sorted(data.own_Q.tolist()) == [-1, -1, -1, at[ids[7]]]


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_in_batch_is_multiple_negatives_ranking_of_sentence_transformers(base: Path, temperature: float) -> None:
    problem, model = planted(lists=6, negatives=2, randoms=0), BiEncoder.load(str(base), max_tokens=32)
    data = problem.lists(model.pairs)
    data = replace(data, weight_P=np.ones_like(data.weight_P))
    config = settings(lists_per_step=6, loss={"in_batch": True, "temperature": temperature}, balance={"alpha": 1.0})
    module = trainable(model, config)
    (batch,) = step_batches(data, config, 0, Phase(1.0), LARGE)
    assert batch.mask_BK.sum() == 6 * 18
    score, predicted = module(batch.batches)
    loss = Objective(module, config, 1, None).loss(batch, Phase(1.0), score, predicted)

    published = SentenceTransformer(str(model.export(base.parent / f"export-{temperature}")), device="cpu")
    features = [published.preprocess(texts) for texts in problem.columns()]
    theirs = MultipleNegativesRankingLoss(published, scale=1 / temperature)(features, torch.zeros(6))
    assert float(loss.detach()) == pytest.approx(float(theirs.detach()), rel=1e-4)


@pytest.mark.parametrize("loss", [{}, LENT | {"learn_temperature": True}])
def test_execution_changes_no_result(base: Path, data: TrainingSet, loss: dict[str, Any]) -> None:
    config = settings(loss=loss)
    one, many = (run(base, data, config, execution) for execution in (LARGE, SMALL))
    assert losses(one) == pytest.approx(losses(many), rel=1e-4)
    assert one.dev == pytest.approx(many.dev, abs=1e-3)
    names = ("gradient_ranking", "gradient_regression", "gradient_cosine", "gradient_norm")
    for ours, theirs in zip(one.rows, many.rows, strict=True):
        assert [ours[name] for name in names] == pytest.approx([theirs[name] for name in names], rel=2e-3, abs=1e-4)


@pytest.fixture(scope="module")
def plain(base: Path, data: TrainingSet) -> Trained:
    """What plain torch trains."""
    return run(base, data, settings(loss=LENT, max_steps=3))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_deepspeed_has_the_curve_of_plain_torch(base: Path, data: TrainingSet, plain: Trained, stage: int) -> None:
    deep = run(base, data, settings(loss=LENT, max_steps=3, engine="deepspeed", zero_stage=stage), SMALL)
    assert losses(deep) == pytest.approx(losses(plain), rel=2e-3)
    assert deep.dev == pytest.approx(plain.dev, abs=1e-3)


@pytest.mark.slow
def test_two_workers_have_the_curve_of_one(base: Path, data: TrainingSet, tmp_path: Path) -> None:
    alone = train(start(base)[0], data, None, settings(loss=LENT), LARGE)
    by_tokens = train(loaded(base), data, None, LATE, LARGE)
    two_workers("tests.training.test_vectors", base, tmp_path)
    for name, one in (("ddp", alone), ("deepspeed", alone), ("late", by_tokens)):
        found = np.array(json.loads((tmp_path / f"{name}.json").read_text()))
        np.testing.assert_allclose(found[:, 0], losses(one), rtol=2e-3)
        np.testing.assert_allclose(found[:, 1], [float(row["gradient_share"] or 0.0) for row in one.rows], rtol=5e-3)


def work(base: Path, output: Path, rank: int) -> None:
    """What each of two workers does: both engines, and late interaction, each worker one group in parts."""
    ways = {engine: settings(loss=LENT, engine=engine, zero_stage=2) for engine in ("ddp", "deepspeed")}
    for name, config in (ways | {"late": LATE}).items():
        model, data = start(base)
        trained = train(loaded(base) if name == "late" else model, data, None, config, SMALL)
        if rank == 0:
            figures = [[row["loss"], row["gradient_share"]] for row in trained.rows]
            (output / f"{name}.json").write_text(json.dumps(figures), encoding="utf-8")


def check_resumes(run: Callable[..., Trained], folder: Path) -> None:
    """A training of six steps that dies after the fourth goes on to the same weights, to the last bit."""
    whole = run(SMALL)
    checkpoints, seen = FolderCheckpoints(folder / "ckpt", kept=2), list[Row]()
    often = SMALL.model_copy(update={"checkpoint_minutes": 0.0})
    with pytest.raises(InterruptedTrainingError):
        run(often, checkpoints=checkpoints, on_row=die_after(4))
    resumed = run(often, checkpoints=checkpoints, on_row=seen.append)
    assert [row["step"] for row in seen] == [4, 5, 6]
    assert curve(resumed.rows) == curve(whole.rows)
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(value, resumed.model.network.state_dict()[name]), name


@pytest.mark.slow
def test_resumes_step_for_step(base: Path, data: TrainingSet, tmp_path: Path) -> None:
    config = settings(dropout=0.1, loss=LENT | {"learn_temperature": True}, balance={"rule": "gradnorm"})
    check_resumes(partial(run, base, data, config), tmp_path)


@pytest.mark.slow
def test_learns_the_planted_signal_and_the_result_scores_as_measured(base: Path) -> None:
    model = BiEncoder.load(str(base), max_tokens=32)
    data = planted().lists(model.pairs)
    trained = run(base, data, settings(max_steps=60))
    dev, _ = dev_set(model)
    before = dev.measure(model.score_tokens(dev.tokens))
    assert trained.dev is not None
    assert trained.dev > max(before + 0.3, 0.2)
    assert isinstance(trained.model, BiEncoder)
    scores = trained.model.score_tokens(dev.tokens)
    assert dev.measure(scores) == pytest.approx(trained.dev, abs=1e-6)


def test_gradients_on_the_vectors_are_those_of_backward_passes(base: Path, data: TrainingSet) -> None:
    """Every list's own query vector and document vectors as leaves of unit length, normalised in the graph."""
    config = settings(loss=LENT)
    module = trainable(BiEncoder.load(str(base), max_tokens=32), config)
    _, figures = step_gradients(module, data, config, SMALL)  # type: ignore[arg-type]
    (batch,) = step_batches(data, config, 0, ALL, LARGE)
    pairs: Any = batch.batches
    module(pairs)  # what the objective measures is of the newest call
    with torch.no_grad():
        vectors = torch.cat([module.network(**tensors(one, torch.device("cpu"))) for one in pairs])
    leaves = [
        vectors[rows].clone().requires_grad_(True) for rows in (pairs.query_L, pairs.document_D[pairs.document_N])
    ]
    query, document = (torch.nn.functional.normalize(leaf, dim=1) for leaf in leaves)
    score = (query[pairs.list_N] * document).sum(1)
    objective, found = Objective(module, config, 1, None), []
    for alpha in (1.0, 0.0):
        loss = objective.loss(batch, Phase(alpha), score, module.mapped(score))
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves, retain_graph=True)]))
    assert figures["gradient_ranking"] == pytest.approx(0.7 * float(found[0].norm()), rel=1e-3)
    assert figures["gradient_regression"] == pytest.approx(0.3 * float(found[1].norm()), rel=1e-3)
    cosine = torch.cosine_similarity(found[0], found[1], dim=0)
    assert figures["gradient_cosine"] == pytest.approx(float(cosine), abs=1e-3)


def test_runs_of_cross_encoders_keep_their_fingerprints() -> None:
    assert result_settings(TrainConfig()) == {}
    assert result_settings(TrainConfig(student="bi-encoder")) == {"student": "bi-encoder"}


def test_cosines_are_bounded_and_default_to_the_reports_temperature() -> None:
    assert settings().start_temperature == settings(loss={"ranking": "debiased"}).start_temperature == 0.07
    assert settings(loss={"temperature": 0.2, "learn_temperature": True}).start_temperature == 0.2
    assert TrainConfig().start_temperature == 1.0
    assert TrainConfig.model_validate({"loss": {"bound": 3}}).start_temperature == 0.07


def test_what_groups_need_is_said(base: Path, data: TrainingSet) -> None:
    with pytest.raises(ConfigError, match="2 groups that share negatives, which 4 workers") as caught:
        step_batches(data, settings(loss=LENT), 0, ALL, SMALL, 0, 4)
    assert "set it to 2; or set execution.train.num_workers to 1" in str(caught.value)
    unweighted = replace(data, weight_P=np.zeros_like(data.weight_P))
    with pytest.raises(DataError, match="every negative of 24 lists has weight 0"):
        run(base, unweighted, settings(max_steps=2))
    assert len(run(base, unweighted, settings(loss=LENT, max_steps=2, dev_points=())).rows) == 2  # lent ones have
