"""The loop: learns a planted signal, resumes step for step, engines agree, and says what went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from anmi_ray.config.learning import Offload
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError, DataError, TrainingError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.pairs import TokenPairs
from anmi_ray.models.reranker import Reranker
from anmi_ray.training import loop
from anmi_ray.training.batching import Ahead
from anmi_ray.training.loop import Row, Trained, train
from anmi_ray.training.task import DevSet
from anmi_ray.training.training_set import TrainingSet
from tests.training.folder import FolderCheckpoints
from tests.training.lists import planted
from tests.training.two import WAYS, two_workers

# DeepSpeed calls collectives that torch has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

EXECUTION = TrainExecution(micro_batch_tokens=512)
CONFIG = TrainConfig(
    engine="ddp",
    lists_per_step=8,
    max_tokens=32,
    max_steps=12,
    learning_rate=3e-3,
    head_learning_rate=1e-2,
    precision="float32",
    freeze_embeddings=False,
    dev_points=(0.5, 1.0),
)


def start(base: Path, config: TrainConfig = CONFIG) -> tuple[CrossEncoder, TrainingSet]:
    model = CrossEncoder.load(str(base), pooling=config.pooling, max_tokens=config.max_tokens, seed=config.seed)
    return model, planted().lists(model.pairs)


def dev_set(model: Reranker) -> tuple[DevSet, NDArray[np.float64]]:
    """All documents of other lists than those trained on, and the correlation of score and worth as the measure."""
    problem = planted(lists=12, seed=7)
    worth = np.array(list(problem.worth.values()))
    queries = model.pairs.of_queries(problem.queries["text"].to_pylist())
    documents = model.pairs.of_documents(problem.texts["text"].to_pylist())
    index = np.arange(len(documents))

    def measure(score: NDArray[np.float32]) -> float:
        return float(np.corrcoef(score, worth)[0, 1])

    return DevSet(TokenPairs(queries, index % 12, documents, index), measure), worth


def run(base: Path, config: TrainConfig = CONFIG, **options: Any) -> Trained:
    model, data = start(base, config)
    return train(model, data, dev_set(model)[0], config, EXECUTION, **options)


def curve(rows: list[Row]) -> list[list[float | int | None]]:
    """The rows without what depends on the clock."""
    return [[value for name, value in row.items() if "second" not in name] for row in rows]


def changed(**settings: Any) -> TrainConfig:
    return TrainConfig.model_validate(CONFIG.model_dump() | settings)


ALONE: dict[str, Any] = {"balance": {"alpha": 1.0}}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "regression alone": {"balance": {"alpha": 0.0}},
    "hybrid": {},
    "infonce alone": ALONE,
    "debiased, learned temperature": {
        "loss": {"ranking": "debiased", "bound": 3.0, "learn_temperature": True, "temperature": 0.5, "hardness": 0.5},
        "balance": {"rule": "estimated"},
    },
    "ranknet": {"loss": {"ranking": "ranknet"}, "balance": {"alpha": 1.0}},
    "listnet and margins": {"loss": {"ranking": "listnet", "regression": "margins"}},
    "uncertainty": {"balance": {"rule": "uncertainty"}},
    "learned alpha": {"balance": {"rule": "learned"}},
    "gradnorm": {"balance": {"rule": "gradnorm"}},
    "learning progress": {"curriculum": {"rule": "progress", "bands": 3}},
    "window": {"curriculum": {"rule": "window"}},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_learns_the_planted_signal_with_every_objective(base: Path, name: str) -> None:
    config = changed(max_steps=60, **OBJECTIVES[name])
    trained = run(base, config, false_negative_rate=0.05)
    assert trained.dev is not None
    assert trained.dev > 0.35
    assert trained.best_step in (30, 60)
    assert all(
        row["gradient_share"] is None or 0 <= row["gradient_share"] <= 1 for row in trained.rows if "loss" in row
    )
    assert [row["dev"] for row in trained.rows if row["dev"] is not None] == pytest.approx(
        [row["dev"] for row in trained.rows if row["step"] in (30, 60)]
    )
    model, _ = start(base)
    dev, _ = dev_set(model)
    scores = trained.model.score_tokens(dev.tokens)
    assert dev.measure(scores) == pytest.approx(trained.dev, abs=1e-6)


class InterruptedTrainingError(Exception):
    """Stands for a process that dies."""


def die_after(step: int) -> Callable[[Row], None]:
    def on_row(row: Row) -> None:
        if row["step"] == step:
            raise InterruptedTrainingError

    return on_row


LEARNED = {
    "loss": {"ranking": "debiased", "bound": 3.0, "learn_temperature": True, "positive_share": 0.05},
    "curriculum": {"rule": "progress", "bands": 2},
}
UNCERTAIN = LEARNED | {"balance": {"rule": "uncertainty"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "settings"),
    [
        ("ddp", {"curriculum": {"rule": "table3"}}),
        ("deepspeed", {"curriculum": {"rule": "window"}, "balance": {"rule": "gradnorm"}}),
        ("ddp", UNCERTAIN),
        ("deepspeed", LEARNED | {"balance": {"rule": "learned"}}),
    ],
)
def test_resumes_step_for_step(base: Path, tmp_path: Path, engine: str, settings: dict[str, Any]) -> None:
    config = changed(engine=engine, dropout=0.1, **settings)
    execution = EXECUTION.model_copy(update={"checkpoint_minutes": 0.0})
    model, data = start(base, config)
    whole = train(model, data, dev_set(model)[0], config, EXECUTION)
    checkpoints = FolderCheckpoints(tmp_path / "ckpt", kept=2)
    model, data = start(base, config)
    with pytest.raises(InterruptedTrainingError):
        train(model, data, dev_set(model)[0], config, execution, checkpoints, on_row=die_after(8))
    assert [path.name for path in sorted((tmp_path / "ckpt").iterdir())] == ["step-000000006", "step-000000007"]
    seen: list[Row] = []
    model, data = start(base, config)
    resumed = train(model, data, dev_set(model)[0], config, execution, checkpoints, on_row=seen.append)
    assert [row["step"] for row in seen] == [8, 9, 10, 11, 12]
    assert curve(resumed.rows) == curve(whole.rows)
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(value, resumed.model.network.state_dict()[name]), name


@pytest.fixture(scope="module")
def plain(base: Path) -> Trained:
    """What plain torch trains."""
    return run(base, changed(**UNCERTAIN))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_has_the_curve_of_plain_torch(base: Path, plain: Trained, stage: int) -> None:
    held = psutil.Process().memory_info().data
    deep = run(base, changed(**UNCERTAIN, engine="deepspeed", zero_stage=stage))
    assert psutil.Process().memory_info().data - held < 1 << 30  # DeepSpeed's buffers follow the model, not its default
    for ours, theirs in zip(deep.rows, plain.rows, strict=True):
        names = ("loss", "ranking", "regression", "gradient_norm", "learning_rate", "temperature", "alpha", "band_1")
        for name in names:
            assert ours[name] == pytest.approx(theirs[name], rel=2e-3, abs=1e-5), (name, ours["step"])
    assert deep.dev == pytest.approx(plain.dev, abs=1e-3)


@pytest.mark.parametrize("curriculum", [{"rule": "table3"}, OBJECTIVES["window"]["curriculum"], {"rule": "progress"}])
def test_batches_made_ahead_change_no_step(
    base: Path, monkeypatch: pytest.MonkeyPatch, curriculum: dict[str, Any]
) -> None:
    config = changed(curriculum=curriculum, dev_points=(0.25, 0.5, 0.75, 1.0))
    ahead = run(base, config)
    monkeypatch.setattr(Ahead, "prepare", lambda self, step, phase: None)
    assert curve(run(base, config).rows) == curve(ahead.rows)


def test_micro_batches_change_no_step(base: Path) -> None:
    model, data = start(base)
    one = train(model, data, None, CONFIG, TrainExecution(micro_batch_tokens=100_000))
    model, data = start(base)
    many = train(model, data, None, CONFIG, TrainExecution(micro_batch_tokens=128))
    assert [row["loss"] for row in one.rows] == pytest.approx([row["loss"] for row in many.rows], rel=1e-3)
    model, data = start(base)
    few = train(model, data, None, CONFIG, TrainExecution(micro_batch_tokens=512, use_gpu=True))  # a GPU's batches
    assert [row["loss"] for row in one.rows] == pytest.approx([row["loss"] for row in few.rows], rel=1e-3)
    assert one.best_step == many.best_step == 12


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "offload"), [(1, "optimizer"), (2, "optimizer"), (3, "parameters")])
def test_offloading_changes_no_step_and_resumes_either_way(
    base: Path, tmp_path: Path, stage: int, offload: Offload
) -> None:
    config = changed(engine="deepspeed", zero_stage=stage)
    ways = [EXECUTION.model_copy(update={"offload": way, "checkpoint_minutes": 0.0}) for way in ("none", offload)]
    whole = [train(*start(base, config), None, config, way).rows for way in ways]
    losses = [row["loss"] for row in whole[0]]
    assert [row["loss"] for row in whole[1]] == pytest.approx(losses, rel=1e-5)
    for first, second in (ways, ways[::-1]):
        checkpoints = FolderCheckpoints(tmp_path / first.offload)
        with pytest.raises(InterruptedTrainingError):
            train(*start(base, config), None, config, first, checkpoints, on_row=die_after(8))
        resumed = train(*start(base, config), None, config, second, checkpoints)
        assert [row["loss"] for row in resumed.rows] == pytest.approx(losses, rel=1e-5)


def test_offloading_without_what_it_needs_is_refused(base: Path) -> None:
    for config, offload in ((CONFIG, "optimizer"), (changed(engine="deepspeed", zero_stage=2), "parameters")):
        model, data = start(base, config)
        with pytest.raises(ConfigError, match=f"{offload} needs train.engine: deepspeed and train.zero_stage"):
            train(model, data, None, config, EXECUTION.model_copy(update={"offload": offload}))


@pytest.mark.slow
def test_two_workers_have_the_curve_of_one(base: Path, tmp_path: Path) -> None:
    alone = {
        config.balance.alpha: [row["loss"] for row in train(*start(base), None, config, EXECUTION).rows]
        for config in (CONFIG, changed(**ALONE))
    }
    two_workers("tests.training.test_loop", base, tmp_path)
    for name, config in ways().items():
        losses = json.loads((tmp_path / f"{name}.json").read_text())
        assert losses == pytest.approx(alone[config.balance.alpha], rel=2e-3), name


def ways() -> dict[str, TrainConfig]:
    """Every engine and stage, and both engines with the ranking term alone, which reaches no map to ratings."""
    found = {name: changed(engine=engine, zero_stage=stage) for name, (engine, stage) in WAYS.items()}
    return found | {f"{engine} alone": changed(engine=engine, **ALONE) for engine in ("ddp", "deepspeed")}


def work(base: Path, output: Path, rank: int) -> None:
    """What each of two workers does: train in every way; rank 0 writes the losses."""
    for name, config in ways().items():
        trained = train(*start(base, config), None, config, EXECUTION)
        if rank == 0:
            (output / f"{name}.json").write_text(json.dumps([row["loss"] for row in trained.rows]), encoding="utf-8")


def test_frozen_weights_stay_and_others_move(base: Path) -> None:
    config = CONFIG.model_copy(update={"freeze_embeddings": True, "freeze_layers": 1, "max_steps": 2})
    model, data = start(base, config)
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    after = train(model, data, None, config, EXECUTION).model.network.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved
    assert all("layer.1" in name or "pooler" in name or "classifier" in name for name in moved)


def test_a_diverging_run_stops_with_a_remedy(base: Path) -> None:
    model, data = start(base)
    with torch.no_grad():
        next(model.network.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingError, match="loss is nan") as caught:
        train(model, data, None, CONFIG, EXECUTION)
    assert "learning_rate" in str(caught.value)


def test_a_model_that_scores_everything_alike_stops(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CONSTANT_STEPS", 3)
    config = CONFIG.model_copy(update={"learning_rate": 1e-12, "head_learning_rate": 1e-12})
    model, data = start(base, config)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    with pytest.raises(TrainingError, match="got one score"):
        train(model, data, None, config, EXECUTION)


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ({"learning_rate": 1e-30}, "^training: train.learning_rate moved no weight in 12 steps"),
        ({"head_learning_rate": 1e-30}, "^training: train.head_learning_rate moved no weight"),
        ({"learning_rate": 1e-30, "head_learning_rate": 1e-30, "max_steps": 60}, "head_learning_rate .* in 50 steps"),
    ],
)
def test_a_learning_rate_without_effect_is_said(base: Path, rates: dict[str, Any], said: str) -> None:
    config = CONFIG.model_copy(update=rates)
    model, data = start(base, config)
    with pytest.raises(TrainingError, match=said):
        train(model, data, None, config, EXECUTION)


@pytest.mark.parametrize("rate", [1e-9, 3e-8])
def test_a_small_learning_rate_has_an_effect(base: Path, rate: float) -> None:
    config = CONFIG.model_copy(update={"learning_rate": rate, "head_learning_rate": rate, "max_steps": 2})
    model, data = start(base, config)
    assert len(train(model, data, None, config, EXECUTION).rows) == 2


def unweighted(data: TrainingSet) -> TrainingSet:
    """The same lists with weight 0 for every negative."""
    weight = np.zeros_like(data.weight_P)
    weight[data.start_E[:-1]] = 1.0
    return replace(data, weight_P=weight)


@pytest.mark.parametrize(("curriculum", "alpha"), [("fixed", 0.7), ("fixed", 1.0), ("table3", 0.7)])
def test_lists_without_a_weighted_negative_are_refused_before_the_first_step(
    base: Path, curriculum: str, alpha: float
) -> None:
    config = changed(curriculum={"rule": curriculum}, balance={"alpha": alpha})
    model, data = start(base, config)
    rows: list[Row] = []
    with pytest.raises(DataError, match="every negative of 24 lists has weight 0") as caught:
        train(model, unweighted(data), None, config, EXECUTION, on_row=rows.append)
    assert rows == []
    assert "train.balance.alpha=0" in str(caught.value)


def test_a_minimum_gap_above_all_gaps_leaves_no_negative_and_ratings_alone_need_none(base: Path) -> None:
    far = changed(curriculum={"minimum_gap_elo": 1e6})
    model, data = start(base, far)
    random = replace(data, weight_P=np.where(np.isnan(data.gap_P), 0.0, data.weight_P))
    with pytest.raises(DataError, match="minimum_gap_elo"):
        train(model, random, None, far, EXECUTION)
    ratings = changed(balance={"alpha": 0.0}, max_steps=2)
    assert len(train(model, unweighted(data), None, ratings, EXECUTION).rows) == 2
    one = unweighted(data)
    one.weight_P[1] = 0.5  # one negative is enough to begin
    model, _ = start(base)
    few = CONFIG.model_copy(update={"max_steps": 2})
    assert len(train(model, one, None, few, EXECUTION).rows) == 2
