"""A pair classifier under training: labels and loss, what a step shows, resuming, and what cannot be learned from."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from anmi_ray.config.distill import LABELS, DistillConfig, Target
from anmi_ray.config.train import TrainExecution
from anmi_ray.core.errors import ConfigError, DataError, TrainingError
from anmi_ray.core.identity import digest, rng
from anmi_ray.judging.truncate import Truncator
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.models.classifier import PairClassifier
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.reranker import Reranker
from anmi_ray.training import loop
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.loop import Trained, train_task
from anmi_ray.training.preferences import (
    Apart,
    Logits,
    PairBatch,
    PairSet,
    PreferenceLoss,
    PreferenceTask,
    both_orders,
    preference_loss,
    soft_labels,
)
from tests.models.tiny import WORDS
from tests.training.folder import FolderCheckpoints
from tests.training.test_loop import InterruptedTrainingError, curve, die_after
from tests.training.two import WAYS, two_workers

TARGETS: tuple[Target, ...] = ("binary", "ternary", "two-head")
EXECUTION = TrainExecution(micro_batch_tokens=512)
CONFIG = DistillConfig(
    form="pairwise",
    target="ternary",
    pairs_per_step=8,
    max_tokens=40,
    max_steps=40,
    learning_rate=5e-3,
    head_learning_rate=1e-2,
    precision="float32",
    freeze_embeddings=False,
    dev_points=(0.5, 1.0),
)
NOW = Phase(1.0)


def changed(**more: Any) -> DistillConfig:
    return DistillConfig.model_validate(CONFIG.model_dump() | more)


def classifier(base: Path, config: DistillConfig = CONFIG) -> PairClassifier:
    return PairClassifier.start(config.model_copy(update={"model": str(base)}), config.target)


def texts(pairs: int, seed: int) -> tuple[list[tuple[str, str, str]], np.ndarray]:
    """Pairs of documents, each a word eight times; the word that stands later in WORDS is better, near ones tie."""
    generator = rng("pairs", seed)
    a, b = generator.integers(len(WORDS), size=(2, pairs))
    score = 0.5 + 0.5 * np.sign(np.where(np.abs(b - a) < 6, 0, b - a))
    return [("word3", " ".join([WORDS[x]] * 8), " ".join([WORDS[y]] * 8)) for x, y in zip(a, b, strict=True)], score


def together(model: PairClassifier, pairs: int = 320, seed: int = 0) -> PairSet:
    shown, score = texts(pairs, seed)
    both = [one for q, x, y in shown for one in ((q, x, y), (q, y, x))]
    reader = model.inputs(Truncator(model, "{query}", "{first} {sep} {second}").inputs(both))
    return PairSet(ids(pairs, seed), score, reader)


def apart(model: Reranker, pairs: int = 320, seed: int = 0) -> PairSet:
    shown, score = texts(pairs, seed)
    documents = model.pairs.of_documents([text for _, a, b in shown for text in (a, b)])
    zero = np.zeros(2 * pairs, dtype=np.int64)
    return PairSet(ids(pairs, seed), score, Apart(model, model.pairs.of_queries(["word3"]), zero, documents))


def ids(pairs: int, seed: int) -> np.ndarray:
    return np.frombuffer(b"".join(digest("pair", seed, p) for p in range(pairs)), np.uint8).reshape(pairs, 16).copy()


def accuracy(logits_RL: Logits, score_P: np.ndarray, target: Target) -> float:
    """The share of decided pairs on the right side, orders averaged."""
    lean_R = logits_RL[:, 0] if target == "two-head" else logits_RL[:, 1] - logits_RL[:, 0]
    lean_P, decided = lean_R[::2] - lean_R[1::2], score_P != 0.5
    return float(np.mean((lean_P > 0)[decided] == (score_P > 0.5)[decided]))


def run(
    base: Path, config: DistillConfig = CONFIG, pairs: int = 320, execution: TrainExecution = EXECUTION, **more: Any
) -> Trained:
    single = config.form != "pairwise"
    kind = BiEncoder if config.form == "bi-encoder" else CrossEncoder
    model: Any = kind.load(str(base), max_tokens=config.max_tokens) if single else classifier(base, config)
    make: Callable[..., PairSet] = apart if single else together
    target: Target = "binary" if single else config.target
    held = make(model, 60, 1)
    measure = lambda _, logits: accuracy(logits, held.score_P, target)  # noqa: E731
    task = partial(PreferenceTask, model, make(model, pairs), held, measure, config, execution)
    return train_task(task, config, execution, **more)


@given(st.floats(0, 1), st.sampled_from(TARGETS))
def test_exchanged_documents_exchange_the_labels(score: float, target: Target) -> None:
    one, other = (soft_labels(torch.tensor([c], dtype=torch.float64), target)[0] for c in (score, 1.0 - score))
    if target == "two-head":
        assert float(one[0] + other[0]) == pytest.approx(1.0)
        assert float(one[1]) == pytest.approx(float(other[1]), abs=1e-12)
        return
    assert float(one.sum()) == pytest.approx(1.0)
    assert len(one) == len(LABELS[target])
    assert (float(one[0]), float(one[1])) == pytest.approx((float(other[1]), float(other[0])), abs=1e-12)


def test_a_majority_of_three_is_two_thirds_of_a_tie() -> None:
    labels = soft_labels(torch.tensor([0.0, 1 / 3, 0.5, 2 / 3, 1.0], dtype=torch.float64), "ternary")
    expected = [[1, 0, 0], [1 / 3, 0, 2 / 3], [0, 0, 1], [0, 1 / 3, 2 / 3], [0, 1, 0]]
    assert labels.numpy() == pytest.approx(np.array(expected))


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_is_probability_less_label(target: Target) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, len(LABELS[target]), dtype=torch.float64, generator=generator, requires_grad=True)
    score = torch.tensor([0.0, 0.2, 0.5, 2 / 3, 1.0], dtype=torch.float64)
    torch.autograd.gradcheck(lambda z: preference_loss(z, score, target), (logits,))
    (found,) = torch.autograd.grad(preference_loss(logits, score, target).sum(), logits)
    given_ = torch.sigmoid(logits) if target == "two-head" else functional.softmax(logits, dim=1)
    assert torch.allclose(found, given_ - soft_labels(score, target), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "steps"), [("binary", 100), ("ternary", 250), ("two-head", 250)])
def test_learns_which_document_is_better(base: Path, target: Target, steps: int) -> None:
    """Of pairs that it has seen: so small a model of random weights is too little for a rule about two documents."""
    trained = run(base, changed(target=target, max_steps=steps, learning_rate=2e-3), pairs=24)
    last = [row for row in trained.rows if (row["step"] or 0) > steps - 25]
    assert np.mean([row["accuracy"] or 0.0 for row in last]) > 0.9
    assert {"loss", "accuracy", "pairs", "tokens"} <= trained.rows[0].keys()


ONE_PAIR = EXECUTION.model_copy(update={"micro_batch_tokens": 1})  # as of pairs as long as a micro-batch


@pytest.mark.parametrize(
    ("form", "pairs", "execution"),
    [("pairwise", 1, EXECUTION), ("pairwise", 2, ONE_PAIR), ("pointwise", 2, ONE_PAIR), ("bi-encoder", 2, ONE_PAIR)],
)
def test_micro_batches_of_one_pair_are_no_constant_logits(
    base: Path, monkeypatch: pytest.MonkeyPatch, form: str, pairs: int, execution: TrainExecution
) -> None:
    monkeypatch.setattr(loop, "CONSTANT_STEPS", 3)
    config = changed(form=form, target="binary", pairs_per_step=pairs, max_steps=6)
    assert len([row for row in run(base, config, execution=execution).rows if row["step"]]) == 6


@pytest.mark.parametrize("bias", [0.0, 0.1, 1e4])
@pytest.mark.parametrize("execution", [EXECUTION, ONE_PAIR])
def test_a_model_that_says_the_same_of_every_pair_stops(
    base: Path, monkeypatch: pytest.MonkeyPatch, bias: float, execution: TrainExecution
) -> None:
    monkeypatch.setattr(loop, "CONSTANT_STEPS", 3)
    config = changed(learning_rate=1e-12, head_learning_rate=1e-12)
    model = classifier(base, config)
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            parameter.fill_(bias if name.endswith("classifier.bias") else 0.0)
    data = together(model)
    task = partial(PreferenceTask, model, data, data, lambda *_: 0.0, config, execution)
    with pytest.raises(TrainingError, match="for 3 steps every pair got the same logits"):
        train_task(task, config, execution)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pointwise", "bi-encoder"])
def test_learns_from_documents_read_alone(base: Path, form: str) -> None:
    trained = run(base, changed(form=form, target="binary", max_steps=120))
    assert trained.dev is not None
    assert trained.dev > 0.8


def test_scores_of_documents_give_the_same_answer_in_both_orders() -> None:
    logits = both_orders(np.array([0.5, 2.0, -1.0, -1.0], dtype=np.float32))
    assert logits.tolist() == [[0, 1.5], [0, -1.5], [0, 0], [0, 0]]


def test_every_pair_is_shown_in_either_order_in_two_epochs(base: Path) -> None:
    data = together(classifier(base))
    pair, epochs = np.arange(len(data)), np.zeros(len(data), dtype=np.int64)
    first, second = (data.swapped(pair, 0, epochs + epoch) for epoch in (0, 1))
    assert (first + second == 1).all()
    assert 0.3 < first.mean() < 0.7
    assert (data.swapped(pair[5:9], 0, epochs[5:9]) == first[5:9]).all()


@pytest.fixture(scope="module")
def task(base: Path) -> PreferenceTask:
    model = classifier(base)
    data = together(model)
    return PreferenceTask(model, data, data, lambda *_: 0.0, CONFIG, EXECUTION)


def loss_of(task: PreferenceTask, batches: list[PairBatch]) -> float:
    objective = PreferenceLoss(torch.device("cpu"), CONFIG, task.data.reader.single)
    with torch.no_grad():
        return sum(float(objective.loss(batch, NOW, *task.module(batch.batches))) for batch in batches)


@pytest.mark.parametrize("step", [0, 7, 33])
def test_workers_and_micro_batches_share_a_step(task: PreferenceTask, step: int) -> None:
    task.module.eval()
    whole = task.batches(step, NOW, EXECUTION, 0, 1)
    parts = task.batches(step, NOW, TrainExecution(micro_batch_tokens=128, forward_tokens=128), 0, 1)
    shares = [batch for rank in range(2) for batch in task.batches(step, NOW, EXECUTION, rank, 2)]
    assert len(whole) == 1
    assert len(parts) > 1
    wanted = loss_of(task, whole)
    for other in (parts, shares):
        assert sum(len(batch.score_B) for batch in other) == CONFIG.pairs_per_step
        assert loss_of(task, other) == pytest.approx(wanted, rel=1e-5)


def test_resumed_training_goes_on_step_for_step(base: Path, tmp_path: Path) -> None:
    config = changed(dropout=0.1, max_steps=20)
    often = TrainExecution(micro_batch_tokens=512, checkpoint_minutes=0.0)

    def once(**more: Any) -> Trained:
        model = classifier(base, config)
        held = together(model, 40, 1)
        task = partial(PreferenceTask, model, together(model), held, lambda step, _: float(step), config, often)
        return train_task(task, config, often, **more)

    whole = once()
    with pytest.raises(InterruptedTrainingError):
        once(checkpoints=FolderCheckpoints(tmp_path), on_row=die_after(11))
    resumed = once(checkpoints=FolderCheckpoints(tmp_path))
    assert curve(resumed.rows) == curve(whole.rows)
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(resumed.model.network.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("pairs", "score", "said"),
    [
        (3, None, "3 pairs to learn 3 labels from"),
        (20, 0.5, "all 20 pairs are ties"),
        (20, 1.2, "20 scores are not in [0, 1], the first is 1.2"),
        (20, float("nan"), "20 scores are not in"),
    ],
)
def test_pairs_that_teach_nothing_are_named(base: Path, pairs: int, score: float | None, said: str) -> None:
    model = classifier(base)
    data = together(model, pairs)
    if score is not None:
        data = PairSet(data.comparison_P, np.full(pairs, score), data.reader)
    with pytest.raises(DataError) as raised:
        PreferenceTask(model, data, data, lambda *_: 0.0, CONFIG, EXECUTION)
    assert said in str(raised.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # DeepSpeed's import
def test_two_workers_have_the_curve_of_one(base: Path, tmp_path: Path) -> None:
    """Losses to float32's rounding; the held-out pairs' logits, read by both, are one worker's."""
    two_workers("tests.training.test_preferences", base, tmp_path)
    for name, config in ways().items():
        alone = run(base, config)
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["loss"] == pytest.approx([row["loss"] for row in alone.rows], rel=2e-4), name
        assert found["dev"] == alone.dev, name


def ways() -> dict[str, DistillConfig]:
    """Every engine and stage for two documents read together, and one engine for a score each, and for few pairs."""
    found = {
        name: changed(engine=engine, zero_stage=stage, max_steps=12, learning_rate=5e-4)
        for name, (engine, stage) in WAYS.items()
    }
    found["pointwise"] = changed(form="pointwise", target="binary", max_steps=12, learning_rate=5e-4)
    return found | {"a pair each": changed(pairs_per_step=2, max_steps=loop.CONSTANT_STEPS, learning_rate=5e-4)}


def work(base: Path, output: Path, rank: int) -> None:
    """What each of two workers does: train in every way; rank 0 writes the losses and the dev measure."""
    for name, config in ways().items():
        trained = run(base, config)
        if rank == 0:
            found = {"loss": [row["loss"] for row in trained.rows], "dev": trained.dev}
            (output / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def test_workers_that_do_not_divide_a_step_are_named(task: PreferenceTask) -> None:
    with pytest.raises(ConfigError, match=r"pairs_per_step is 8, not a multiple of 3 workers"):
        task.batches(0, NOW, EXECUTION, 0, 3)
